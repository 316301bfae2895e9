"""What the device does under a plan, kernel by kernel, and how two plans differ in it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch

from fuseplan.capture.trace.format import Trace
from fuseplan.capture.trace.load import load_trace
from fuseplan.plan import Plan
from fuseplan.runtime.capture_place import SETTLING
from fuseplan.tuning.traces import device_of

STEPS = 5
TOP = 25
Kernels = dict[str, tuple[float, float]]
"""By name: µs and launches a step."""
CLASSES = (
    ("attention", r"fmha|flash|sdpa|attention|mha_"),
    ("convolution", r"conv|implicit_gemm|winograd|xmma.*fprop|dgrad|wgrad|nchwToNhwc|nhwcToNchw"),
    ("matmul", r"gemm|nvjet|cutlass|cublas|splitK|addmm|mm_out|triton_tem|mkl"),
    ("nvfuser", r"nvfuser"),
    ("inductor", r"triton_|cpp_fused"),
    ("copies", r"[Mm]emcpy|[Mm]emset|aten::copy_"),
)
"""Of kernels, by their names, the first that fits; the rest is ATen's."""


def kernels_of(trace: Trace, plan: Plan) -> Kernels:
    """The kernels of a step of the program under a plan, counted while it runs here."""
    loaded = load_trace(trace, device_of(trace))
    on_gpu = device_of(trace) != "cpu"
    options: dict[str, Any] = {"plan": plan}
    compiled: Any = torch.compile(loaded.module, backend="fuseplan", options=options)
    args = loaded.inputs(0)
    for _ in range(5 + SETTLING):
        loaded.step(compiled, args)
    activity = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[activity.CUDA if on_gpu else activity.CPU]) as profile:
        for _ in range(STEPS):
            loaded.step(compiled, args)
        if on_gpu:
            torch.cuda.synchronize()
    torch._dynamo.reset()
    found: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for event in profile.events():
        if (event.device_type.name == "CUDA") != on_gpu:
            continue
        us = event.device_time if on_gpu else event.self_cpu_time_total
        entry = found[plain_name(event.name)]
        entry[0] += us / STEPS
        entry[1] += 1 / STEPS
    return {name: (us, count) for name, (us, count) in found.items()}


def plain_name(name: str) -> str:
    """A kernel's name without what only numbers it.

    >>> plain_name("triton_per_fused_add_native_layer_norm_7"), plain_name("nvfuser_pointwise_f12_c1_r0_g3")
    ('triton_per_fused_add_native_layer_norm', 'nvfuser_pointwise')
    """
    name = re.sub(r"(_[a-z]?\d+)+$", "", name)
    return name[:120]


def class_of(name: str) -> str:
    """What kind of work a kernel does.

    >>> class_of("nvjet_tst_128x256_64x4"), class_of("void at::native::vectorized_elementwise_kernel")
    ('matmul', 'aten')
    """
    return next((kind for kind, pattern in CLASSES if re.search(pattern, name)), "aten")


def differences(segmented: Mapping[str, Any], whole: Mapping[str, Any]) -> dict[str, Any]:
    """By class and by kernel, what the segmented plan takes and the whole-program one, the largest differences first.

    >>> found = differences({"triton_a": (10.0, 1.0)}, {"triton_a": (7.0, 1.0), "gemm": (5.0, 1.0)})
    >>> found["device_us"], found["classes"]["inductor"]["difference_us"]
    ({'segmented': 10.0, 'whole': 12.0}, 3.0)
    """
    classes: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0, 0.0])
    kernels = []
    for name in {**whole, **segmented}:
        (a, n), (b, m) = segmented.get(name, (0.0, 0.0)), whole.get(name, (0.0, 0.0))
        for i, value in enumerate((a, b, n, m)):
            classes[class_of(name)][i] += value
        kernels.append({"kernel": name, **_row(a, b, n, m)})
    kernels.sort(key=lambda row: (-abs(row["difference_us"]), row["kernel"]))
    by_class = {kind: _row(*values) for kind, values in classes.items()}
    return {
        "device_us": {"segmented": _total(segmented), "whole": _total(whole)},
        "classes": dict(sorted(by_class.items(), key=lambda item: -abs(item[1]["difference_us"]))),
        "kernels": kernels[:TOP],
    }


def _row(segmented: float, whole: float, launches: float, launches_whole: float) -> dict[str, Any]:
    return {
        "segmented_us": round(segmented, 2),
        "whole_us": round(whole, 2),
        "difference_us": round(segmented - whole, 2),
        "launches": [round(launches, 1), round(launches_whole, 1)],
    }


def _total(kernels: Mapping[str, Any]) -> float:
    total: float = sum(us for us, _ in kernels.values())
    return round(total, 2)
