"""What is kept of each section, and how the cases of a replay differ from it.

What hangs on the last digit of a logarithm, or of a model that is fitted here, is kept for each kind of machine apart: processors
round otherwise, and of two cuts that cost the same another one comes first. A machine of a kind that nothing is kept for says so.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

KEPT = Path(__file__).parent / "kept"
MOST = 8
"""Differences of one case that are printed."""


EXACT = ("raced", "found_again", "tuned_plainly")
"""Sections in which nothing is rounded by the machine."""


def digest() -> str:
    """What kind of machine this is, by the last digits that it gives."""
    import numpy as np
    from sklearn.ensemble import HistGradientBoostingRegressor

    values = np.random.default_rng(0).random((4096, 8))
    functions = (np.log, np.exp, np.log1p, np.sqrt, np.tanh)
    fitted = HistGradientBoostingRegressor(max_iter=20, random_state=0).fit(
        np.log(values), np.exp(values[:, 0] * values[:, 1])
    )
    parts = [function(values).tobytes() for function in functions] + [fitted.predict(np.log(values)).tobytes()]
    plain = [f(x) for f in (math.log, math.exp, math.log1p) for x in values[:, 0].tolist()]
    plain += [x**y for x, y in values[:512, :2].tolist()]
    return hashlib.sha256(b"".join(parts) + repr(plain).encode()).hexdigest()[:12]


def place_of(section: str, folder: Path = KEPT) -> Path:
    """Where the cases of a section are kept, for machines of this kind."""
    return folder / f"{section}.json.xz" if section in EXACT else folder / digest() / f"{section}.json.xz"


def keep(section: str, cases: dict[str, Any], folder: Path = KEPT) -> None:
    """Keep the cases of a section, in the place of those that were kept."""
    file = place_of(section, folder)
    file.parent.mkdir(exist_ok=True)
    text = json.dumps(cases, separators=(",", ":"), sort_keys=True)
    file.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


def compare(section: str, found: dict[str, Any], folder: Path = KEPT) -> int:
    """Print each case that differs from the one kept, and how; return how many do."""
    file = place_of(section, folder)
    if not file.exists():
        print(f"{section}: nothing is kept of it for a machine that rounds as this one does ({digest()})", flush=True)
        return len(found) if section in EXACT else 0
    kept = json.loads(lzma.decompress(file.read_bytes()))
    differing = [case for case in {**kept, **found} if kept.get(case) != found.get(case)]
    for case in differing:
        lines = list(_differences("", kept.get(case), found.get(case)))
        more = [f"… and {len(lines) - MOST} more"] if len(lines) > MOST else []
        print("\n    ".join([f"{section}: {case}", *lines[:MOST], *more]), flush=True)  # at once: others print beside
    return len(differing)


def _differences(where: str, kept: Any, found: Any) -> Iterator[str]:
    if kept == found:
        return
    if isinstance(kept, dict) and isinstance(found, dict):
        for key in {**kept, **found}:
            yield from _differences(f"{where}.{key}" if where else key, kept.get(key), found.get(key))
    elif isinstance(kept, list) and isinstance(found, list) and len(kept) == len(found):
        for number, (old, new) in enumerate(zip(kept, found, strict=True)):
            yield from _differences(f"{where}[{number}]", old, new)
    else:
        yield f"{where}: kept {_short(kept)}, now {_short(found)}"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 300 else f"{text[:300]}…"
