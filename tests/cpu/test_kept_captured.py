"""Programs launched through CUDA graphs in AOTAutograd's cache, seen without a GPU: capturing is played by a stub."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch._inductor import compile_fx
from torch._inductor.utils import fresh_cache
from torch.fx import GraphModule
from torch.testing import assert_close

from fuseplan.backend import programs_of
from fuseplan.explain import compiled_by
from fuseplan.plan import Plan, Rewrite
from fuseplan.runtime import capture_place, cudagraph, kept, regions

PLANS: dict[str, Plan] = {
    "whole": Plan("inductor", launch="cudagraph"),
    "whole, searched": Plan("inductor", settings="max-autotune-no-cudagraphs", launch="cudagraph"),
    "cut": Plan("aten", launch="cudagraph", name="inductor-greedy"),
}


class Captures:
    """What torch was told of each graph that it was to capture."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []
        self.refused: str | None = None

    def cudagraphify(self, plain: Any, **told: Any) -> Any:
        self.told.append(told)
        return plain


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> Iterator[Captures]:
    found = Captures()
    monkeypatch.setattr(capture_place, "LEARNING", 0)
    monkeypatch.setattr(cudagraph, "get_manager", lambda *args, **options: None)
    monkeypatch.setattr(capture_place, "get_manager", lambda *args, **options: None)
    monkeypatch.setattr(capture_place, "is_capturing", lambda: False)
    monkeypatch.setattr(cudagraph, "cudagraphify", found.cudagraphify)
    monkeypatch.setattr(cudagraph, "obstacle", lambda gm, but_cpu=False: found.refused)
    monkeypatch.setattr(cudagraph, "obstacle_in_code", lambda code, on_cpu: None)
    monkeypatch.setattr(cudagraph, "_device_index", lambda gm: 3)
    with fresh_cache(), torch._functorch.config.patch(enable_autograd_cache=True):
        yield found


class Block(torch.nn.Module):
    """Dropout, a buffer that is written to, two outputs, of which one is small, and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(64, 64)
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        assert isinstance(self.steps, Tensor)
        self.steps.add_(1)
        y = torch.nn.functional.dropout(self.inner(x).relu(), 0.5)
        return y.square().mean(), (y * 2).sin().t()


def started(plan: Plan, train: bool = True, static: bool = False) -> tuple[dict[str, int], list[Tensor], list[str]]:
    """What torch's cache says, what is computed, and what was remarked, where a process starts with it."""
    torch._dynamo.reset()
    counters.clear()
    regions._live.clear()
    torch.manual_seed(0)
    model, x = Block(), torch.randn(256, 64, requires_grad=train)
    if static:
        torch._dynamo.mark_static_address(x, guard=False)
    compiled = torch.compile(model, backend="fuseplan", options={"plan": plan})
    with torch.set_grad_enabled(train):
        found = list(compiled(x))
        if train:
            found[0].backward()
            found += [x.grad, *(p.grad for p in model.parameters())]  # type: ignore[list-item]
    told = counters["aot_autograd"]
    (one,) = programs_of(compiled_by(compiled))
    result = [tensor.detach() for tensor in (*found, *model.buffers())]
    return {word: told[f"autograd_cache_{word}"] for word in ("hit", "miss", "saved", "bypass")}, result, one.remarks


MISSED = {"hit": 0, "miss": 1, "saved": 1, "bypass": 0}
HIT = {"hit": 1, "miss": 0, "saved": 0, "bypass": 0}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "train"),
    [
        pytest.param(
            name, train, marks=() if (name, train) in {("whole", False), ("cut", True)} else pytest.mark.exhaustive
        )
        for name in PLANS
        for train in (True, False)
    ],
)
def test_the_next_process_captures_the_same_and_traces_nothing(captures: Captures, name: str, train: bool) -> None:
    told, expected, _ = started(PLANS[name], train)
    assert told == MISSED
    first, captures.told = captures.told, []
    assert [one["is_backward"] for one in first] == ([False, True] if train else [False])
    assert {one["device_index"] for one in first} == {3}
    told, actual, _ = started(PLANS[name], train)
    assert told == HIT
    assert counters["inductor"]["fxgraph_cache_miss"] == 0
    assert captures.told == first
    assert_close(actual, expected, rtol=0, atol=0)


@pytest.mark.slow
def test_a_graph_that_cannot_be_captured_is_not_in_the_next_process_either(captures: Captures) -> None:
    captures.refused = "it is on the moon"
    first = started(PLANS["whole"])
    second = started(PLANS["whole"])
    assert (first[0], second[0]) == (MISSED, HIT)
    assert not captures.told
    assert first[2] == second[2]
    assert len(second[2]) == 2
    assert_close(second[1], first[1], rtol=0, atol=0)


@pytest.mark.slow
def test_an_input_that_keeps_its_address_is_another_program(captures: Captures) -> None:
    for static, expected in ((False, MISSED), (True, MISSED), (False, HIT), (True, HIT)):
        captures.told.clear()
        assert started(PLANS["whole"], train=False, static=static)[0] == expected
        assert (len(captures.told[0]["static_input_idxs"]) == 4) is static


