"""Attention found by its data flow: a softmax between two matmuls, and all that is done in between, as one description.

Scores are `scale * queries @ keys + biases`, some of them replaced where a mask hides them; softmax goes over the axis over
which the second matmul sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.fx import Node

from fuseplan.rewrites.attention.result import is_written_through
from fuseplan.rewrites.reading import argument, between, draws, first, name_of, number_of
from fuseplan.rewrites.written.contraction import Contraction
from fuseplan.rewrites.written.layouts import Axis, Location, arranged, axes_of, equal, is_copy, permutation
from fuseplan.rewrites.written.missed import MissedError
from fuseplan.rewrites.written.scores import (
    Added,
    Arranged,
    Filled,
    Joined,
    Passed,
    Raised,
    Scaled,
    Scores,
    ScoreStep,
    scores_of,
)
from fuseplan.rewrites.written.softmax import Softmax
from fuseplan.rewrites.written.versions import Versions, fake_of
from fuseplan.rewrites.written.weights import AttentionWeights, Narrowed, check_unread, weights_of


@dataclass(frozen=True, eq=False)
class Operand:
    """Queries, keys or values: a tensor of the program, its axes, and a number that it is multiplied by."""

    node: Node
    axes: tuple[Axis, ...]
    reader: Node
    """What sees it as it is meant: parts of it may have been written before."""
    scale: float = 1.0


@dataclass(frozen=True, eq=False)
class Factor:
    """A tensor that scores are multiplied or divided by, where they are laid out like this."""

    by: Node
    divided: bool
    location: Location


@dataclass(frozen=True, eq=False)
class Hidden:
    """A bias that is added, or a mask by which scores are replaced, where they are laid out like this, and what scales them later."""

    step: Added | Filled
    location: Location
    scale: float = 1.0
    factors: tuple[Factor, ...] = ()


@dataclass(frozen=True, eq=False)
class Sinks:
    """A column that takes its share of each row and weighs no value, where the scores that it stands beside are laid out like this."""

    node: Node
    reader: Node
    location: Location


@dataclass(frozen=True, eq=False)
class Match:
    """Attention that is written out."""

    softmax: Node
    """It gives the weights."""
    result: Node
    query: Operand
    key: Operand
    value: Operand
    row: Axis
    """Of the queries."""
    column: Axis
    """Of the keys and values: the axis of softmax."""
    inner: Axis
    """Of the features that queries and keys have."""
    feature: Axis
    """Of the values' own features."""
    locations: tuple[Location, ...]
    """Of the product, and after each op up to the second matmul."""
    out: tuple[Axis, ...]
    """The axes of the result, in order."""
    terms: tuple[Hidden, ...]
    factors: tuple[Factor, ...]
    dropout: float
    raised: float
    """What is lower among the scores becomes this number; where nothing does, an infinity."""
    sinks: Sinks | None
    nodes: tuple[Node, ...] = field(repr=False)
    """All that is written out, in the order of the graph."""

    @property
    def scale(self) -> float:
        """What the product is multiplied by."""
        return self.query.scale * self.key.scale

    @property
    def reads(self) -> list[tuple[Node, Node]]:
        """The values of the program that it is made of, each with the op that sees it as it is meant."""
        given: list[tuple[Any, Node]] = [(one.node, one.reader) for one in (self.query, self.key, self.value)]
        given += [(factor.by, factor.by) for factor in self.factors]
        given += [(self.sinks.node, self.sinks.reader)] if self.sinks is not None else []
        for term in self.terms:
            step = term.step
            given += [
                (each, step.node) for each in ([step.term] if isinstance(step, Added) else [step.mask, step.value])
            ]
        return [(each, reader) for each, reader in given if isinstance(each, Node)]


