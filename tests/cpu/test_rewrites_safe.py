"""What a rewrite must leave alone: special tensors, what the caller asks of kernels, and what surrounds a program; and option
`rewrites`, fuel and bisect, by which a person keeps them in hand.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing import assert_close

import fuseplan
from fuseplan.backend import programs_of
from fuseplan.errors import OptionError, PlanError
from fuseplan.explain import compiled_by
from fuseplan.measure.environment import Flags, environment
from fuseplan.options import Fuel, Options, allowed_kinds
from fuseplan.plan import CarveOuts, Plan, Rewrite
from fuseplan.rewrites.apply import rewritten
from fuseplan.rewrites.base import Draft
from fuseplan.rewrites.kinds import KINDS
from fuseplan.rewrites.sites import Sites
from fuseplan.runtime import Program
from fuseplan.segment import Region, Segmentation
from fuseplan.tuning_db import Places, Store, StoredPlan
from rewriting import dynamo_graph
from toy_rewrite import Product, Products


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "product", Products())


@pytest.fixture
def as_it_was() -> Iterator[None]:
    flags = Flags.here()
    yield
    flags.set()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(Places(tmp_path / "tuning.db"))


def attend(q: Tensor) -> Tensor:
    mask = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool, device=q.device).tril()
    return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)


def heads(**options: Any) -> Tensor:
    torch.manual_seed(0)
    return torch.randn(1, 2, 6, 8, **options)


def told(function: Callable[..., Any], *inputs: Any) -> list[Any]:
    return list(Sites.of(dynamo_graph(function, *inputs)).told())


def run(function: Callable[..., Any], *inputs: Any, **options: Any) -> tuple[Any, Program]:
    torch._dynamo.reset()
    compiled = fuseplan.compile(function, **options)
    result = compiled(*inputs)
    (program,) = programs_of(compiled_by(compiled))
    return result, program


# special tensors


class Marked(Tensor):
    """A tensor with something of its own around it, as distributed and quantized ones are."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Marked:
        return Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)  # type: ignore[attr-defined, no-any-return]

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner: Mapping[str, Tensor], *_: Any) -> Marked:
        return Marked(inner["inner"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        unwrapped, named = torch.utils._pytree.tree_map_only(Marked, lambda one: one.inner, (args, kwargs or {}))
        found = func(*unwrapped, **named)
        return torch.utils._pytree.tree_map_only(Tensor, Marked, found)


def test_a_tensor_subclass_refuses_its_site(products: None) -> None:
    plain, marked = told(lambda x, y: (x * 2.0, y * 2.0), torch.randn(4), Marked(torch.randn(4)))
    assert (plain.preferred, marked.preferred) == ("quotient", None)
    assert marked.refused["quotient"].endswith("is a Marked")
    result, _ = run(lambda y: y * 2.0, Marked(torch.ones(4)), plan=Plan("eager"))
    assert isinstance(result, Marked)
    assert_close(result.inner, torch.full((4,), 2.0))
    with pytest.raises(Exception, match=r"product 0 cannot be quotient: .* is a Marked"):
        run(lambda y: y * 2.0, Marked(torch.ones(4)), plan=Plan("eager", (Rewrite("product", 0, "quotient"),)))


def test_a_nested_tensor_refuses_its_site(products: None) -> None:
    rows = torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(3, 4)], layout=torch.jagged)
    (site,) = told(lambda x: x * 2.0, rows)
    assert site.preferred is None
    assert "is a NestedTensor" in site.refused["quotient"]


def test_a_quantized_tensor_is_told_of() -> None:
    from fuseplan.rewrites.special import special

    assert special(torch.randn(3)) == "a Tensor"
    with torch._subclasses.fake_tensor.FakeTensorMode() as mode:
        assert special([mode.from_tensor(torch.randn(3)), 3, None]) is None
        assert special(mode.from_tensor(torch.eye(3).to_sparse())) == "laid out as sparse_coo"


# what the caller asks of kernels


def test_a_kernel_that_is_switched_off_is_not_offered(as_it_was: None) -> None:
    torch.backends.cuda.enable_flash_sdp(False)
    (site,) = told(attend, heads())
    assert "flash+causal" not in site.ways
    assert site.refused["flash+causal"] == "flash is switched off"
    assert site.preferred == "auto+causal"