@pytest.mark.slow
@pytest.mark.parametrize("name", ["whole", pytest.param("cut", marks=pytest.mark.exhaustive)])
def test_code_that_is_gone_is_compiled_anew(captures: Captures, name: str) -> None:
    _, expected, _ = started(PLANS[name])
    shutil.rmtree(Path(torch._inductor.runtime.cache_dir_utils.cache_dir()) / "fxgraph")
    _, actual, _ = started(PLANS[name])
    assert_close(actual, expected, rtol=0, atol=0)
    assert counters["inductor"]["fxgraph_cache_miss"] > 0
    assert [one["is_backward"] for one in captures.told[-2:]] == [False, True]
    assert started(PLANS[name])[0] == HIT


@pytest.mark.slow
def test_a_backward_whose_code_is_gone_is_said_once_not_to_be_captured(captures: Captures) -> None:
    captures.refused = "it is on the moon"
    first = started(PLANS["whole"])[2]
    folders = Path(torch._inductor.runtime.cache_dir_utils.cache_dir()).glob("fxgraph/*/*")
    shutil.rmtree(max(folders, key=lambda path: path.stat().st_mtime_ns))
    told, _, remarks = started(PLANS["whole"])
    assert told["hit"] == 0
    assert remarks == first


@pytest.mark.slow
def test_a_backward_that_fails_to_compile_is_the_business_of_who_calls_it(
    captures: Captures, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is compiled with its forward, which may be all that anybody wants."""
    compile_one = compile_fx.compile_fx_inner

    def failing(gm: GraphModule, *args: Any, **options: Any) -> Any:
        if options.get("is_backward"):
            raise RuntimeError("no kernel for this machine")
        return compile_one(gm, *args, **options)

    monkeypatch.setattr(compile_fx, "compile_fx_inner", failing)
    x = torch.randn(4, 8, requires_grad=True)
    torch._dynamo.reset()
    found = torch.compile(lambda x: x.sin() * x, backend="fuseplan", options={"plan": PLANS["whole"]})(x)
    assert_close(found, x.sin() * x)
    lengths = set()
    for _ in range(3):
        with pytest.raises(RuntimeError, match="no kernel for this machine") as raised:
            found.sum().backward(retain_graph=True)
        lengths.add(len(raised.traceback))
    assert len(lengths) == 1, "the error remembers each call, and what was saved for it"


def test_operators_of_other_libraries_are_never_kept(captures: Captures) -> None:
    """No key says what their backward is, or whether they may be captured."""
    with torch.library._scoped_library("other", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
        library.impl("twice", lambda x: torch.empty_like(x), "Meta")
        for _ in range(2):
            torch._dynamo.reset()
            counters.clear()
            compiled = torch.compile(
                lambda x: torch.ops.other.twice(x).sin(), backend="fuseplan", options={"plan": PLANS["whole"]}
            )
            with torch.no_grad():
                assert_close(compiled(torch.ones(4)), torch.full((4,), 2.0).sin())
            assert not counters["aot_autograd"]["autograd_cache_saved"]


@pytest.mark.slow
def test_a_plan_of_another_launch_shares_inductors_code_and_not_the_entry(captures: Captures) -> None:
    assert started(Plan("inductor"), train=False)[0]["hit"] == 0
    assert started(PLANS["whole"], train=False)[0] == MISSED
    assert counters["inductor"]["fxgraph_cache_miss"] == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "keeps"),
    [
        (Plan("inductor"), True),
        (PLANS["whole"], False),
        pytest.param(Plan("inductor"), False, marks=pytest.mark.exhaustive),
        pytest.param(PLANS["whole"], True, marks=pytest.mark.exhaustive),
    ],
)
def test_a_graph_may_be_retained_whatever_was_compiled_before(
    captures: Captures, monkeypatch: pytest.MonkeyPatch, first: Plan, keeps: bool
) -> None:
    """Inductor's cache has code under the same name that overwrites what the forward saved."""
    if not keeps:
        monkeypatch.setattr(kept, "tag", lambda *args: None)
    for plan in (first, PLANS["whole"], PLANS["whole"]):
        torch._dynamo.reset()
        x = torch.randn(64, 64, requires_grad=True)

        def program(x: Tensor) -> Tensor:
            return (x @ x).sin().sum()  # the product is saved, and of the size of what the backward makes of it

        out = torch.compile(program, backend="fuseplan", options={"plan": plan})(x)
        if plan is first:
            out.backward()
            continue
        (once,) = torch.autograd.grad(out, x, retain_graph=True)
        (twice,) = torch.autograd.grad(out, x)
        assert_close(twice, once, rtol=0, atol=0)
        assert_close(once, torch.autograd.grad(program(x), x)[0])


def test_plans_with_attention_of_their_own_are_kept_too(captures: Captures) -> None:
    def attend(q: Tensor) -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)

    plan = Plan("inductor", (Rewrite("attention", 0, "flash"),), launch="cudagraph")
    for word in ("saved", "hit"):
        torch._dynamo.reset()
        counters.clear()
        q = torch.ones(1, 2, 4, 8)
        with torch.no_grad():
            found = torch.compile(attend, backend="fuseplan", options={"plan": plan})(q)
        assert counters["aot_autograd"][f"autograd_cache_{word}"] == 1
        assert_close(found, q)
