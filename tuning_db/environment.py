"""What a measurement is true for, and which part of it a plan needs. Who fills it in is not this package's matter.

Recorded elsewhere, and never compared: driver, clocks, host. Not recorded at all: paths, device ordinals, variables.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, field, fields
from functools import cached_property

from fuseplan.errors import StoreError
from fuseplan.executors.known import traits_of
from fuseplan.host_memory import host_memory
from fuseplan.plan import Plan
from fuseplan.tuning_db import columns
from fuseplan.tuning_db.columns import Column, Inner, Record, Value, content_key, stored, to_object


def _versions(stored_text: str) -> tuple[tuple[str, str], ...]:
    try:
        return tuple(dict(json.loads(stored_text)).items())
    except (TypeError, ValueError) as error:
        raise StoreError(f"versions of executors are no JSON object: {error}") from None


VERSIONS = Column(
    inner=Inner("environment_executor", "executor", "version"),
    write=lambda versions: to_object(dict(versions)),
    read=_versions,
)


@dataclass(frozen=True)
class Environment(Record):
    """One kind of machine with one set of versions.

    >>> here = Environment(device="cuda", gpu="NVIDIA H200", torch="2.11.0+cu130", versions=(("nvfuser", "0.2"),))
    >>> there = Environment(device="cuda", gpu="NVIDIA H200", torch="2.13.0+cu130", versions=(("nvfuser", "0.3"),))
    >>> [str(difference) for difference in here.differences(there, {"nvfuser"})]
    ['torch 2.11.0+cu130 -> 2.13.0+cu130', 'nvFuser 0.2 -> 0.3']
    """

    device: str = field(metadata=stored(columns.text(40), key=columns.key(32)))
    """The type of device: cpu, cuda …"""
    gpu: str | None = field(default=None, kw_only=True, metadata=stored(columns.text(200)))
    """The product's name; None for a CPU."""
    gpu_sms: int | None = field(default=None, kw_only=True, metadata=stored(columns.INTEGER))
    gpu_l2_mib: int | None = field(default=None, kw_only=True, metadata=stored(columns.INTEGER))
    gpu_memory_gib: int | None = field(default=None, kw_only=True, metadata=stored(columns.INTEGER))
    cpu: str | None = field(default=None, kw_only=True, metadata=stored(columns.text(200)))
    """The model; None for a GPU, whose plans are good on any host."""
    cpu_isa: str | None = field(default=None, kw_only=True, metadata=stored(columns.text(200)))
    """The instruction set that Inductor compiles for, such as avx512."""
    cpu_threads: int | None = field(default=None, kw_only=True, metadata=stored(columns.INTEGER))
    cpu_compiler: str | None = field(default=None, kw_only=True, metadata=stored(columns.text(200)))
    torch: str = field(metadata=stored(columns.text(100)))
    _: KW_ONLY
    cuda: str | None = field(default=None, metadata=stored(columns.text(100)))
    matmul_precision: str = field(default="highest", metadata=stored(columns.text(40)))
    """torch.get_float32_matmul_precision()"""
    cudnn_tf32: int = field(default=1, metadata=stored(columns.FLAG))
    fp16_reduction: int = field(default=1, metadata=stored(columns.FLAG))
    """Whether matrix products in fp16 may sum in fp16."""
    bf16_reduction: int = field(default=1, metadata=stored(columns.FLAG))
    versions: tuple[tuple[str, str], ...] = field(default=(), metadata=stored(VERSIONS))
    """What executors say of themselves, by name; those of torch itself, and those that are not there, say nothing."""
    candidates: str = field(default="1", metadata=stored(columns.text(40)))
    """The version of fuseplan's candidate space: a later one may hold better plans."""
    protocol: str = field(default="1", metadata=stored(columns.text(40)))
    """The version of how fuseplan measures: times under two protocols are not comparable."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "versions", tuple(sorted(self.versions)))

    @cached_property
    def key(self) -> str:
        """32 hex digits, equal for equal environments. An executor that came after the first ones is in it where it is there."""
        known = dict(self.versions)
        values: list[Value] = []
        for name in _ORDER:
            values += [known.pop(one, None) for one in _IN_EVERY_KEY] if name == "versions" else [getattr(self, name)]
        return content_key("environment", (*values, *(text for pair in sorted(known.items()) for text in pair)))

    @property
    def executors(self) -> frozenset[str]:
        """Those that have a version of their own here."""
        return frozenset(name for name, _ in self.versions)

    def version(self, executor: str) -> str | None:
        """What an executor says of itself there; None where there is none, and for what has no version but torch's."""
        return dict(self.versions).get(executor)

    def differences(self, other: Environment, needs: Iterable[str]) -> tuple[Difference, ...]:
        """Where `other` is not what something made here needs: hardware, torch, flags, and the executors named."""
        return (*self._compare(other, _ALWAYS), *self.versions_apart(other, needs))

    def other_differences(self, other: Environment, needs: Iterable[str]) -> tuple[Difference, ...]:
        """Where they differ in what is *not* needed: reason enough to look for something better, not to do without."""
        unused = (self.executors | other.executors) - set(needs)
        return (*self.versions_apart(other, unused), *self._compare(other, ("candidates", "protocol")))

    def is_machine_of(self, other: Environment) -> bool:
        """Whether both are one machine that computes alike, be it with other releases of what runs there."""
        return not self._compare(other, (*HARDWARE, *FLAGS))

    def versions_apart(self, other: Environment, executors: Iterable[str]) -> tuple[Difference, ...]:
        """Which of these executors have another version in `other`."""
        each = (Difference(name, self.version(name), other.version(name)) for name in sorted(executors))
        return tuple(one for one in each if one.stored != one.here)

    def _compare(self, other: Environment, names: Iterable[str]) -> tuple[Difference, ...]:
        return tuple(
            Difference(name, getattr(self, name), getattr(other, name))
            for name in names
            if getattr(self, name) != getattr(other, name)
        )


