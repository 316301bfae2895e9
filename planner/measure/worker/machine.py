"""What this machine can do: the figures that a roofline begins with, measured with the clock that measures candidates."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median
from time import perf_counter

import torch

from fuseplan.measure.clocks import clock_for
from fuseplan.measure.race import LaneError, Sample

_BLOCKS = 7
_ENOUGH = 0.5
"""Seconds of blocks after which the rest are left out: a block of large products is a mean of many calls by itself."""
_SLOW = 0.1
"""Seconds from which on one call says enough: a CPU may have no instruction for a dtype."""
_COPY_BYTES = {"cpu": 2**27, "cuda": 2**30}
_SIDE = {"cpu": 512, "cuda": 8192}
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def calibrate(device: torch.device) -> dict[str, float]:
    """Return copy bandwidth (read and written, GB/s), rates of matrix products (TFLOP/s) by dtype, and what one small
    operator takes of host and device, in µs. What cannot be had here is left out.
    """
    found: dict[str, float] = {}
    size = _COPY_BYTES.get(device.type, _COPY_BYTES["cuda"])
    source, target = (torch.ones(size, dtype=torch.uint8, device=device) for _ in range(2))
    copied = _time(device, partial(target.copy_, source))
    del source, target
    if copied is not None:
        found["bandwidth_gbs"] = round(2 * size / copied.device_us / 1e3, 3)
    side = _SIDE.get(device.type, _SIDE["cuda"])
    for dtype in _DTYPES:
        rate = _matmul_tflops(device, dtype, side)
        if rate is not None:
            found[f"matmul_tflops.{str(dtype).removeprefix('torch.')}"] = rate
    small = torch.ones(16, device=device)
    for name, call in (("launch", partial(torch.neg, small)), ("view", partial(small.view, 4, 4))):
        times = _time(device, call)
        if times is not None:
            found[f"{name}_device_us"], found[f"{name}_host_us"] = times.device_us, times.host_us
    if device.type == "cuda":
        found["l2_bytes"] = float(torch.cuda.get_device_properties(device).L2_cache_size)
    return found


def _matmul_tflops(device: torch.device, dtype: torch.dtype, side: int) -> float | None:
    a, b = (torch.rand(side, side, device=device).to(dtype) for _ in range(2))
    times = _time(device, partial(torch.mm, a, b))
    return None if times is None else round(2 * side**3 / times.device_us / 1e6, 4)


def _time(device: torch.device, call: Callable[[], object]) -> Sample | None:
    begin = perf_counter()
    call()
    if device.type == "cpu" and perf_counter() - begin > _SLOW:
        slow = (perf_counter() - begin) * 1e6
        return Sample(slow, 0.0, slow).rounded()
    clock = clock_for(device.type)
    try:
        clock.add("call", [call])
        samples: list[Sample] = []
        while len(samples) < _BLOCKS and sum(sample.seconds for sample in samples) < _ENOUGH:
            samples.append(clock.block("call"))
    except LaneError:
        return None
    return Sample(
        *(median(getattr(s, name) for s in samples) for name in ("device_us", "host_us", "wall_us"))
    ).rounded()
