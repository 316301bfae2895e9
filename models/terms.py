"""What a region would take on an ideal machine, part by part in µs: the terms whose weights the roofline fits."""

from __future__ import annotations

from collections.abc import Sequence

from fuseplan.executors.known import traits_of
from fuseplan.models.machine import Machine
from fuseplan.models.work import AnchorWork, Work

Terms = tuple[float, ...]

DEVICE_DOUBT = (0.4, 0.2, 0.7, 0.7, 0.7, 0.7, 0.25, 0.5, 0.4)
"""By how much each term may be wrong before anything is measured, one standard deviation, as a share: launch, memory, scattered,
pointwise, special, reduced, matmul, convolution, attention.
"""
HOST_DOUBT = (0.4, 0.3, 0.4, 0.6)
"""The same of the host's: call, ops, views, arguments."""

UNALIGNED = 7.0
"""GPT-2's head in eager took 6676 µs unaligned and 875 µs padded (FACTS.md)."""
_ATTENTION = {"attention": 2.5, "masked": 3.6}
"""Attention against a plain matmul of as many operations: cuDNN's kernel on an H200 (FACTS.md)."""
_CONVOLUTION = 1.6
_CONVOLUTIONS = ("convolution", "turned", "projection")
_TURNING = 4.0
"""Images that are turned around for one convolution alone, and back: the median of rows of an H200."""

_VARIANTS = {"flash": 1.3, "efficient": 3.0, "math": 8.0, "channels_last": 0.85, "tuned": 0.98}
"""Other variants against the default, before anything is measured."""


def device_terms(work: Work, executor: str, machine: Machine) -> Terms:
    """Times of the parts of a region, as if none overlapped: what overlaps gets a smaller weight when fitted.

    >>> work = Work(ops=1, bytes_in=2150_000, bytes_out=2150_000, bytes_alone=4300_000, kernels=1, kernels_alone=1)
    >>> device_terms(work, "inductor", Machine.guess("NVIDIA H200"))[:2]
    (2.0, 1.0)
    """
    alone = not traits_of(executor).fuses
    byte_us = 1e-3 / machine.bandwidth_gbs
    moved = work.bytes_alone if alone else work.bytes_moved
    matmul, convolution, attention = 0.0, 0.0, 0.0
    for anchor in work.anchors:
        moved -= anchor.bytes
        time = _anchor_us(anchor, executor, machine, byte_us)
        if anchor.kind in _CONVOLUTIONS:
            convolution += time
        elif anchor.kind in _ATTENTION:
            attention += time
        else:
            matmul += time
    gpu = machine.device != "cpu"
    # Attention's heads to the inside: 22.7 µs in ATen, 13.1 in nvFuser (benchmarks/results/fusions.gpu.json).
    scattered = work.scattered_alone * 1.5 if alone else work.scattered * (0.2 if gpu else 1.0)
    return (
        _launch_us(work, executor, machine),
        max(0, moved) * byte_us,
        scattered * byte_us,
        work.pointwise * 1e-6 / machine.pointwise_tops,
        work.special * (0.5e-6 if gpu else 1e-6) / machine.special_tops,
        work.reduced * 1e-6 / machine.pointwise_tops,
        matmul,
        convolution,
        attention,
    )


def _launch_us(work: Work, executor: str, machine: Machine) -> float:
    """The least that running takes; a CPU does its own calling, and the clock sees no host time apart from it."""
    least = machine.launch_device_us
    if not traits_of(executor).fuses:
        return work.kernels_alone * least + work.views * machine.view_device_us
    if machine.device != "cpu":
        return work.kernels * least
    return least * (0.7 + 0.3 * work.kernels + 0.05 * (work.inputs + work.outputs))


def _anchor_us(anchor: AnchorWork, executor: str, machine: Machine, byte_us: float) -> float:
    compute = anchor.flops * 1e-6 / machine.matmul_rate(anchor.dtype)
    memory = anchor.bytes * byte_us
    if anchor.kind == "unaligned":
        # Padding a matmul moves its operands once more.
        pads = traits_of(executor).pads_matmuls
        return max(compute, memory) + memory if pads else max(compute * UNALIGNED, memory)
    if anchor.kind in _CONVOLUTIONS:
        compute *= 1.0 if anchor.kind == "projection" else _CONVOLUTION
        # PyTorch turns those images around that are no product of matrices (rows of an H200), others turn every one.
        turns = anchor.kind == "turned" or (anchor.kind == "projection" and traits_of(executor).turns_images)
        return max(compute, memory) + 2 * memory * turns
    return max(compute * _ATTENTION.get(anchor.kind, 1.0), memory)


def host_terms(work: Work, executor: str, machine: Machine) -> Terms:
    """What calling it takes on the host: a call of the region, its ops, its views, and its arguments.

    In units of what PyTorch takes for one op there, by benchmarks/results/regions.gpu.json.
    """
    unit, traits = machine.launch_host_us, traits_of(executor)
    arguments = work.inputs + work.outputs
    if not traits.fuses:
        return (0.0, work.kernels_alone * unit, work.views * machine.view_host_us, 0.0)
    return (traits.call_units * unit, work.kernels * traits.kernel_units * unit, 0.0, 0.1 * unit * arguments)


def variant_factor(work: Work, variant: str) -> float:
    """How a variant compares with the default of the same region, before anything is measured.

    >>> variant_factor(Work(), "efficient")
    3.0
    """
    if variant == "padded":
        unaligned = any(anchor.kind == "unaligned" for anchor in work.anchors)
        return 1.15 / UNALIGNED if unaligned else 1.05
    if variant == "channels_last" and any(anchor.kind in ("turned", "projection") for anchor in work.anchors):
        return _TURNING
    return _VARIANTS.get(variant, 1.0)


def scaled(terms: Sequence[float], factor: float) -> Terms:
    """The terms of another variant."""
    return tuple(term * factor for term in terms) if factor != 1.0 else tuple(terms)
