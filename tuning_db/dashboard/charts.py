"""Charts as data: what Plotly draws in the browser, and the table that says the same in words."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup


@dataclass(frozen=True)
class Figure:
    """One chart. A colour is written as the name of a CSS variable, ``var(--good)``, so that it fits light and dark."""

    id: str
    title: str
    traces: Sequence[Mapping[str, Any]]
    """As Plotly reads them."""
    layout: Mapping[str, Any] = field(default_factory=dict)
    """Beside the layout that all charts share."""
    header: Sequence[str] = ()
    rows: Sequence[Sequence[object]] = ()
    """The same as a table, for who cannot see the chart."""
    note: str = ""
    height: int = 280


def data_block(value: object) -> Markup:
    """JSON that can stand within a script element of a type that is not run.

    >>> data_block({"name": "</script><b>"})
    Markup('{"name":"\\\\u003c/script\\\\u003e\\\\u003cb\\\\u003e"}')
    """
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    # Every letter of ours is ASCII: the two below are all that an HTML parser looks for there.
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))
