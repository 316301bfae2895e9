"""The order that data flow does not show: writes to memory that others read, and the draw of random numbers."""

from __future__ import annotations

from fuseplan.graph import Graph, Op

_RELAYING = frozenset(
    "set_ resize_ resize_as_ resize_storage_bytes_ as_strided_ t_ transpose_ squeeze_ unsqueeze_ swapaxes_ swapdims_".split()
)


def relays(graph: Graph) -> bool:
    """Whether some op changes how a tensor lies in memory, so that it matters even to views when they are taken."""
    return any(op.mutates and not _RELAYING.isdisjoint(op.target.split(".")) for op in graph.ops)


def order_edges(graph: Graph) -> list[tuple[int, int]]:
    """Return pairs of op positions, first and later, whose order must be kept though no value passes between them.

    A view reads no data: it may be taken before a write or after it, and shows the same memory.

    >>> order_edges(Graph((), (), ()))
    []
    """
    storage_of = storages(graph)
    edges: dict[tuple[int, int], None] = {}
    writer: dict[str, int] = {}
    readers: dict[str, list[int]] = {}
    effect: int | None = None
    eager_views = relays(graph)
    mutable = {storage_of[name] for op in graph.ops for name in op.mutates}
    for i, op in enumerate(graph.ops):
        written = {storage_of[name] for name in op.mutates}
        data = op.reads if eager_views or not op.is_view else ()
        for storage in {storage_of[name] for name in data if storage_of[name] in mutable}:
            if storage in writer:
                edges[writer[storage], i] = None
            if storage in written:
                edges.update({(reader, i): None for reader in readers.get(storage, ()) if reader != i})
                writer[storage], readers[storage] = i, []
            else:
                readers.setdefault(storage, []).append(i)
        if has_effect(op):
            if effect is not None:
                edges[effect, i] = None
            effect = i
    return list(edges)


def has_effect(op: Op) -> bool:
    """Whether the op must run in its turn: it draws random numbers, gives nothing (it asserts or prints), or does we do not know what."""
    return op.random or op.opaque is not None or not any(hasattr(value.type, "dtype") for value in op.outputs)


def storages(graph: Graph) -> dict[str, str]:
    """For each value, the first value that it shares storage with."""
    first = {value.name: value.name for value in graph.inputs}
    first.update({constant.value.name: constant.value.name for constant in graph.constants})
    for op in graph.ops:
        shared = {alias.output: alias.value for alias in op.aliases}
        for i, value in enumerate(op.outputs):
            first[value.name] = first[shared[i]] if i in shared else value.name
    return first