def test_the_context_of_a_caller_forbids_other_kernels() -> None:
    with sdpa_kernel(SDPBackend.MATH):
        (site,) = told(attend, heads())
    assert site.refused["flash+causal"] == "flash is switched off"
    assert site.preferred == "auto+causal"


def test_a_context_in_the_program_leaves_its_sites_as_they_are() -> None:
    def program(q: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            inside = attend(q)
        return attend(inside)

    inside, after = told(program, heads())
    assert (inside.preferred, after.preferred) == (None, "auto+causal")
    assert inside.refused["auto+causal"] == "the program chooses among kernels there by itself"
    assert inside.refused["flash+causal"] == "flash is switched off"
    result, program_run = run(program, heads(), plan="inductor", attention="proven")
    assert [one.site for one in program_run.plan.rewrites] == [1]
    assert_close(result, program(heads()))


@pytest.mark.parametrize("how", ["algorithms", "cudnn"])
def test_who_asks_for_what_is_deterministic_gets_no_other_kernel(as_it_was: None, how: str) -> None:
    assert "deterministic" not in told(attend, heads())[0].refused["cudnn+causal"]
    if how == "algorithms":
        torch.use_deterministic_algorithms(True)
    else:
        torch.backends.cudnn.set_flags(_deterministic=True)
    (site,) = told(attend, heads())
    assert site.refused["cudnn+causal"] == "cudnn is not deterministic, which the caller asks for"
    assert "flash+causal" in site.ways


def test_workers_are_set_as_the_process_that_asks(as_it_was: None) -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.set_flags(_deterministic=True)
    torch.backends.cuda.enable_flash_sdp(False)
    here = Flags.here()
    told_by_json = Flags(**vars(here))
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.set_flags(_deterministic=False)
    torch.backends.cuda.enable_flash_sdp(True)
    told_by_json.set()
    assert torch.is_deterministic_algorithms_warn_only_enabled()
    assert torch.backends.cudnn.deterministic
    assert not torch.backends.cuda.flash_sdp_enabled()
    assert torch.backends.cuda.math_sdp_enabled()


FLASH = (Rewrite("attention", 0, "flash+causal"),)


def keep(store: Store, plan: Plan, function: Callable[..., Any] = attend) -> StoredPlan:
    _, program = run(function, heads(), plan="inductor")
    kept = StoredPlan(str(program.key), environment("cpu"), plan, wall_us=1.0)
    assert store.add_plan(kept)
    return kept


def test_a_stored_plan_falls_back_to_what_is_allowed_loudly_once(store: Store, tmp_path: Path, as_it_was: None) -> None:
    keep(store, Plan("inductor", FLASH))
    torch.backends.cuda.enable_flash_sdp(False)
    with pytest.warns(UserWarning, match=r"attention call 0 is auto\+causal, not flash\+causal: flash is switched off"):
        result, program = run(attend, heads(), db=tmp_path / "tuning.db")
    assert [one.way for one in program.plan.rewrites] == ["auto+causal"]
    assert "not as it was tuned" in program.why
    assert_close(result, attend(heads()))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        run(attend, heads(), db=tmp_path / "tuning.db")  # said once
    (kept,) = store.plans()
    assert (kept.status, [one.way for one in kept.plan.rewrites]) == ("tuned", ["flash+causal"])
    torch.backends.cuda.enable_flash_sdp(True)
    _, program = run(attend, heads(), db=tmp_path / "tuning.db")
    assert [one.way for one in program.plan.rewrites] == ["flash+causal"]


def test_a_stored_plan_that_cuts_other_graphs_gives_way_to_the_default(
    store: Store, tmp_path: Path, as_it_was: None
) -> None:
    keep(store, Plan("aten", FLASH, (CarveOuts("inference", "ab" * 32, Segmentation()),)))
    torch.backends.cuda.enable_flash_sdp(False)
    with pytest.warns(UserWarning, match="its regions are those of other graphs"):
        _, program = run(attend, heads(), db=tmp_path / "tuning.db")
    assert program.plan == Plan("inductor")
    assert "is not allowed here" in program.why
    assert store.plans()[0].status == "tuned"


def test_who_asks_for_a_forbidden_way_by_name_hears_why(as_it_was: None) -> None:
    torch.backends.cuda.enable_flash_sdp(False)
    with pytest.raises(Exception, match=r"attention call 0 cannot be flash\+causal: flash is switched off"):
        run(attend, heads(), plan=Plan("inductor", FLASH))


# what surrounds a program


def surrounded(q: Tensor) -> Tensor:
    return (attend(q * 2.0) @ q.transpose(-1, -2)) * 3.0


EVERY = (Rewrite("attention", 0, "auto+causal"), Rewrite("product", 0, "quotient"), Rewrite("product", 1, "quotient"))


@pytest.mark.parametrize("host", ["aten", "inductor"])
@pytest.mark.parametrize(
    "context",
    [nullcontext, torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)],
    ids=["plain", "no_grad", "inference_mode", "autocast"],
)
def test_a_context_keeps_its_meaning(products: None, host: str, context: Callable[[], Any]) -> None:
    q = heads(requires_grad=True)
    with context():
        want = surrounded(q)
        got, program = run(surrounded, q, plan=Plan(host, EVERY))
    assert len(program.plan.rewrites) == 3
    assert (got.dtype, got.requires_grad, got.is_inference()) == (want.dtype, want.requires_grad, want.is_inference())
    assert_close(got, want)


