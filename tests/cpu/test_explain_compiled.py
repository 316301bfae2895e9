"""`explain` of what was compiled here: whatever torch.compile was asked to compile, and a model with such parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fuseplan

OPTIONS = {"plan": "aten"}


class Layer(nn.Module):
    """Torch compiles none of its own modules in place."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.linear(x).relu()
        return found


class Model(nn.Module):
    """Two of them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer()])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def compiled_as_one(given: nn.Module) -> Any:
    return torch.compile(given, backend="fuseplan", options=OPTIONS)


def compiled_in_place(given: nn.Module) -> nn.Module:
    given.compile(backend="fuseplan", options=OPTIONS)
    return given


def with_its_forward_compiled(given: nn.Module) -> nn.Module:
    given.forward = torch.compile(given.forward, backend="fuseplan", options=OPTIONS)  # type: ignore[method-assign]
    return given


@pytest.mark.parametrize("how", [compiled_as_one, compiled_in_place, with_its_forward_compiled])
def test_a_model_is_explained_however_it_was_compiled(how: Callable[[nn.Module], Any]) -> None:
    torch._dynamo.reset()
    compiled = how(Model())
    assert fuseplan.explain(compiled).startswith("Nothing has been compiled by this yet")
    compiled(torch.ones(3, 4))
    told = fuseplan.explain(compiled, graphs=False)
    assert told.startswith("program 1 of 1: key ")
    assert "why: asked for by option" in told


def test_parts_of_a_model_are_explained_by_their_names() -> None:
    torch._dynamo.reset()
    whole = Model()
    whole.layers[1].compile(backend="fuseplan", options=OPTIONS)
    whole.layers[0] = torch.compile(whole.layers[0], backend="fuseplan", options=OPTIONS)
    whole(torch.ones(3, 4))
    titles = [line for line in fuseplan.explain(whole, graphs=False).splitlines() if line.startswith("program")]
    assert [title.partition(":")[0] for title in titles] == [
        "program 1 of 2, of layers.0",
        "program 2 of 2, of layers.1",
    ]


@pytest.mark.parametrize("backend", [None, "eager"])
def test_what_others_compiled_is_nothing_of_ours(backend: str | None) -> None:
    given = Model()
    if backend is not None:
        given.compile(backend=backend)
    given(torch.ones(3, 4))
    assert fuseplan.explain(given) == "This was not compiled by torch.compile with backend fuseplan."

    def double(x: Tensor) -> Tensor:
        return x * 2

    other = double if backend is None else torch.compile(double, backend=backend)
    assert fuseplan.explain(other).startswith("This was not")
