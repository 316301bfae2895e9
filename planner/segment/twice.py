"""Which ops may be computed again where they are read, with nobody able to tell, and why others may not."""

from __future__ import annotations

from collections import Counter

from fuseplan.graph import Graph, Op, Ref
from fuseplan.segment.order import has_effect, relays, storages


def recomputable(graph: Graph) -> tuple[bool, ...]:
    """For each op, whether a segmentation may compute it again. Whether it is worth it is another question.

    >>> recomputable(Graph((), (), ()))
    ()
    """
    refused = only_once(graph)
    return tuple(i not in refused for i in range(len(graph.ops)))


def only_once(graph: Graph) -> dict[int, str]:
    """The ops that may run once only, each with the reason.

    A view may run again even where memory is written to: it looks at the same memory, and moves none of it.
    """
    moved = relays(graph)
    root = storages(graph)
    written = {root[name] for op in graph.ops for name in op.mutates}
    given = Counter(root[name] for name in {arg.name for arg in graph.outputs if isinstance(arg, Ref)})
    shared = {name for name, count in given.items() if count > 1}
    found = {}
    for i, op in enumerate(graph.ops):
        why = _effect(op)
        if why is None and (moved or not op.is_view):
            made = {root[value.name] for value in op.outputs}
            if not written.isdisjoint({root[name] for name in op.reads} | made):
                why = "the program writes to memory that it reads or makes"
            elif not shared.isdisjoint(made):
                why = "outputs of the program share its memory"
        if why is not None:
            found[i] = why
    return found


def _effect(op: Op) -> str | None:
    if op.random:
        return "it draws random numbers"
    if op.mutates:
        return "it writes to memory"
    if op.opaque is not None or op.target.startswith("_c10d_functional."):
        return "what else it does is not known" if op.opaque is not None else "all processes must take part in it"
    return "it gives no tensor" if has_effect(op) else None
