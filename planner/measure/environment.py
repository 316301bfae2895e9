"""What a measurement made here is true for: this machine, its versions, and the numeric flags of this process."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import torch

from fuseplan.capture.dynamo.numerics import Numerics, precisions, set_precisions
from fuseplan.executors import executors
from fuseplan.executors.known import known_executors
from fuseplan.tuning_db.environment import Environment

PROTOCOL = "1"
"""The version of how clocks measure: who changes what a time means, changes this."""


_ATTENTION: Mapping[str, tuple[Callable[[], bool], Callable[[bool], None]]] = {
    "flash": (torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp),
    "cudnn": (torch.backends.cuda.cudnn_sdp_enabled, torch.backends.cuda.enable_cudnn_sdp),
    "efficient": (torch.backends.cuda.mem_efficient_sdp_enabled, torch.backends.cuda.enable_mem_efficient_sdp),
    "math": (torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.enable_math_sdp),
}
"""Of each kernel, what says whether it is switched on, and what switches it."""


@dataclass(frozen=True)
class Flags(Numerics):
    """All switches of this process that change what is computed, or how fast: a worker has to measure under the same."""

    threads: int
    deterministic: bool = False
    deterministic_warns: bool = False
    """Whether what is not deterministic only warns."""
    cudnn_deterministic: bool = False
    attention_off: Sequence[str] = ()
    """The kernels of attention that are switched off."""
    precisions: Mapping[str, str] = field(default_factory=dict)
    """How torch's newer words have the precision of float32: what a worker compiles is found by the same words alone."""

    @staticmethod
    def here() -> Flags:
        """The flags as they are now.

        >>> Flags.here().threads == torch.get_num_threads()
        True
        """
        threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
        return Flags(
            **vars(Numerics.here()),
            threads=threads,
            deterministic=deterministic,
            deterministic_warns=torch.is_deterministic_algorithms_warn_only_enabled(),
            cudnn_deterministic=bool(torch.backends.cudnn.deterministic),
            attention_off=[name for name, (enabled, _) in _ATTENTION.items() if not enabled()],
            precisions=precisions(),
        )

    def set(self) -> None:
        """Make them those of this process."""
        super().set()
        set_precisions(self.precisions)
        torch.set_num_threads(self.threads)
        torch.use_deterministic_algorithms(self.deterministic, warn_only=self.deterministic_warns)
        # not by assignment, which is refused where torch.testing has frozen them
        torch.backends.cudnn.set_flags(_deterministic=self.cudnn_deterministic)
        for name, (_, enable) in _ATTENTION.items():
            enable(name not in self.attention_off)


def environment(device: str | torch.device) -> Environment:
    """Return the environment of a device of this machine, by name ("cpu", "cuda", "cuda:1").

    The first call for a type of device may take a second, later ones microseconds: flags are read each time.

    >>> here = environment("cpu")
    >>> here.device, here.cpu_threads == torch.get_num_threads(), here.gpu
    ('cpu', True, None)
    """
    device = torch.device(device)
    flags = Flags.here()
    common: dict[str, object] = {
        "device": device.type,
        "torch": str(torch.__version__),
        "matmul_precision": flags.matmul_precision,
        "cudnn_tf32": int(flags.cudnn_tf32),
        "fp16_reduction": int(flags.fp16_reduction),
        "bf16_reduction": int(flags.bf16_reduction),
        "versions": _versions(device.type, tuple(traits.name for traits in known_executors())),
        "protocol": PROTOCOL,
    }
    if device.type == "cpu":
        isa, compiler = _cpu_build()
        specific = {"cpu": _cpu(), "cpu_isa": isa, "cpu_threads": flags.threads, "cpu_compiler": compiler}
    else:
        index = torch.cuda.current_device() if device.index is None else device.index
        specific = {**_gpu(index), "cuda": torch.version.cuda}
    return Environment(**common, **specific)  # type: ignore[arg-type]  # fields by name


@dataclass(frozen=True)
class RunFacts:
    """What is written down beside a run and never compared."""

    host: str | None = None
    driver: str | None = None
    clocks: str | None = None


def run_facts(device: str | torch.device = "cpu") -> RunFacts:
    """Return the host's name, and of a GPU its driver and its clocks as they are now.

    >>> run_facts("cpu").host == platform.node()
    True
    """
    device = torch.device(device)
    host = platform.node()[:200] or None
    if device.type != "cuda":
        return RunFacts(host)
    fields = ("driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.mem")
    found = told_by(
        "nvidia-smi", f"--id={device.index or 0}", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"
    )
    if found is None:
        return RunFacts(host)
    driver, *clocks = (part.strip() for part in found.splitlines()[0].split(","))
    named = zip(("sm", "memory", "most sm", "most memory"), clocks, strict=False)
    return RunFacts(host, driver[:100], ", ".join(f"{name} {value}" for name, value in named)[:200])


@cache
def _gpu(index: int) -> dict[str, object]:
    found = torch.cuda.get_device_properties(index)
    return {
        "gpu": found.name,
        "gpu_sms": found.multi_processor_count,
        "gpu_l2_mib": round(found.L2_cache_size / 2**20),
        "gpu_memory_gib": round(found.total_memory / 2**30),
    }


@cache
def _versions(device_type: str, names: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """What these executors say of themselves on such a device, but for those that have no version of their own there."""
    every = executors()
    found = ((name, every[name].version_on(device_type)) for name in names)
    return tuple((name, version) for name, version in found if version is not None)


def _cpu() -> str:
    """The model, as the kernel names it; processors of one model may still differ in what they offer."""
    try:
        lines: Iterable[str] = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = ()
    named = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())[:200]


@cache
def _cpu_build() -> tuple[str, str | None]:
    """The instruction set that Inductor compiles for, and the compiler; without one, the set that ATen uses."""
    from fuseplan.executors.inductor import toolchain

    if toolchain.missing("cpu") is not None:
        return torch.backends.cpu.get_cpu_capability().lower(), None
    compiler = toolchain.cpp_compiler()
    version = told_by(compiler, "-dumpfullversion", "-dumpversion")
    return toolchain.instruction_set(), f"{Path(compiler).name} {version or 'unknown'}"[:200]


def told_by(*command: str) -> str | None:
    """What a command prints; None where it cannot, or says nothing."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
