"""What is held of what PyTorch's trees have made: told by counts, as the trees themselves tell it."""

from __future__ import annotations

import random
import weakref
from typing import Any

import pytest
import torch
from torch._inductor.cudagraph_trees import CUDAGraphNode, StorageWeakRefWrapper, UnaliasedStorage

from fuseplan.runtime import held
from fuseplan.runtime.held import is_held


class Node(CUDAGraphNode):
    """A graph as it is once it was replayed, without a GPU: tensors that it keeps, and others that it makes at each call."""

    def __init__(self, kept: int, apart: int = 0, parent: Node | None = None) -> None:
        self._parent = None if parent is None else weakref.ref(parent)
        n = kept + apart
        self.output_storage_alias, self.outputs_metadata = [UnaliasedStorage] * n, [{} for _ in range(n)]
        self.unaliased_in_all_paths = [i < kept for i in range(n)]
        self.outputs_weakrefs, self.cached_tensor_outputs = [None] * n, []
        self.path_weakrefs = [*(parent.path_weakrefs if parent else ()), self.outputs_weakrefs]
        depth = len(self.path_weakrefs) - 1
        live = parent.live_indices_after_graph if parent else []
        self.live_indices_after_graph = [*live, *((depth, i) for i in range(n))]
        self._initialize_cached_tensors()

    def create_storage(self, metadata: Any) -> Any:
        return None

    def _reconstruct_from_tensor_metadata(self, metadata: Any, storage: Any = None) -> torch.Tensor:
        return torch.empty(3)

    def give(self, i: int) -> torch.Tensor:
        """An output, as a caller gets it."""
        kept = self.cached_tensor_outputs[i]
        if kept is None:
            kept = torch.empty(3)
            self.outputs_weakrefs[i] = StorageWeakRefWrapper(kept)
        return kept


@pytest.fixture(autouse=True)
def without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Autograd is told only where there is one of tensors that stay."""
    for name in ("_add_cached_tensor", "_remove_cached_tensor"):
        monkeypatch.setattr(torch._C, name, lambda tensor: None)


@pytest.fixture
def graph() -> Node:
    node = Node(3, 1, parent=(first := Node(2)))
    node.first = first  # the trees hold it
    return node


HOLDS = {
    "the tensor": lambda tensor: tensor,
    "a view": lambda tensor: tensor[1:],
    "what is detached": lambda tensor: tensor.detach(),
    "its storage's bytes": lambda tensor: tensor.view(torch.int32),
}


@pytest.mark.parametrize("how", HOLDS)
@pytest.mark.parametrize("output", range(4))
def test_what_is_held_is_seen_at_once_and_when_it_is_let_go(graph: Node, output: int, how: str) -> None:
    for _ in range(3):
        assert not is_held(graph)
        one = HOLDS[how](graph.give(output))
        assert is_held(graph)
        assert is_held(graph)
        del one
    assert not is_held(graph)


def test_what_is_held_of_a_graph_before_it(graph: Node) -> None:
    assert not is_held(graph)
    one = graph.first.give(1)
    assert is_held(graph)
    del one
    assert not is_held(graph)


def test_a_gradient_that_is_held_as_grad(graph: Node) -> None:
    assert not is_held(graph)
    x = torch.empty(3, requires_grad=True)
    x.grad = graph.give(0).detach()
    assert is_held(graph)
    x.grad = None
    assert not is_held(graph)


def test_the_trees_are_asked_once_for_a_step_that_is_as_the_last(graph: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_held(graph)
    monkeypatch.setattr(held, "_is_live", lambda ref: pytest.fail("looked at") if ref is not None else False)
    assert not is_held(graph)


def test_tensors_that_the_trees_came_to_keep_are_counted_too(graph: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    graph.remove_path_cached_tensors()  # as when it was recorded: whatever it gave then is gone
    graph.outputs_weakrefs[:] = [StorageWeakRefWrapper(torch.empty(3)) for _ in graph.outputs_weakrefs]
    assert not is_held(graph)
    graph.cached_tensor_outputs.clear()
    graph._initialize_cached_tensors()
    assert not is_held(graph)
    monkeypatch.setattr(
        held, "_is_live", lambda ref: pytest.fail("looked at") if getattr(ref, "extra_ref_check", None) else False
    )
    assert not is_held(graph)


def test_tensors_that_the_trees_keep_no_more(graph: Node) -> None:
    assert not is_held(graph)
    graph.remove_path_cached_tensors()
    assert not is_held(graph)
    graph._initialize_cached_tensors()
    one = graph.give(2)
    assert is_held(graph)
    del one
    assert not is_held(graph)


@pytest.mark.parametrize("seed", range(20))
def test_it_is_what_the_trees_say(graph: Node, seed: int) -> None:
    draw, holding = random.Random(seed), list[Any]()
    for _ in range(60):
        if holding and draw.random() < 0.5:
            holding.pop(draw.randrange(len(holding)))
        else:
            holding.append(draw.choice(list(HOLDS.values()))(draw.choice([graph, graph.first]).give(draw.randrange(2))))
        assert is_held(graph) is (not graph.all_outputs_are_dead()) is bool(holding)


def test_no_graph_is_kept_for_what_is_known_of_it() -> None:
    node = Node(2)
    assert not is_held(node)
    gone = weakref.ref(node)
    del node
    assert gone() is None