@dataclass(frozen=True)
class Difference:
    """One field in which two environments differ: as stored, and as it is here."""

    field: str
    stored: Value
    here: Value

    def __str__(self) -> str:
        return f"{_TITLES.get(self.field) or traits_of(self.field).title or self.field} {_shown(self.stored)} -> {_shown(self.here)}"


def memory_of(here: Environment) -> int:
    """Bytes of memory that a place has in all, of which a share may be a bound: those of its GPU, else of this machine. In whole GiB, which
    stay the same where a kernel or a driver keeps a little more for itself.
    """
    gib = here.gpu_memory_gib if here.gpu_memory_gib is not None else max(1, round(host_memory() / 2**30))
    return gib * 2**30


def needs_of(plan: Plan) -> frozenset[str]:
    """The executors that a plan uses and whose versions it therefore needs, by the names of the environment's fields.

    >>> sorted(needs_of(Plan.named("nvfuser-greedy")))
    ['nvfuser']
    >>> needs_of(Plan.named("eager"))
    frozenset()
    """
    return plan.executors - _OF_TORCH


def needs_of_executor(executor: str) -> frozenset[str]:
    """What a measurement of one executor needs beside the hardware and torch. ATen and eager are torch itself."""
    return frozenset({executor} - _OF_TORCH)


_OF_TORCH = frozenset({"aten", "eager"})
"""Executors that have no version but torch's."""
_IN_EVERY_KEY = ("inductor", "nvfuser")
"""The first executors: the keys of all environments hold their version, or that there is none."""

HARDWARE = ("device", "gpu", "gpu_sms", "gpu_l2_mib", "gpu_memory_gib", "cpu", "cpu_isa", "cpu_threads")
"""What makes two places one machine …"""
FLAGS = ("matmul_precision", "cudnn_tf32", "fp16_reduction", "bf16_reduction")
"""… that computes alike. The rest are releases, which change where somebody upgrades."""
_ALWAYS = (*HARDWARE, "cpu_compiler", "torch", "cuda", *FLAGS)
_ORDER = ("device", "torch", *(one.name for one in fields(Environment) if one.name not in ("device", "torch")))
"""The order in which keys were made from the first."""
_TITLES = {"gpu": "GPU", "cpu": "CPU", "cuda": "CUDA", "gpu_sms": "SM count", "gpu_l2_mib": "L2 cache (MiB)",
           "gpu_memory_gib": "GPU memory (GiB)", "cpu_isa": "instruction set", "cpu_threads": "threads",
           "cpu_compiler": "compiler", "candidates": "candidate space"}  # fmt: skip


def _shown(value: Value) -> str:
    return "none" if value is None else str(value)
