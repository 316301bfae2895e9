"""What the code that FX generates for a loaded trace must say differently, so that Dynamo captures it again as it was.

Dynamo notes an autocast block as a call that enters and one that exits, and a block of `sdpa_kernel` as two that say which kernels may run,
but it traces such calls down to the switches that they flip. So they become the `with` blocks again that they once were.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.amp import autocast_mode
from torch.fx import Graph, Node
from torch.nn import attention

from fuseplan.errors import GraphError

_ENTER = re.compile(r"\w+ = torch\.amp\.autocast_mode\._enter_autocast\((.*?)\)(;.*)?")
_EXIT = re.compile(r"\w+ = torch\.amp\.autocast_mode\._exit_autocast\(.*")
_KERNEL = re.compile(r"(\w+) = torch\.nn\.attention\._backend_from_string\('(\w+)'\)(;.*)?")
_KERNELS = re.compile(r"\w+ = torch\.nn\.attention\._sdpa_kernel\(\[(.*?)\], (True|False)\)(;.*)?")
_BACKENDS = "torch.nn.attention.SDPBackend"


def write_blocks(graph: Graph) -> None:
    """Have the code of `graph` write autocast and choices of kernels as blocks; a GraphError where they are not nested."""
    _check_nested(graph)
    _check_kernels(graph)
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


def _check_kernels(graph: Graph) -> None:
    named = [node for node in graph.nodes if node.target is attention._backend_from_string]
    if not all(_is_kernel(node) for node in named):
        raise GraphError("a trace names a kernel of attention that there is not")
    chosen = [node for node in graph.nodes if node.target is attention._sdpa_kernel]
    if not all(_chooses(node, named) for node in chosen):
        raise GraphError("a trace chooses among kernels of attention by arguments that are none")
    if sum(1 if enters else -1 for enters in _entering([[one.args[0] for one in node.args[0]] for node in chosen])):
        raise GraphError("a trace never exits a block that chooses among kernels of attention")


def _is_kernel(node: Node) -> bool:
    name = node.args[0] if len(node.args) == 1 and not node.kwargs else None
    return isinstance(name, str) and name in attention.SDPBackend.__members__


def _chooses(node: Node, named: Sequence[Node]) -> bool:
    if (
        node.kwargs
        or len(node.args) != 2
        or type(node.args[1]) is not bool
        or not isinstance(node.args[0], (list, tuple))
    ):
        return False
    return all(isinstance(one, Node) and one in named for one in node.args[0])


def _entering(chosen: Sequence[Sequence[str]]) -> Iterator[bool]:
    """Of calls that say which kernels may run, whether each enters a block: it does unless these are those from before the block that it is
    in. The last call brings back what holds around all of them.

    >>> every = ["FLASH_ATTENTION", "MATH"]
    >>> list(_entering([["MATH"], ["FLASH_ATTENTION"], ["MATH"], every]))
    [True, True, False, False]
    """
    holding = [set(chosen[-1])] if chosen else []
    for kernels in chosen:
        enters = len(holding) < 2 or set(kernels) != holding[-2]
        if enters:
            holding.append(set(kernels))
        else:
            holding.pop()
        yield enters


def _is_autocast(args: Sequence[Any]) -> bool:
    kinds: tuple[tuple[Any, ...], ...] = ((str,), (torch.dtype, type(None)), (bool,), (bool, type(None)))
    return len(args) == len(kinds) and all(isinstance(arg, kind) for arg, kind in zip(args, kinds, strict=True))


def _with_blocks(body: list[str]) -> list[str]:
    written = "".join(body).splitlines()
    named = {found[1]: found[2] for line in written if (found := _KERNEL.fullmatch(line))}
    choices = [(found[1].split(", "), found[2]) for line in written if (found := _KERNELS.fullmatch(line))]
    kernels = [[named[name] for name in names] for names, _ in choices]
    blocks = zip(_entering(kernels), kernels, (ordered for _, ordered in choices), strict=True)
    lines: list[str] = []
    depth = 0
    for line in written:
        block = None
        if entered := _ENTER.fullmatch(line):
            block = f"torch.autocast({entered[1]})"
        elif _KERNELS.fullmatch(line):
            enters, backends, ordered = next(blocks)
            listed = ", ".join(f"{_BACKENDS}.{one}" for one in backends)
            block = f"torch.nn.attention.sdpa_kernel([{listed}], set_priority={ordered})" if enters else None
        elif _KERNEL.fullmatch(line):
            continue
        if block is None and (_EXIT.fullmatch(line) or _KERNELS.fullmatch(line)):
            lines.append("    " * depth + "pass")
            depth -= 1
            continue
        lines.append("    " * depth + (line if block is None else f"with {block}:"))
        depth += block is not None
    return [line + "\n" for line in lines]
