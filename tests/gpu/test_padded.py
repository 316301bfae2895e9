"""Padded plans on a GPU: one CUDA graph serves all sizes of a box, on any stream, and within a capture of the caller's."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._inductor.cudagraph_trees import CUDAGraphTreeManager

import fuseplan
from fuseplan import traces_of
from fuseplan.backend import programs_of
from fuseplan.explain import compiled_by
from fuseplan.judge.output import OTHERS, WIDER
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.jobs import PLAN_RULE, RacePlans, Setup, VetPlan
from fuseplan.measure.worker.answer import answer
from fuseplan.measure.worker.workplace import Workplace
from fuseplan.plan import Plan
from padding import anew
from unheard import Unheard

__all__ = ["anew"]

BOX = (("s0", 65, 128),)
PLAN = Plan("inductor", launch="cudagraph", padded=BOX)


class Encoder(nn.Module):
    """Attention that looks at no place that is masked."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.qkv, self.out = nn.Embedding(100, 64), nn.Linear(64, 192), nn.Linear(64, 64)

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        x = self.table(ids)
        q, k, v = (one.unflatten(-1, (4, 16)).transpose(1, 2) for one in self.qkv(x).chunk(3, -1))
        found = nn.functional.scaled_dot_product_attention(q, k, v, mask[:, None, None, :].bool())
        hidden = (x + self.out(found.transpose(1, 2).flatten(2))) * mask[..., None]
        return hidden, hidden.sum(1) / mask.sum(1, keepdim=True)


