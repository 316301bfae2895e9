"""Matmuls of few rows, as in a step of decoding: what takes time is to read the matrices. They go to a Triton kernel of our own, those that
read the same rows together, behind an operator that no compiler looks into.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from fuseplan.capture.dynamo.symbols import at_most
from fuseplan.capture.fx.few_rows import DTYPES
from fuseplan.capture.fx.own_kernels import no_kernels, processors_of
from fuseplan.kernels.tiling import ALIGNED, MOST_ROWS, MOST_TOGETHER, Tiling
from fuseplan.rewrites.base import Draft, Kind, Site, digest_of
from fuseplan.rewrites.matmul import operands_of
from fuseplan.rewrites.siblings import take_part
from fuseplan.rewrites.special import example
from fuseplan.rewrites.writes import Writes

LEAST_ELEMENTS = 2**16
"""Of the matrices of a call: with fewer, there is nothing to read faster …"""
PREFERRED_ROWS = 64
"""Of more, a race says whether it is worth it: each matrix is read more than once."""
MOST_BYTES = 128 * 10**6
"""… and with more, what is lost at the beginning and the end of a matmul is little beside the rest."""
_MEANING = "1"
"""Another one, should the function ever do something else: torch counts it in."""


def products_of_few_rows(rows: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], parts: int) -> Tensor:
    """What `linear` gives of the rows with each of the weights, beside each other; in parts, if there are several, which are to be added.

    >>> products_of_few_rows(torch.ones(1, 2), [torch.ones(3, 2), torch.zeros(1, 2)], [], 1).tolist()
    [[2.0, 2.0, 2.0, 0.0]]
    """
    found: Tensor = torch.ops.fuseplan.few_rows(rows, list(weights), list(biases), parts)
    return found


@dataclass(frozen=True)
class Product:
    """One matmul of few rows, and what it reads."""

    call: Node
    rows: Node
    matrix: Node
    bias: Node | None
    turned: bool
    """Whether the matrix has a column for each column of the result."""

    @staticmethod
    def of(node: Node) -> Product | None:
        """What a node computes, if that is a matmul."""
        operands = operands_of(node)
        return None if operands is None else Product(node, *operands)

    @property
    def weight(self) -> Any:
        """The matrix, with a row for each column of the result."""
        found = example(self.matrix)
        return found.t() if self.turned else found

    @property
    def read(self) -> tuple[Node, ...]:
        """What it reads."""
        return (self.rows, self.matrix, *([] if self.bias is None else [self.bias]))


@dataclass(frozen=True, eq=False)
class FewRowsSite(Site):
    """One to four matmuls of the same rows, in the order of the graph."""

    products: tuple[Product, ...] = field(repr=False)

    @property
    def columns(self) -> tuple[int, ...]:
        """How many the result of each has."""
        return tuple(one.weight.shape[0] for one in self.products)

    @property
    def features(self) -> int:
        """How many the rows and the matrices have; what the rows say may be a symbol, though of one value."""
        found: int = self.products[0].weight.shape[1]
        return found

    @property
    def given(self) -> Any:
        """What they are multiplied with."""
        return example(self.products[0].rows)

    @property
    def rows(self) -> int:
        """How many rows that has at most."""
        found = _rows_of(self.given)
        assert found is not None
        return found


class FewRows(Kind[FewRowsSite]):
    """Matmuls of few rows."""

    noun = "matmul of few rows"
    has_own_gradients = True  # it has none: a transformation such as vmap finds no rule for it
    functions: Mapping[str, str] = {f"{products_of_few_rows.__module__}.products_of_few_rows": _MEANING}

    def find(self, gm: GraphModule) -> Sequence[FewRowsSite]:
        """Those whose rows are known to be few; of those that read the same rows, as many together as can be."""
        writes = Writes.of(gm.graph)
        found, places = list[FewRowsSite](), writes.places
        for products in sorted(_together(gm, writes), key=lambda products: places[products[0].call]):
            digest = digest_of("few-rows", {places[one.call]: one.call for one in products})
            found.append(FewRowsSite(len(found), digest, products))
        return found

    def missed(self, gm: GraphModule) -> Mapping[str, str]:
        """Where nobody knows how many rows there are."""
        why = "how many rows it has is known at run time only"
        found = [one for node in gm.graph.nodes if (one := Product.of(node)) is not None]
        unknown = [one.call for one in found if _rows_of(example(one.rows)) is None]
        return {call.name: why for call in unknown if not example(call).requires_grad}

    def nodes(self, site: FewRowsSite) -> Collection[Node]:
        """Their calls."""
        return tuple(one.call for one in site.products)

    def ways(self, site: FewRowsSite) -> Sequence[str]:
        """By a kernel of our own."""
        return ("triton",)

    def refusal(self, site: FewRowsSite, way: str) -> str | None:
        """What the kernel does not do."""
        if way not in self.ways(site):
            return f"there is no variant {way!r} of matmuls of few rows"
        return next((why for one in site.products if (why := _why_not(one)) is not None), None)

    def preferred(self, site: FewRowsSite) -> str | None:
        """On a GPU, where rows are very few, and the matrices neither small nor large."""
        return super().preferred(site) if _is_worth_it(site) else None

    def rivals(self, site: FewRowsSite) -> Mapping[str, str]:
        """On a GPU, also where it is not preferred; elsewhere it is the same."""
        return super().rivals(site) if site.given.device.type == "cuda" else {}

    def apply(self, draft: Draft, chosen: Mapping[FewRowsSite, str]) -> None:
        """One call in the place of the first, of which each result is a part."""
        for site in chosen:
            _write(draft, site)

    def about(self, site: FewRowsSite) -> str:
        """How many there are, and of what."""
        many = f"{len(site.products)} matmuls" if len(site.products) > 1 else "one matmul"
        columns = " + ".join(map(str, site.columns))
        least = "" if all(type(size) is int for size in site.given.shape) else "at most "
        return f"{many} of {least}{site.rows} × {site.features}, {columns} columns"


def _rows_of(given: Any) -> int | None:
    """How many rows there are at most; None where nobody knows."""
    sizes = [at_most(size) for size in given.shape[:-1]]
    return math.prod(size for size in sizes if size is not None) if None not in sizes else None


def _is_as_made(result: Any, shape: Sequence[Any]) -> bool:
    """Whether a result has the shape and the strides that it was made with, as far as that is known."""
    strides = [math.prod(shape[place + 1 :]) for place in range(len(shape))]
    pairs = [*zip(result.shape, shape, strict=False), *zip(result.stride(), strides, strict=False)]
    known = all(statically_known_true(one == other) for one, other in pairs)
    return len(result.shape) == len(shape) and known


def _together(gm: GraphModule, writes: Writes) -> Iterator[tuple[Product, ...]]:
    """Matmuls of few rows, by what can be one call: the same rows and dtypes, all with a bias or none, nothing written between them, and each
    given what it reads before the first.
    """
    groups: dict[tuple[Any, ...], list[Product]] = {}
    for node in gm.graph.nodes:
        one = Product.of(node)
        if one is None or not 0 < (_rows_of(example(one.rows)) or 0) <= MOST_ROWS:
            continue
        if example(node).requires_grad:
            continue  # the kernel gives no gradients
        trained = any(
            example(read).requires_grad for read in one.read
        )  # then `no_grad` is around it, and not around all
        alike = example(node).dtype, trained, one.bias is None, _why_not(one)
        groups.setdefault((one.rows, *alike), []).append(one)
    for products in groups.values():
        by_call = {one.call: one for one in products}
        for calls in writes.apart(list(by_call), {node for one in products for node in one.read}):
            yield from _ready([by_call[call] for call in calls], writes.places)


def _ready(products: Sequence[Product], places: Mapping[Node, int]) -> Iterator[tuple[Product, ...]]:
    """The same, apart where one reads what comes behind the first, and not too many together."""
    stretch: list[Product] = []
    for one in products:
        if stretch and any(places[node] > places[stretch[0].call] for node in one.read):
            yield from _evenly(stretch)
            stretch = []
        stretch.append(one)
    yield from _evenly(stretch)


def _evenly(products: Sequence[Product]) -> Iterator[tuple[Product, ...]]:
    """In as few calls as can be, of about as many each: of query, key, value, gate and up, the first three."""
    calls = -(-len(products) // MOST_TOGETHER)
    for left in range(calls, 0, -1):
        count = -(-len(products) // left)
        yield tuple(products[:count])
        products = products[count:]


def _why_not(one: Product) -> str | None:
    """Why the kernel cannot do a matmul."""
    result, weight = example(one.call), one.weight
    tensors = [result, example(one.rows), weight, *([] if one.bias is None else [example(one.bias)])]
    if any(type(size) is not int for size in (*weight.shape, *weight.stride())):
        return "how large its matrix is, is known at run time only"
    if 0 in weight.shape:
        return "its matrix has no elements"
    if not _is_as_made(result, (*example(one.rows).shape[:-1], weight.shape[0])):
        return "it, or its rows, take another shape in place"
    if len({tensor.dtype for tensor in tensors}) > 1 or not result.is_floating_point():
        return "what it multiplies is of another dtype than its result"
    if len({tensor.device for tensor in tensors}) > 1:
        return "its tensors are on several devices"
    if one.bias is not None and tuple(example(one.bias).shape) != (weight.shape[0],):
        return "its bias is no number a column"
    if weight.stride(1) != 1 or weight.stride(0) % ALIGNED:
        return "its matrix does not lie row by row, as the kernel reads it"
    return _no_kernel(result) if result.device.type == "cuda" else None


def _no_kernel(result: Any) -> str | None:
    if result.dtype not in DTYPES:
        return f"the kernel does not multiply {str(result.dtype).removeprefix('torch.')}"
    return no_kernels(result.device)


def _is_worth_it(site: FewRowsSite) -> bool:
    elements = site.features * sum(site.columns)
    least, most = LEAST_ELEMENTS, MOST_BYTES // site.given.element_size()
    few = site.rows <= PREFERRED_ROWS
    return bool(site.given.device.type == "cuda" and few and least <= elements <= most)


def _write(draft: Draft, site: FewRowsSite) -> None:
    calls, like = [draft.copies[one.call] for one in site.products], example(site.products[0].call)
    parts = Tiling.of(site.rows, site.features, site.columns, processors_of(site.given.device)).parts
    with draft.graph.inserting_before(calls[0]):
        products = [found for call in calls if (found := Product.of(call)) is not None]  # as others have left them
        weights = [draft.call("t", (one.matrix,), {}, like) if one.turned else one.matrix for one in products]
        biases = [one.bias for one in products if one.bias is not None]
        given = (products[0].rows, weights, biases, parts)
        if len(calls) == parts == 1:
            call = calls[0]
            call.op, call.target, call.args, call.kwargs = "call_function", products_of_few_rows, given, {}
            return
        whole = draft.call(products_of_few_rows, given, {}, like)
    start = 0
    for one, call, size in zip(site.products, calls, site.columns, strict=True):
        if parts > 1:
            _sum_parts(draft, call, whole, start, size, like)
        else:
            take_part(draft, one.call, call, whole, start, size)
        start += size


def _sum_parts(draft: Draft, call: Node, whole: Node, start: int, size: int, like: Any) -> None:
    """A call becomes the sum of the parts of its columns."""
    with draft.graph.inserting_before(call):
        part = draft.call(torch.narrow, (whole, -1, start, size), {}, like)
        total = draft.call(torch.sum, (part, 0), {}, like)
    call.op, call.target, call.args, call.kwargs = "call_method", "to", (total, like.dtype), {}
