"""What a rewrite may rely on where programs write in place: who writes to what, and that no way changes what a program computes then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import Tensor
from torch.fx import GraphModule
from torch.utils._pytree import tree_leaves

import fuseplan
from fuseplan.plan import Plan, Rewrite
from fuseplan.rewrites.writes import written_by

# who writes to what


def graph_of(function: Callable[..., Any], *inputs: Any) -> GraphModule:
    seen: list[GraphModule] = []

    def backend(gm: GraphModule, _: Any) -> Callable[..., Any]:
        seen.append(gm)
        return gm.forward

    torch._dynamo.reset()
    torch.compile(function, backend=backend, fullgraph=True)(*inputs)
    return seen[0]


def statistics(x: Tensor) -> Any:
    return F.batch_norm(torch.ones(3, 8).cumsum(0), x[0], torch.ones(8), training=True)


WRITES: dict[str, Callable[[Tensor], Any]] = {
    "a method": lambda x: x.mul_(2.0),
    "an item": lambda x: x.__setitem__(0, 1.0),
    "a list": lambda x: torch._foreach_mul_([x], 2.0),
    "by name": lambda x: torch.relu_(input=x),
    "told by place": lambda x: F.relu(x, True),
    "told by name": lambda x: F.hardtanh(x, inplace=True),
    "out": lambda x: torch.exp(torch.ones(4, 8), out=x),
    "out by place": lambda x: F.normalize(torch.ones(4, 8), 2.0, -1, 1e-12, x),
    "statistics": statistics,
    "statistics of instances": lambda x: F.instance_norm(torch.ones(2, 8, 5).cumsum(0), x[0], torch.ones(8)),
    "statistics in C++": lambda x: torch.batch_norm(
        torch.ones(3, 8).cumsum(0), None, None, x[0], torch.ones(8), True, 0.5, 1e-5, False
    ),
    "statistics of ATen": lambda x: torch.ops.aten.native_batch_norm.default(
        torch.ones(3, 8).cumsum(0), None, None, x[0], torch.ones(8), True, 0.5, 1e-5
    ),
    "rows that are bounded": lambda x: F.embedding(torch.tensor([0, 1]), x, max_norm=0.5),
    "rows of bags that are bounded": lambda x: F.embedding_bag(torch.tensor([[0, 1]]), x, max_norm=0.5),
    "NumPy": lambda x: x.numpy().fill(1.0),
    "an operator of NumPy": lambda x: x.numpy().__imul__(2),
}
READS: dict[str, Callable[[Tensor], Any]] = {
    "dropout": lambda x: F.dropout(x, 0.5, True),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], None, 0.0, True),
    "told not to": lambda x: F.relu(x, inplace=False),
    "normed by what is known": lambda x: F.batch_norm(x, torch.zeros(8), torch.ones(8)),
    "normed without statistics": lambda x: F.batch_norm(x, None, None, training=True),
    "rows": lambda x: F.embedding(torch.tensor([0, 1]), x),
    "a list": lambda x: torch._foreach_mul([x], 2.0),
    "interpolated": lambda x: F.interpolate(x[None], scale_factor=2.0),
}


@pytest.mark.parametrize("name", WRITES)
def test_what_writes_is_known(name: str) -> None:
    write = WRITES[name]

    def program(x: Tensor) -> Tensor:
        write(x)
        return x * 1

    gm = graph_of(program, torch.rand(4, 8))
    (x,) = gm.graph.find_nodes(op="placeholder")
    lies = x.meta["example_value"].untyped_storage()._cdata
    written = [each.meta["example_value"] for node in gm.graph.nodes for each in written_by(node)]
    assert lies in {each.untyped_storage()._cdata for each in tree_leaves(written) if isinstance(each, Tensor)}


@pytest.mark.parametrize("name", READS)
def test_what_only_reads_is_known(name: str) -> None:
    gm = graph_of(READS[name], torch.rand(4, 8))
    assert [node for node in gm.graph.nodes if written_by(node)] == []


# no way changes what is computed


@dataclass(frozen=True)
class Case:
    program: Callable[..., Any]
    given: Callable[[], list[Tensor]]
    kind: str
    way: str
    refused: str | None = None
    """Why the way is not legal here; None if it is, and is right."""


def normal(*shape: int, trains: bool = False) -> Tensor:
    return torch.randn(shape).requires_grad_(trains)


def heads(*more: tuple[int, ...], groups: int = 4, trains: bool = False) -> Callable[[], list[Tensor]]:
    shapes = [(2, 4, 8, 16), (2, groups, 8, 16), (2, groups, 8, 16), *more]
    return lambda: [normal(*shape, trains=trains) for shape in shapes]


def rows_and_two_matrices() -> list[Tensor]:
    return [normal(4, 32), normal(32, 32), normal(32, 32)]


def meanwhile(write: Callable[[Tensor], Any]) -> Callable[..., Tensor]:
    def program(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        query = F.linear(x, a)
        write(x)
        return query * F.linear(x, b)

    return program


def repeated_under_no_grad(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with torch.no_grad():
        keys = k.repeat_interleave(2, 1)
    return F.scaled_dot_product_attention(q, keys, v.repeat_interleave(2, 1))


def copied_under_no_grad(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    turned = k.transpose(1, 2)
    with torch.no_grad():
        keys = turned.contiguous()
    return F.scaled_dot_product_attention(q, keys, v)


def repeated_from_a_list(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    keys, values = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    torch._foreach_zero_([keys])
    return F.scaled_dot_product_attention(q, keys, values)


def masked_by_what_was_drawn(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    mask = torch.rand(8, 8)
    mask.fill_(1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask.tril().bool()), torch.rand(4)


def drawn_behind_dropout(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    weights = F.dropout((q @ k.mT).softmax(-1), 0.5)
    drawn = torch.rand(4)
    return weights @ v, drawn


def written_to_flat(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    found = F.scaled_dot_product_attention(q, k, v)
    flat = found.flatten(2)
    flat.add_(1.0)
    return flat, found * 2


def written_to_turned(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    found = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
    flat = found.reshape(2, 8, 64)
    flat += 1.0
    return flat, found * 2


def given_twice(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    found = (q @ k.mT).softmax(-1) @ v
    return found.flatten(2), found.contiguous()


def copy_of_the_result(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    found = torch.einsum("bhnm,bmhd->bnhd", torch.einsum("bnhd,bmhd->bhnm", q, k).softmax(-1), v)
    copy = found.contiguous()
    copy.mul_(0.0)
    return copy, found * 2


def raveled(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    found = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
    flat = found.ravel()
    flat += 1.0
    return flat, found * 2


def kept_and_written_to(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    keys = torch.empty_like(k)
    keys[..., :8], keys[..., 8:] = k[..., :8], k[..., 8:]
    found = (q.detach() @ keys.detach().mT).softmax(-1) @ v
    keys[..., :3] = 7.0
    return found, keys


def normed(x: Tensor) -> Tensor:
    return F.layer_norm(x, (64,)) * 2


def into_a_block(q: Tensor, k: Tensor, v: Tensor) -> Any:
    found = ((q @ k.mT).softmax(-1) @ v).transpose(1, 2).reshape(2, 8, 64)
    return torch.utils.checkpoint.checkpoint(normed, found, use_reentrant=False)


def activated_in_place(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.relu(((q @ k.mT).softmax(-1) @ v).transpose(1, 2).reshape(2, 8, 64), inplace=True)


def counted_meanwhile(x: Tensor, w: Tensor, t: Tensor) -> Tensor:
    logits = F.linear(x, w)
    with torch.no_grad():
        count = x.detach().sum()
    return F.cross_entropy(logits, t) + count


def bias_in_place(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return bias.add_(q @ k.mT).softmax(-1) @ v


def scores_into_another(q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> Tensor:
    return torch.matmul(q, k.mT, out=out).softmax(-1) @ v


def result_into_another(q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> Tensor:
    torch.matmul((q @ k.mT).softmax(-1), v, out=out)
    return out * 1


def viewed_before(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    bias = bias * 1
    viewed = bias.view(2, 4, 8, 8)
    bias += q @ k.mT
    return bias.softmax(-1) @ v, viewed.sum()


def logarithms_into_another(x: Tensor, w: Tensor, t: Tensor, out: Tensor) -> Tensor:
    return F.nll_loss(torch.log_softmax(F.linear(x, w), -1, out=out), t)


def logits_under_no_grad(x: Tensor, w: Tensor, t: Tensor) -> Tensor:
    logits = F.linear(x, w)
    with torch.no_grad():
        flat = logits.float().flatten(0, 1)
    return F.cross_entropy(flat, t.flatten()) + x.sum()


def divided(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    found = F.linear(x, w, b)
    found.div_(2.0)
    return found


def activated(x: Tensor, w: Tensor) -> Tensor:
    return F.relu6(F.conv2d(x, w, padding=1, groups=8), inplace=True)


def table_in_a_list(ids: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    found = F.embedding(ids, table)
    with torch.no_grad():
        torch._foreach_mul_([table], 2.0)
    return found, F.linear(torch.ones(3, 64), table)


ELSEWHERE = "has 0 of them"
CASES: dict[str, Case] = {
    **{
        f"few rows: {name}": Case(meanwhile(WRITES[name]), rows_and_two_matrices, "few-rows", "triton")
        for name in ("a list", "by name", "rows that are bounded", "NumPy")
    },
    "repeated, then written in a list": Case(
        repeated_from_a_list, heads(groups=2), "attention", "flash+grouped", "may be written to"
    ),
    "repeated under no_grad": Case(
        repeated_under_no_grad, heads(groups=2, trains=True), "attention", "flash+grouped", "other rules of computing"
    ),
    "copied under no_grad": Case(
        copied_under_no_grad, lambda: [normal(*shape, trains=True) for shape in ((2, 4, 8, 16), (2, 8, 4, 16), (2, 4, 8, 16))],
        "attention", "flash+views", "no query, key or value is a copy",
    ),
    "a mask that was drawn": Case(masked_by_what_was_drawn, heads(), "attention", "flash+causal", "it draws random numbers"),
    "drawn behind dropout": Case(drawn_behind_dropout, heads(), "written-attention", "math", ELSEWHERE),
    "written to flat": Case(written_to_flat, heads(), "attention", "split"),
    "written to turned": Case(written_to_turned, heads(), "attention", "split"),
    "written to raveled": Case(raveled, heads(), "attention", "split"),
    "kept and written to": Case(
        kept_and_written_to, heads(trains=True), "written-attention", "flash", "is written to later, and a fused kernel keeps it"
    ),
    "kept by nobody and written to": Case(kept_and_written_to, heads(trains=True), "written-attention", "math"),
    "into a checkpointed block": Case(into_a_block, heads(trains=True), "written-attention", "flash"),
    "activated in place": Case(activated_in_place, heads(), "written-attention", "flash"),
    "counted under no_grad meanwhile": Case(
        counted_meanwhile, lambda: [normal(2048, 16, trains=True), normal(520, 16, trains=True), torch.randint(0, 520, (2048,))],
        "loss", "chunked-4",
    ),
    "given twice": Case(given_twice, heads(), "written-attention", "math", ELSEWHERE),
    "a copy of the result": Case(
        copy_of_the_result, lambda: [normal(2, 8, 4, 16) for _ in range(3)], "written-attention", "math", ELSEWHERE
    ),
    "a bias in place": Case(bias_in_place, heads((2, 4, 8, 8)), "written-attention", "math", ELSEWHERE),
    "scores into another": Case(scores_into_another, heads((2, 4, 8, 8)), "written-attention", "math", ELSEWHERE),
    "a result into another": Case(result_into_another, heads((2, 4, 8, 16)), "written-attention", "math", ELSEWHERE),
    "viewed before": Case(viewed_before, heads((2, 4, 8, 8)), "written-attention", "math", ELSEWHERE),
    "logarithms into another": Case(
        logarithms_into_another, lambda: [normal(2048, 16), normal(520, 16), torch.randint(0, 520, (2048,)), torch.zeros(2048, 520)],
        "loss", "chunked-4", ELSEWHERE,
    ),
    "logits under no_grad": Case(
        logits_under_no_grad, lambda: [normal(4, 512, 16, trains=True), normal(520, 16, trains=True), torch.randint(0, 520, (4, 512))],
        "loss", "chunked-4", ELSEWHERE,
    ),
    "a padded result in place": Case(
        divided, lambda: [normal(*shape, trains=True) for shape in ((4, 512, 16), (517, 16), (517,))], "matmul", "padded"
    ),
    "an activation in place": Case(
        activated,
        lambda: [torch.randn(2, 8, 8, 8).to(memory_format=torch.channels_last).requires_grad_(), normal(8, 1, 3, 3, trains=True)],
        "depthwise", "triton",
    ),
    "a table in a list": Case(
        table_in_a_list, lambda: [torch.randint(0, 65536, (2, 5)), normal(65536, 64, trains=True)], "embedding", "rows"
    ),
}  # fmt: skip


def seen(program: Callable[..., Any], given: Callable[[], list[Tensor]]) -> Sequence[Tensor | None]:
    """What it gives, what it leaves of its inputs, and their gradients."""
    torch.manual_seed(0)
    inputs = given()
    found = [each for each in tree_leaves(program(*inputs)) if isinstance(each, Tensor)]
    kept: list[Tensor | None] = [each.detach().clone() for each in (*found, *inputs)]
    wanted = [each for each in inputs if each.requires_grad]
    if wanted:
        losses = [each.sum() for each in found if each.requires_grad]
        kept += torch.autograd.grad(torch.stack(losses).sum(), wanted, allow_unused=True)
    return kept


@pytest.mark.parametrize("host", ["eager", "aten"])
@pytest.mark.parametrize("name", CASES)
def test_a_way_computes_the_same_where_something_is_written_or_it_is_refused(name: str, host: Any) -> None:
    case = CASES[name]
    torch._dynamo.reset()
    made = fuseplan.compile(case.program, plan=Plan(host, (Rewrite(case.kind, 0, case.way),)))
    if case.refused is not None:
        with pytest.raises(Exception, match=f"PlanError: .*{case.refused}"):
            seen(made, case.given)
        return
    for ours, theirs in zip(seen(made, case.given), seen(case.program, case.given), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
