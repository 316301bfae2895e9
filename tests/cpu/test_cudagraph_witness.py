"""By what a backward sees whether its forward was captured: something that the forward has made, and no view of a parameter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch.fx import GraphModule

from fuseplan.runtime.cudagraph import _Witness


class Watched:
    """Runs a program as it is, and takes note of what the witness says to each backward."""

    def __init__(self, module: Callable[..., Any]) -> None:
        self.witness = _Witness()
        self.captured = True
        self.said: list[bool] = []
        self.kept: list[Any] = []
        """All that captured forwards have made: the memory of a graph is used by nothing else."""
        self.saved: list[str] = []
        torch._dynamo.reset()
        backend = aot_autograd(fw_compiler=self.forward, bw_compiler=self.backward)
        self.call = torch.compile(module, backend=backend)

    def forward(self, gm: GraphModule, _: Sequence[Any]) -> Any:
        self.witness = _Witness.of(gm)

        def call(args: list[Any]) -> Any:
            outputs = gm(*args)
            if self.captured:
                self.witness.made(outputs)
                self.kept += outputs
            return outputs

        return make_boxed(call)

    def backward(self, gm: GraphModule, _: Sequence[Any]) -> Any:
        self.saved = [node.name for node in gm.graph.find_nodes(op="placeholder")]
        follows = self.witness.in_backward(gm)

        def call(args: list[Any]) -> Any:
            self.said.append(follows(args))
            return gm(*args)

        return make_boxed(call)


def make_boxed(call: Callable[[list[Any]], Any]) -> Any:
    call._boxed_call = True  # type: ignore[attr-defined]
    return call


MODULES: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)),
    "softmax": lambda: nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 4), nn.Softmax(-1)),
    "norm": lambda: nn.Sequential(nn.Conv1d(8, 8, 3, padding=1), nn.BatchNorm1d(8), nn.ReLU()),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_backward_knows_whether_its_forward_was_captured(name: str) -> None:
    module = MODULES[name]()
    watched = Watched(module)
    x = torch.randn(4, 8, 8) if name == "norm" else torch.randn(4, 8)
    for captured in (True, False, True, False):
        watched.captured = captured
        watched.call(x).square().sum().backward()
    assert watched.said == [True, False, True, False]
    assert watched.witness.name in watched.saved


def test_views_of_parameters_are_saved_and_are_no_witnesses() -> None:
    watched = Watched(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)))
    watched.call(torch.randn(4, 8)).sum().backward()
    views = [name for name in watched.saved if name.startswith(("permute", "t_"))]
    assert views
    assert watched.witness.name not in views


def test_two_forwards_of_which_one_is_captured() -> None:
    watched = Watched(nn.Sequential(nn.Linear(8, 16), nn.GELU()))
    a = watched.call(torch.randn(4, 8))
    watched.captured = False
    b = watched.call(torch.randn(4, 8))
    b.sum().backward()
    a.sum().backward()
    assert watched.said == [False, True]


def test_a_forward_that_makes_nothing_for_its_backward() -> None:
    watched = Watched(lambda x, y: (x + y).view(-1))
    out: Tensor = watched.call(torch.randn(4, requires_grad=True), torch.randn(4))
    out.sum().backward()
    assert watched.witness.name is None
    assert watched.said == [True]
