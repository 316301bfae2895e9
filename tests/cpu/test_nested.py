"""Regions that a caller has torch compile once: written out for plans, and left to torch where nothing is known of a program."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.exc import BackendCompilerFailed
from torch.compiler import nested_compile_region
from torch.fx import GraphModule
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

import fuseplan
from fuseplan import backend, traces_of
from fuseplan.backend import programs_of
from fuseplan.capture.dynamo.nested import without_regions
from fuseplan.explain import compiled_by
from fuseplan.measure.environment import environment
from fuseplan.plan import Plan, Rewrite
from fuseplan.rewrites.sites import Sites
from fuseplan.tuning_db import Places, Store, StoredPlan
from round_trips import assert_round_trips

WIDTH = 16


class Block(nn.Module):
    """Attention that is written out, and a step, in a region."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    @nested_compile_region
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (one.unflatten(-1, (2, -1)).transpose(1, 2) for one in self.qkv(x).chunk(3, -1))
        found = torch.softmax(q @ k.transpose(-1, -2) * 0.25, -1) @ v
        return x + self.out(found.transpose(1, 2).flatten(2))


class Stack(nn.Module):
    """Three equal ones, of which torch compiles one."""

    def __init__(self, around: Callable[..., Tensor] | None = None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.around = around

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x) if self.around is None else self.around(block, x)
        return x.tanh()


def rows() -> Tensor:
    return torch.randn(2, 5, WIDTH, requires_grad=True)


def same(made: Any, model: Any, x: Tensor) -> None:
    """Results and gradients are those of eager."""
    got, want = made(x), model(x)
    assert_close(got, want)
    weights = [x, *(one for one in getattr(model, "parameters", list)() if one.requires_grad)]
    assert_close(torch.autograd.grad(got.sum(), weights), torch.autograd.grad(want.sum(), weights))


def in_block(block: nn.Module, x: Tensor) -> Tensor:
    return checkpoint(block, x, use_reentrant=False)  # type: ignore[no-any-return]


