"""Islands: connected sets of fusible ops between the same anchors, within which all choices of fusion are made.

The depth of an op is the most anchors on any path from an input to it; one that would only wait in memory for a deeper one
is as deep as that. Two ops of one depth have no anchor between them, so that an island is convex by construction, and a
residual stream does not glue all layers into one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fuseplan.graph import Graph, Op, Ref, TensorType, Type
from fuseplan.segment.groups import connected
from fuseplan.segment.order import order_edges

_ANCHORS = frozenset(
    "mm bmm addmm baddbmm addbmm addmv mv dot linear matmul convolution convolution_backward embedding_bag grouped_mm "
    "_scaled_mm _grouped_mm _scaled_dot_product_attention_math _cudnn_rnn mkldnn_rnn_layer _thnn_fused_lstm_cell "
    "depthwise depthwise_input depthwise_weight few_rows".split()
)
_ATTENTION = ("_scaled_dot_product", "sdpa", "_flash_attention", "_efficient_attention")


def is_anchor(op: Op) -> bool:
    """Whether fusion turns around the op: matmuls, convolutions, attention, collectives, and what we cannot look into."""
    namespace, _, rest = op.target.partition(".")
    name = rest.partition(".")[0]
    return op.opaque is not None or namespace == "_c10d_functional" or name in _ANCHORS or is_attention(op)


def is_attention(op: Op) -> bool:
    """Whether the op is attention, or its gradient: an anchor that no compiler fuses anything into."""
    return op.target.partition(".")[2].startswith(_ATTENTION)


def islands(graph: Graph, fusible: Sequence[bool]) -> list[tuple[int, ...]]:
    """Return the islands of the ops marked `fusible`, each as sorted positions, in the order of their first op."""
    edges = _edges(graph)
    depth = _depths(graph, fusible, edges)
    ops = (i for i in range(len(graph.ops)) if fusible[i])
    return [tuple(island) for island in connected(ops, (pair for pair in edges if depth[pair[0]] == depth[pair[1]]))]


def depths(graph: Graph, fusible: Sequence[bool]) -> list[int]:
    """For each op, the most ops that are not `fusible` on any path from an input to it, or more where it had better run
    later; it never falls along a path.

    >>> depths(Graph((), (), ()), ())
    []
    """
    return _depths(graph, fusible, _edges(graph))


def _edges(graph: Graph) -> list[tuple[int, int]]:
    producer = graph.producer
    data = [(producer[name], i) for i, op in enumerate(graph.ops) for name in op.reads if name in producer]
    return data + order_edges(graph)


def _depths(graph: Graph, fusible: Sequence[bool], edges: Sequence[tuple[int, int]]) -> list[int]:
    before: list[list[int]] = [[] for _ in graph.ops]
    after: list[list[int]] = [[] for _ in graph.ops]
    for first, second in edges:
        before[second].append(first)
        after[first].append(second)
    depth = [0] * len(graph.ops)
    free = [False] * len(graph.ops)  # depends on no input: it may run as late as its first use
    inputs = {value.name for value in graph.inputs}
    for i, op in enumerate(graph.ops):
        depth[i] = max((depth[p] + (not fusible[p]) for p in before[i]), default=0)
        free[i] = fusible[i] and not op.random and not inputs.intersection(op.reads) and all(free[p] for p in before[i])
    for i in reversed(range(len(graph.ops))):
        if free[i] and after[i]:
            depth[i] = min(depth[user] for user in after[i])
    for i, later in _late(graph, fusible, before, after, depth).items():
        depth[i] = later
    return depth


def _late(
    graph: Graph, fusible: Sequence[bool], before: list[list[int]], after: list[list[int]], depth: Sequence[int]
) -> dict[int, int]:
    """Ops that had better run at the depth where they are used, and nowhere else: what a backward computes again, above all.

    They read inputs of the graph, which lie in memory early and late; late, what they give need not lie there too.
    """
    given = {arg.name for arg in graph.outputs if isinstance(arg, Ref)}
    late: dict[int, int] = {}
    for i in reversed(range(len(graph.ops))):
        op = graph.ops[i]
        if not fusible[i] or op.random or op.mutates or not after[i] or any(v.name in given for v in op.outputs):
            continue
        users = {late.get(user, depth[user]) for user in after[i]}
        if len(users) == 1 and all(fusible[user] for user in after[i]) and depth[i] < max(users):
            late[i] = max(users)

    def held(i: int, producer: int) -> bool:
        """Whether `i` stays where it is for what `producer` makes: late, that would have to be kept for it."""
        return producer not in late and not _small(graph, producer, i)

    staying = [i for i in late if any(held(i, producer) for producer in before[i])]
    while staying:
        i = staying.pop()
        if late.pop(i, None) is not None:
            staying += (producer for producer in before[i] if producer in late)  # used early too, then
            staying += (user for user in after[i] if user in late and held(user, i))
    return late


_SMALL = 16
"""A value that has so many times fewer elements than another costs nothing beside it."""


def _small(graph: Graph, producer: int, user: int) -> bool:
    """Whether what `producer` gives is small beside what `user` gives."""
    made, result = (sum(_elements(value.type) for value in graph.ops[i].outputs) for i in (producer, user))
    return made * _SMALL <= result


def _elements(kind: Type) -> float:
    if not isinstance(kind, TensorType):
        return 0.0
    return math.prod(size if isinstance(size, int) else math.nan for size in kind.shape)
