"""Values that leave a program without anybody in it computing with them, such as the logits of a language model."""

from __future__ import annotations

from fuseplan.graph import Graph, Op, Ref, TensorType

_AS_ROWS = ("aten.view.default", "aten._unsafe_view.default", "aten.alias.default", "aten.detach.default")


def leaving(graph: Graph) -> frozenset[str]:
    """The tensors that the graph gives out, by themselves or as views that keep their rows, and that nothing else reads.

    Rows of such a tensor may lie apart in memory: no code in the program was compiled for them to lie otherwise.
    """
    found = {arg.name for arg in graph.outputs if isinstance(arg, Ref) and not graph.users[arg.name]}
    for op in reversed(graph.ops):
        for value in op.outputs:
            users = [graph.ops[i] for i in graph.users[value.name]]
            if users and all(_keeps_rows(user, graph) and user.outputs[0].name in found for user in users):
                found.add(value.name)
    return frozenset(found)


def _keeps_rows(op: Op, graph: Graph) -> bool:
    if op.target not in _AS_ROWS:
        return False
    read, given = graph.types[op.reads[0]], op.outputs[0].type
    if not isinstance(read, TensorType) or not isinstance(given, TensorType) or not read.shape or not given.shape:
        return False
    return read.shape == given.shape or (len(read.shape) == 2 and read.shape[-1] == given.shape[-1])