def in_bfloat16(block: nn.Module, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return block(x)  # type: ignore[no-any-return]


def without_gradients(block: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        found = block(x)
    return x * found


@pytest.mark.parametrize("around", [None, in_block, in_bfloat16, without_gradients])
@pytest.mark.parametrize("host", ["aten", pytest.param("eager", marks=pytest.mark.exhaustive)])
def test_a_plan_runs_them_as_one_program(host: str, around: Callable[..., Tensor] | None) -> None:
    model, x = Stack(around), rows()
    (trace,) = traces_of(model, x)
    torch._dynamo.reset()
    made = fuseplan.compile(model, plan=Plan(host))
    if around is without_gradients:  # its weights have none
        assert_close(made(x), model(x))
    else:
        same(made, model, x)
    (program,) = programs_of(compiled_by(made))
    assert program.key == trace.key


def in_a_part(block: nn.Module, x: Tensor) -> Tensor:
    """Blocks that are no regions, and read what regions give."""
    return checkpoint(torch.sin, block(x), use_reentrant=False)  # type: ignore[no-any-return]


within = nested_compile_region(lambda x: checkpoint(lambda y: (y * 2).sin(), x, use_reentrant=False) + 1)


@pytest.mark.parametrize("call", [Stack(), Stack(in_block), Stack(in_a_part), lambda x: within(within(x))])
def test_what_is_rebuilt_is_the_same_program(call: Callable[[Tensor], Tensor]) -> None:
    (trace,) = traces_of(call, rows())
    torch._dynamo.reset()
    assert_round_trips(trace)


def sites_of(model: nn.Module) -> list[str]:
    found: list[str] = []

    def look(gm: GraphModule, example_inputs: Any) -> Any:
        found.extend(one.kind for one in Sites.of(without_regions(gm), ("written-attention",)).told())
        return gm.forward

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(model, backend=look)(rows())
    return found


def test_what_is_in_them_is_found_at_each_call() -> None:
    assert sites_of(Stack()) == ["written-attention"] * 3
    assert sites_of(Stack(in_block)) == ["written-attention"] * 3


@pytest.mark.parametrize("around", [None, in_block])
def test_a_way_is_right_in_all_of_them(around: Callable[..., Tensor] | None) -> None:
    model, x = Stack(around), rows()
    every = tuple(Rewrite("written-attention", site, "math") for site in range(3))
    made = fuseplan.compile(model, plan=Plan("aten", every))
    same(made, model, x)


def given_to_compilers(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each program had regions when it was compiled."""
    found, real = list[bool](), backend.replay

    def noted(plan: Plan, gm: GraphModule, *rest: Any) -> Any:
        found.append(any("invoke_subgraph" in str(node.target) for node in gm.graph.nodes))
        return real(plan, gm, *rest)

    monkeypatch.setattr(backend, "replay", noted)
    return found


def test_torch_compiles_each_once_until_there_is_a_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    met, model, x = given_to_compilers(monkeypatch), Stack(), rows()
    store = Store(Places(tmp_path / "tuning.db"))

    def run() -> Any:
        torch._dynamo.reset()
        made = fuseplan.compile(model, db=tmp_path / "tuning.db")
        same(made, model, x)
        (program,) = programs_of(compiled_by(made))
        return program

    first = run()
    assert met == [True]
    assert store.add_plan(StoredPlan(str(first.key), environment("cpu"), Plan("aten"), wall_us=1.0))
    assert run().plan == Plan("aten")
    assert met == [True, False]


def test_those_within_others() -> None:
    inner = nested_compile_region(lambda x: x.sin() * 2)
    outer = nested_compile_region(lambda x: inner(x) + inner(x + 1))

    def call(x: Tensor) -> Tensor:
        return outer(outer(x)) + inner(x)

    same(fuseplan.compile(call, plan="aten"), call, rows())


def test_numbers_and_several_results() -> None:
    @nested_compile_region
    def both(x: Tensor, n: int, more: Tensor | None = None) -> tuple[Tensor, Tensor]:
        y = x * n if more is None else x * n + more
        return y.view(-1, WIDTH) + 1, y

    def call(x: Tensor) -> Tensor:
        flat, y = both(x, 3)
        flat, y = both(y, 4, flat.view_as(x))
        return flat.sum() + y

    same(fuseplan.compile(call, plan="aten"), call, rows())


@pytest.mark.parametrize("varies", [True, False])
def test_what_cannot_be_written_out_runs_as_it_is(varies: bool) -> None:
    """Sizes that vary, and what is written to."""

    @nested_compile_region
    def step(x: Tensor, kept: Tensor) -> Tensor:
        return F.gelu(x) if varies else F.gelu(x) + kept.add_(1).sum()

    def call(x: Tensor, kept: Tensor) -> Tensor:
        return step(step(x, kept), kept)

    x, kept = torch.randn(6, WIDTH), torch.zeros(3)
    if varies:
        torch._dynamo.mark_dynamic(x, 0)
    with torch.no_grad():
        with pytest.raises(BackendCompilerFailed, match="invoke_subgraph is a higher-order operator"):
            traces_of(call, x, kept)
        torch._dynamo.reset()
        assert_close(fuseplan.compile(call)(x, torch.zeros(3)), call(x, torch.zeros(3)))


def test_modes_of_the_process_stay_where_they_cannot_be_written_out() -> None:
    half = nested_compile_region(lambda x: x.sin() / 2)

    def in_vmap(x: Tensor) -> Tensor:
        y = half(half(x))
        return torch.vmap(lambda one: (x.add_(1), one * 2)[1])(y) + x

    def without_hooks(x: Tensor) -> Tensor:
        y = half(half(x))
        with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
            x.add_(1)
        return y * x

    def in_inference(x: Tensor) -> Tensor:
        with torch.inference_mode():
            y = x * 2
            x.add_(1)
        return half(half(x)) + y.clone()

    for call in (in_vmap, without_hooks, in_inference):
        torch._dynamo.reset()
        with torch.no_grad():
            assert_close(fuseplan.compile(call)(torch.ones(3)), call(torch.ones(3)))
        assert not torch.is_inference_mode_enabled()
        assert torch._C._functorch.maybe_current_level() is None
        x = torch.ones(3, requires_grad=True)
        checkpoint(torch.sin, x, use_reentrant=False).sum().backward()
