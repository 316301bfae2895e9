"""Attention that is written out, as the arguments of one call of it, and what has to be done to the result of that call."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch._guards import tracing
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Node
from torch.fx.node import map_arg

from fuseplan.rewrites.attention.layouts import mask_once
from fuseplan.rewrites.reading import name_of
from fuseplan.rewrites.written.hidden import bias_at, guarded, hiding, rows_at
from fuseplan.rewrites.written.layouts import is_one, is_reshape, permutation
from fuseplan.rewrites.written.lowest import ABSORBS
from fuseplan.rewrites.written.match import Factor, Operand, Sinks
from fuseplan.rewrites.written.missed import MissedError
from fuseplan.rewrites.written.versions import fake_of
from fuseplan.rewrites.written.writer import STANDS_FOR_IT, Named, Writer
from fuseplan.rewrites.written.written import Written, arranged_at, term_at

_LAYS_OUT = frozenset({"contiguous", "matmul", "bmm", "linear", "einsum", "baddbmm", "layer_norm", "conv1d", "conv2d"})
"""Ops whose result is laid out by its shape alone."""


def arguments(written: Written, writer: Writer) -> dict[str, Any]:
    """The arguments of the call, by parameter."""
    match = written.match
    sides = {name: _operand(written, writer, name) for name in ("query", "key", "value")}
    for factor in match.factors:
        _multiply(written, writer, sides, factor)
    hidden, rows = hiding(written, writer) if written.hides else None, None
    if hidden is not None:
        hidden, rows = guarded(written, writer, hidden)
        if rows is not None and match.sinks is None:
            sides["query"] = writer.call(
                "masked_fill", sides["query"], rows_at(written, writer, rows, written.home), 0.0
            )
        hidden = _centred(written, writer, bias_at(written, writer, hidden, written.frame, written.summed_at))
        hidden = _narrowed(written, writer, hidden)
    bias = _at_home(written, writer, _with_small(written, writer, hidden, rows))
    scale = match.scale
    if scale <= 0:  # kernels take the largest product for the largest score
        sides["query"], scale = writer.call(torch.mul, sides["query"], scale), 1.0
    fitted: dict[str, Any] = {name: _fitted(writer, _cast(written, writer, node)) for name, node in sides.items()}
    fitted["attn_mask"] = None if bias is None else _fitted(writer, _repeated(written, writer, bias))
    if match.sinks is not None:
        fitted["sinks"] = _fitted(writer, _sinks_at_home(written, writer, match.sinks, rows))
    return {**fitted, "dropout_p": match.dropout, "is_causal": False, "scale": scale, "enable_gqa": False}


def _operand(written: Written, writer: Writer, name: str) -> Node:
    """Queries, keys or values with the axes of the call."""
    match = written.match
    operand: Operand = getattr(match, name)
    start = match.locations[-1 if name == "value" else 0]
    own = (match.row if name == "query" else match.column, match.feature if name == "value" else match.inner)
    tensor = writer.moved(writer.named(writer.copy(operand.node), operand.axes), start, written.home)
    node = writer.expanded(tensor, [*written.batches, *own])
    # Fused kernels take rows of features only; where convolutions have them as columns, a copy costs less than the scores.
    return node if is_one(fake_of(node).stride(-1)) else writer.call("contiguous", node)


def _sinks_at_home(written: Written, writer: Writer, sinks: Sinks, rows: Node | None) -> Node:
    """What stands beside the scores, with the axes of the call and one column; an infinity where it takes the whole row."""
    if len(written.batches) > 2:
        raise MissedError("something stands beside scores that have more axes than a batch, heads, queries and keys")
    node = arranged_at(written, writer, sinks.node, sinks.location, written.home)
    if rows is None:
        return node
    return writer.call(torch.where, rows_at(written, writer, rows, written.home), math.inf, node)


def _cast(written: Written, writer: Writer, node: Node) -> Node:
    return node if fake_of(node).dtype == written.dtype else writer.call("to", node, written.dtype)


def _multiply(written: Written, writer: Writer, sides: dict[str, Node], factor: Factor) -> None:
    """Multiply queries, or keys, by what the scores are multiplied by."""
    match, name = written.match, "query"
    by: Node = writer.copy(factor.by)
    if isinstance(factor.by.meta.get("example_value"), torch.Tensor):
        tensor = writer.moved(writer.named(by, factor.location.axes), factor.location, written.home)
        name = "key" if match.column in tensor.axes else "query"
        own = match.column if name == "key" else match.row
        by = writer.arranged(tensor, [*written.batches, own, match.inner])
    sides[name] = writer.call(torch.div if factor.divided else torch.mul, sides[name], by)


def _narrowed(written: Written, writer: Writer, bias: Node) -> Node:
    """A bias in the dtype of the call: what is finite stays finite."""
    dtype = fake_of(bias).dtype
    if dtype == written.dtype:
        return bias
    if torch.finfo(dtype).max <= torch.finfo(written.dtype).max:
        return writer.call("to", bias, written.dtype)
    bounded = writer.call("clamp", bias, torch.finfo(written.dtype).min, torch.finfo(written.dtype).max)
    if written.may_be_infinite:
        bounded = writer.call(torch.where, writer.call(torch.eq, bias, -math.inf), bias, bounded)
    return writer.call("to", bounded, written.dtype)


def _with_small(written: Written, writer: Writer, hidden: Node | None, rows: Node | None) -> Node | None:
    """All biases together, in the dtype of the call; in `rows`, where no score shows, the small ones do not, either."""
    total = hidden
    if rows is not None and written.small:
        rows = rows_at(written, writer, rows, written.summed_at)
    if hidden is not None and written.small and written.dtype == torch.float16:
        total = writer.call("to", hidden, torch.float32)  # of float16 the lowest number and another make an infinity
    for bias in written.small:
        term = term_at(written, writer, bias.term, written.summed_at)
        if rows is not None:
            if fake_of(term).requires_grad and written.comes_after_a_number(bias):
                raise MissedError("something that is trained is added to scores after they were replaced by a number")
            term = writer.call(torch.where, rows, 0.0, term)
        total = term if total is None else writer.call(torch.add, total, term)
    return None if total is None else _narrowed(written, writer, _centred(written, writer, total))


def _centred(written: Written, writer: Writer, total: Node) -> Node:
    """A bias that is to become narrower, less the largest of its row, which changes no weight: what the largest are off by would
    show, and beside large numbers it would be much.
    """
    ours, theirs = (torch.finfo(dtype).eps for dtype in (written.dtype, fake_of(total).dtype))
    if ours <= theirs:
        return total
    if written.match.sinks is not None:  # that has no share in what a row is shifted by
        if written.small:
            raise MissedError("a bias would lose digits, and something stands beside the scores")
        return total
    highest = writer.call("amax", writer.call("detach", total), -1, True)
    hidden = writer.call(torch.le, highest, ABSORBS)  # a row as a whole: nothing of it is to become zero
    return writer.call(torch.sub, total, writer.call("masked_fill", highest, hidden, 0.0))


def _at_home(written: Written, writer: Writer, bias: Node | None) -> Node | None:
    """All biases together, with the axes of the call: what is repeated on the way is so only now."""
    if bias is None or written.summed_at is written.home:
        return bias
    return bias_at(written, writer, writer.call(mask_once, bias), written.summed_at, written.home)


def _repeated(written: Written, writer: Writer, bias: Node) -> Node:
    """A bias that has all of the batches that become one axis, or none of them."""
    count = len(written.batches) - 1
    sizes = fake_of(bias).shape[:count]
    if count < 2 or all(map(is_one, sizes)):
        return bias
    merged = [
        -1 if not is_one(size) or is_one(axis.size) else writer.size(axis)
        for size, axis in zip(sizes, written.batches, strict=False)
    ]
    if any(isinstance(size, Node) or size != -1 for size in merged):
        bias = writer.call(mask_once, bias)
    return writer.call("expand", bias, *merged, -1, -1, -1)


def _fitted(writer: Writer, node: Node) -> Node:
    """A tensor with four axes: kernels know a batch and heads."""
    rank = len(fake_of(node).shape)
    if rank > 4:
        return writer.call("flatten", node, 0, rank - 4)
    for _ in range(4 - rank):
        node = writer.call("unsqueeze", node, 0)
    return node


# the result


def put_back(written: Written, writer: Writer, given: Mapping[str, Any]) -> None:
    """Let those who read the result read it as it was: its axes, its dtype, and laid out so that they can."""
    match, call = written.match, writer.result
    readers, original = list(call.users), fake_of(call)
    axes = [*written.batches, match.row, match.feature]
    writer.behind()
    call.meta["example_value"] = _given_by_a_kernel(given, original)
    node = call
    if len(axes) > 4:
        node = writer.call("unflatten", node, 0, writer.split(written.batches[:-1]))
    for _ in range(4 - len(axes)):
        node = writer.call("squeeze", node, 0)
    moved = writer.moved(Named(node, tuple(axes)), written.home, match.locations[-1])
    node = writer.arranged(moved, match.out)
    if written.dtype != original.dtype:
        node = writer.call("to", node, original.dtype)
    if not all(_reads_any_layout(reader, call, fake_of(node)) for reader in readers):
        node = writer.call("contiguous", node)
    for reader in readers:
        reader.replace_input_with(call, node)
    call.meta[STANDS_FOR_IT] = node


def _given_by_a_kernel(given: Mapping[str, Any], original: FakeTensor) -> FakeTensor:
    """What a kernel gives that lays out heads behind rows, as most do."""
    query, value = fake_of(given["query"]), fake_of(given["value"])
    batch, heads, rows = query.shape[:3]
    with original.fake_mode:
        laid_out = original.new_empty((batch, rows, heads, value.shape[-1]), dtype=query.dtype).transpose(1, 2)
    assert isinstance(laid_out, FakeTensor)
    return laid_out


def _reads_any_layout(reader: Node, node: Node, given: FakeTensor) -> bool:
    """Whether what comes of a reader of `node` is laid out as it was, though the node is laid out otherwise."""
    if name_of(reader) in _LAYS_OUT:
        return True
    if not (is_reshape(reader) or permutation(reader) is not None):
        return False
    arguments = map_arg(
        (reader.args, reader.kwargs), lambda each: given if each is node else each.meta["example_value"]
    )
    (first, *others), named = arguments
    try:
        with tracing(None), given.fake_mode:
            call = getattr(first, reader.target) if isinstance(reader.target, str) else reader.target
            now = call(*others, **named) if isinstance(reader.target, str) else call(first, *others, **named)
    except (RuntimeError, ValueError):
        return False
    if now.stride() == fake_of(reader).stride():
        return True
    return all(_reads_any_layout(each, reader, now) for each in reader.users)
