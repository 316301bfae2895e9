"""Softmax, as one op or spelled out: exponentials less the largest score divided by their sum, or those of its logarithm."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node

from fuseplan.rewrites.reading import argument, first, name_of
from fuseplan.rewrites.written.missed import MissedError, noted
from fuseplan.rewrites.written.reduced import Reduced, reduced_from
from fuseplan.rewrites.written.scores import less_the_largest
from fuseplan.rewrites.written.versions import Versions, fake_of


@dataclass(frozen=True, eq=False)
class Softmax:
    """What makes attention weights of scores."""

    result: Node
    """It gives the weights."""
    scores: Any
    """The value that it is taken of."""
    dim: Any
    """The axis that it goes over, as it is written."""
    nodes: tuple[Node, ...]
    """All that it consists of, in order."""


def has_softmaxes(graph: Graph) -> bool:
    """Whether any is in a graph at all."""
    return any(name_of(node) in ("softmax", "exp") for node in graph.nodes)


def softmaxes(versions: Versions) -> list[Node]:
    """What gives the weights of each softmax of a graph, or looks as if it did, in order."""
    return [node for node in versions.place if node.op in ("call_function", "call_method") and _may_be(versions, node)]


def _may_be(versions: Versions, node: Node) -> bool:
    name = name_of(node)
    if name == "softmax":
        return True
    given = [first(node), argument(node, 1, "other")]
    if name in ("div", "mul"):
        reads = [each for value in given for each in list(_behind(versions, node, value))[:1]]
        return any(map(_is_exp, reads)) and any(_comes_from(versions, node, value, "sum") for value in given)
    return name == "exp" and any(_comes_from(versions, node, given[0], word) for word in ("log_softmax", "logsumexp"))


def _is_exp(node: Any) -> bool:
    return isinstance(node, Node) and name_of(node) == "exp"


def _comes_from(versions: Versions, reader: Node, value: Any, word: str) -> bool:
    """Whether a value, or what is subtracted to get it, is what an op of this name gives, in another shape at most."""
    for node in _behind(versions, reader, value):
        if name_of(node) == word:
            return True
        if name_of(node) == "sub":
            return word == "logsumexp" and _comes_from(versions, node, argument(node, 1, "other"), word)
    return False


def _behind(versions: Versions, reader: Node, value: Any) -> Iterator[Node]:
    """What is read under an argument, and what that is made of, one by one."""
    while isinstance(value, Node):
        with noted([]):
            value = versions.read(reader, value)
        yield value
        reader, source = value, first(value)
        value = source if isinstance(source, Node) else argument(reader, 1, "other")


def softmax_at(versions: Versions, node: Node) -> Softmax:
    """The softmax whose weights a node gives; MissedError says why it is none, or what else reads a part of it."""
    if name_of(node) == "softmax":
        return Softmax(node, versions.read(node, first(node)), argument(node, 1, "dim"), (node,))
    found = _of_a_logarithm(versions, node) if _is_exp(node) else _divided(versions, node)
    for part in found.nodes[:-1]:
        others = [reader for reader in versions.elements_read_by(part) if reader not in found.nodes]
        if others:
            raise MissedError(f"{part.name}, a part of softmax, is read elsewhere, too")
    return found


def _of_a_logarithm(versions: Versions, exp: Node) -> Softmax:
    logarithm = versions.read(exp, first(exp))
    scores = versions.read(logarithm, first(logarithm))
    if name_of(logarithm) == "log_softmax":
        return Softmax(exp, scores, argument(logarithm, 1, "dim"), (logarithm, exp))
    plain = argument(logarithm, 2, "alpha", default=1) == 1
    subtracted = versions.read(logarithm, argument(logarithm, 1, "other"))
    total = reduced_from(versions, subtracted, "logsumexp", scores) if plain else None
    if total is None or total.inverted:
        raise MissedError("something else than the logarithm of their sum is subtracted from the scores")
    return Softmax(exp, scores, total.dim, (*total.nodes, logarithm, exp))


def _divided(versions: Versions, node: Node) -> Softmax:
    exp, total = _parts(versions, node)
    scores = versions.read(exp, first(exp))
    rank = len(fake_of(scores).shape)
    along = less_the_largest(versions, scores)
    if along is None or along % rank != total.dim:
        raise MissedError("exponentials are taken of more than scores less the largest of them, and may be infinite")
    return Softmax(node, scores, total.dim, (exp, *total.nodes, node))


def _parts(versions: Versions, node: Node) -> tuple[Node, Reduced]:
    """The exponentials, and their sum by which they are divided."""
    one, other = (versions.read(node, each) for each in (first(node), argument(node, 1, "other")))
    divided = name_of(node) == "div"
    for exp, by in [(one, other)] if divided else [(one, other), (other, one)]:
        total = reduced_from(versions, by, "sum", exp) if _is_exp(exp) else None
        if total is not None and total.inverted != divided and argument(node, 2, "rounding_mode") is None:
            _check_wide(exp, total)
            return exp, total
    raise MissedError("exponentials of the scores are divided by something else than their sum")


def _check_wide(exp: Node, total: Reduced) -> None:
    given = fake_of(exp).dtype
    if any(torch.promote_types(given, fake_of(node).dtype) != fake_of(node).dtype for node in total.nodes):
        raise MissedError("the exponentials are summed in a narrower type than theirs")
