"""The text of a trace in a file: JSON with one input, one call or one symbol a line, so that two of them can be compared."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

_LISTED = ("calls", "symbols", "inputs", "values", "nodes")
"""The fields that have many items; what is nested in an item has the same ones."""


def text_of(document: Mapping[str, Any]) -> str:
    """The document as lines.

    >>> print(text_of({"format": "x", "nodes": [{"op": "a"}, {"op": "b"}]}))
    {
     "format": "x",
     "nodes": [
      {"op": "a"},
      {"op": "b"}
     ]
    }
    """
    return "\n".join(_record(document, ""))


def _record(record: Mapping[str, Any], indent: str) -> Iterator[str]:
    yield indent + "{"
    for i, (name, value) in enumerate(record.items()):
        comma = "," * (i < len(record) - 1)
        if name in _LISTED and isinstance(value, list) and value:
            yield f"{indent} {json.dumps(name)}: ["
            for j, item in enumerate(value):
                *first, last = _item(item, indent + "  ")
                yield from first
                yield last + "," * (j < len(value) - 1)
            yield f"{indent} ]{comma}"
        else:
            yield f"{indent} {json.dumps(name)}: {_one_line(value)}{comma}"
    yield indent + "}"


def _item(item: Any, indent: str) -> Iterator[str]:
    if isinstance(item, dict) and isinstance(item.get("nodes"), list):
        yield from _record(item, indent)
    else:
        yield indent + _one_line(item)


def _one_line(value: Any) -> str:
    return json.dumps(value, allow_nan=False)