def match_of(versions: Versions, softmax: Softmax) -> Match:
    """The attention around one softmax; MissedError says why there is none."""
    scores = scores_of(versions, softmax.scores)
    weights = weights_of(versions, softmax.result)
    check_unread(versions, scores.steps, scores.product.node, softmax.nodes)
    locations, at = _locations(scores, weights, softmax.result)
    column = _softmax_axis(softmax.dim, at[softmax.result])
    key_left = column in scores.product.own(scores.product.left_axes)
    if not key_left and column not in scores.product.own(scores.product.right_axes):
        raise MissedError("softmax goes over an axis that queries and keys share")
    sinks = _sinks(scores.steps, weights.steps, at, column)
    inner, value, feature, out = _values(weights.values, weights, locations[-1], column)
    row = _row(scores.product, key_left, out, value)
    sides = [_operand(versions, scores.product, left) for left in (True, False)]
    key, query = sides if key_left else sides[::-1]
    _check_shifts(scores.steps, at, column)
    number, factors, terms = _algebra(scores.steps, at)
    steps = [step.node for step in (*scores.steps, *weights.steps)]
    written = {scores.product.node, *softmax.nodes, weights.values.node, *steps}
    matched = tuple(sorted(written, key=versions.place.__getitem__))
    raised = max((step.number for step in scores.steps if isinstance(step, Raised)), default=-math.inf)
    match = Match(
        softmax.result, weights.values.node, replace(query, scale=query.scale * number), key, value,
        row, column, scores.product.inner, feature, tuple(locations), out, terms, factors, weights.dropout, raised, sinks,
        matched,
    )  # fmt: skip
    _check(versions, match, scores, weights, inner)
    return match


def _locations(scores: Scores, weights: AttentionWeights, softmax: Node) -> tuple[list[Location], dict[Node, Location]]:
    """Where scores and weights are after each op, and where each op finds them."""
    here = Location(scores.product.out)
    locations, at = [here], {scores.product.node: here}
    for step in (*scores.steps, ScoreStep(softmax), *weights.steps):
        at[step.node] = here
        if isinstance(step, Arranged):
            here = arranged(here, step.node)
            if here is not locations[-1]:
                locations.append(here)
    return locations, at


def _softmax_axis(dim: Any, location: Location) -> Axis:
    if not isinstance(dim, int):
        raise MissedError("it isn't said over which axis softmax goes")
    return location.axes[dim % len(location.axes)]


def _values(
    second: Contraction, weights: AttentionWeights, location: Location, column: Axis
) -> tuple[Axis, Operand, Axis, tuple[Axis, ...]]:
    """The axis that the second matmul sums over, the values and their own axis, and the axes of the result."""
    ours, theirs = second.left_axes, second.right_axes
    if not weights.on_the_left:
        ours, theirs = theirs, ours
    known = dict(zip(ours, location.axes, strict=True))
    if not all(equal(new.size, old.size) for new, old in known.items()):
        raise MissedError("the values have more batches than the attention weights")
    if known.get(second.inner) is not column:
        raise MissedError("softmax goes over another axis than the one over which values are weighed")
    own = [axis for axis in theirs if axis not in known]
    if len(own) != 1 or any(axis not in known and axis not in own for axis in second.out):
        raise MissedError("the values have more batches than the attention weights")
    node = second.right if weights.on_the_left else second.left
    named = {**known, own[0]: own[0]}
    axes = tuple(named[axis] for axis in theirs)
    return second.inner, Operand(node, axes, second.node), own[0], tuple(named[axis] for axis in second.out)


def _row(product: Contraction, key_left: bool, out: tuple[Axis, ...], value: Operand) -> Axis:
    """The axis of the queries: their own, and none that values have."""
    own = product.own(product.right_axes if key_left else product.left_axes)
    rows = [axis for axis in own if axis in out and axis not in value.axes]
    if not rows:
        raise MissedError("the queries have no axis of their own")
    return rows[-1]


