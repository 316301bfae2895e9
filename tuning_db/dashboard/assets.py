"""The style, the scripts and Plotly, read once. Each is served under a name that holds its digest, so that it can be kept."""

from __future__ import annotations

import re
from base64 import b64encode
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path

from fuseplan.drawing import colors, variables
from fuseplan.tuning_db.dashboard.needed import plotly_js

FOLDER = Path(__file__).parent / "static"
_TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}


@dataclass(frozen=True)
class Asset:
    """One file that pages refer to."""

    name: str
    content: bytes

    @cached_property
    def path(self) -> str:
        """Where it is served."""
        stem, _, ending = self.name.rpartition(".")
        return f"/static/{stem}.{sha256(self.content).hexdigest()[:12]}.{ending}"

    @property
    def type(self) -> str:
        """Its media type."""
        return _TYPES[Path(self.name).suffix]

    @property
    def text(self) -> str:
        """Text as it stands within an exported page."""
        return self.content.decode("utf-8")

    @property
    def csp_hash(self) -> str:
        """What a Content-Security-Policy calls it when it stands within a page."""
        return csp_hash(self.content)


def csp_hash(content: bytes) -> str:
    """What a Content-Security-Policy calls this content.

    >>> csp_hash(b"")
    "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"
    """
    return f"'sha256-{b64encode(sha256(content).digest()).decode('ascii')}'"


def assets() -> dict[str, Asset]:
    """Assets by name: the scripts in the order in which they run, Plotly last."""
    files = sorted(path for path in FOLDER.iterdir() if path.suffix in _TYPES)
    found = {path.name: Asset(path.name, path.read_bytes()) for path in files}
    style = found["dashboard.css"]
    found[style.name] = Asset(style.name, style.content + _executors_css().encode("utf-8"))
    return {**found, "plotly.js": Asset("plotly.js", plotly_js().read_bytes())}


def _executors_css() -> str:
    """The colours of executors as variables, of swatches and of bars: each executor says its own."""
    light, dark = (variables(theme) for theme in (0, 1))
    each = "".join(f".swatch.by-{one}{{background:var(--{one})}}.ex.by-{one}{{fill:var(--{one})}}" for one in colors())
    return (
        f":root{{{light}}}@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{{dark}}}}}"
        f":root[data-theme=dark]{{{dark}}}{each}\n"
    )


def plotly_styles(plotly: Asset) -> list[str]:
    """The hashes of the styles that Plotly adds to a page: an empty one, filled by script, and that of its maps."""
    found = _STYLE.findall(plotly.content)
    return [csp_hash(style) for style in (b"", *found) if b"\\" not in style]


_STYLE = re.compile(rb"""createElement\("style"\);[^{}]{0,120}?\.textContent='((?:[^'\\]|\\.)*)'""")


def scripts(found: dict[str, Asset]) -> list[Asset]:
    """Scripts that every page runs; Plotly comes when a chart is looked at."""
    return [asset for name, asset in found.items() if name.endswith(".js") and name != "plotly.js"]
