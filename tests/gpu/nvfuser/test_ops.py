"""Every lowering against ATen: OpInfo's own samples, contiguous, transposed and expanded, checked as tuning checks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from fuseplan.executors.nvfuser.executor import NvfuserExecutor
from fuseplan.executors.nvfuser.table import LOWERINGS
from fuseplan.judge.regions import check
from gpu.nvfuser.calls import CALLS
from gpu.nvfuser.one_op import Call, Recorder, layouts, region_of_call

OPINFO: dict[str, tuple[str, list[str]]] = json.loads((Path(__file__).parent / "opinfo.json").read_text())
"""For each operator the OpInfo whose forward or backward calls it, and the dtypes in which it does."""

SAMPLES = {"float32": 3, "bfloat16": 2, "float16": 1, "int64": 2, "bool": 1}
LAYOUTS = {"float32": ("contiguous", "transposed", "expanded"), "bfloat16": ("contiguous", "transposed")}
LOOKED_AT = 12
CONTIGUOUS_ONLY = {"aten.native_group_norm_backward.default"}  # ATen's kernel reads its inputs as if they were

CASES = [(target, dtype) for target, (_, dtypes) in OPINFO.items() if target in LOWERINGS for dtype in dtypes]
EXTRA = [(target, dtype) for target, (dtypes, _) in CALLS.items() for dtype in dtypes]


def test_every_lowering_has_a_case() -> None:
    assert set(LOWERINGS) == set(OPINFO) | set(CALLS)


@pytest.mark.parametrize(("target", "dtype"), CASES, ids=[f"{t}-{d}" for t, d in CASES])
def test_op_of_opinfo(target: str, dtype: str) -> None:
    calls = recorded_calls(target, dtype)
    assert calls, f"{OPINFO[target][0]} calls no {target} in {dtype}"
    hold(calls, ("contiguous",) if target in CONTIGUOUS_ONLY else LAYOUTS.get(dtype, ("contiguous",)))


@pytest.mark.parametrize(("target", "dtype"), EXTRA, ids=[f"{t}-{d}" for t, d in EXTRA])
def test_op_of_our_own(target: str, dtype: str) -> None:
    packet, overload = target.split(".")[1:]
    operator = getattr(getattr(getattr(torch.ops, target.split(".")[0]), packet), overload)
    args, kwargs = CALLS[target][1](maker(dtype))
    hold([Call(operator, args, kwargs)], ("contiguous", "transposed"))


def maker(dtype: str) -> Any:
    generator = torch.Generator("cuda").manual_seed(0)
    default = getattr(torch, dtype)

    def make(*shape: int, dtype: torch.dtype = default) -> Tensor:
        if dtype.is_floating_point:
            return torch.randn(shape, generator=generator, device="cuda").to(dtype)
        return torch.randint(-3, 4, shape, generator=generator, device="cuda").to(dtype)

    return make


def hold(calls: list[Call], names: tuple[str, ...]) -> None:
    """Each call, in each layout that ATen allows for it, must be accepted and right."""
    executor, wrong = NvfuserExecutor(), []
    for i, call in enumerate(calls):
        for layout, changed in layouts(call, names if i == 0 else names[:1]):
            try:
                region = region_of_call(changed)
            except RuntimeError:
                assert layout != "contiguous"  # such as a view that would need a copy
                continue
            refused = next((why for op in region.ops if (why := executor.supports(op, region))), None)
            if refused is not None or executor.refuses(region):
                wrong.append(f"{layout}: refused: {refused or executor.refuses(region)}")
                continue
            result = check(region, executor.compile(region), seeds=(0, 1, 2, 3) if i == 0 else (0, 3))
            if not result.ok:
                wrong.append(f"{layout}: {result.reason}")
    assert not wrong, "; ".join(wrong)


def recorded_calls(target: str, dtype: str) -> list[Call]:
    """The largest few of the calls of `target` that the first samples of its OpInfo make."""
    recorder = Recorder(target)
    for op, sample in samples(OPINFO[target][0], dtype):
        with recorder:
            run(op, sample)
    executor = NvfuserExecutor()
    fitting = [c for c in recorder.calls if all(t.numel() and str(t.dtype).endswith(dtype) for t in c.tensors[:1])]
    accepted = [c for c in fitting if not any(executor.supports(o, r) for r in [region_of_call(c)] for o in r.ops)]
    return sorted(accepted, key=lambda c: -sum(t.numel() for t in c.tensors))[: SAMPLES[dtype]]


def samples(name: str, dtype: str) -> Iterator[tuple[Any, Any]]:
    from torch.testing._internal.common_methods_invocations import op_db

    op = next(o for o in op_db if name in (o.name, f"{o.name}.{o.variant_test_name}"))
    wanted = getattr(torch, dtype)
    grad = wanted.is_floating_point and op.supports_autograd
    for count, sample in enumerate(op.sample_inputs("cuda", wanted, requires_grad=grad)):
        if count == LOOKED_AT:
            return
        yield op, sample


def run(op: Any, sample: Any) -> None:
    result = op(sample.input, *sample.args, **sample.kwargs)
    results = [x for x in tree_leaves(result) if isinstance(x, Tensor) and x.requires_grad and not x.is_complex()]
    if results:
        torch.autograd.backward([x.sum() for x in results])
