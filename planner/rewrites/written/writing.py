"""Attention that is written out, as the arguments of one call of it, and what has to be done to the result of that call.

The bias of the call is what is added to the scores, or hides some of them. What hides is kept apart from what is too small to hide
anything, since only of the first anything is to be proven: that it is causal, that it hides nothing, or that no row is hidden as a
whole. Where a row may be hidden as a whole, kernels would give zeros for what softmax makes NaN, so that its bias becomes NaN; and
where scores are replaced by a low number, so that all columns weigh the same there, its query becomes zero in training, since the
backward of a kernel would lose the length of the row beside so low a number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._guards import tracing
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Node
from torch.fx.node import map_arg

from fuseplan.rewrites.base import Draft
from fuseplan.rewrites.written.biases import Bias
from fuseplan.rewrites.written.layouts import Axis, Location, is_one, is_reshape, permutation
from fuseplan.rewrites.written.match import Factor, Hidden, Match, Operand
from fuseplan.rewrites.written.reading import name_of
from fuseplan.rewrites.written.scores import Added
from fuseplan.rewrites.written.versions import fake_of
from fuseplan.rewrites.written.writer import STANDS_FOR_IT, Named, Writer

_LAYS_OUT = frozenset({"contiguous", "matmul", "bmm", "linear", "einsum", "baddbmm", "layer_norm", "conv1d", "conv2d"})
"""Ops whose result is laid out by its shape alone."""


@dataclass(frozen=True, eq=False)
class Written:
    """How a match is written: what is known of its biases, and what they make necessary."""

    match: Match
    biases: tuple[Bias, ...]
    home: Location
    """The location whose batches the call has."""
    dtype: torch.dtype
    """In which the call computes."""
    hides: bool = True
    """Some bias that hides something is left."""
    guarded: bool = True
    """A row may be hidden as a whole."""
    trains: bool = False

    @property
    def batches(self) -> tuple[Axis, ...]:
        """The axes of the call beside rows and columns."""
        return tuple(axis for axis in self.home.axes if axis not in (self.match.row, self.match.column))

    @property
    def hiding(self) -> tuple[Bias, ...]:
        """The biases that may hide something."""
        return tuple(bias for bias in self.biases if bias.hides)

    @property
    def small(self) -> tuple[Bias, ...]:
        """Those that hide nothing."""
        return tuple(bias for bias in self.biases if not bias.hides)

    @property
    def may_be_infinite(self) -> bool:
        """Whether a row may be hidden so that its softmax is NaN."""
        return any(bias.range[0] == -math.inf for bias in self.hiding)

    @property
    def replaced(self) -> bool:
        """Whether scores are replaced by a low number, and nothing else makes rows absorb their scores."""
        low = [bias.replaces and bias.range[0] != -math.inf for bias in self.hiding]
        return any(low) and not any(bias.absorbs for bias in self.hiding)

    @property
    def loses_rows(self) -> bool:
        """Whether a row that is hidden as a whole would have other gradients under a fused kernel: beside so low a number,
        the logarithm of a sum that it keeps for its backward loses how many columns there are.
        """
        return self.trains and self.guarded and any(bias.absorbs for bias in self.hiding)


def home_of(match: Match) -> Location:
    """The location whose batches the call has: the first with two, a batch and heads, or that of the product."""
    whole = [each for each in match.locations if each.has(match.row, match.column)]
    return next((each for each in whole if len(each.axes) == 4), whole[0])


def dtype_of(match: Match) -> torch.dtype:
    """The dtype that a call computes in: that of its inputs, or the one that autocast gives matmuls here."""
    for matmul in (match.result, match.nodes[0]):
        given = fake_of(matmul).dtype
        inputs = [node.meta.get("example_value") for node in matmul.all_input_nodes]
        if any(isinstance(each, torch.Tensor) and each.dtype != given for each in inputs):
            return given
    query, key, value = (fake_of(operand.node).dtype for operand in (match.query, match.key, match.value))
    return torch.promote_types(torch.promote_types(query, key), value)


def writer_of(written: Written, draft: Draft) -> Writer:
    """A writer before the result of a match."""
    match = written.match
    sized: list[tuple[Node, Sequence[Axis]]] = [
        (operand.node, operand.axes) for operand in (match.query, match.key, match.value)
    ]
    return Writer(draft, match.result, sized)


def hiding(written: Written, writer: Writer) -> Node | None:
    """What hides scores, as a bias with the axes of the call; None where nothing does."""
    found: Node | None = None
    for bias in written.hiding:
        step = bias.term.step
        if isinstance(step, Added):
            term = _term(written, writer, bias.term)
            found = term if found is None else writer.call(torch.add, found, term)
            continue
        mask = _arranged(written, writer, step.mask, bias.term.location)
        low = -math.inf if bias.range[0] == -math.inf else torch.finfo(written.dtype).min
        filled = _number(written, writer, low)
        left = _number(written, writer, 0.0) if found is None else found
        found = writer.call(torch.where, mask, *((filled, left) if step.where else (left, filled)))
    return found


def arguments(written: Written, writer: Writer) -> dict[str, Any]:
    """The arguments of the call, by parameter."""
    match = written.match
    sides = {name: _operand(written, writer, name) for name in ("query", "key", "value")}
    for factor in match.factors:
        _multiply(written, writer, sides, factor)
    hidden = hiding(written, writer) if written.hides else None
    if hidden is not None:
        hidden = _guarded(written, writer, sides, hidden)
    bias = _with_small(written, writer, hidden)
    scale = match.scale
    if scale <= 0:  # kernels take the largest product for the largest score
        sides["query"], scale = writer.call(torch.mul, sides["query"], scale), 1.0
    fitted: dict[str, Any] = {name: _fitted(writer, _cast(written, writer, node)) for name, node in sides.items()}
    fitted["attn_mask"] = None if bias is None else _fitted(writer, _repeated(written, writer, bias))
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


def _arranged(written: Written, writer: Writer, node: Node, location: Location) -> Node:
    """A bias or a mask with the axes of the call, of length one along those that it is the same for."""
    tensor = writer.moved(writer.named(writer.copy(node), location.axes), location, written.home)
    return writer.arranged(tensor, [*written.batches, written.match.row, written.match.column])


def _term(written: Written, writer: Writer, term: Hidden) -> Node:
    """What a bias adds, scaled as it is later."""
    assert isinstance(term.step, Added)
    node = _arranged(written, writer, term.step.term, term.location)
    if not fake_of(node).is_floating_point():
        node = writer.call("to", node, fake_of(term.step.node).dtype)
    if term.scale * term.step.times != 1.0:
        node = writer.call(torch.mul, node, term.scale * term.step.times)
    for factor in term.factors:
        by = writer.copy(factor.by)
        if isinstance(factor.by.meta.get("example_value"), torch.Tensor):
            by = _arranged(written, writer, factor.by, factor.location)
        node = writer.call(torch.div if factor.divided else torch.mul, node, by)
    return node


def _number(written: Written, writer: Writer, number: float) -> Node:
    device = fake_of(written.match.result).device
    return writer.call(torch.full, (), number, dtype=written.dtype, device=device)


def _guarded(written: Written, writer: Writer, sides: dict[str, Node], hidden: Node) -> Node:
    """What hides, so that a kernel gives what softmax gives where a row is hidden as a whole."""
    low = torch.finfo(written.dtype).min
    if written.guarded and written.replaced and (written.trains or written.dtype == torch.float16):
        rows = writer.call("all", writer.call(torch.le, hidden, low), -1, keepdim=True)
        sides["query"] = writer.call("masked_fill", sides["query"], rows, 0.0)
        same = writer.call(torch.logical_and, rows, writer.call(torch.eq, hidden, low))
        hidden = writer.call("masked_fill", hidden, same, 0.0)
    hidden = _narrowed(written, writer, hidden)
    if written.guarded and written.may_be_infinite:
        rows = writer.call("all", writer.call(torch.eq, hidden, -math.inf), -1, keepdim=True)
        hidden = writer.call("masked_fill", hidden, rows, math.nan)
    return hidden


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


def _with_small(written: Written, writer: Writer, hidden: Node | None) -> Node | None:
    """All biases together, in the dtype of the call."""
    total = hidden
    if hidden is not None and written.small and written.dtype == torch.float16:
        total = writer.call("to", hidden, torch.float32)  # of float16 the lowest number and another make an infinity
    for bias in written.small:
        term = _term(written, writer, bias.term)
        total = term if total is None else writer.call(torch.add, total, term)
    return None if total is None else _narrowed(written, writer, total)


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
