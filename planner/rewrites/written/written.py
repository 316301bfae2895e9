"""How a match is written as one call: with which axes, in which dtype, and what its biases make necessary."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.fx import Node

from fuseplan.rewrites.base import Draft
from fuseplan.rewrites.written.biases import Bias
from fuseplan.rewrites.written.layouts import Axis, Location
from fuseplan.rewrites.written.match import Hidden, Match
from fuseplan.rewrites.written.missed import MissedError
from fuseplan.rewrites.written.scores import Added
from fuseplan.rewrites.written.versions import fake_of
from fuseplan.rewrites.written.writer import Writer


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
        return tuple(self.axes_at(self.home)[:-2])

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
    def evens_out(self) -> bool:
        """Whether a row may be hidden so that no score shows in it and all its columns weigh the same. A kernel makes it zeros."""
        soft = any(bias.absorbs or (bias.replaces and bias.range[0] != -math.inf) for bias in self.hiding)
        return soft and not self.loses_rows

    def comes_after_a_number(self, bias: Bias) -> bool:
        """Whether scores were replaced by a finite number before this was added, so that its gradient is not lost there."""
        return any(each.low_number is not None for each in self.biases[: self.biases.index(bias)])

    @property
    def frame(self) -> Location:
        """Where the biases that hide something are put together: where they all are, or else where the call is."""
        places = {bias.term.location for bias in self.hiding}
        there = next(iter(places)) if len(places) == 1 else self.home
        return there if there.has(self.match.row, self.match.column) else self.home

    @property
    def summed_at(self) -> Location:
        """Where all biases are put together: where scores have the most axes of all places at which one is added. What is the same
        along one of these is repeated last, as one.
        """
        places = [self.frame, *(bias.term.location for bias in self.small)]
        whole = [one for one in places if one.has(self.match.row, self.match.column)]
        return max([self.home, *whole], key=lambda one: len(one.axes))

    def axes_at(self, location: Location) -> list[Axis]:
        """The axes of scores there, rows and columns last."""
        own = (self.match.row, self.match.column)
        return [*(axis for axis in location.axes if axis not in own), *own]

    @property
    def loses_rows(self) -> bool:
        """Whether a row that is hidden as a whole would have other gradients under a fused kernel: beside so low a number,
        the logarithm of a sum that it keeps for its backward loses how many columns there are.
        """
        beside = self.match.sinks is not None  # that takes the whole of such a row, and no score has a gradient
        return self.trains and self.guarded and not beside and any(bias.absorbs for bias in self.hiding)


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


def check_gradients(written: Written) -> None:
    """MissedError where a kernel would give a bias its gradient in fewer digits than the program does."""
    for bias in written.biases:
        term = bias.term.step.term if isinstance(bias.term.step, Added) else None
        if isinstance(term, Node) and (value := fake_of(term)).requires_grad:
            given = torch.promote_types(value.dtype, written.dtype)
            if torch.finfo(given).eps < torch.finfo(written.dtype).eps:
                raise MissedError(
                    f"a bias takes a gradient in {given}, where a kernel computes in {written.dtype}".replace(
                        "torch.", ""
                    )
                )


def writer_of(written: Written, draft: Draft) -> Writer:
    """A writer before the result of a match."""
    match = written.match
    sized: list[tuple[Node, Sequence[Axis]]] = [
        (operand.node, operand.axes) for operand in (match.query, match.key, match.value)
    ]
    return Writer(draft, match.result, sized)


def arranged_at(written: Written, writer: Writer, node: Node, location: Location, goal: Location) -> Node:
    """A bias or a mask with the axes of scores there, of length one along those that it is the same for."""
    tensor = writer.moved(writer.named(writer.copy(node), location.axes), location, goal)
    return writer.arranged(tensor, written.axes_at(goal))


def term_at(written: Written, writer: Writer, term: Hidden, goal: Location) -> Node:
    """What a bias adds, scaled as it is later."""
    assert isinstance(term.step, Added)
    node = arranged_at(written, writer, term.step.term, term.location, goal)
    if not fake_of(node).is_floating_point():
        node = writer.call("to", node, fake_of(term.step.node).dtype)
    if term.scale * term.step.times != 1.0:
        node = writer.call(torch.mul, node, term.scale * term.step.times)
    for factor in term.factors:
        by = writer.copy(factor.by)
        if isinstance(factor.by.meta.get("example_value"), torch.Tensor):
            by = arranged_at(written, writer, factor.by, factor.location, goal)
        node = writer.call(torch.div if factor.divided else torch.mul, node, by)
    return node
