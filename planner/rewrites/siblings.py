"""Matmuls that read one input, such as those of query, key and value, or of gate and up: one matmul with the weights of all of them.

The merged weights are an input of the rewritten program, which `runtime/merged.py` gives it: they are made once, beside the program's
own, and made anew when those change. That they change seldom is what a caller promises by option `weights`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._guards import tracing
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from fuseplan.rewrites.base import Draft, Kind, Site, digest_of
from fuseplan.rewrites.matmul import operands_of
from fuseplan.rewrites.reading import name_of
from fuseplan.rewrites.special import example, memory_of
from fuseplan.rewrites.writes import Writes

MOST = 4
"""So many are one site: where each layer reads what an encoder gave, all of their results would be held from the first layer on."""
MERGED = "fuseplan_merged"
"""What an input of a rewritten program has in its `meta` that is merged of others."""
_READS_LAYOUT = frozenset({
    "as_strided", "stride", "is_contiguous", "storage_offset", "untyped_storage", "storage", "data_ptr", "set", "resize",
})  # fmt: skip


@dataclass(frozen=True)
class Merger:
    """How an input is merged of others: which of them, and along which dimension."""

    parts: tuple[tuple[int | None, int], ...]
    """Of each part the place among the inputs, and how large it is along the dimension; without a place it is zeros."""
    dim: int

    @property
    def places(self) -> tuple[int, ...]:
        """The inputs that it is merged of."""
        return tuple(place for place, _ in self.parts if place is not None)


def mergers_in(gm: GraphModule) -> tuple[Merger, ...]:
    """How the last inputs of a rewritten program are merged of those before; empty where none is."""
    found = (node.meta.get(MERGED) for node in gm.graph.find_nodes(op="placeholder"))
    return tuple(one for one in found if one is not None)


@dataclass(frozen=True, eq=False)
class SiblingSite(Site):
    """Matmuls of the same rows, in the order of the graph."""

    calls: tuple[Node, ...] = field(repr=False)

    @property
    def columns(self) -> tuple[int, ...]:
        """How many the result of each has."""
        return tuple(example(call).shape[-1] for call in self.calls)

    @property
    def parameters(self) -> Iterator[Node]:
        """The inputs of the program that are merged."""
        for call in self.calls:
            _, matrix, bias, _ = _operands(call)
            yield matrix
            if bias is not None:
                yield bias


class Siblings(Kind[SiblingSite]):
    """Matmuls of parameters that read one input."""

    noun = "group of siblings"
    on_fixed_weights = True

    def find(self, gm: GraphModule) -> Sequence[SiblingSite]:
        """Two or more matmuls of one input, each with parameters that nothing else reads."""
        places = {node: place for place, node in enumerate(gm.graph.nodes)}
        found = list[SiblingSite]()
        for calls in _groups(gm)[0]:
            digest = digest_of("siblings", {places[call]: call for call in calls})
            found.append(SiblingSite(len(found), digest, calls))
        return found

    def missed(self, gm: GraphModule) -> Mapping[str, str]:
        """Matmuls that read what another one reads as well, and that cannot be merged."""
        return _groups(gm)[1]

    def nodes(self, site: SiblingSite) -> Collection[Node]:
        """Their calls."""
        return site.calls

    def ways(self, site: SiblingSite) -> Sequence[str]:
        """As one matmul."""
        return ("merged",)

    def refusal(self, site: SiblingSite, way: str) -> str | None:
        """Where weights are about to change."""
        if way not in self.ways(site):
            return f"there is no variant {way!r} of siblings"
        if any(example(call).requires_grad for call in site.calls):
            return "gradients go back through it: its weights are trained, and would be merged at each step"
        return None

    def forbidden(self, site: SiblingSite, way: str) -> str | None:
        """Where it could not be seen that a weight has changed."""
        for node in site.parameters:
            if _is_sharded(node):
                return f"{node.name} is sharded by FSDP, which writes to it unseen"
            given = getattr(node.meta.get("grapharg"), "example", None)
            if isinstance(given, Tensor) and given.is_inference():
                return f"{node.name} was made in inference mode, where nobody counts what is written to it"
        return None

    def preferred(self, site: SiblingSite) -> str | None:
        """On a GPU; elsewhere nobody has seen it pay."""
        return super().preferred(site) if example(site.calls[0]).device.type == "cuda" else None

    def apply(self, draft: Draft, chosen: Mapping[SiblingSite, str]) -> None:
        """One matmul in the place of the first, of which each result is a part."""
        inputs = {node: place for place, node in enumerate(draft.gm.graph.find_nodes(op="placeholder"))}
        for site in chosen:
            _merge(draft, site, inputs)

    def about(self, site: SiblingSite) -> str:
        """How many there are, and of how many columns."""
        return f"{len(site.calls)} matmuls of one input, {' + '.join(map(str, site.columns))} columns"


def _operands(call: Node) -> tuple[Node, Node, Node | None, bool]:
    found = operands_of(call)
    assert found is not None
    return found


def _groups(gm: GraphModule) -> tuple[list[tuple[Node, ...]], dict[str, str]]:
    """The matmuls that can be merged, group by group; and why others cannot that read what one beside them reads, by name."""
    inputs = gm.graph.find_nodes(op="placeholder")
    owners = Counter(memory for node in inputs for memory in memory_of(example(node)))
    readers: dict[Node, list[Node]] = {}
    for node in gm.graph.nodes:
        operands = operands_of(node)
        if operands is not None:
            readers.setdefault(operands[0], []).append(node)
    found, missed, writes = list[tuple[Node, ...]](), dict[str, str](), Writes.of(gm.graph)
    for rows, calls in readers.items():
        if len(calls) < 2:
            continue
        reasons = {call: _why_not(call, owners) for call in calls}
        missed |= {call.name: why for call, why in reasons.items() if why is not None}
        for alike in _alike([call for call, why in reasons.items() if why is None]):
            for stretch in writes.apart(alike, (rows,)):
                chunks = [tuple(stretch[at : at + MOST]) for at in range(0, len(stretch), MOST)]
                found += [chunk for chunk in chunks if len(chunk) > 1]
    return sorted(found, key=lambda calls: writes.places[calls[0]]), missed


def _why_not(call: Node, owners: Counter[int]) -> str | None:
    """Why a matmul cannot be merged with one that it could be merged with else."""
    _, matrix, bias, _ = _operands(call)
    given, columns = example(matrix), example(call).shape[-1]
    if not example(call).dtype.is_floating_point:
        return "its result is no floating-point number"
    for node, what in ((matrix, "weight"), (bias, "bias")):
        if node is None:
            continue
        value = example(node)
        if not _stays(node):
            return f"its {what} is no parameter of the program"
        if len(node.users) > 1:
            return f"its {what} is used elsewhere, too"
        if any(owners[memory] > 1 for memory in memory_of(value)):
            return f"its {what} shares memory with another input"
        if value.dtype != given.dtype or value.device != given.device:
            return f"its {what} is of another dtype, or elsewhere"
    if bias is not None and tuple(example(bias).shape) != (columns,):
        return "its bias is no number a column"
    return None if example(call).is_contiguous() else "its result does not lie in one piece"


def _stays(node: Node) -> bool:
    """Whether it is a parameter or a buffer of the program: what Dynamo knows to be the same at each call."""
    told = node.meta.get("tensor_dict") or {}
    return node.op == "placeholder" and bool(told.get("_dynamo_static_input_type"))


def _alike(calls: Sequence[Node]) -> Iterator[list[Node]]:
    """Those that one matmul can do: weights that lie the same way around, and the same dtypes."""
    groups: dict[tuple[Any, ...], list[Node]] = {}
    for call in calls:
        _, matrix, _, turned = _operands(call)
        weight = example(matrix)
        groups.setdefault((turned, weight.dtype, weight.device, example(call).dtype), []).append(call)
    yield from groups.values()


def _is_sharded(node: Node) -> bool:
    """Whether it belongs to a module that FSDP manages."""
    source = getattr(node, "_dynamo_source", None)
    while source is not None:
        if "FSDP" in type(source).__name__:
            return True
        source = getattr(source, "base", None)
    return False


def _merge(draft: Draft, site: SiblingSite, inputs: Mapping[Node, int]) -> None:
    calls, columns = [draft.copies[call] for call in site.calls], site.columns
    originals = [_operands(call) for call in site.calls]
    rows, turned = _operands(calls[0])[0], originals[0][3]  # of another kind's, the rows may be another node by now
    weights = tuple((inputs[matrix], size) for (_, matrix, _, _), size in zip(originals, columns, strict=True))
    biases = tuple(
        (None if bias is None else inputs[bias], size) for (_, _, bias, _), size in zip(originals, columns, strict=True)
    )
    weight = _merged_input(draft, Merger(weights, 1 if turned else 0))
    bias = _merged_input(draft, Merger(biases, 0)) if any(place is not None for place, _ in biases) else None
    target: Any = F.linear
    args: tuple[Node | None, ...] = (rows, weight, bias)
    if turned:
        target, args = (torch.matmul, (rows, weight)) if bias is None else (torch.addmm, (bias, rows, weight))
    like = example(site.calls[0])
    with draft.graph.inserting_before(calls[0]):
        merged = draft.graph.create_node("call_function", target, args)
    with _fakes(like):
        merged.meta["example_value"] = like.new_empty((*like.shape[:-1], sum(columns)))
    start = 0
    for original, call, size in zip(site.calls, calls, columns, strict=True):
        take_part(draft, original, call, merged, start, size)
        start += size


def take_part(draft: Draft, original: Node, call: Node, merged: Node, start: int, size: int) -> None:
    """The columns that were a call's result: as they lie among the others, or by themselves where it may matter how they lie."""
    like, whole = example(original), example(merged)
    with _fakes(like):
        part = whole.narrow(-1, start, size)
    args = (merged, -1, start, size)
    if not _needs_memory_of_its_own(original, part):
        call.op, call.target, call.args, call.kwargs = "call_function", torch.narrow, args, {}
        call.meta["example_value"] = part
        return
    with draft.graph.inserting_before(call):
        narrowed = draft.graph.create_node("call_function", torch.narrow, args)
        narrowed.meta["example_value"] = part
    # of one row, a part is contiguous, and lies among the others all the same
    call.op, call.target, call.args = "call_method", "clone", (narrowed,)
    call.kwargs = {"memory_format": torch.contiguous_format}


