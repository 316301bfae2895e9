"""`check` believes what is right, and catches executors that are wrong in ways that executors go wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from conformance.build import dynamic_region_of, meta, region_of
from fuseplan.errors import ExecutorError
from fuseplan.executors.aten.executor import AtenExecutor
from fuseplan.graph import Graph
from fuseplan.judge.expected_region import ExpectedRegion
from fuseplan.judge.inputs import make_inputs
from fuseplan.judge.reference import natures
from fuseplan.judge.regions import check
from fuseplan.judge.trials import trials

aten = torch.ops.aten
Outputs = list[Any]


def block(x: Any, weight: Any, bias: Any) -> Any:
    """Several outputs of one size, a sum, a gelu with its ill-conditioned tail, a comparison."""
    y = F.gelu(x + bias)
    return y, x * weight, y.sum(-1), x > 0.5


def region(dtype: torch.dtype = torch.float32) -> Graph:
    return region_of(block, meta(16, 32, dtype=dtype), meta(32, dtype=dtype), meta(32, dtype=dtype))


def spoil(outputs: Outputs, i: int, change: Callable[[torch.Tensor], Any]) -> Outputs:
    outputs[i] = change(outputs[i])
    return outputs


def at(place: tuple[int, ...], change: Callable[[Any], Any]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Change one element."""

    def changed(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.clone()
        tensor[place] = change(tensor[place])
        return tensor

    return changed


@dataclass(frozen=True)
class Mistake:
    """A way to be wrong: what becomes of the right outputs, given the inputs."""

    name: str
    make: Callable[[Outputs, Outputs], Outputs]
    complaint: str

    def __str__(self) -> str:
        return self.name


MISTAKES = (
    Mistake("one element", lambda out, _: spoil(out, 0, at((3, 5), lambda v: v + 0.01)), "output 0 is off by"),
    Mistake(
        "one element is slightly off", lambda out, _: spoil(out, 1, at((3, 5), lambda v: v * (1 + 1e-5))), "is off by"
    ),
    Mistake("the last element is missed", lambda out, _: spoil(out, 0, at((-1, -1), lambda v: 0 * v)), "output 0"),
    Mistake("the first element is missed", lambda out, _: spoil(out, 2, at((0,), lambda v: 0 * v)), "output 2"),
    Mistake("off by one along a row", lambda out, _: spoil(out, 0, lambda y: y.roll(1, -1)), "output 0"),
    Mistake("swapped outputs", lambda out, _: [out[1], out[0], *out[2:]], "output 0"),
    Mistake(
        "one boolean flipped", lambda out, _: spoil(out, 3, at((2, 2), lambda v: ~v)), "output 3: 1 of 512 elements"
    ),
    Mistake("strides", lambda out, _: spoil(out, 0, lambda y: y.t().contiguous().t()), "output 0: strides"),
    Mistake("dtype", lambda out, _: spoil(out, 0, lambda y: y.double()), "output 0: dtype"),
    Mistake("shape", lambda out, _: spoil(out, 2, lambda y: y[:, None]), "output 2: shape"),
    Mistake("too few outputs", lambda out, _: out[:-1], "gives 3 outputs"),
    Mistake("None for a tensor", lambda out, _: spoil(out, 0, lambda _: None), "output 0: None"),
    Mistake("NaN", lambda out, _: spoil(out, 0, at((1, 1), lambda v: v * float("nan"))), "NaN or infinite"),
    Mistake("infinity", lambda out, _: spoil(out, 1, at((1, 1), lambda v: v + float("inf"))), "NaN or infinite"),
    Mistake("NaN hidden", lambda out, _: spoil(out, 1, lambda y: y.nan_to_num(0.0)), "NaN or infinite"),
    Mistake("writes to an input", lambda out, args: (args[0].mul_(2), out)[1], "input 0 .* was written to"),
    Mistake("gives an input's memory", lambda out, args: spoil(out, 1, lambda y: args[0].copy_(y)), "shares memory"),
    Mistake(
        "two outputs in one", lambda out, _: (out[0].copy_(out[1]), [out[0], out[0], *out[2:]])[1], "shares memory"
    ),
    Mistake("half precision inside", lambda out, _: spoil(out, 1, lambda y: y.bfloat16().float()), "output 1"),
    Mistake("TF32 inside", lambda out, _: spoil(out, 1, lambda y: y.half().float()), "output 1"),
    Mistake("a constant off", lambda out, _: spoil(out, 0, lambda y: y * 1.0001), "output 0"),
    Mistake(
        "small values flushed", lambda out, _: spoil(out, 0, lambda y: torch.where(y.abs() < 1e-3, 0.0, y)), "output 0"
    ),
)


@pytest.mark.parametrize("mistake", MISTAKES, ids=str)
def test_a_wrong_executor_is_caught(mistake: Mistake) -> None:
    graph = region()
    right = AtenExecutor().compile(graph)

    def wrong(args: list[Any]) -> Any:
        inputs = list(args)
        return mistake.make(list(right(args)), inputs)

    with torch.no_grad():
        assert check(graph, right).ok
        result = check(graph, wrong)
    assert not result.ok
    assert_matches(mistake.complaint, result.reason)


def assert_matches(pattern: str, text: str) -> None:
    assert "\n" not in text
    with pytest.raises(ValueError, match=pattern):
        raise ValueError(text)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_eager_is_right_in_every_dtype(dtype: torch.dtype) -> None:
    graph = region(dtype)
    assert check(graph, AtenExecutor().compile(graph)).ok


def test_more_precise_than_eager_is_right() -> None:
    graph = region(torch.bfloat16)

    def precise(args: list[Any]) -> Any:
        x, weight, bias = (a.double() for a in args)
        y = F.gelu(x + bias)
        return y.bfloat16(), (x * weight).bfloat16(), y.sum(-1).bfloat16(), args[0] > 0.5

    result = check(graph, precise)
    assert result.ok, result.reason
    assert result.share < 0.6


def test_what_cancels_inside_an_op_is_no_less_right_than_eager() -> None:
    """Gelu's tail is a difference of almost equal numbers: whoever computes erf otherwise is off there, as eager is."""
    graph = region_of(lambda x: F.gelu(x), meta(1 << 12))

    def otherwise(args: list[Any]) -> Any:
        (x,) = args
        return [0.5 * x * (1 + torch.erf(x.double() * 0.5**0.5).float())]

    assert check(graph, otherwise).ok


def test_another_order_of_a_sum_is_right() -> None:
    graph = region_of(lambda x: x.sum(), meta(1 << 16))
    assert check(graph, lambda args: [args[0].view(256, 256).sum(0).sum(0)]).ok
    assert check(graph, lambda args: [args[0].flip(0).sum()]).ok


def test_a_sum_in_half_precision_is_wrong() -> None:
    graph = region_of(lambda x: x.sum(-1), meta(64, 4096))
    result = check(graph, lambda args: [args[0].view(64, 64, 64).sum(-1).bfloat16().float().sum(-1)])
    assert not result.ok


def test_booleans_of_computed_floats_may_flip_as_often_as_eagers() -> None:
    graph = region_of(lambda a, b, c: a * b + c > 0.5, *[meta(1 << 17, dtype=torch.bfloat16)] * 3)

    def fused(args: list[Any]) -> Any:
        a, b, c = (value.float() for value in args)
        return [a * b + c > 0.5]

    def careless(args: list[Any]) -> Any:
        a, b, c = args
        return [a * b + c > 0.52]

    assert check(graph, fused).ok
    assert "wrong side of a jump" in check(graph, careless).reason


def test_floats_behind_a_jump_may_flip_rarely_but_not_often() -> None:
    graph = region_of(lambda x: (x * 1.1).floor() + x, meta(1 << 12))
    assert check(graph, lambda args: [(args[0].double() * 1.1).floor().float() + args[0]]).ok
    assert "wrong side of a jump" in check(graph, lambda args: [(args[0] * 1.1).round() + args[0]]).reason


def test_integers_are_exact() -> None:
    graph = region_of(lambda x: x * 3 + 1, meta(4, 5, dtype=torch.int64))
    assert check(graph, lambda args: [args[0] * 3 + 1]).ok
    assert not check(graph, lambda args: [(args[0].float() * 3.2).long() + 1]).ok


def test_an_executor_that_raises_is_wrong() -> None:
    def broken(args: list[Any]) -> Any:
        raise ExecutorError("cannot go on\nfor many reasons")

    assert check(region(), broken).reason.startswith("raises ExecutorError: cannot go on (seed 0")


def test_a_buffer_used_again_is_caught() -> None:
    graph = region_of(lambda x: x + 1, meta(4))
    buffer = torch.empty(4)
    reason = check(graph, lambda args: [torch.add(args[0], 1, out=buffer)]).reason
    assert "output 0 of an earlier call was overwritten" in reason


def test_an_executor_that_holds_for_one_size_only_is_caught() -> None:
    graph = dynamic_region_of(lambda n, x: x.sum(0) / n, [8], ["0", 4])
    assert check(graph, lambda args: [args[1].sum(0) / args[0]]).ok
    assert "s0=11" in check(graph, lambda args: [args[1].sum(0) / 8]).reason
    assert check(graph, lambda args: [args[1].sum(0) / 8], sizes=[{"s0": 8}]).ok
    assert (
        "s0=3" in check(graph, lambda args: [args[1][:8].sum(0) / max(args[0], 8)], sizes=[{"s0": 8}, {"s0": 3}]).reason
    )


def test_sizes_that_the_region_does_not_allow_are_left_out() -> None:
    graph = dynamic_region_of(lambda n, x: x.view(4, -1) * 2, [8], ["0"])
    assert check(graph, lambda args: [args[1].view(4, -1) * 2]).trials == 5


def test_alignment_matters_to_check() -> None:
    graph = region_of(lambda x: x + 1, meta(4, 4))

    def aligned_only(args: list[Any]) -> Any:
        assert args[0].data_ptr() % 16 == 0, "misaligned"
        return [args[0] + 1]

    assert "misaligned" in check(graph, aligned_only).reason


@pytest.mark.parametrize(("dropout", "judged"), [(0.0, False), (0.5, True)])
def test_seeds_of_attention_that_drops_nothing_out_are_nothing(dropout: float, judged: bool) -> None:
    attention = torch.ops.aten._scaled_dot_product_cudnn_attention.default
    kind = meta(2, 4, 16, 8, dtype=torch.bfloat16)
    graph = region_of(lambda q, k, v: attention(q, k, v, None, True, dropout), kind, kind, kind, device="cuda:0")
    garbage = [natures(graph)[value.name].garbage for value in graph.ops[0].outputs]
    assert garbage == [False] * 6 + [not judged] * 3
    assert not any(trial.offset for trial in trials(graph, range(4))), "the kernel itself dies of such inputs"


def test_nan_that_eager_makes_an_index_of_is_not_planted() -> None:
    """It is out of bounds, for eager too."""
    graph = region_of(lambda x, table: table[(x * 0).long()] + x, meta(8), meta(8))
    assert check(graph, lambda args: [args[1][(args[0] * 0).long()] + args[0]]).ok
    assert not check(graph, lambda args: [args[1][(args[0] * 0).long() + 1] + args[0]]).ok


@pytest.mark.parametrize("backward", ["hardtanh_backward", "hardswish_backward", "elu_backward"])
def test_of_nan_there_are_two_gradients_of_a_kink(backward: str) -> None:
    """Eager itself gives one in the elements that it takes eight at a time, and the other in the rest."""
    more: tuple[Any, ...] = {"hardtanh_backward": (0.0, 1.5), "elu_backward": (1.0, 1.0, 1.0, False)}.get(backward, ())
    operator = getattr(aten, backward)

    def gradient(grad: Any, x: Any) -> Any:
        return operator(grad, *more, x) if backward == "elu_backward" else operator(grad, x, *more)

    graph = region_of(gradient, meta(8, 8), meta(8, 8))

    def otherwise(args: list[Any]) -> Any:
        found = gradient(*args)
        return [torch.where(args[1].isnan(), args[0], found)]

    assert check(graph, otherwise).ok
    assert not check(graph, lambda args: [gradient(*args) * 1.01]).ok
    threshold = region_of(lambda grad, x: aten.threshold_backward(grad, x, 0.0), meta(8, 8), meta(8, 8))
    assert not check(
        threshold, lambda args: [torch.where(args[1].isnan(), 0.0, aten.threshold_backward(*args, 0.0))]
    ).ok


def test_writes_of_the_region_are_judged() -> None:
    def update(x: Any, y: Any) -> Any:
        aten.copy_.default(x, x * 0.9 + y)
        return y * 2

    graph = region_of(update, meta(4, 4), meta(4, 4))
    assert check(graph, lambda args: [args[0].mul_(0.9).add_(args[1]), args[1] * 2][1:]).ok
    assert not check(graph, lambda args: [args[0].mul_(0.8).add_(args[1]), args[1] * 2][1:]).ok
    assert not check(graph, lambda args: [args[1] * 2]).ok


def dropped(x: Any) -> Any:
    return aten.native_dropout(x, 0.25, True)


class TestRandom:
    """Dropout, whose mask is shown: what follows from the mask is exact, the mask itself a matter of statistics."""

    graph = region_of(dropped, meta(64, 64))

    def run(self, rate: float = 0.25, scale: float = 1 / 0.75, mask_of: Any = None, seed: int | None = None) -> str:
        generator = None if seed is None else torch.Generator()

        def executor(args: list[Any]) -> Any:
            if generator is not None:
                generator.manual_seed(0 if seed is None else seed)
            mask = torch.rand(64, 64, generator=generator) > rate
            return [args[0] * mask * scale, mask_of(mask) if mask_of else mask]

        return check(self.graph, executor).reason

    def test_other_random_numbers_are_right(self) -> None:
        assert self.run() == ""

    def test_another_rate_is_wrong(self) -> None:
        assert "share of non-zeros" in self.run(rate=0.35)

    def test_another_scale_is_wrong(self) -> None:
        assert "is off by" in self.run(scale=1.3)

    def test_a_mask_that_was_not_used_is_wrong(self) -> None:
        assert "output 0" in self.run(mask_of=lambda mask: mask.roll(1, 0))

    def test_the_same_numbers_at_each_call_are_wrong(self) -> None:
        assert "the same random numbers at the next call" in self.run(seed=1)

    def test_a_generator_that_no_seed_reaches_is_wrong(self) -> None:
        private = torch.Generator()

        def executor(args: list[Any]) -> Any:
            mask = torch.rand(64, 64, generator=private) > 0.25
            return [args[0] * mask / 0.75, mask]

        assert "other random numbers under the same seed" in check(self.graph, executor).reason

    def test_dropout_that_drops_nothing_is_judged_exactly(self) -> None:
        graph = region_of(lambda x: aten.native_dropout(x, 0.5, False)[0], meta(64, 64))
        assert check(graph, lambda args: [args[0].clone()]).ok
        assert "is off by" in check(graph, lambda args: [args[0] * 1.001]).reason


def test_one_expectation_serves_many_executors() -> None:
    graph = region()
    expected = ExpectedRegion(graph)
    assert check(graph, AtenExecutor().compile(graph), expected=expected).ok
    assert not check(graph, lambda args: list(args), expected=expected).ok


def test_checking_leaves_the_callers_random_state_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    check(TestRandom.graph, AtenExecutor().compile(TestRandom.graph))
    make_inputs(TestRandom.graph, 5)
    assert torch.equal(torch.rand(3), expected)


def test_what_tracing_says_of_running_values_may_stand() -> None:
    """In half precision, a batch norm gives its running values in another dtype than torch's own tracing says."""
    kinds = [meta(4, 8, 6, 6, dtype=torch.bfloat16), *(meta(8, dtype=torch.bfloat16) for _ in range(4))]
    norm = region_of(lambda *args: aten._native_batch_norm_legit_functional(*args, True, 0.1, 1e-5), *kinds)
    eager = AtenExecutor().compile(norm, "default")
    as_traced = ["bfloat16"] * 3 + ["float32"] * 2

    def traced(args: Outputs) -> Outputs:
        return [v.to(getattr(torch, dtype)) for v, dtype in zip(eager(args), as_traced, strict=True)]

    assert [norm.types[out.name].dtype for out in norm.outputs] == as_traced
    assert check(norm, traced).ok
    assert "dtype" in check(norm, lambda args: spoil(traced(args), 0, torch.Tensor.float)).reason
