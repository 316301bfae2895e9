"""How low, and how high, the numbers of a bias can be: whether it can hide what it is added to, or all of a row.

Numbers that are learned, and what a matmul gives, hide nothing: as everywhere, scores are held to be finite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.fx import Node

from fuseplan.rewrites.reading import argument, first, name_of, number_of
from fuseplan.rewrites.written.missed import MissedError
from fuseplan.rewrites.written.versions import Versions

Range = tuple[float, float]

UNKNOWN: Range = (-math.inf, math.inf)
ABSORBS = -1e30
"""A number so low that no score shows beside it."""
FINITE: Range = (-1e3, 1e3)
"""Of what is learned or multiplied: no numbers that hide anything."""
_DEEPEST = 40
_LARGEST_LOG = math.log(torch.finfo(torch.float64).max)
_OF_ONE = frozenset(
    "to float half bfloat16 double type view reshape flatten unflatten unsqueeze squeeze view_as reshape_as contiguous clone alias "
    "permute transpose mT T t expand expand_as repeat detach getitem select narrow chunk unbind index_select gather roll flip "
    "repeat_interleave broadcast_to values data".split()
)
_MATMULS = frozenset("matmul bmm mm einsum linear baddbmm addmm conv1d conv2d layer_norm".split())


def range_of(versions: Versions, value: Any, depth: int = _DEEPEST) -> Range:
    """Numbers between which all elements lie."""
    number = number_of(value)
    if number is not None:
        return number, number
    fake = value.meta.get("example_value") if isinstance(value, Node) else None
    if isinstance(value, bool) or (isinstance(fake, torch.Tensor) and fake.dtype is torch.bool):
        return 0.0, 1.0
    if not isinstance(value, Node) or not depth:
        return UNKNOWN
    if value.op in ("placeholder", "get_attr"):
        learned = isinstance(fake, torch.Tensor) and fake.is_floating_point() and _is_learned(fake)
        return FINITE if learned else UNKNOWN
    low, high = _computed(versions, value, depth - 1)
    if isinstance(fake, torch.Tensor) and fake.is_floating_point():
        most, least = torch.finfo(fake.dtype).max, torch.finfo(fake.dtype).tiny
        low, high = (-math.inf if low < -most else low), (math.inf if high > most else high)
        low, high = (0.0 if 0.0 < low < least else low), (0.0 if -least < high < 0.0 else high)
    return UNKNOWN if math.isnan(low) or math.isnan(high) else (low, high)


def range_read(versions: Versions, reader: Node, value: Any) -> Range:
    """Numbers between which all elements lie where `reader` sees them."""
    put_together = isinstance(value, Node) and versions.put_together(reader, value)
    return UNKNOWN if put_together else range_of(versions, value)


def _is_learned(fake: torch.Tensor) -> bool:
    return isinstance(fake, torch.nn.Parameter) or fake.requires_grad


def _computed(versions: Versions, node: Node, depth: int) -> Range:
    name = name_of(node)

    def of(value: Any) -> Range:
        try:
            return range_of(versions, versions.read(node, value), depth)
        except MissedError:
            return UNKNOWN

    if name in _OF_ONE:
        return of(first(node))
    if name in _MATMULS:
        return FINITE
    rule = _RULES.get(name)
    return rule(node, of) if rule is not None else UNKNOWN


_Of = Callable[[Any], Range]


def _either(ranges: Iterable[Range]) -> Range:
    lows, highs = zip(*ranges, strict=True)
    return min(lows), max(highs)


def _sum(left: Range, right: Range, times: float = 1.0) -> Range:
    low, high = product(right, (times, times))
    return left[0] + low, left[1] + high


def product(left: Range, right: Range) -> Range:
    """Numbers between which the products lie."""
    corners = [0.0 if 0.0 in (one, other) else one * other for one in left for other in right]
    return min(corners), max(corners)


def quotient(left: Range, right: Range) -> Range:
    """Numbers between which the quotients lie."""
    return UNKNOWN if right[0] <= 0.0 <= right[1] else product(left, (1 / right[1], 1 / right[0]))


def _rising(function: Callable[[float], float], least: float = -math.inf) -> Callable[[Node, _Of], Range]:
    """The rule of a function that never falls; below `least` it gives no number."""

    def rule(node: Node, of: _Of) -> Range:
        low, high = of(first(node))
        return (function(low), function(high)) if low >= least else UNKNOWN

    return rule


def _exp(number: float) -> float:
    return math.exp(number) if number < _LARGEST_LOG else math.inf


def _even(function: Callable[[float], float]) -> Callable[[Node, _Of], Range]:
    """The rule of a function of an absolute value that never falls. Of whole numbers it may run over."""

    def rule(node: Node, of: _Of) -> Range:
        fake = node.meta.get("example_value")
        if not (isinstance(fake, torch.Tensor) and fake.is_floating_point()):
            return UNKNOWN
        low, high = of(first(node))
        least = 0.0 if low <= 0.0 <= high else min(abs(low), abs(high))
        return function(least), function(max(abs(low), abs(high)))

    return rule


def _one_over_root(node: Node, of: _Of) -> Range:
    low, high = of(first(node))
    return (1 / math.sqrt(high), 1 / math.sqrt(low)) if low > 0.0 else UNKNOWN


def _both(choose: Callable[[float, float], float]) -> Callable[[Node, _Of], Range]:
    def rule(node: Node, of: _Of) -> Range:
        (low, high), (other_low, other_high) = of(first(node)), of(_second(node))
        return choose(low, other_low), choose(high, other_high)

    return rule


def _dropped(node: Node, of: _Of) -> Range:
    share = number_of(argument(node, 1, "p", default=0.5))
    if share is None or not 0.0 <= share < 1.0:
        return UNKNOWN
    return _either([(0.0, 0.0), product(of(first(node)), (1 / (1 - share), 1 / (1 - share)))])


def _full(node: Node, of: _Of) -> Range:
    place = 2 if node.op == "call_method" else 1
    return of(argument(node, place, "fill_value"))


def _times(node: Node) -> float:
    number = number_of(argument(node, 2, "alpha", default=1))
    return math.nan if number is None else number


def _masked(node: Node, of: _Of) -> Range:
    return _either([of(first(node)), of(argument(node, 2, "value"))])


def _clamped(node: Node, of: _Of) -> Range:
    low, high = of(first(node))
    least, most = number_of(argument(node, 1, "min")), number_of(argument(node, 2, "max"))
    return max(low, -math.inf if least is None else least), min(high, math.inf if most is None else most)


def _second(node: Node) -> Any:
    return argument(node, 1, "other")


_RULES: dict[str, Callable[[Node, _Of], Range]] = {
    "zeros": lambda node, of: (0.0, 0.0),
    "zeros_like": lambda node, of: (0.0, 0.0),
    "new_zeros": lambda node, of: (0.0, 0.0),
    "ones": lambda node, of: (1.0, 1.0),
    "ones_like": lambda node, of: (1.0, 1.0),
    "new_ones": lambda node, of: (1.0, 1.0),
    "full": _full,
    "full_like": lambda node, of: of(argument(node, 1, "fill_value")),
    "new_full": _full,
    "tensor": lambda node, of: of(first(node)),
    "scalar_tensor": lambda node, of: of(first(node)),
    "fill": lambda node, of: of(argument(node, 1, "value")),
    "arange": lambda node, of: (-(2.0**31), 2.0**31),
    "add": lambda node, of: _sum(of(first(node)), of(_second(node)), _times(node)),
    "sub": lambda node, of: _sum(of(first(node)), of(_second(node)), -_times(node)),
    "rsub": lambda node, of: _sum(of(_second(node)), of(first(node)), -_times(node)),
    "mul": lambda node, of: product(of(first(node)), of(_second(node))),
    "div": lambda node, of: quotient(of(first(node)), of(_second(node))),
    "neg": lambda node, of: product(of(first(node)), (-1.0, -1.0)),
    "sqrt": _rising(math.sqrt, 0.0),
    "rsqrt": _one_over_root,
    "exp": _rising(_exp),
    "relu": _rising(lambda number: max(0.0, number)),
    "abs": _even(float),
    "square": _even(lambda number: number * number),
    "maximum": _both(max),
    "minimum": _both(min),
    "dropout": _dropped,
    "tanh": lambda node, of: (-1.0, 1.0),
    "sigmoid": lambda node, of: (0.0, 1.0),
    "softmax": lambda node, of: (0.0, 1.0),
    "embedding": lambda node, of: of(argument(node, 1, "weight")),
    "masked_fill": _masked,
    "where": lambda node, of: _either(map(of, _branches(node))),
    "clamp": _clamped,
    "triu": lambda node, of: _either([of(first(node)), (0.0, 0.0)]),
    "tril": lambda node, of: _either([of(first(node)), (0.0, 0.0)]),
    "pad": lambda node, of: _either([of(first(node)), of(argument(node, 3, "value", default=0) or 0)]),
    "cat": lambda node, of: _either(map(of, first(node) or argument(node, 0, "tensors"))),
    "stack": lambda node, of: _either(map(of, first(node) or argument(node, 0, "tensors"))),
}


def _branches(node: Node) -> tuple[Any, Any]:
    if node.op == "call_method":
        return first(node), argument(node, 2, "other")
    return argument(node, 1, "input", "self"), argument(node, 2, "other")
