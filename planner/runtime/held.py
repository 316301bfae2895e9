"""What callers, or autograd for one, still hold of what the trees' graphs have made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import is_, itemgetter
from sys import getrefcount
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch._inductor.cudagraph_trees import CUDAGraphNode

_FREE: WeakKeyDictionary[CUDAGraphNode, _Free] = WeakKeyDictionary()
"""By the last graph of a step, how it is seen that nothing is held of it."""


def is_held(node: Any) -> bool:
    """Whether something is held that the graphs up to this one have made. It is asked at each step before anything runs, while the
    GPU waits, and a step of training has hundreds of gradients.
    """
    if not isinstance(node, CUDAGraphNode):
        return any(True for _ in node.path_live_weakrefs())
    free = _FREE.get(node)
    if free is not None and free.is_still_so():
        return False
    if any(_is_live(node.path_weakrefs[depth][index]) for depth, index in node.live_indices_after_graph):
        return True
    _FREE[node] = _Free.of(node)
    return False


def gives_held(node: Any) -> bool:
    """Whether something is held that this one graph has made, whatever was before it."""
    return any(map(_is_live, node.outputs_weakrefs))


def held_outputs(node: Any) -> Iterator[tuple[Any, int]]:
    """The outputs that are held of a graph of the trees and of those before it: each by its function, and where it is there."""
    while node is not None:
        for i, ref in enumerate(node.outputs_weakrefs):
            if _is_live(ref):
                yield node.wrapped_function.id, i
        node = node.parent


def _is_live(ref: Any) -> bool:
    return ref is not None and not ref.expired()


def _is_counted(ref: Any) -> bool:
    """Whether it is of a tensor that the trees keep, and count who else does."""
    return ref is not None and ref.extra_ref_check is not None


@dataclass(frozen=True)
class _Kept:
    """The outputs of one graph that the trees keep, and give again at each call: whether one is held, they tell by counting."""

    tensors: list[Tensor | None]
    refs: list[Any]
    """Of all outputs of the graph, as the trees have them, who replace them where they keep others."""
    chosen: Callable[[Sequence[Any]], tuple[Any, ...]]
    known: tuple[Any, ...]
    """The chosen ones of `refs`."""
    storages: tuple[int, ...]

    @staticmethod
    def of(node: CUDAGraphNode, live: Sequence[int]) -> _Kept:
        """Of those outputs of a graph that live on behind it."""
        chosen = itemgetter(*live, live[-1])  # of one alone it would give no tuple
        known = chosen(node.outputs_weakrefs)
        storages = tuple(ref.ref.cdata for ref in known)
        return _Kept(node.cached_tensor_outputs, node.outputs_weakrefs, chosen, known, storages)

    def counts(self) -> tuple[int, ...] | None:
        """All that the trees count; None where these are not kept any more."""
        if not self.tensors or not all(map(is_, self.chosen(self.refs), self.known)):
            return None
        tensors = self.chosen(self.tensors)
        untyped: Any = Tensor
        return (
            *map(getrefcount, tensors),
            *map(untyped._use_count, tensors),
            *map(torch._C._storage_Use_Count, self.storages),
        )


@dataclass
class _Free:
    """A step of which nothing was held. As long as all counts are what they were then, nothing is: the trees' own answer follows
    from these counts, which are taken without a call of Python for each output.
    """

    kept: list[_Kept] = field(default_factory=list)
    counts: list[tuple[int, ...] | None] = field(default_factory=list)
    others: list[tuple[list[Any], int]] = field(default_factory=list)
    """The references of a graph's outputs, and which of them nobody counts: each is looked at as the trees do."""

    @staticmethod
    def of(last: CUDAGraphNode) -> _Free:
        """Of the graphs up to this one, as they are now."""
        free, path = _Free(), list(last._path_from_root)
        live: list[list[int]] = [[] for _ in path]
        for depth, index in last.live_indices_after_graph:
            live[depth].append(index)
        for node, indices in zip(path, live, strict=True):
            refs: list[Any] = node.outputs_weakrefs
            counted = [i for i in indices if _is_counted(refs[i])]
            free.others += [(refs, i) for i in set(indices).difference(counted)]
            if counted:
                assert isinstance(node, CUDAGraphNode)
                free.kept.append(_Kept.of(node, counted))
        free.counts = [kept.counts() for kept in free.kept]
        return free

    def is_still_so(self) -> bool:
        """Whether nothing is held now, and all that the trees count is counted here: what a graph gave when it was recorded they
        replace later by tensors that they keep.
        """
        return not any(_is_counted(refs[i]) or _is_live(refs[i]) for refs, i in self.others) and all(
            counts is not None and kept.counts() == counts for kept, counts in zip(self.kept, self.counts, strict=True)
        )
