"""What the code that FX generates for a loaded trace must say differently, so that Dynamo captures it again as it was.

Dynamo notes an autocast block as a call that enters and one that exits, but it traces such calls down to the switches
that they flip. So they become the `with` block again that they once were.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch.amp import autocast_mode
from torch.fx import Graph, Node

from fuseplan.errors import GraphError

_ENTER = re.compile(r"\w+ = torch\.amp\.autocast_mode\._enter_autocast\((.*?)\)(;.*)?")
_EXIT = re.compile(r"\w+ = torch\.amp\.autocast_mode\._exit_autocast\(.*")


def write_blocks(graph: Graph) -> None:
    """Have the code of `graph` write autocast as blocks; a GraphError where they are not nested."""
    _check_nested(graph)
    graph.on_generate_code(lambda _: _with_blocks)


def _check_nested(graph: Graph) -> None:
    entered: list[Node] = []
    for node in graph.nodes:
        if node.target is autocast_mode._enter_autocast:
            if node.kwargs or not _is_autocast(node.args):
                raise GraphError("a trace enters autocast with arguments that are none of it")
            entered.append(node)
        elif node.target is autocast_mode._exit_autocast and (not entered or node.args != (entered.pop(),)):
            raise GraphError("the autocast blocks of a trace are not nested")
    if entered:
        raise GraphError("a trace never exits an autocast block")


def _is_autocast(args: Sequence[Any]) -> bool:
    kinds: tuple[tuple[Any, ...], ...] = ((str,), (torch.dtype, type(None)), (bool,), (bool, type(None)))
    return len(args) == len(kinds) and all(isinstance(arg, kind) for arg, kind in zip(args, kinds, strict=True))


def _with_blocks(body: list[str]) -> list[str]:
    lines: list[str] = []
    depth = 0
    for line in "".join(body).splitlines():
        entered = _ENTER.fullmatch(line)
        if _EXIT.fullmatch(line):
            lines.append("    " * depth + "pass")
            depth -= 1
            continue
        lines.append("    " * depth + (f"with torch.autocast({entered[1]}):" if entered else line))
        depth += bool(entered)
    return [line + "\n" for line in lines]
