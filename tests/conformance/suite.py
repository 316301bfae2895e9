"""The conformance suite: a test file gives it the fixtures `executor` and `device`, and inherits."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from conformance.build import dynamic_region_of, meta, region_of
from conformance.cases import CASES, Case, gelu_scaled, input_given_back, inside_and_outside, matmul_epilogue
from fuseplan.errors import UnsupportedError
from fuseplan.executors import GAPS, Executor
from fuseplan.graph import Graph, Op, OpaqueType, Ref, TensorType, Value
from fuseplan.judge.inputs import make_inputs
from fuseplan.judge.regions import check

PAIR = (meta(8, 16), meta(8, 16))


def outputs(call: Any, inputs: Sequence[Any]) -> list[Any]:
    """One call as the runtime makes it: with a list that the callee may empty, without autograd."""
    with torch.no_grad():
        return list(call(list(inputs)))


def equal(first: Sequence[Any], second: Sequence[Any]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def pointwise(device: str) -> Graph:
    return region_of(gelu_scaled, *PAIR, device=device)


def _refused(executor: Executor, region: Graph) -> bool:
    """Whether compiling the region raises UnsupportedError, and nothing else, with one line to say why."""
    try:
        executor.compile(region)
    except UnsupportedError as refusal:
        return "\n" not in str(refusal)
    return False


class Conformance:
    """What an executor must do with any region that it accepts, and how it refuses the others."""

    def test_says_who_it_is(self, executor: Executor) -> None:
        assert executor.name
        assert executor.version() == executor.version() != ""
        assert executor.available() is None, "the suite runs where the executor can"

    @pytest.mark.parametrize("case", CASES, ids=str)
    def test_region_is_right_or_refused(self, executor: Executor, device: str, case: Case) -> None:
        region = case.build(device)
        if executor.name in case.may_refuse and _refused(executor, region):
            return
        assert [reason for op in region.ops if (reason := executor.supports(op, region))] == []
        call = executor.compile(region)
        result = check(region, call, sizes=case.sizes or None)
        assert result.ok, result.reason
        assert result.trials >= 4

    def test_an_op_that_was_refused_is_refused_by_compile(self, executor: Executor, device: str) -> None:
        region = pointwise(device)
        for spoiled in (
            replace(region.ops[-1], target="aten.no_such_operator.default"),
            replace(region.ops[-1], target="aten.relu.no_such_overload"),
            replace(region.ops[-1], target="elsewhere.custom.default", opaque="a custom operator"),
        ):
            graph = replace(region, ops=(*region.ops[:-1], spoiled))
            reason = executor.supports(spoiled, graph)
            assert reason
            assert "\n" not in reason
            with pytest.raises(UnsupportedError, match=executor.name):
                executor.compile(graph)

    def test_opaque_values_are_refused(self, executor: Executor) -> None:
        strange = Value("x", OpaqueType("a sparse tensor"))
        op = Op("aten.relu.default", (Ref("x"),), (), (Value("y", TensorType("float32", (2,), (1,))),), opaque="sparse")
        with pytest.raises(UnsupportedError):
            executor.compile(Graph((strange,), (op,), (Ref("y"),)))

    def test_every_variant_is_right(self, executor: Executor, device: str) -> None:
        for region in (
            pointwise(device),
            region_of(matmul_epilogue, meta(8, 16), meta(16, 24), meta(24), device=device),
        ):
            if any(executor.supports(op, region) for op in region.ops):
                continue
            variants = executor.variants(region)
            assert len(set(variants)) == len(variants) > 0
            for variant in variants:
                result = check(region, executor.compile(region, variant), gaps=variant == GAPS)
                assert result.ok, f"{variant}: {result.reason}"

    def test_unknown_variant_is_refused(self, executor: Executor, device: str) -> None:
        with pytest.raises(UnsupportedError, match="no_such_variant"):
            executor.compile(pointwise(device), "no_such_variant")

    def test_repeated_calls_give_equal_results_in_memory_of_their_own(self, executor: Executor, device: str) -> None:
        region = pointwise(device)
        call = executor.compile(region)
        inputs = make_inputs(region, 0)
        first = outputs(call, inputs)
        kept = [value.clone() for value in first]
        other = outputs(call, make_inputs(region, 1))
        assert not equal(first, other)
        assert equal(first, kept)
        assert equal(outputs(call, inputs), kept)

    def test_equal_regions_give_equal_results(self, executor: Executor, device: str) -> None:
        first, second = pointwise(device), pointwise(device)
        inputs = make_inputs(first, 0)
        assert equal(outputs(executor.compile(first), inputs), outputs(executor.compile(second), inputs))

    def test_two_regions_do_not_disturb_each_other(self, executor: Executor, device: str) -> None:
        first = pointwise(device)
        second = region_of(inside_and_outside, meta(8, 16), device=device)
        inputs = make_inputs(first, 0)
        one = executor.compile(first)
        before = outputs(one, inputs)
        two = executor.compile(second)
        assert check(second, two).ok
        assert equal(outputs(one, inputs), before)

    def test_inputs_are_freed_when_their_list_was_the_last_to_hold_them(self, executor: Executor, device: str) -> None:
        region = pointwise(device)
        call = executor.compile(region)
        args = make_inputs(region, 0)
        gone = [weakref.ref(value) for value in args]
        with torch.no_grad():
            result = call(args)
        args.clear()
        assert [ref() for ref in gone] == [None, None]
        assert equal(list(result), outputs(call, make_inputs(region, 0)))

    def test_an_input_given_back_is_that_very_tensor(self, executor: Executor, device: str) -> None:
        region = region_of(input_given_back, meta(8, 16), device=device)
        inputs = make_inputs(region, 0, offset=1)
        assert outputs(executor.compile(region), inputs)[1].data_ptr() == inputs[0].data_ptr()

    @pytest.mark.parametrize("mode", ["no_grad", "inference_mode", "enable_grad"])
    def test_runs_under_any_grad_mode(self, executor: Executor, device: str, mode: str) -> None:
        region = pointwise(device)
        call = executor.compile(region)
        inputs = make_inputs(region, 0)
        expected = outputs(call, inputs)
        with getattr(torch, mode)():
            assert equal(list(call(list(inputs))), expected)

    def test_compiles_in_the_middle_of_what_a_caller_does(self, executor: Executor, device: str) -> None:
        region = pointwise(device)
        inputs = make_inputs(region, 0)
        expected = outputs(executor.compile(region), inputs)
        with torch.inference_mode():
            inferred = executor.compile(region)
        with torch.autocast(device.split(":")[0], dtype=torch.bfloat16):
            cast = executor.compile(region)
        with FakeTensorMode():
            traced = executor.compile(region)
        for call in (inferred, cast, traced):
            assert equal(outputs(call, inputs), expected)
        state = torch.random.get_rng_state()
        executor.compile(region)
        assert torch.equal(torch.random.get_rng_state(), state)

    def test_compiles_from_several_threads(self, executor: Executor, device: str) -> None:
        regions = [pointwise(device), region_of(inside_and_outside, meta(8, 16), device=device)] * 2
        results: dict[int, Any] = {}
        threads = [
            threading.Thread(target=lambda i=i, r=r: results.update({i: executor.compile(r)}))
            for i, r in enumerate(regions)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(results) == [0, 1, 2, 3]
        for i, region in enumerate(regions):
            result = check(region, results[i], seeds=[0])
            assert result.ok, result.reason

    def test_one_callable_serves_many_sizes(self, executor: Executor, device: str) -> None:
        region = dynamic_region_of(lambda n, x: x.sin() + 1, [8], ["0", 4], device=device)
        call = executor.compile(region)
        for size in (8, 2, 3, 100, 1000, 8):
            (x,) = inputs = [value for value in make_inputs(region, 0, sizes={"s0": size}) if torch.is_tensor(value)]
            torch.testing.assert_close(outputs(call, [size, x])[0], x.sin() + 1)
            assert len(inputs) == 1
