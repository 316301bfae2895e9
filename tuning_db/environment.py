"""What a measurement is true for, and which part of it a plan needs. Who fills it in is not this package's matter.

Recorded elsewhere, and never compared: driver, clocks, host. Not recorded at all: paths, device ordinals, variables.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import cached_property

from fuseplan.plan import Plan, SegmentedPlan, WholePlan
from fuseplan.tuning_db.tables import ENVIRONMENT, Row, Value, content_key


@dataclass(frozen=True)
class Environment:
    """One kind of machine with one set of versions.

    >>> here = Environment(device="cuda", gpu="NVIDIA H200", torch="2.11.0+cu130", inductor="2.11.0+cu130, triton 3.6")
    >>> there = Environment(device="cuda", gpu="NVIDIA H200", torch="2.13.0+cu130", inductor="2.13.0+cu130, triton 3.7")
    >>> [str(difference) for difference in here.differences(there, {"inductor"})]
    ['torch 2.11.0+cu130 -> 2.13.0+cu130', 'inductor 2.11.0+cu130, triton 3.6 -> 2.13.0+cu130, triton 3.7']
    """

    device: str
    """The type of device: cpu, cuda …"""
    torch: str
    gpu: str | None = None
    """The product's name; None for a CPU."""
    gpu_sms: int | None = None
    gpu_l2_mib: int | None = None
    gpu_memory_gib: int | None = None
    cpu: str | None = None
    """The model; None for a GPU, whose plans are good on any host."""
    cpu_isa: str | None = None
    """The instruction set that Inductor compiles for, such as avx512."""
    cpu_threads: int | None = None
    cpu_compiler: str | None = None
    cuda: str | None = None
    matmul_precision: str = "highest"
    """torch.get_float32_matmul_precision()"""
    cudnn_tf32: int = 1
    fp16_reduction: int = 1
    """Whether matrix products in fp16 may sum in fp16."""
    bf16_reduction: int = 1
    inductor: str | None = None
    """What the executor says of itself; None where there is none."""
    nvfuser: str | None = None
    candidates: str = "1"
    """The version of fuseplan's candidate space: a later one may hold better plans."""
    protocol: str = "1"
    """The version of how fuseplan measures: times under two protocols are not comparable."""

    @cached_property
    def key(self) -> str:
        """32 hex digits, equal for equal environments."""
        return content_key("environment", tuple(getattr(self, field.name) for field in fields(self)))

    def differences(self, other: Environment, needs: Iterable[str]) -> tuple[Difference, ...]:
        """Where `other` is not what something made here needs: hardware, torch, flags, and the executors named."""
        return self._compare(other, (*_ALWAYS, *sorted(needs)))

    def other_differences(self, other: Environment, needs: Iterable[str]) -> tuple[Difference, ...]:
        """Where they differ in what is *not* needed: reason enough to look for something better, not to do without."""
        rest = {field.name for field in fields(self)} - {*_ALWAYS, *needs}
        return self._compare(other, tuple(name for name in _ORDER if name in rest))

    def _compare(self, other: Environment, names: Iterable[str]) -> tuple[Difference, ...]:
        return tuple(
            Difference(name, getattr(self, name), getattr(other, name))
            for name in names
            if getattr(self, name) != getattr(other, name)
        )

    def row(self) -> Row:
        """The environment as a logical row."""
        return {"key": self.key, **{field.name: getattr(self, field.name) for field in fields(self)}}

    @staticmethod
    def of(row: Row) -> Environment:
        """The environment that a logical row describes."""
        return Environment(**{name: row[name] for name in ENVIRONMENT.columns if name != "key"})  # type: ignore[arg-type]


@dataclass(frozen=True)
class Difference:
    """One field in which two environments differ: as stored, and as it is here."""

    field: str
    stored: Value
    here: Value

    def __str__(self) -> str:
        return f"{_TITLES.get(self.field, self.field)} {_shown(self.stored)} -> {_shown(self.here)}"


def needs_of(plan: Plan) -> frozenset[str]:
    """The executors that a plan uses and whose versions it therefore needs, by the names of the environment's fields.

    >>> sorted(needs_of(Plan.named("nvfuser-greedy")))
    ['nvfuser']
    >>> needs_of(Plan.named("eager"))
    frozenset()
    """
    used: set[str] = set()
    if isinstance(plan, WholePlan):
        used.add(plan.executor)
    elif isinstance(plan, SegmentedPlan):
        used.update(region.executor for part in plan.parts for region in part.segmentation.regions)
        used.add(plan.greedy or "aten")
    return frozenset(used & set(VERSIONED))


def needs_of_executor(executor: str) -> frozenset[str]:
    """What a measurement of one executor needs beside the hardware and torch. ATen and eager are torch itself."""
    return frozenset({executor} & set(VERSIONED))


VERSIONED = ("inductor", "nvfuser")
"""Executors that have a version of their own."""

_ALWAYS = (
    "device", "gpu", "gpu_sms", "gpu_l2_mib", "gpu_memory_gib", "cpu", "cpu_isa", "cpu_threads", "cpu_compiler",
    "torch", "cuda", "matmul_precision", "cudnn_tf32", "fp16_reduction", "bf16_reduction",
)  # fmt: skip
_ORDER = tuple(field.name for field in fields(Environment))
_TITLES = {"gpu": "GPU", "cpu": "CPU", "cuda": "CUDA", "gpu_sms": "SM count", "gpu_l2_mib": "L2 cache (MiB)",
           "gpu_memory_gib": "GPU memory (GiB)", "cpu_isa": "instruction set", "cpu_threads": "threads",
           "cpu_compiler": "compiler", "nvfuser": "nvFuser", "candidates": "candidate space"}  # fmt: skip


def _shown(value: Value) -> str:
    return "none" if value is None else str(value)