def _operand(versions: Versions, product: Contraction, left: bool) -> Operand:
    """One side of the product, behind its transposes, its scaling by a number and casts that only make it wider."""
    node, axes = (product.left, product.left_axes) if left else (product.right, product.right_axes)
    reader, scale = product.node, 1.0
    while node.op in ("call_function", "call_method") and node not in versions.writers:
        if versions.put_together(reader, node):
            break
        if _changed(versions, node, product.node):
            break  # under other rules it may take no gradient, whatever is known of it
        source = versions.there(node, first(node))
        name, order = name_of(node), permutation(node)
        if order is not None:
            axes = tuple(axes[order.index(place)] for place in range(len(order)))
        elif name in ("mul", "div") and (scaled := _scaled(versions, node)) is not None:
            source, number = scaled
            scale *= number
        elif not (is_copy(node) or _only_wider(node, source)):
            break
        node, reader = source, node
    return Operand(node, axes, reader, scale)


def _scaled(versions: Versions, node: Node) -> tuple[Node, float] | None:
    """What is multiplied or divided by a number, and the factor."""
    one, other = first(node), argument(node, 1, "other")
    if name_of(node) == "div":
        number = number_of(other)
        rounded = argument(node, 2, "rounding_mode") is not None
        tensor, factor = one, None if not number or rounded else 1 / number
    else:
        tensor, factor = (one, number_of(other)) if isinstance(one, Node) else (other, number_of(one))
    if factor is None or not isinstance(tensor, Node):
        return None
    source = versions.there(node, tensor)
    return (source, factor) if fake_of(source).dtype == fake_of(node).dtype else None


def _only_wider(node: Node, source: Node) -> bool:
    """Whether a cast only makes numbers wider."""
    if name_of(node) not in ("to", "float", "double", "type") or not isinstance(source, Node):
        return False
    new, old = fake_of(node), fake_of(source)
    same_place = new.device == old.device and new.is_floating_point() and old.is_floating_point()
    return same_place and torch.promote_types(new.dtype, old.dtype) == new.dtype


def _algebra(
    steps: Sequence[ScoreStep], at: dict[Node, Location]
) -> tuple[float, tuple[Factor, ...], tuple[Hidden, ...]]:
    """The number and the tensors that the product is multiplied by, and the biases and masks, each with what scales it later."""
    number, factors, terms = 1.0, tuple[Factor, ...](), list[Hidden]()
    for step in steps:
        here = at[step.node]
        if isinstance(step, Scaled):
            plain = number_of(step.by)
            if plain is None:
                factor = (Factor(step.by, step.divided, here),)
                factors += factor
                terms = [Hidden(term.step, term.location, term.scale, (*term.factors, *factor)) for term in terms]
            else:
                if step.divided and not plain:
                    raise MissedError("the scores are divided by zero")
                plain = 1 / plain if step.divided else plain
                number *= plain
                terms = [Hidden(term.step, term.location, term.scale * plain, term.factors) for term in terms]
        elif isinstance(step, Added | Filled):
            terms.append(Hidden(step, here))
    return number, factors, tuple(terms)


def _sinks(
    steps: Sequence[ScoreStep], weights: Sequence[ScoreStep], at: dict[Node, Location], column: Axis
) -> Sinks | None:
    """What stands beside the scores in the softmax and is left out of the weights, if anything does."""
    joined = [step for step in steps if isinstance(step, Joined)]
    narrowed = [step for step in weights if isinstance(step, Narrowed)]
    if not joined and not narrowed:
        return None
    if [step.in_front for step in joined] != [step.in_front for step in narrowed] or len(joined) != 1:
        raise MissedError("what stands beside the scores in the softmax is not what is left out of the weights")
    (beside,), (left_out,) = joined, narrowed
    if any(at[step.node].axes[-1] is not column for step in (beside, left_out)):
        raise MissedError("what stands beside the scores stands along another axis than softmax goes over")
    place = steps.index(beside)
    between = (*steps[place + 1 :], *weights[: weights.index(left_out)])
    changed = next((step for step in between if not isinstance(step, Passed)), None)
    if changed is not None:
        raise MissedError(f"{name_of(changed.node)} sees the scores and what stands beside them")
    if any(isinstance(step, Passed) and step.shift for step in steps[:place]):
        raise MissedError("the largest score is subtracted before anything stands beside the scores")
    return Sinks(beside.sinks, beside.node, at[beside.node])


