"""Attention in other ways: masks laid out once, windows, switches; each way computes what is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.fx import GraphModule
from torch.nn.attention import SDPBackend, sdpa_kernel

import fuseplan
from agreement import assert_as_accurate, assert_same, in_double
from attention_calls import Program, by_expand, found_in, heads, in_ways, repeated
from fuseplan.errors import PlanError
from fuseplan.plan import ATTENTION_WAYS, Plan, Rewrite
from fuseplan.rewrites.apply import rewritten
from fuseplan.rewrites.attention import device, kernels, site
from fuseplan.rewrites.attention.calls import AttentionCall, attention_calls
from fuseplan.rewrites.attention.ways import AttentionWay
from fuseplan.rewrites.kinds import KINDS

MATH, FLASH, EFFICIENT = (
    one.value for one in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION)
)


@pytest.fixture
def rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device whose fused kernel wants the rows of a mask in one piece, as all of CUDA's do."""
    asked = device.choice_of_device

    def choice(key: Any, *given: Any) -> int:
        mask = given[3]
        return MATH if mask is not None and mask.stride(-1) != 1 else asked(key, *given)

    monkeypatch.setattr(device, "choice_of_device", choice)


@pytest.fixture
def gradients_of_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device of which memory-efficient attention alone takes a mask, and gives it a gradient, too."""

    def choice(key: Any, *given: Any) -> int:
        on = torch.backends.cuda.mem_efficient_sdp_enabled()  # type: ignore[no-untyped-call]
        return EFFICIENT if on and (given[3] is None or given[3].stride(-1) == 1) else MATH

    monkeypatch.setattr(device, "choice_of_device", choice)


def bias_of_heads(*, grad: bool = False) -> Tensor:
    """A bias as T5 has one: by position and head, which permuted is neither dense nor of four dimensions."""
    return torch.randn(6, 7, 4).requires_grad_(grad)


def two_layers(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
    bias = table.permute(2, 0, 1)
    first = F.scaled_dot_product_attention(q, k, v, attn_mask=bias[:, :, : k.shape[-2]])
    return F.scaled_dot_product_attention(first, k, v, attn_mask=bias[:, :, : k.shape[-2]])


# layouts


def test_a_mask_that_no_kernel_takes_is_laid_out_without_being_asked_for() -> None:
    calls, _ = found_in(two_layers, *heads(), bias_of_heads())
    assert [call.preferred for call in calls] == ["auto+rows"] * 2
    calls, _ = found_in(
        lambda q, k, v, mask: F.scaled_dot_product_attention(q, k, v, mask), *heads(), torch.randn(6, 7)
    )
    assert [call.preferred for call in calls] == ["auto"]
    assert calls[0].refusal("auto+rows") == calls[0].refusal("flash+heads") == "flash takes its mask as it is written"


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_mask_is_laid_out_once_for_all_calls_that_read_it(rows_alone: None, dynamic: bool) -> None:
    calls, gm = found_in(two_layers, *heads(), bias_of_heads(), dynamic=dynamic)
    for layout in ("rows", "heads") + ("aligned",) * (not dynamic):
        edited = rewritten(gm, tuple(Rewrite("attention", call.number, f"auto+{layout}") for call in calls)).gm
        laid = [node for node in edited.graph.nodes if "mask" in getattr(node.target, "__name__", "")]
        assert len(laid) == 1
        assert len(laid[0].users) == 2
        arguments = (*heads(), bias_of_heads())
        made = in_ways(two_layers, *(f"auto+{layout}",) * 2, dynamic=dynamic)
        assert_as_accurate(made(*arguments), two_layers(*arguments), two_layers(*in_double(arguments)))
        assert len([node for node in edited.graph.nodes if node.target == "permute"]) == 1


def test_rows_are_laid_out_right_after_the_mask_is_made() -> None:
    _, gm = found_in(lambda q, k, v, table: two_layers(q.sin(), k, v, table), *heads(), bias_of_heads())
    edited = rewritten(gm, (Rewrite("attention", 1, "auto+rows"),)).gm
    nodes = list(edited.graph.nodes)
    (laid,) = [node for node in nodes if "mask_in_rows" in str(node.target)]
    assert nodes.index(laid) == nodes.index(laid.args[0]) + 1
    assert laid.meta["example_value"].is_contiguous()


def test_other_views_of_a_mask_are_laid_out_by_themselves() -> None:
    def program(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
        bias = table.permute(2, 0, 1)
        first = F.scaled_dot_product_attention(q, k, v, attn_mask=bias[:, :, :7])
        return F.scaled_dot_product_attention(first, k, v, attn_mask=bias[:, :, 1:])

    arguments = (*heads(), torch.randn(6, 8, 4))
    _, gm = found_in(program, *arguments)
    edited = rewritten(gm, (Rewrite("attention", 0, "auto+rows"), Rewrite("attention", 1, "auto+rows"))).gm
    assert edited.code.count("mask_in_rows(") == 2
    assert_as_accurate(
        in_ways(program, "auto+rows", "auto+rows")(*arguments), program(*arguments), program(*in_double(arguments))
    )


def test_a_mask_that_is_written_to_is_laid_out_as_each_call_reads_it() -> None:
    def program(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
        bias = table.permute(2, 0, 1) * 1.0
        first = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        bias += 1.5 * bias
        return F.scaled_dot_product_attention(first, k, v, attn_mask=bias)

    arguments = (*heads(), bias_of_heads())
    made = in_ways(program, "auto+rows", "auto+rows")
    assert_as_accurate(made(*arguments), program(*arguments), program(*in_double(arguments)))


def test_layouts_keep_what_is_broadcast_small() -> None:
    def program(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask.expand(4, 6, 7))

    (call,), _ = found_in(program, *heads(), torch.randn(1, 1, 7))
    shapes = {
        layout: tuple(call.laid_out(AttentionWay("auto", layout)).shape) for layout in ("rows", "aligned", "heads")
    }
    assert shapes == {"rows": (1, 1, 1, 7), "aligned": (1, 1, 1, 7), "heads": (2, 4, 6, 7)}
    strides = call.laid_out(AttentionWay("auto", "aligned")).stride()
    assert strides[-1] == 1
    assert all(stride % 8 == 0 for stride in strides[:-1])


def test_a_learned_mask_goes_to_the_kernel_that_gives_it_a_gradient(gradients_of_masks: None) -> None:
    def program(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=table.permute(2, 0, 1))

    (call,), _ = found_in(program, *heads(grad=True), bias_of_heads(grad=True))
    assert call.preferred == "auto+aligned"  # which that kernel would otherwise do at each call
    (call,), _ = found_in(program, *heads(grad=True), torch.randn(6, 8, 4)[:, :7].requires_grad_())
    assert call.refusal("efficient+rows") is None
    assert call.refusal("flash+rows") == "flash does not take these sizes and types on cpu"


def test_no_kernel_of_the_cpu_gives_a_mask_a_gradient() -> None:
    (call, _), _ = found_in(two_layers, *heads(grad=True), bias_of_heads(grad=True))
    assert call.refusal("flash+rows") == "flash gives no gradient to a mask"
    assert call.refusal("auto+rows") == "no fused kernel takes it so"
    assert call.preferred == "auto"


def test_what_is_said_of_layouts_that_serve_nothing() -> None:
    (call,), _ = found_in(lambda q, k, v: F.scaled_dot_product_attention(q, k, v), *heads())
    assert call.refusal("auto+rows") == "it has no mask to lay out"
    (call,), gm = found_in(
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m), *heads(), torch.randn(4, 6, 7)
    )
    assert call.refusal("math+rows") == "no fused kernel takes it so"
    with pytest.raises(PlanError, match=r"attention call 0 cannot be math\+rows: no fused kernel takes it so"):
        rewritten(gm, (Rewrite("attention", 0, "math+rows"),))
    calls, _ = found_in(two_layers, *heads(), bias_of_heads(), dynamic=True)
    assert calls[0].refusal("flash+aligned") == "the length of its rows is known at run time only"


# switches


def test_a_kernel_that_the_program_or_its_caller_has_switched_off_is_refused() -> None:
    def program(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            first = F.scaled_dot_product_attention(q, k, v, mask)
        return F.scaled_dot_product_attention(first, k, v, mask)

    arguments = (*heads(), torch.randn(4, 6, 7))
    calls, _ = found_in(program, *arguments)
    assert [call.refusal("flash+rows") for call in calls] == ["flash is switched off", None]
    assert [call.preferred for call in calls] == ["auto", "auto+rows"]
    torch.backends.cuda.enable_flash_sdp(False)
    try:
        calls, _ = found_in(two_layers, *arguments[:3], bias_of_heads())
        assert calls[0].refusal("flash") == "flash is switched off"
        assert calls[0].preferred == "auto"
    finally:
        torch.backends.cuda.enable_flash_sdp(True)


# what comes of it


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "viewed": lambda out: out.view(8, 6, 8),
    "scaled and viewed": lambda out: (out * 2.0).view(-1, 8),
    "given out": lambda out: out,
    "laid out first": lambda out: out.transpose(1, 2).contiguous().view(2, 6, 32),
    "reshaped": lambda out: out.transpose(1, 2).reshape(2, 6, 32),
}


@pytest.mark.parametrize("name", VIEWS)
def test_what_minds_the_layout_of_the_result_finds_the_one_that_was_written(name: str) -> None:
    def program(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return VIEWS[name](F.scaled_dot_product_attention(q, k, v, attn_mask=mask))

    arguments = (*heads(), torch.randn(4, 6, 7))
    (call,), gm = found_in(program, *arguments)
    assert call.preferred == "auto+rows"
    made = in_ways(program, "auto+rows")
    assert_same(made(*arguments), program(*arguments), bitwise=False)
    edited = rewritten(gm, (Rewrite("attention", 0, "auto+rows"),)).gm
    assert ("in_order" in edited.code) is (name in ("viewed", "scaled and viewed", "given out"))
    torch._dynamo.reset()
    assert_same(fuseplan.compile(program, plan="aten")(*arguments), program(*arguments), bitwise=False)


# windows


def in_window(q: Tensor, k: Tensor, v: Tensor, *, infinite: bool = False) -> Tensor:
    ahead = torch.arange(k.shape[-2])[None, :] - torch.arange(q.shape[-2])[:, None]
    mask = (ahead <= 0) & (ahead > -3)
    given = torch.zeros(mask.shape).masked_fill(~mask, float("-inf")) if infinite else mask
    return F.scaled_dot_product_attention(q, k, v, attn_mask=given)


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that knows windows: what the operator of CUDA computes, computed otherwise."""

    def skipping(
        q: Tensor, k: Tensor, v: Tensor, _: None, __: None, queries: int, keys: int, dropout: float, causal: bool,
        debug: bool, *, scale: float | None, window_size_left: int, window_size_right: int,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        assert (queries, keys, dropout, causal, debug) == (q.shape[1], k.shape[1], 0.0, False, False)
        ahead = torch.arange(keys)[None, :] - torch.arange(queries)[:, None]
        shown = (ahead <= (window_size_right if window_size_right >= 0 else keys)) & (
            ahead >= -(window_size_left if window_size_left >= 0 else keys)
        )
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        scores = q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT * (scale or q.shape[-1] ** -0.5)
        weights = scores.masked_fill(~shown, float("-inf")).softmax(-1)
        return ((weights @ v.repeat_interleave(q.shape[1] // v.shape[1], 1)).transpose(1, 2),)

    monkeypatch.setattr(kernels, "flash_attention_forward", skipping)
    monkeypatch.setattr(site, "no_window", lambda arguments: None)


def square(groups: int = 4, *, grad: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(4)
    shapes = ((2, 4, 9, 8), (2, groups, 9, 8), (2, groups, 9, 8))
    q, k, v = (torch.randn(shape).requires_grad_(grad) for shape in shapes)
    return q, k, v


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("infinite", [False, True])
def test_a_window_is_skipped_instead_of_hidden(windows: None, infinite: bool, dynamic: bool) -> None:
    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return in_window(q, by_expand(k), by_expand(v), infinite=infinite)

    arguments = square(groups=2, grad=True)
    (call,), gm = found_in(program, *arguments, dynamic=dynamic)
    assert call.preferred == "auto"
    for way in ("flash+window", "flash+window+grouped"):
        assert way in call.variants
        edited = rewritten(gm, (Rewrite("attention", 0, way),)).gm
        assert "arange" not in edited.code
        found = results(in_ways(program, way, dynamic=dynamic), arguments)
        assert_as_accurate(found, results(program, arguments), results(program, in_double(arguments)))
    assert not {"flash+causal", "flash+unmasked"} & set(call.variants)


def test_why_windows_are_refused(windows: None, monkeypatch: pytest.MonkeyPatch) -> None:
    (call,), _ = found_in(in_window, *heads())
    assert call.refusal("flash+window") == "it has not as many keys as queries"
    (call,), _ = found_in(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), *square())
    assert call.refusal("flash+window") == "its mask is not proven a window: causal"
    (call,), _ = found_in(two_layers_of_one, *square(), torch.randn(9, 9))
    assert "is not proven a window: it depends on l_mask_" in str(call.refusal("flash+window"))
    assert call.refusal("cudnn+window") == "there is no attention variant 'cudnn+window'"
    monkeypatch.undo()
    (call,), _ = found_in(in_window, *square())
    assert call.refusal("flash+window") == "flash attention knows no windows on cpu"
    assert "but a window of 2 before and 0 behind" in call.proof.reason


def two_layers_of_one(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def test_the_operator_for_windows_has_a_gradient_and_shapes_of_its_own() -> None:
    q, k = (torch.empty(2, heads, 64, 8, device="meta", dtype=torch.bfloat16, requires_grad=True) for heads in (4, 2))
    out = kernels.attention_in_window(q, k, k, None, 8, 0)
    assert (out.shape, out.dtype) == (q.shape, q.dtype)
    assert [each.shape for each in torch.autograd.grad(out.sum(), (q, k))] == [q.shape, k.shape]


# all of it, at random


@dataclass(frozen=True)
class Case:
    """One call of attention, as a program may write it."""

    sizes: tuple[int, int, int, int, int]  # batch, heads, queries, keys, size of a head
    times: int
    mask: tuple[int, ...] | None
    order: str
    boolean: bool
    learned: bool
    copied: bool
    dtype: torch.dtype
    dynamic: bool

    def arguments(self) -> tuple[Tensor, ...]:
        torch.manual_seed(1)
        batch, count, queries, keys, size = self.sizes
        made = [
            torch.randn(batch, length, number, size, dtype=self.dtype).transpose(1, 2).requires_grad_()
            for number, length in ((count, queries), (count // self.times, keys), (count // self.times, keys))
        ]
        if self.mask is not None:
            mask = torch.randn(self.mask, dtype=self.dtype)
            if self.order == "last first":
                mask = mask.permute(*reversed(range(mask.dim()))).contiguous().permute(*reversed(range(mask.dim())))
            if self.order == "sliced":
                mask = F.pad(mask, (1, 2))[..., 1:-2]
            if self.boolean:
                mask = mask > -0.5
            made.append(mask.requires_grad_(self.learned and not self.boolean))
        return tuple(made)

    def program(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        if self.times > 1:
            k, v = repeated(k, self.times), repeated(v, self.times)
        if self.copied:
            q = q.contiguous()
        if mask is not None and not self.boolean:
            mask = mask * 1.0
        if mask is not None and self.order == "expanded":
            mask = mask.expand(*mask.shape[:-2], q.shape[-2], k.shape[-2])
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    batch, groups, times = draw(st.sampled_from([1, 2, 3])), draw(st.integers(1, 2)), draw(st.integers(1, 3))
    queries, keys = draw(st.integers(2, 9)), draw(st.integers(2, 9))
    count = groups * times
    whole = (batch, count, queries, keys)
    kinds: list[tuple[int, ...] | None] = [
        None,
        whole[2:],
        whole[1:],
        whole,
        (1, count, queries, keys),
        (batch, 1, 1, keys),
        (count, 1, keys),
    ]
    return Case(
        sizes=(batch, count, queries, keys, draw(st.sampled_from([4, 8]))),
        times=times,
        mask=draw(st.sampled_from(kinds)),
        order=draw(st.sampled_from(["dense", "last first", "sliced", "expanded"])),
        boolean=draw(st.booleans()),
        learned=draw(st.booleans()),
        copied=draw(st.booleans()),
        dtype=draw(st.sampled_from([torch.float32, torch.bfloat16])),
        dynamic=draw(st.booleans()),
    )


def results(run: Program, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    out = run(*arguments)
    wanted = [each for each in arguments if each.requires_grad]
    return (out, *torch.autograd.grad(out.sin().sum(), wanted))


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=cases())
def test_whatever_is_legal_computes_what_is_written(rows_alone: None, case: Case) -> None:
    arguments, made, seen = case.arguments(), dict[str, GraphModule](), list[AttentionCall]()
    eager, exact = results(case.program, arguments), results(case.program, in_double(arguments))
    # where each query sees one key, gradients are zero by cancelling out: what eager leaves of that by luck says nothing
    assume(all(bool(one.any()) for one in exact))

    def backend(gm: GraphModule, _: Any) -> Callable[..., Any]:
        (call,) = attention_calls(gm)
        seen.append(call)
        ways = {call.preferred, *(way for way in call.variants if way.startswith("flash") and "+" in way)}
        made.update({way: rewritten(gm, (Rewrite("attention", 0, way),)).gm for way in ways})
        for edited in made.values():  # or torch's cache would not keep the program
            ours = {
                f"{node.target.__module__}.{node.target.__name__}"
                for node in edited.graph.nodes
                if callable(node.target)
            }
            assert {name for name in ours if name.startswith("fuseplan")} <= KINDS["attention"].functions.keys()
        return lambda *given: made[chosen or call.preferred](*given)

    torch._dynamo.reset()
    program, chosen = torch.compile(case.program, backend=backend, dynamic=case.dynamic), ""
    assert_as_accurate(results(program, arguments), eager, exact)
    for chosen in made:  # noqa: B007 -- one Dynamo graph, whose backend reads it, in each of its ways
        assert_as_accurate(results(program, arguments), eager, exact)
    assert seen[0].refusal(seen[0].preferred) is None
    assert len(seen) == 1


# what is told of a site


def test_of_what_a_site_rules_out_one_way_each_is_told() -> None:
    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    (call,), _ = found_in(program, *heads())
    told = {way: call.refusal(way) for way in call.offered}
    assert len(told) == 20
    assert [way for way, reason in told.items() if reason is None] == list(call.variants)
    assert told["auto+rows"] == told["auto+heads"] == "it has no mask to lay out"
    assert "its mask is not proven all" in str(told["auto+unmasked"])
    assert {"flash+window", "flex+documents", "split", "auto+packed"} <= told.keys()
    assert "are not repeated" in str(told["auto+grouped"])


def test_rivals_are_the_preferred_way_under_other_kernels_and_with_other_arguments() -> None:
    def program(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        q = (q * 2.0).mT.contiguous().mT.contiguous()
        return F.scaled_dot_product_attention(q, by_expand(k), by_expand(v), attn_mask=mask)

    (call,), gm = found_in(program, *heads(groups=2), torch.randn(4, 6, 7))
    legal = {word: way for word, way in call.rivals.items() if call.refusal(way) is None}
    assert legal == {"flash": "flash+rows", "grouped": "auto+rows+grouped"}
    kind = KINDS["attention"]
    gone = {node.name for node in kind.changes(call, "auto+rows+grouped")} - {call.result.name}
    edited = rewritten(gm, (Rewrite("attention", 0, "auto+rows+grouped"),)).gm
    assert {node.name for node in gm.graph.nodes} - {node.name for node in edited.graph.nodes} == gone


# whole programs


def test_the_ways_are_words_that_stand_for_one_way_each() -> None:
    parsed = [AttentionWay.parse(text) for text in ATTENTION_WAYS]
    assert len(set(parsed)) == len(parsed)
    assert Plan.from_json(Plan("aten", (Rewrite("attention", 0, "flash+rows+grouped+views"),)).to_json()).rewrites


@pytest.mark.parametrize("host", ["aten", "eager", "inductor"])
def test_a_plan_with_all_of_it_runs_under_each_host(host: str) -> None:
    def program(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
        q = q.mT.contiguous().mT.contiguous()
        return F.scaled_dot_product_attention(q, by_expand(k), by_expand(v), attn_mask=table.permute(2, 0, 1))

    arguments = (*heads(groups=2, grad=True), bias_of_heads())
    plan = replace(Plan(host), rewrites=(Rewrite("attention", 0, "flash+rows+grouped"),))
    torch._dynamo.reset()
    made = fuseplan.compile(program, plan=plan)
    assert_as_accurate(results(made, arguments), results(program, arguments), results(program, in_double(arguments)))
    assert "variant flash+rows+grouped" in fuseplan.explain(made, graphs=False)
