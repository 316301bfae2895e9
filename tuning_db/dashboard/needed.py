"""What the extra `dashboard` brings, and what to say where it is missing."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from fuseplan.errors import FuseplanError

PACKAGES = ("starlette", "uvicorn", "jinja2", "plotly")


def require() -> None:
    """Raise with the command to run if something is missing."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise FuseplanError(f"the dashboard needs {', '.join(missing)}: python -m pip install 'fuseplan[dashboard]'")


def plotly_js() -> Path:
    """The file that plotly's own package holds: nothing is fetched from elsewhere."""
    spec = find_spec("plotly")  # found, not imported: the import takes longer than a page
    if spec is None or spec.origin is None:
        raise FuseplanError("the dashboard needs plotly: python -m pip install 'fuseplan[dashboard]'")
    return Path(spec.origin).parent / "package_data" / "plotly.min.js"
