"""Attention that skips what its mask hides, by flex_attention: what is skipped, where that is legal, and that it computes the same.

The CPU has its forward alone. Each compilation takes seconds, so that few tests compile: the rest is the operator's own.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.exc import TorchDynamoException
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask
from torch.testing import assert_close

import fuseplan
import written_sites
from agreement import assert_as_accurate, assert_same, in_double
from attention_calls import by_expand, found_in
from cpu.test_measure import FLAGS
from cpu.test_measure_programs import trace_of
from fuseplan.capture.fx import flex
from fuseplan.capture.fx.flex import Sight
from fuseplan.errors import PlanError
from fuseplan.executors.inductor import toolchain
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.jobs import VetPlan
from fuseplan.measure.pool import Limits, Workers
from fuseplan.plan import Plan, Rewrite
from fuseplan.rewrites.apply import rewritten
from fuseplan.rewrites.attention.documents import documents_in
from fuseplan.rewrites.kinds import KINDS
from fuseplan.segment.masks import UnprovenError

LENGTH, WINDOW = 384, 100
OPERATOR = torch.ops.fuseplan.sdpa_in_sight
SIGHTS = [
    Sight(300, 5, 0),
    Sight(1000, 130, None),
    Sight(512, None, 0, (128, 200, 184)),
    Sight(700, 300, 40, (1, 127, 300, 272)),
    Sight(256, None, None, (128, 128)),
    Sight(129, 3, 3),
]


def shown(length: int, left: int = WINDOW - 1, right: int = 0) -> Tensor:
    ahead = torch.arange(length)[None, :] - torch.arange(length)[:, None]
    return (ahead <= right) & (ahead >= -left)


def in_window(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, by_expand(k), by_expand(v), attn_mask=shown(q.shape[-2]))


def heads(
    groups: int = 2, length: int = LENGTH, size: int = 16, *, grad: bool = False, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, ...]:
    torch.manual_seed(4)
    drawn = [torch.randn(2, count, length, size, dtype=dtype) for count in (4, groups, groups)]
    return tuple(each.requires_grad_(grad) for each in drawn)


def under(program: Callable[..., Any], way: str, host: str = "inductor") -> Callable[..., Any]:
    return fuseplan.compile(program, plan=Plan(host, (Rewrite("attention", 0, way),)))


# what is skipped


@pytest.mark.parametrize("sight", SIGHTS, ids=str)
def test_blocks_are_those_that_torch_finds_in_the_mask(sight: Sight) -> None:
    mask, length = sight.mask("cpu"), sight.length
    ours = sight.block_mask(torch.device("cpu"))
    theirs = create_block_mask(lambda b, h, q, k: mask[q, k], None, None, length, length, device="cpu")
    assert torch.equal(ours.to_dense(), theirs.to_dense())
    for name in ("kv_num_blocks", "full_kv_num_blocks", "q_num_blocks", "full_q_num_blocks"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name)), name
    condition = torch.vmap(torch.vmap(ours.mask_mod, (None, None, None, 0)), (None, None, 0, None))
    zero, places = torch.tensor(0), torch.arange(length)
    assert torch.equal(condition(zero, zero, places, places), mask)
    assert sight.hides_blocks() == bool((theirs.to_dense() == 0).any())


def test_nothing_is_skipped_where_each_block_shows_something() -> None:
    assert not Sight(1024, 1024, 1024).hides_blocks()
    assert not Sight(128, 3, 0).hides_blocks()


# the operator


@pytest.mark.parametrize("documents", [(), (100, 200)])
def test_the_operator_has_gradients_and_shapes_of_its_own(documents: tuple[int, ...]) -> None:
    arguments = heads(length=300, size=8, grad=True, dtype=torch.float64)
    mask = Sight(300, 70, 0, documents).mask("cpu")

    def result(attend: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        out = attend(*arguments)
        return (out, *torch.autograd.grad(out.sin().sum(), arguments))

    found = result(lambda q, k, v: OPERATOR(q, k, v, 70, 0, documents, 0.3))
    expected = result(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, mask, scale=0.3, enable_gqa=True))
    assert_close(found, expected)
    assert all(each.transpose(1, 2).is_contiguous() for each in found)
    torch.library.opcheck(
        OPERATOR.default, (*arguments, 70, 0, list(documents), None), test_utils=("test_schema", "test_faketensor")
    )


def test_where_it_does_not_compile_it_computes_with_a_mask_and_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*given: Tensor) -> Tensor:
        raise TorchDynamoException("no such kernel")

    arguments = heads(length=300)
    monkeypatch.setattr(flex, "_FAILED", set())
    monkeypatch.setattr(flex, "_compiled", lambda shapes: failing)
    with pytest.warns(UserWarning, match="with a mask instead: no such kernel"):
        found = OPERATOR(*arguments, 9, 0, [], None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same(OPERATOR(*arguments, 9, 0, [], None), found)
    q, k, v = arguments
    expected = F.scaled_dot_product_attention(q, k, v, shown(300, 9), enable_gqa=True)
    assert_close(found, expected)


def test_documents_are_skipped_in_half_precision() -> None:
    arguments = heads(groups=4, length=300, dtype=torch.bfloat16)
    before = len(flex._RAN)
    found = OPERATOR(*arguments, None, 0, [100, 200], None)
    assert len(flex._RAN) == before + 1
    mask = Sight(300, None, 0, (100, 200)).mask("cpu")
    with sdpa_kernel(SDPBackend.MATH):
        eager, exact = (F.scaled_dot_product_attention(q, k, v, mask) for q, k, v in (arguments, in_double(arguments)))
    assert_as_accurate(found, eager, exact)


# sites


def test_a_window_is_skipped_under_each_host() -> None:
    arguments = heads()
    before, failed = len(flex._RAN), len(flex._FAILED)
    for host in ("inductor", "aten", "eager"):
        torch._dynamo.reset()
        found = under(in_window, "flex+window+grouped", host)(*arguments)
        assert_as_accurate(found, in_window(*arguments), in_window(*in_double(arguments)))
    assert (len(flex._RAN), len(flex._FAILED)) == (before + 1, failed)


def test_the_judge_finds_it_right() -> None:
    trace = trace_of(in_window, *heads(dtype=torch.bfloat16))
    entry = RaceEntry("flex", Plan("eager", (Rewrite("attention", 0, "flex+window"),)))
    with Workers("cpu", limits=Limits(plan_s=240.0), flags=FLAGS) as workers:
        (outcome,) = workers.map([VetPlan(trace, entry)])
    assert (outcome.status, outcome.row("flex").status) == ("ok", "ok"), outcome
    assert outcome.row("flex").how.startswith("beside a run in float64")


def test_autocast_reaches_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex, "_compiled", lambda shapes: lambda *given: flex._with_mask(shapes.sight, None, *given))
    q, k, v = heads(groups=4)
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = under(windowed, "flex+window", "eager")(q, k, v.bfloat16()), windowed(q, k, v.bfloat16())
    assert found.dtype == expected.dtype == torch.bfloat16
    assert_same(found, expected, bitwise=False)


def test_what_is_raced_and_rewritten() -> None:
    (call,), gm = found_in(in_window, *heads())
    assert call.rivals["flex"] == "flex+window"
    assert {"flex+window", "flex+window+grouped"} <= set(call.variants)
    assert "flex" not in call.offered
    code = rewritten(gm, (Rewrite("attention", 0, "flex+window+grouped"),)).gm.code
    assert "attention_flex(" in code
    assert "arange" not in code
    assert "expand" not in code


def dropped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=shown(q.shape[-2]), dropout_p=0.1)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def wide(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=shown(q.shape[-2], 300, 300))


def windowed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=shown(q.shape[-2]))


@pytest.mark.parametrize(
    ("program", "arguments", "reason"),
    [
        (windowed, heads(4, grad=True), "flex attention has no backward on cpu"),
        (dropped, heads(4), "it has dropout, which flex attention has not"),
        (causal, heads(4), "its mask is not proven a window: causal"),
        (wide, heads(4), "its mask hides no block of 128 queries and keys as a whole"),
        (windowed, heads(4, length=120), "its mask hides no block of 128 queries and keys as a whole"),
        (windowed, heads(4, dtype=torch.float64), "flex attention does not compute in float64"),
        (windowed, [each[0] for each in heads(4)], "flex attention takes tensors of four dimensions"),
    ],
    ids=["gradients", "dropout", "causal", "wide", "short", "double", "three dimensions"],
)
def test_why_it_is_refused(program: Callable[..., Any], arguments: Any, reason: str) -> None:
    (call,), gm = found_in(program, *arguments)
    assert call.refusal("flex+window") == reason
    assert "flex+window" not in call.variants
    with pytest.raises(PlanError, match=r"cannot be flex\+window"):
        rewritten(gm, (Rewrite("attention", 0, "flex+window"),))


def test_sizes_that_are_not_known_beforehand_are_refused() -> None:
    (call,), _ = found_in(windowed, *heads(4), dynamic=True)
    assert call.refusal("flex+window") == "flex attention is compiled for sizes that are known beforehand"


def test_a_machine_without_a_compiler_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    (call,), _ = found_in(windowed, *heads(4))
    monkeypatch.setattr(toolchain, "missing", lambda device: f"no compiler for {device}")
    assert call.refusal("flex+window") == "no compiler for cpu"
    monkeypatch.setattr(toolchain, "missing", lambda device: None)
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    assert "needs a processor with AVX2" in str(call.refusal("flex+window"))


def test_who_chooses_among_kernels_keeps_the_choice() -> None:
    (call,), _ = found_in(windowed, *heads(4))
    kind = KINDS["attention"]
    assert kind.forbidden(call, "flex+window") is None
    with sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION]):
        assert "switched off" in str(kind.forbidden(call, "flex+window"))


# documents


def in_documents(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Two layers: documents of given lengths, of which each query sees what is before it."""
    document = torch.tensor([0] * 100 + [1] * 84 + [2] * 200)
    places = torch.arange(q.shape[-2])
    mask = (document[:, None] == document) & (places[:, None] >= places)
    first = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return F.scaled_dot_product_attention(first, k, v, attn_mask=mask)