# checks


def _check_shifts(steps: Sequence[ScoreStep], at: dict[Node, Location], column: Axis) -> None:
    """MissedError where what is subtracted from scores is not the same for all that one softmax is taken over."""
    shifted = False
    for step in steps:
        axes = at[step.node].axes
        if isinstance(step, Passed) and step.shift:
            shifted = True
            if axes[step.along] is not column:
                raise MissedError("the largest score is subtracted along another axis than softmax goes over")
        if shifted and isinstance(step, Scaled) and isinstance(step.by, Node):
            shape = getattr(step.by.meta.get("example_value"), "shape", ())
            if column not in axes or column in axes_of(shape, axes):
                raise MissedError(
                    "after the largest score is subtracted, scores are multiplied by a tensor of the keys"
                )


def _check(versions: Versions, match: Match, scores: Scores, weights: AttentionWeights, inner: Axis) -> None:
    """MissedError where the same as one call would see other values, other sizes or other rules than what is written."""
    for location in (match.locations[0], match.locations[-1]):
        if not location.has(match.row, match.column):
            raise MissedError("the scores are viewed so that queries or keys are no axis of their own")
    if not equal(inner.size, match.column.size):
        raise MissedError("there are not as many values as keys")
    tensors = [match.query.node, match.key.node, match.value.node]
    fakes = [fake_of(each) for each in tensors]
    if not all(fake.is_floating_point() for fake in fakes) or len({fake.device for fake in fakes}) != 1:
        raise MissedError("queries, keys and values are not floats on one device")
    for node in match.nodes:
        if not fake_of(node).is_floating_point():
            raise MissedError(f"{node.name} gives no floats")
    _check_rules(versions, match)
    _check_writes(versions, match)


def _check_rules(versions: Versions, match: Match) -> None:
    """Everything must be computed under one set of rules: of autocast, and of whether gradients are taken."""
    change = _changed(versions, match.nodes[0], match.result)
    if change is not None:
        raise MissedError(f"{name_of(change)} changes the rules in between")
    drawn = filter(draws, between(match.softmax, match.result)) if match.dropout else ()
    if other := next((node for node in drawn if node not in match.nodes), None):
        raise MissedError(f"{other.name} draws random numbers behind the dropout of the weights")


def _changed(versions: Versions, start: Node, end: Node) -> Node | None:
    """What changes the rules of computing between two ops."""
    low, high = versions.place[start], versions.place[end]
    return next((node for node in versions.changes if low < versions.place[node] < high), None)


def is_written_later(versions: Versions, match: Match) -> bool:
    """Whether something that it is made of is written to behind it: a kernel that keeps it for its backward would miss it."""
    return any(versions.written_between(node, match.result) is not None for node, _ in match.reads)


def _check_writes(versions: Versions, match: Match) -> None:
    """What is read later than it was must still be what it was; and what is written must be nobody else's."""
    writer = versions.written_elsewhere(match.nodes)
    if writer is not None:
        raise MissedError(f"{writer.name} writes into what is not its own")
    for node, reader in match.reads:
        versions.check_unwritten(node, reader, match.result, match.nodes)
    if is_written_through(match.result, fake_of(match.result).requires_grad):
        raise MissedError("what may be a view of its result is written to, or leaves the program beside it")
    if fake_of(match.result).requires_grad:  # kernels keep it for their backward, which a matmul does not
        versions.check_unwritten(match.result, match.result)