def _merged_input(draft: Draft, merger: Merger) -> Node:
    """A new input behind all others."""
    originals, inputs = (graph.find_nodes(op="placeholder") for graph in (draft.gm.graph, draft.graph))
    parts = [None if place is None else example(originals[place]) for place, _ in merger.parts]
    some = next(part for part in parts if part is not None)
    with draft.graph.inserting_after(inputs[-1]):
        node = draft.graph.placeholder(f"fuseplan_merged_{len(inputs)}")
    with _fakes(some):
        node.meta["example_value"] = merged_of(merger, parts)
    node.meta[MERGED] = merger
    node.meta["tensor_dict"] = {"_dynamo_static_input_type": "unguarded"}  # as the parameters that it is merged of
    node._dynamo_source = None
    return node


def merged_of(merger: Merger, given: Sequence[Tensor | None], out: Tensor | None = None) -> Tensor:
    """The merged input, of what is given for each part; zeros where nothing is.

    >>> merger = Merger(((0, 2), (None, 1)), 0)
    >>> merged_of(merger, [torch.ones(2), None]).tolist()
    [1.0, 1.0, 0.0]
    """
    some = next(one for one in given if one is not None)
    pairs = zip(given, merger.parts, strict=True)
    parts = [some.new_zeros(size) if one is None else one.detach() for one, (_, size) in pairs]
    return torch.cat(parts, merger.dim) if out is None else torch.cat(parts, merger.dim, out=out)


