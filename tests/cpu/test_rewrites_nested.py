"""Sites inside activation checkpointing: found after all others, and equal to eager forward and backward when rewritten."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule
from torch.testing import assert_close
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import fuseplan
from fuseplan.backend import programs_of
from fuseplan.errors import PlanError
from fuseplan.explain import compiled_by
from fuseplan.plan import Plan, Rewrite
from fuseplan.rewrites.apply import rewritten
from fuseplan.rewrites.kinds import KINDS
from fuseplan.rewrites.sites import Sites
from rewriting import dynamo_graph
from toy_rewrite import Products


def attend(q: Tensor, p: float = 0.0) -> Tensor:
    mask = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool, device=q.device).tril()
    return F.scaled_dot_product_attention(q, q, q, attn_mask=mask, dropout_p=p)


def inner(x: Tensor) -> Tensor:
    return checkpoint(lambda y: attend(y * 3.0), x, use_reentrant=False) * 2.0  # type: ignore[no-any-return]


def nested(x: Tensor, w: Tensor) -> Tensor:
    """Attention in the program, in a block, in a block of that, and in the program again."""
    block = checkpoint(lambda y: inner(attend(y) * w + y), attend(x * w), use_reentrant=False)
    return attend(block) + x


def keeping_matmuls(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    kept = op is torch.ops.aten.mm.default
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


def selective(x: Tensor, w: Tensor) -> Tensor:
    """A block that keeps what its matmuls give, and computes the rest anew."""
    context = partial(create_selective_checkpoint_contexts, keeping_matmuls)
    return checkpoint(lambda y: attend(y) @ w.outer(w), x, use_reentrant=False, context_fn=context)  # type: ignore[no-any-return]


def inputs() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(1, 2, 6, 8, requires_grad=True), torch.randn(8, requires_grad=True)


def results(call: Callable[..., Tensor]) -> list[Tensor]:
    x, w = inputs()
    torch.manual_seed(1)
    out = call(x, w)
    (out * out).sum().backward()
    assert x.grad is not None
    assert w.grad is not None
    return [out.detach(), x.grad, w.grad]


def test_nested_sites_are_numbered_after_those_of_the_program_itself() -> None:
    told = Sites.of(dynamo_graph(nested, *inputs())).told()
    assert [site.number for site in told] == [0, 1, 2, 3]
    assert [site.preferred for site in told] == ["auto+causal"] * 4
    alone = Sites.of(dynamo_graph(lambda x, w: attend(attend(x * w)) + x, *inputs())).told()
    assert [site.number for site in alone] == [0, 1]
    assert len({site.digest for site in told}) == 4
    assert len({site.group for site in told}) == 1


@pytest.mark.parametrize("host", ["aten", "inductor", "eager"])
@pytest.mark.parametrize("program", [nested, selective])
def test_a_nested_graph_that_is_rewritten_gives_what_eager_gives(host: str, program: Callable[..., Tensor]) -> None:
    plan = Sites.of(dynamo_graph(program, *inputs())).preferring(Plan(host))
    assert len(plan.rewrites) == (4 if program is nested else 1)
    torch._dynamo.reset()
    compiled = fuseplan.compile(program, plan=plan)
    assert_close(results(compiled), results(program), rtol=1e-5, atol=1e-4)
    (found,) = programs_of(compiled_by(compiled))
    assert found.plan == plan
    if host == "aten":
        forward, backward = ([op.target for op in record.graph.ops] for record in found.graphs)
        assert "aten.tril.default" not in [*forward, *backward]


def test_what_was_dropped_out_is_dropped_out_again() -> None:
    """The backward computes the block anew: with the same dropout, or gradients would be those of another function."""

    def program(x: Tensor, w: Tensor) -> Tensor:
        return checkpoint(lambda y: attend(y, 0.5) * w, x, use_reentrant=False)  # type: ignore[no-any-return]

    plan = Sites.of(dynamo_graph(program, *inputs())).preferring(Plan("aten"))
    assert plan.rewrites
    torch._dynamo.reset()
    x, w = inputs()
    out = fuseplan.compile(program, plan=plan)(x, w)
    out.sum().backward()
    assert w.grad is not None
    assert_close((w.grad * w).sum(), out.sum())  # linear in w, with the dropout of the forward alone


def test_one_nested_site_alone_is_rewritten_and_another_one_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "product", Products())
    gm = dynamo_graph(nested, *inputs())
    told = {site.named: site for site in Sites.of(gm).told()}
    inside = next(site for site in told.values() if site.kind == "product" and site.about == "by 3.0")
    found = rewritten(gm, (Rewrite("product", inside.number, "quotient", inside.digest),)).gm
    codes = {name: module.code for name, module in found.named_modules() if isinstance(module, GraphModule)}
    assert [name for name, code in codes.items() if " / " in code] == ["wrap_body_1.wrap_body_0"]
    assert all(" / " not in module.code for module in gm.modules() if isinstance(module, GraphModule))
    with pytest.raises(PlanError, match="attention call 2 is another than the one"):
        rewritten(gm, (Rewrite("attention", 2, "auto+causal", "ab" * 8),))
    digests = [site.digest for site in told.values() if site.kind == "attention"]
    assert len({*digests}) == len(digests) == 4, "each is meant by its digest, whatever its number is elsewhere"


def test_what_the_program_sets_around_a_block_holds_inside_it() -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return checkpoint(lambda y: attend(y) * w, x, use_reentrant=False)  # type: ignore[no-any-return]

    (site,) = Sites.of(dynamo_graph(program, *inputs())).told()
    assert site.preferred is None
    assert site.ways == ()
    assert site.refused["auto+causal"] == "the program chooses kernels of attention around its block"