def tokens(size: int) -> tuple[Tensor, Tensor]:
    ids, mask = torch.randint(1, 100, (4, size), device="cuda"), torch.ones(4, size, dtype=torch.long, device="cuda")
    mask[0, size // 2 :] = 0
    for one in (ids, mask):
        torch._dynamo.maybe_mark_dynamic(one, 1)
    return ids, mask


def right(compiled: Any, model: nn.Module, size: int) -> None:
    given = tokens(size)
    for got, want in zip(compiled(*given), model(*given), strict=True):
        torch.testing.assert_close(got, want, atol=2e-4, rtol=2e-4)
        assert got.stride() == want.stride()


class Decoder(Encoder):
    """Each place sees those before it, and what the last ones give is asked for."""

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = (one.unflatten(-1, (4, 16)).transpose(1, 2) for one in self.qkv(self.table(ids)).chunk(3, -1))
        found = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        hidden = found.transpose(1, 2).flatten(2) * mask[..., None]
        return k * 2, self.out(hidden[:, -2:, :])


@pytest.fixture
def recordings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One word for each CUDA graph that is recorded."""
    found, record = list[str](), CUDAGraphTreeManager.record_function

    def recorded(self: CUDAGraphTreeManager, *args: Any) -> Any:
        found.append("recorded")
        return record(self, *args)

    monkeypatch.setattr(CUDAGraphTreeManager, "record_function", recorded)
    return found


def test_one_graph_serves_a_box(recordings: list[str]) -> None:
    model = Encoder().cuda().eval()
    compiled = fuseplan.compile(model, plan=PLAN)
    for size in (100,) * 8:
        right(compiled, model, size)
    for size in (66, 128, 65, 127, 90, 90, 128, 70) * 4:
        right(compiled, model, size)
    assert recordings == ["recorded"]
    (program,) = programs_of(compiled_by(compiled))
    assert not program.remarks
    assert program.plan == PLAN
    assert fuseplan.stats()["calls that were padded"] >= 24


def test_one_graph_is_recorded_wherever_calls_at_the_edge_lie(recordings: list[str]) -> None:
    def call(x: Tensor) -> tuple[Tensor]:
        return (x.cos() * 2,)

    compiled, held = fuseplan.compile(call, plan=PLAN), []
    for size in (100, *(128,) * 12, 70, 128):
        x = torch.randn(size, 4096, device="cuda")  # so large that a graph reads it where it lies
        torch._dynamo.maybe_mark_dynamic(x, 0)
        held.append(x)
        torch.testing.assert_close(compiled(x)[0], call(x)[0])
    assert len({one.data_ptr() for one in held}) == len(held)
    assert recordings == ["recorded"]


def test_another_thread_than_that_of_the_graph_runs_the_default(recordings: list[str]) -> None:
    model = Encoder().cuda().eval()
    compiled = fuseplan.compile(model, plan=PLAN)
    for size in (100,) * 8:
        right(compiled, model, size)
    before = fuseplan.stats()
    with ThreadPoolExecutor(1) as other:
        for size in (70, 128, 90):
            other.submit(torch.no_grad()(right), compiled, model, size).result()
    now = fuseplan.stats()
    assert now["compilations"] - before["compilations"] == 1
    elsewhere = "calls of a padded plan in another thread than its CUDA graph"
    assert now[elsewhere] - before.get(elsewhere, 0) == 3
    assert recordings == ["recorded"]


def test_what_is_held_stays_as_it_was() -> None:
    model = Encoder().cuda().eval()
    compiled = fuseplan.compile(model, plan=PLAN)
    held = []
    for size in (100, 80, 128, 128, 66, 100, 128, 77, 128, 90):
        given = tokens(size)
        held.append((compiled(*given), model(*given)))
    for got, want in held:
        for one, other in zip(got, want, strict=True):
            torch.testing.assert_close(one, other, atol=2e-4, rtol=2e-4)


def test_another_stream_has_buffers_of_its_own() -> None:
    model = Encoder().cuda().eval()
    compiled = fuseplan.compile(model, plan=PLAN)
    for size in (100,) * 8:
        right(compiled, model, size)
    side = torch.cuda.Stream()
    for size in (70, 120, 66):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            right(compiled, model, size)
        torch.cuda.current_stream().wait_stream(side)
        right(compiled, model, size + 1)


def test_a_capture_of_the_callers_may_run_again_after_longer_calls() -> None:
    model = Encoder().cuda().eval()
    compiled = fuseplan.compile(model, plan=Plan("inductor", padded=BOX))
    short, long = tokens(70), tokens(127)
    for given in (short, long, short):
        compiled(*given)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = compiled(*short)
    compiled(*long)
    graph.replay()
    for got, want in zip(found, model(*short), strict=True):
        torch.testing.assert_close(got, want, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_it_is_judged_and_races(dtype: torch.dtype) -> None:
    model = Encoder().cuda().eval().to(dtype)
    (trace,) = traces_of(model, *tokens(100))
    torch._dynamo.reset()
    place = Workplace(Setup("cuda"), Unheard())
    entries = (RaceEntry("inductor", Plan("inductor"), default=True), RaceEntry("padded", PLAN))
    for entry in entries:
        (row,) = answer(VetPlan(trace.to_json(), entry, wider={OTHERS: WIDER}), place).rows
        assert (row.status, row.detail) == ("ok", "")
    outcome = answer(RacePlans(trace.to_json(), entries, "inductor", PLAN_RULE), place)
    assert outcome.ok
    assert {row.status for row in outcome.rows} == {"ok"}


def test_a_mean_over_all_places_is_wrong() -> None:
    x = torch.randn(100, 64, device="cuda")
    torch._dynamo.maybe_mark_dynamic(x, 0)
    (trace,) = traces_of(lambda x: (x.cos().mean(0),), x)
    torch._dynamo.reset()
    (row,) = answer(VetPlan(trace.to_json(), RaceEntry("padded", PLAN)), Workplace(Setup("cuda"), Unheard())).rows
    assert row.status == "wrong"


def test_what_is_taken_from_the_end_is_that_of_the_call_under_one_graph(recordings: list[str]) -> None:
    model = Decoder().cuda().eval()
    compiled = fuseplan.compile(model, plan=PLAN)
    for size in (100, 128, 65, 127, 70, 128, 66, 100):
        right(compiled, model, size)
    assert recordings == ["recorded"]


def test_within_a_capture_a_size_that_is_new_has_its_own_end() -> None:
    model = Decoder().cuda().eval()
    compiled = fuseplan.compile(model, plan=Plan("inductor", padded=BOX))
    for size in (128, 100, 90):
        compiled(*tokens(size))
    given = tokens(80)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        held = compiled(*given)
    right(compiled, model, 80)
    graph.replay()
    for got, want in zip(held, model(*given), strict=True):
        torch.testing.assert_close(got, want, atol=2e-4, rtol=2e-4)
