"""What a machine can do at best, from its data sheet or as calibrated by the worker: the roof of the roofline."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from fuseplan.errors import OptionError

_MATMUL = "matmul_tflops."


@dataclass(frozen=True)
class Machine:
    """Rates of one device, as a program can reach them: about nine tenths of what a data sheet says.

    >>> Machine.guess("NVIDIA H200").bandwidth_gbs
    4300.0
    """

    name: str
    device: str
    """The type: cuda or cpu."""
    bandwidth_gbs: float
    """Bytes read and written by a large copy, in 10**9 a second."""
    matmul_tflops: tuple[tuple[str, float], ...]
    """10**12 floating-point operations a second of a large matmul, by dtype, sorted."""
    pointwise_tops: float
    """10**12 elements a second through one cheap operation, memory apart."""
    special_tops: float
    """The same through an exponential or the like."""
    l2_mib: float
    launch_us: float
    """What the smallest kernel takes on the device; on a CPU, what calling one takes."""
    op_host_us: float
    """What PyTorch takes on the host for one op."""

    def matmul_rate(self, dtype: str) -> float:
        """The rate of matmuls in `dtype`; of one that is not known, the rate of float32 or else the lowest."""
        rates = dict(self.matmul_tflops)
        return rates.get(dtype, rates.get("float32", min(rates.values(), default=1.0)))

    @staticmethod
    def guess(name: str) -> Machine:
        """What is known of a product by its name; of an unknown GPU a middling one, of any other name a CPU.

        >>> Machine.guess("NVIDIA A100-SXM4-80GB").matmul_rate("bfloat16")
        270.0
        >>> Machine.guess("AMD EPYC").device
        'cpu'
        """
        raise NotImplementedError

    def calibrated(self, measured: Mapping[str, float]) -> Machine:
        """The machine with measured rates in place of guessed ones, by field; `matmul_tflops.bfloat16` for one dtype.

        >>> Machine.guess("AMD EPYC").calibrated({"bandwidth_gbs": 21.5, "matmul_tflops.float32": 0.2}).bandwidth_gbs
        21.5
        """
        raise NotImplementedError
