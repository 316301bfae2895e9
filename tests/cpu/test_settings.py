"""Named bundles of Inductor's options: they exist, change what is compiled, and are proposed where they touch something."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed

from benchmarks.one_ways import by_kind
from carving import trained
from fuseplan.errors import PlanError
from fuseplan.host import settings
from fuseplan.host.settings import BUNDLES, Bundle
from fuseplan.plan import Plan, Rewrite
from fuseplan.rewrites.found import SiteFound
from fuseplan.runtime import inductor_host
from fuseplan.runtime.inductor_host import options_under
from fuseplan.tuning.effort import FULL, QUICK
from fuseplan.tuning.program.baseline import settings_entries, whole_candidates
from plans import compile_under
from stored import HERE as GPU

OURS = [name for name, bundle in BUNDLES.items() if bundle.options]


@pytest.mark.parametrize("name", OURS)
def test_inductor_has_the_options_of_each_bundle(name: str) -> None:
    assert options_under(name) == dict(BUNDLES[name].options)


@pytest.mark.parametrize("name", OURS)
def test_a_program_trains_under_each(name: str) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU())
    x = torch.randn(4, 8, requires_grad=True)
    call = compile_under(Plan("inductor", settings=name), net)
    inputs = [x, *net.parameters()]
    got, want = (torch.autograd.grad(one(x).square().sum(), inputs) for one in (call, net))
    torch.testing.assert_close(got, want)


def test_what_this_torch_does_not_have_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    unheard_of = {**BUNDLES, "mix-order-off": Bundle(options={"triton.unheard_of": 1})}
    monkeypatch.setattr(inductor_host, "BUNDLES", unheard_of)
    with pytest.raises(PlanError, match=r"whose Inductor has no triton\.unheard_of"):
        options_under("mix-order-off")


def problem(role: str, graph: Any, rewrites: tuple[Rewrite, ...] = ()) -> Any:
    found = SimpleNamespace(graphs=((role, graph),), sites=())
    return SimpleNamespace(found=found, rewrites=rewrites, launch="cudagraph")


def test_they_are_proposed_for_a_backward_that_sums_and_under_a_large_effort() -> None:
    net = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16))
    (graph,) = trained(net, torch.randn(4, 8, requires_grad=True)).values()
    entries = settings_entries(problem("backward", graph))
    assert [one.name for one in entries] == [f"inductor {name}" for name in OURS]
    assert {one.plan.launch for one in entries if one.plan} == {"cudagraph"}
    assert settings_entries(problem("inference", graph)) == []
    for effort, proposed in ((FULL, OURS), (QUICK, [])):
        found = whole_candidates(problem("backward", graph), GPU, effort, [])
        assert [one.plan.settings for one in found if one.plan and one.plan.settings in OURS] == proposed


def test_the_set_is_closed() -> None:
    with pytest.raises(PlanError):
        Plan("inductor", settings="fastest")
    assert not any(bundle.captures and bundle.touches for bundle in settings.BUNDLES.values())


def test_each_kind_of_rewrite_is_measured_by_itself() -> None:
    sites = [
        SiteFound("attention", 0, "ab" * 8, "g", ("auto", "flash"), {}, "auto", (("flash", "flash"),)),
        SiteFound("attention", 1, "cd" * 8, "g", ("auto",), {}, "auto"),
        SiteFound("matmul", 0, "ef" * 8, "h", ("padded",), {}, None),
        SiteFound("embedding", 0, "01" * 8, "i", (), {"rows": "it is small"}, None),
    ]
    found = {one.name: one.plan.rewrites for one in by_kind(sites, "plain") if one.plan}
    ways = {name: [(one.kind, one.site, one.way) for one in rewrites] for name, rewrites in found.items()}
    assert ways == {
        "attention auto": [("attention", 0, "auto"), ("attention", 1, "auto")],
        "attention flash": [("attention", 0, "flash"), ("attention", 1, "auto")],
        "matmul padded": [("matmul", 0, "padded")],
    }


LESS = [name for name, bundle in BUNDLES.items() if bundle.memory_budget < 1]


@pytest.mark.parametrize("layers", [3, 4])
@pytest.mark.parametrize("name", LESS)
def test_what_a_dropout_draws_is_not_drawn_again_in_the_backward(name: str, layers: int) -> None:
    """Torch's cut would: which of these saves how little hangs on the sizes."""
    one = [nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Dropout(0.5)) for _ in range(layers)]
    call = compile_under(Plan("inductor", settings=name), nn.Sequential(*one).double())
    x = torch.randn(8, 16, dtype=torch.double, requires_grad=True)

    def loss(x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(7)
        found: torch.Tensor = call(x).square().mean()
        return found

    loss(x).backward()
    assert x.grad is not None
    above, below = ((x.detach() + step).requires_grad_() for step in (1e-5, -1e-5))
    assert torch.isclose(x.grad.sum() * 2e-5, loss(above) - loss(below), rtol=1e-4, atol=0.0)


@pytest.mark.parametrize("name", LESS)
def test_numbers_that_are_eagers_are_not_drawn_again_either(name: str) -> None:
    net = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Dropout(0.5), nn.Linear(16, 4))
    x = torch.randn(8, 16, requires_grad=True)
    with torch._inductor.config.patch(fallback_random=True):
        with pytest.raises(BackendCompilerFailed, match="may draw random numbers again"):
            compile_under(Plan("inductor", settings=name), net)(x)
        torch._dynamo.reset()
        still = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))
        compile_under(Plan("inductor", settings=name), still)(x).sum().backward()


@pytest.mark.parametrize("dropout", [0.1, 0.0])
def test_weights_of_attention_that_are_dropped_are_not_drawn_again(dropout: float) -> None:
    def attends(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(x, x, x, None, dropout) * 2

    call = compile_under(Plan("inductor", settings=LESS[0]), attends)
    x = torch.randn(2, 3, 8, 16, requires_grad=True)
    if not dropout:
        call(x).sum().backward()
        return
    with pytest.raises(BackendCompilerFailed, match="which weights of attention are dropped"):
        call(x)


@pytest.mark.parametrize("saving", ["all", "min-cut"])
def test_a_backward_draws_none_of_eagers_numbers_again(saving: str) -> None:
    with torch._inductor.config.patch(fallback_random=True):
        call = compile_under(Plan("aten", saving=saving), lambda x: torch.nn.functional.dropout(x.sin(), 0.5))
        found = call(torch.randn(4, 8, requires_grad=True))
        before = torch.get_rng_state()
        found.sum().backward()
        assert torch.equal(before, torch.get_rng_state())