def of_one_length(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Added to the scores, by a number that hides."""
    document = torch.arange(q.shape[-2]) // 96
    mask = torch.zeros(1, 1, q.shape[-2], q.shape[-2]).masked_fill(document[:, None] != document, torch.finfo().min)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


@pytest.mark.parametrize(
    "sight",
    [*(one for one in SIGHTS if one.documents), Sight(700, 30, 9, (300, 400)), Sight(50, 3, 0, (25, 25))],
    ids=str,
)
def test_documents_are_seen_in_a_mask(sight: Sight) -> None:
    mask = sight.mask("cpu")
    found = documents_in(mask)
    assert found.documents == sight.documents
    assert torch.equal(found.mask("cpu"), mask)
    added = torch.zeros(2, 1, *mask.shape).masked_fill(~mask, float("-inf"))
    assert documents_in(added) == found
    with pytest.raises(UnprovenError, match="differs between batches"):
        documents_in(torch.stack([mask, mask.mT | mask.flip(0)]))
    mask[3, 3] = False
    with pytest.raises(UnprovenError, match="shows no blocks"):
        documents_in(mask)


def test_documents_known_when_planning_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, gm = found_in(in_documents, *heads(4))
    assert [call.documents() for call in calls] == [Sight(LENGTH, None, 0, (100, 84, 200))] * 2
    assert calls[0].seen is calls[1].seen
    assert [call.rivals["flex"] for call in calls] == ["flex+documents"] * 2
    made = rewritten(gm, tuple(Rewrite("attention", site, "flex+documents") for site in (0, 1))).gm
    assert "arange" not in made.code
    assert "tensor(" not in made.code
    monkeypatch.setattr(flex, "_compiled", lambda shapes: lambda *given: flex._with_mask(shapes.sight, None, *given))
    arguments = heads(4)
    plan = Plan("inductor", tuple(Rewrite("attention", site, "flex+documents") for site in (0, 1)))
    torch._dynamo.reset()
    found = fuseplan.compile(in_documents, plan=plan)(*arguments)
    assert_as_accurate(found, in_documents(*arguments), in_documents(*in_double(arguments)))
    (call,), _ = found_in(of_one_length, *arguments)
    assert call.documents() == Sight(LENGTH, None, None, (96,) * 4)


def from_an_input(q: Tensor, k: Tensor, v: Tensor, document: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=document[:, None] == document)


def drawn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return from_an_input(q, k, v, torch.rand(q.shape[-2]).argsort() // 100)


def mixed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return from_an_input(q, k, v, torch.arange(q.shape[-2]) % 3)


@pytest.mark.parametrize(
    ("program", "arguments", "reason"),
    [
        (from_an_input, (*heads(4), torch.arange(LENGTH) // 96), "it depends on l_document_"),
        (drawn, heads(4), "it draws random numbers"),
        (mixed, heads(4), "its mask shows no blocks of documents"),
        (windowed, heads(4), "it is proven a window of 99 before and 0 behind"),
        (causal, heads(4), "it is proven causal"),
        (in_documents, heads(4, grad=True), "flex attention has no backward on cpu"),
    ],
    ids=["input", "drawn", "mixed", "window", "causal", "gradients"],
)
def test_why_documents_are_refused(program: Callable[..., Any], arguments: Any, reason: str) -> None:
    (call, *_), _ = found_in(program, *arguments)
    assert reason in str(call.refusal("flex+documents"))
    assert "flex+documents" not in call.variants


def test_documents_of_unknown_sizes_are_refused() -> None:
    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return from_an_input(q, k, v, torch.arange(q.shape[-2]) // 96)

    (call,), _ = found_in(program, *heads(4), dynamic=True)
    assert "known at run time only" in str(call.refusal("flex+documents"))


@pytest.mark.parametrize("biased", [False, True])
def test_a_bias_beside_a_window_is_not_dropped_with_it(biased: bool) -> None:
    def program(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        scores = q @ k.mT / 4 + (bias.tanh() if biased else 0.0)
        return scores.masked_fill(~shown(q.shape[-2]), float("-inf")).softmax(-1) @ v

    (site,) = written_sites.found_in(program, *heads(4), torch.randn(LENGTH)).sites
    for way in ("flex+window", "flash+window"):
        reason = str(site.refusal(way))
        assert (reason == "its mask is not proven a window: it adds a bias to the scores") is biased, (way, reason)
    assert ("flex+window" in site.variants) is not biased
