"""What a machine can do at best, from its data sheet or as calibrated by the worker: the roof of the roofline."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from fuseplan.errors import OptionError

_MATMUL = "matmul_tflops."


@dataclass(frozen=True)
class Machine:
    """Rates of one device, as a program can reach them: some nine tenths of what a data sheet says.

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
    l2_bytes: float
    launch_device_us: float
    """What the smallest kernel takes on the device; on a CPU, all of a call."""
    launch_host_us: float
    """What PyTorch takes on the host to call one op; nothing on a CPU, where all of it is device time."""
    view_device_us: float
    view_host_us: float
    units: float = 108.0
    """Multiprocessors of a GPU, cores of a CPU: how many blocks run side by side."""

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
        words = name.upper()
        for product, sheet in _GPUS.items():
            if re.search(rf"{product}(?!\d)", words):
                return sheet.machine(name)
        return _UNKNOWN_GPU.machine(name) if any(maker in words for maker in _GPU_MAKERS) else _cpu(name)

    def calibrated(self, measured: Mapping[str, float]) -> Machine:
        """The machine with what the worker's `Calibrate` measured in place of guesses, by field.

        Matmuls have a rate for each dtype: `matmul_tflops.bfloat16`.

        >>> Machine.guess("AMD EPYC").calibrated({"bandwidth_gbs": 21.5, "matmul_tflops.float32": 0.2}).bandwidth_gbs
        21.5
        """
        plain = {field.name for field in fields(self) if field.type == "float"}
        matmuls, changed = dict(self.matmul_tflops), dict[str, float]()
        for name, rate in measured.items():
            least = 0.0 if name.endswith("_us") else 1e-9
            if not least <= rate < float("inf"):
                raise OptionError(f"a machine's {name} cannot be {rate!r}: give a positive number")
            if name.startswith(_MATMUL):
                matmuls[name.removeprefix(_MATMUL)] = rate
            elif name in plain:
                changed[name] = rate
            else:
                known = ", ".join([*sorted(plain), f"{_MATMUL}DTYPE"])
                raise OptionError(f"a machine has no {name!r} to calibrate: known are {known}")
        return replace(self, matmul_tflops=tuple(sorted(matmuls.items())), **changed)  # type: ignore[arg-type]


@dataclass(frozen=True)
class _Sheet:
    """The lines of a GPU's data sheet that matter, as reached in practice."""

    bandwidth_gbs: float
    half_tflops: float
    float32_tflops: float
    l2_mib: float
    units: float
    fp8: bool = False

    def machine(self, name: str) -> Machine:
        rates = {
            "float16": self.half_tflops,
            "bfloat16": self.half_tflops,
            "float32": self.float32_tflops,
            "float64": self.float32_tflops / 2,
            "int8": 2 * self.half_tflops,
        }
        if self.fp8:
            rates |= {"float8_e4m3fn": 2 * self.half_tflops, "float8_e5m2": 2 * self.half_tflops}
        # A multiply-add is two operations, but one element; special functions are polynomials of several.
        elements = self.float32_tflops / 2
        return Machine(
            name,
            "cuda",
            self.bandwidth_gbs,
            tuple(sorted(rates.items())),
            elements,
            elements / 8,
            self.l2_mib * 2**20,
            launch_device_us=2.0,
            launch_host_us=7.5,
            view_device_us=0.0,
            view_host_us=1.3,
            units=self.units,
        )


# In the order in which names are searched: an H100 PCIe is also an H100.
_GPUS = {
    "B200": _Sheet(7000.0, 1550.0, 70.0, 126.0, 148, fp8=True),
    "H200": _Sheet(4300.0, 790.0, 50.0, 60.0, 132, fp8=True),
    "H100 PCIE": _Sheet(1800.0, 520.0, 40.0, 50.0, 114, fp8=True),
    "H100": _Sheet(3000.0, 700.0, 50.0, 50.0, 132, fp8=True),
    "H20": _Sheet(3600.0, 130.0, 36.0, 60.0, 78, fp8=True),
    "A100": _Sheet(1700.0, 270.0, 18.0, 40.0, 108),
    "A10": _Sheet(520.0, 70.0, 24.0, 6.0, 72),
    "L40": _Sheet(760.0, 200.0, 70.0, 96.0, 142, fp8=True),
    "L4": _Sheet(260.0, 80.0, 24.0, 48.0, 58, fp8=True),
    "V100": _Sheet(800.0, 95.0, 14.0, 6.0, 80),
    "T4": _Sheet(250.0, 40.0, 7.0, 4.0, 40),
    "RTX 5090": _Sheet(1600.0, 200.0, 90.0, 96.0, 170, fp8=True),
    "RTX 4090": _Sheet(900.0, 160.0, 70.0, 72.0, 128, fp8=True),
    "RTX 3090": _Sheet(840.0, 70.0, 30.0, 6.0, 82),
    "MI300": _Sheet(4000.0, 600.0, 80.0, 256.0, 304, fp8=True),
}
_UNKNOWN_GPU = _Sheet(800.0, 100.0, 20.0, 32.0, 80)
_GPU_MAKERS = ("NVIDIA", "GEFORCE", "TESLA", "QUADRO", "RTX", "RADEON", "INSTINCT")


def _cpu(name: str) -> Machine:
    """A few cores of a server; what matters is found by measuring, and machines differ by more than names tell."""
    rates = (("bfloat16", 0.1), ("float16", 0.05), ("float32", 0.1), ("float64", 0.05))
    return Machine(
        name,
        "cpu",
        bandwidth_gbs=20.0,
        matmul_tflops=rates,
        pointwise_tops=0.01,
        special_tops=0.001,
        l2_bytes=16.0 * 2**20,
        launch_device_us=2.0,
        launch_host_us=0.0,
        view_device_us=0.4,
        view_host_us=0.0,
        units=4.0,
    )
