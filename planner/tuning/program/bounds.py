"""The least that work takes on a machine, however it is run."""

from __future__ import annotations

from fuseplan.models import Machine, Work


def bound_us(work: Work, machine: Machine) -> float:
    """What a region takes at least: what goes in and out, and its arithmetic, at the machine's rates.

    >>> round(bound_us(Work(bytes_in=43_000_000, bytes_out=43_000_000), Machine.guess("NVIDIA H200")), 1)
    20.0
    """
    return max(_bounds(work, machine).values())


def least_of(work: Work, machine: Machine) -> tuple[float, str]:
    """The same for work that takes a kernel, and what bounds it: `memory`, `arithmetic`, or `launch` where the smallest kernel takes
    as long.

    >>> least_of(Work(bytes_in=1, bytes_out=1), Machine.guess("NVIDIA H200"))[1]
    'launch'
    """
    bounds = {**_bounds(work, machine), "launch": machine.launch_device_us}
    bound = max(bounds, key=lambda name: bounds[name])
    return bounds[bound], bound


def _bounds(work: Work, machine: Machine) -> dict[str, float]:
    products = sum(anchor.flops * 1e-6 / machine.matmul_rate(anchor.dtype) for anchor in work.anchors)
    elements = (work.pointwise + work.reduced) * 1e-6 / machine.pointwise_tops
    return {
        "memory": (work.bytes_in + work.bytes_out) * 1e-3 / machine.bandwidth_gbs,
        "arithmetic": max(products, elements),
    }