@contextmanager
def _fakes(like: FakeTensor) -> Iterator[None]:
    """While it lasts, what is computed is computed of fakes alone, and nobody traces it."""
    with tracing(None), like.fake_mode, torch.no_grad():
        yield


def _needs_memory_of_its_own(call: Node, part: FakeTensor) -> bool:
    """Whether it may matter that a result lies among others: to whoever gets it from the program, to a view that cannot be had of
    it, or to a function that is not known to read elements alone.
    """
    if any(not isinstance(size, int) for size in part.shape):
        return True  # asking what can be viewed might fix a size
    seen: list[tuple[Node, Any]] = [(call, part)]
    while seen:
        node, value = seen.pop()
        for user in node.users:
            if not _reads_elements(user):
                return True
            if not memory_of(example(user)) & memory_of(example(node)):
                continue
            try:
                moved = _run(user, {node: value})
            except (RuntimeError, ValueError, TypeError, IndexError, AttributeError):  # of a view that cannot be
                return True
            if not memory_of(moved) & memory_of(value):
                return True  # the view would be a copy, and what is written to it lost
            seen.append((user, moved))
    return False


def _reads_elements(user: Node) -> bool:
    if user.op not in ("call_function", "call_method") or isinstance(user.target, HigherOrderOperator):
        return False
    name = name_of(user)
    return "." not in name and "::" not in name and name not in _READS_LAYOUT


def _run(user: Node, values: Mapping[Node, Any]) -> Any:
    """What a node gives where some of those that it reads have other values."""
    args, kwargs = map_arg((user.args, user.kwargs), lambda node: values[node] if node in values else example(node))
    some = next(value for value in values.values())
    like = some if isinstance(some, FakeTensor) else some[0]
    with _fakes(like):
        if isinstance(user.target, str):
            return getattr(args[0], user.target)(*args[1:], **kwargs)
        return user.target(*args, **kwargs)
