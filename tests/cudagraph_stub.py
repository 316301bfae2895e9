"""PyTorch's trees of CUDA graphs, played by a stub, so that it is seen without a GPU which steps run through a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.cudagraph_trees import ExecutionState
from torch.fx import GraphModule
from torch.multiprocessing.reductions import StorageWeakRef

from fuseplan.runtime import capture_place, cudagraph, in_place, made


class Captured:
    """A graph that was captured, in the place that the tree has come to."""

    def __init__(self, trees: Trees, function: str = "") -> None:
        self.trees = trees
        self.parent: Captured | None = None
        self.wrapped_function = SimpleNamespace(id=function)
        self.outputs_weakrefs: list[StorageWeakRef] = []

    def path_live_weakrefs(self) -> Sequence[Any]:
        return [self] if self.trees.alive else [ref for ref in self.outputs_weakrefs if not ref.expired()]


class Trees:
    """What a graph has made stays, since its memory is used by nothing else. A step may be one that no graph can be of."""

    def __init__(self) -> None:
        self.current_node = Captured(self)
        self.made: list[Any] = []
        self.pending = False
        self.alive = False
        self.refuses = False
        """Has reasons of its own not to capture."""
        self.trains = True
        """A forward waits for its backward."""
        self.reuses = False
        """A new step begins over what an earlier one has made, if nobody holds that."""
        self.path_state = ExecutionState.EXECUTION
        """What holds memory is not looked at."""

    def can_start_new_generation(self) -> bool:
        return not self.pending

    def set_to_running_backward(self) -> None:
        self.pending = False

    def _get_cuda_graph_recorded_tensor_checker(self) -> Callable[[Tensor], bool]:
        return lambda tensor: any(tensor is one for one in self.made)


class Training:
    """Runs a program under the guards, and keeps a log of which of its steps were captured."""

    def __init__(self, module: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, learning: int = 0) -> None:
        """`learning`: so many calls run plain at first."""
        torch._dynamo.reset()
        monkeypatch.setattr(capture_place, "LEARNING", learning)
        self.module = module
        self.trees, self.log = Trees(), list[str]()
        self.here: Trees | None = self.trees
        """Those of the thread that calls."""
        monkeypatch.setattr(cudagraph, "get_manager", lambda *args, **options: self.here)
        monkeypatch.setattr(capture_place, "get_manager", lambda *args, **options: self.here)
        monkeypatch.setattr(capture_place, "is_capturing", lambda: False)
        monkeypatch.setattr(capture_place, "follow", lambda manager, device: None)
        monkeypatch.setattr(cudagraph, "cudagraphify", self.cudagraphify)
        monkeypatch.setattr(cudagraph, "obstacle", lambda gm, but_cpu=False: None)
        monkeypatch.setattr(cudagraph, "obstacle_in_code", lambda code, on_cpu: None)
        monkeypatch.setattr(made, "lie_at", lie_at)
        monkeypatch.setattr(in_place, "lie_at", lie_at)
        monkeypatch.setattr(cudagraph, "_device_index", lambda gm: 0)
        monkeypatch.setattr(cudagraph, "SMALL", 0)  # of what is copied nobody holds the original
        self.launch = cudagraph.CudaGraphLaunch([])
        self.saved: list[str] = []
        self.read_at: dict[str, dict[int, int]] = {}
        """Where the last graphs have read those of their arguments that they read where they lie."""
        self.weight = next(module.parameters()) if isinstance(module, nn.Module) else torch.empty(0)
        traced = aot_autograd(fw_compiler=self.forward, bw_compiler=self.backward)
        self.call = torch.compile(
            module, backend=lambda gm, inputs: self.launch.unasked.watching(traced(gm, list(inputs)), inputs)
        )

    def forward(self, gm: GraphModule, _: Sequence[Any]) -> Any:
        return self.launch.wrap("forward", gm, self.plain(gm, "forward plain"))

    def backward(self, gm: GraphModule, _: Sequence[Any]) -> Any:
        self.saved = [node.name for node in gm.graph.find_nodes(op="placeholder")]
        return self.launch.wrap("backward", gm, self.plain(gm, "backward plain"))

    def cudagraphify(self, plain: Any, *, is_backward: bool, static_input_idxs: Sequence[int] = (), **_: Any) -> Any:
        """What torch makes of a callable: here it runs as it is, and says so."""

        def captured(args: list[Any]) -> Any:
            places = {i: args[i].data_ptr() for i in static_input_idxs if isinstance(args[i], Tensor)}
            self.read_at["backward" if is_backward else "forward"] = places
            outputs = plain(args)
            if self.trees.refuses and not is_backward:
                self.log[-1] = "forward, not captured by the trees"
                return outputs
            self.log[-1] = "backward captured" if is_backward else "forward captured"
            self.trees.pending = not is_backward and self.trees.trains
            self.trees.made += () if is_backward else outputs
            self.trees.current_node = Captured(self.trees, self.log[-1])  # each puts what it makes where no other does
            if self.trees.reuses:
                self.trees.made.clear()
                storages = [one.untyped_storage() for one in outputs if isinstance(one, Tensor)]
                self.trees.current_node.outputs_weakrefs = [StorageWeakRef(one) for one in storages]
            return outputs

        return boxed(captured)

    def plain(self, gm: GraphModule, word: str) -> Any:
        def call(args: list[Any]) -> Any:
            self.log.append(word)
            return gm(*args)

        return boxed(call)

    def step(self, x: Tensor) -> None:
        self.call(x).square().sum().backward()


def boxed(call: Callable[[list[Any]], Any]) -> Any:
    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def lie_at(args: Sequence[Any], pointers: Sequence[int], chosen: Sequence[int]) -> bool:
    """As torch does it where it is built for GPUs."""
    return all(args[i].data_ptr() == pointers[i] for i in chosen)


PLAIN, CAPTURED = ["forward plain", "backward plain"], ["forward captured", "backward captured"]