def test_autocast_inside_a_program_keeps_its_meaning(products: None) -> None:
    def program(q: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return surrounded(q)

    want = program(heads())
    got, found = run(program, heads(), plan=Plan("inductor", EVERY))
    assert len(found.plan.rewrites) == 3
    assert got.dtype == want.dtype == torch.bfloat16
    assert_close(got, want)


def test_vmap_keeps_its_meaning(products: None) -> None:
    def program(q: Tensor) -> Tensor:
        return torch.vmap(surrounded)(q) * 2.0

    q = torch.randn(3, 1, 2, 6, 8)
    sites = {site.named: site for site in told(program, q)}
    assert sites["product", 2].preferred == "quotient"
    rewrites = tuple(
        Rewrite(kind, at, site.preferred, site.digest) for (kind, at), site in sorted(sites.items()) if site.preferred
    )
    got, _ = run(program, q, plan=Plan("aten", rewrites))
    assert_close(got, program(q))


def test_compiled_autograd_and_hooks_keep_their_meaning(products: None) -> None:
    seen: list[Tensor] = []

    def gradients(call: Callable[[Tensor], Tensor]) -> list[Tensor]:
        q = heads(requires_grad=True)
        q.register_hook(lambda grad: seen.append(grad) or grad * 2)  # type: ignore[func-returns-value]
        out = call(q)
        out.register_hook(lambda grad: grad * 3)
        out.sum().backward()
        assert q.grad is not None
        return [out.detach(), q.grad]

    want = gradients(surrounded)
    torch._dynamo.reset()
    compiled = fuseplan.compile(surrounded, plan=Plan("aten", EVERY))
    assert_close(gradients(compiled), want, rtol=1e-5, atol=1e-5)
    assert len(seen) == 2
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
        assert_close(gradients(compiled), want, rtol=1e-5, atol=1e-5)
    (program,) = programs_of(compiled_by(compiled))
    assert len(program.plan.rewrites) == 3


class Module(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, q: Tensor) -> Tensor:
        return surrounded(self.linear(q))


def test_a_module_that_runs_on_several_processes_keeps_its_meaning(products: None, tmp_path: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/peers", rank=0, world_size=1)
    try:
        torch.manual_seed(0)
        model = Module()
        want = model(heads())
        want.sum().backward()
        gradients = [one.grad.clone() for one in model.parameters() if one.grad is not None]
        model.zero_grad()
        torch._dynamo.reset()
        parallel = fuseplan.compile(nn.parallel.DistributedDataParallel(model), plan=Plan("aten", EVERY))
        got = parallel(heads())
        got.sum().backward()
        assert_close(got, want)
        assert_close([one.grad for one in model.parameters()], gradients, rtol=1e-5, atol=1e-5)
    finally:
        torch.distributed.destroy_process_group()


# option `rewrites`


@pytest.mark.parametrize("value", ["", [], "Attention", ["attention", 3], 3, ["none of them"]])
def test_what_is_no_choice_of_kinds_is_refused(value: object) -> None:
    with pytest.raises(OptionError, match="option rewrites is all, none, or names of kinds"):
        allowed_kinds(value)


def test_a_kind_that_nobody_knows_is_refused() -> None:
    with pytest.raises(Exception, match="there is no kind of rewrite 'unheard-of'; known are attention"):
        run(attend, heads(), rewrites="unheard-of")
    with pytest.raises(OptionError, match="there is no kind of rewrite 'unheard-of'"):
        fuseplan.tune([], rewrites=["attention", "unheard-of"])


@pytest.mark.parametrize("asked", [{"plan": Plan("inductor", FLASH)}, {"attention": "proven"}])
def test_what_is_asked_for_must_be_allowed(asked: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="option rewrites forbids attention"):
        Options.parse({**asked, "rewrites": "none"})
    assert Options.parse({**asked, "rewrites": ["attention"]}).rewrites == ("attention",)


@pytest.mark.parametrize(("rewrites", "ways"), [("all", 1), ("attention", 1), ("none", 0), (["product"], 0)])
def test_a_stored_plan_of_a_forbidden_kind_does_not_fit(
    products: None, store: Store, tmp_path: Path, rewrites: Any, ways: int
) -> None:
    keep(store, Plan("inductor", FLASH))
    result, program = run(attend, heads(), db=tmp_path / "tuning.db", rewrites=rewrites)
    assert len(program.plan.rewrites) == ways
    assert ("has rewrites of attention, which option rewrites forbids" in program.why) is (ways == 0)
    assert_close(result, attend(heads()))


# in hand


class Wrong(Products):
    """One of its ways is not what the product is."""

    def apply(self, draft: Draft, chosen: Mapping[Product, str]) -> None:
        """Divide, by too much where the factor is 3."""
        super().apply(draft, chosen)
        for site in chosen:
            if site.node.args[1] == 3.0:
                draft.copies[site.node].args = (draft.copies[site.node].args[0], 0.3)


def thrice(x: Tensor) -> Tensor:
    return ((x * 2.0).relu() * 3.0).relu() * 4.0


THREE = tuple(Rewrite("product", number, "quotient") for number in range(3))


@pytest.mark.parametrize("host", ["eager", "aten", "inductor"])
def test_fuel_counts_rewrites_too(products: None, host: str) -> None:
    for units in range(5):
        fuel = Fuel(units)
        result, program = run(thrice, torch.ones(4), plan=Plan(host, THREE), fuel=fuel)
        assert_close(result, thrice(torch.ones(4)))
        assert [one.site for one in program.plan.rewrites] == list(range(min(units, 3)))
        applied = [one.rewrite.site for one in fuel.applied if one.rewrite is not None]
        assert applied == list(range(min(units, 3)))
        fused = [one for one in fuel.applied if one.rewrite is None]
        assert len(fused) == (1 if host == "inductor" and units == 4 else 0)


def test_without_all_its_rewrites_nothing_of_a_plan_is_carved_out(products: None) -> None:
    _, program = run(thrice, torch.ones(4), plan=Plan("aten", THREE))
    (record,) = program.graphs
    cut = Segmentation((Region(tuple(range(len(record.graph.ops))), "inductor"),))
    plan = Plan("aten", THREE, (CarveOuts("inference", str(record.graph.key), cut),))
    for units in range(5):
        fuel = Fuel(units)
        result, program = run(thrice, torch.ones(4), plan=plan, fuel=fuel)
        assert_close(result, thrice(torch.ones(4)))
        assert len(fuel.applied) == min(units, 4)
        inside = [region for record in program.graphs for region in record.regions if region.fallback is None]
        assert len(inside) == (units == 4)


@pytest.mark.parametrize("host", ["eager", "inductor"])
def test_bisect_names_the_rewrite_that_is_wrong(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.setitem(KINDS, "product", Wrong())
    found = fuseplan.bisect(thrice, [torch.ones(4)], plan=Plan(host, THREE))
    assert found is not None
    assert str(found).startswith(
        f"rewrite 2 of {3 + (host == 'inductor')} makes the result wrong: the rewrite of product 1 as quotient: "
    )


def test_each_rewrite_is_logged(products: None, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="fuseplan"):
        run(thrice, torch.ones(4), plan=Plan("eager", THREE[:2]))
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("rewrite: ")]
    assert lines == [f"rewrite: product {number}: by {by}; variant quotient" for number, by in ((0, 2.0), (1, 3.0))]


def test_a_site_that_is_refused_is_never_written(products: None) -> None:
    graph = dynamo_graph(lambda x, y: x * y, *torch.randn(2, 4))
    with pytest.raises(PlanError, match="product 0 cannot be quotient: it is by no number"):
        rewritten(graph, THREE[:1])
