"""How much memory a worker may take, and how much a candidate took. What the parent and others hold is theirs."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fuseplan.host_memory import free_host_memory, kilobytes
from fuseplan.measure.segments import segments
from fuseplan.turns import take_turn

SPARED = 0.1
"""The share of what is free that stays free: for the parent, and for what a compiler takes outside of the worker."""

WAITING = 0.25
"""The share of a GPU's memory that plans may hold while they wait for their race: the rest is for what is tried meanwhile."""

_STATUS = Path("/proc/self/status")


def limit_memory(device: torch.device, most: int | None = None, share: float = 1.0) -> None:
    """Let this process take no more than `most` bytes, or a share of what is free now, on the host and on its GPU.

    What does not fit raises MemoryError or torch's OutOfMemoryError, and the process lives on.
    """
    free, held = free_host_memory(), kilobytes(_STATUS, "VmData")
    wanted = [int(free * share * (1 - SPARED))] if free is not None else []
    wanted += [most] if most is not None else []
    if wanted and held is not None:
        # Of private memory that can be written: a GPU's driver reserves address space by the terabyte.
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        soft = held + min(wanted)
        resource.setrlimit(resource.RLIMIT_DATA, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))
    if device.type == "cuda":
        free_here, total = torch.cuda.mem_get_info()
        allowed = torch.cuda.memory_reserved() + int(free_here * share * (1 - SPARED))
        torch.cuda.set_per_process_memory_fraction(min(1.0, allowed / total))


@contextmanager
def roomy(device: torch.device, still: Callable[[], None] | None = None) -> Iterator[None]:
    """Within, this process may take all that is free of its GPU: finding out what is right needs several times its share.

    The processes of one user take turns at it, so that two do not meet. One that waits calls `still` every other second; one that has
    waited long goes ahead all the same.
    """
    if device.type != "cuda":
        yield
        return
    card = getattr(torch.cuda.get_device_properties(device), "uuid", device.index)
    name = f"fuseplan-{os.getuid()}-{card}.turn"
    with take_turn(Path(tempfile.gettempdir()) / name, still=still):
        share = torch.cuda.get_per_process_memory_fraction(device)
        free, total = torch.cuda.mem_get_info(device)
        allowed = torch.cuda.memory_reserved(device) + int(free * (1 - SPARED))
        torch.cuda.set_per_process_memory_fraction(max(share, min(1.0, allowed / total)), device)
        try:
            yield
        finally:
            torch.cuda.empty_cache()
            torch.cuda.set_per_process_memory_fraction(share, device)


def holds_much(device: torch.device) -> bool:
    """Whether this process holds more of a GPU's memory than what waits there should. What others take for a while at
    the same time, such as a program in double precision, is no reason not to wait.

    >>> holds_much(torch.device("meta"))
    False
    """
    if device.type != "cuda":
        return False
    return torch.cuda.memory_reserved(device) > WAITING * torch.cuda.get_device_properties(device).total_memory


class Peak:
    """The memory that calls take at most beside what was taken before: of a GPU, or of the process on a CPU.

    What compiling takes is not of it: `settle` is called after, and before calls as they will always be.

    >>> peak = Peak(torch.device("cpu"))
    >>> peak.settle()
    >>> kept = torch.ones(2**25)
    >>> found = peak.bytes()
    >>> found is None or found > 2**26
    True
    """

    def __init__(self, device: torch.device) -> None:
        self.on_gpu = device.type == "cuda"
        self._known = True
        self._before: int | None = None
        gc.collect()  # what others have left may else go meanwhile, and less would seem to be taken
        if self.on_gpu:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()  # pools of CUDA graphs that are gone would go meanwhile, and what is reused may be larger than asked
            self._before, self._waiting = torch.cuda.memory_allocated(), _waiting()

    def settle(self, kept: int = 0) -> None:
        """Begin to watch. What is held now counts on a GPU, but for bytes that are `kept` of results; on a CPU it is code, and what a
        compiler left.
        """
        if self.on_gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            self._before = (self._before or 0) + kept
        else:
            _give_back()
            self._known = _reset_peak()
            self._before = kilobytes(_STATUS, "VmRSS")

    def bytes(self) -> int | None:
        """What was taken at most since; None where this system does not say, as where a process on a CPU seems to have taken nothing:
        then the calls ran in memory that it held before.

        On a GPU it is what tensors took, not what the allocator holds: that keeps blocks, whole while anything is in them. Calls
        through a CUDA graph that was captured before take what waits for its next replay as well.
        """
        if self._before is None or not self._known:
            return None
        if self.on_gpu:
            torch.cuda.synchronize()
            held = torch.cuda.memory_allocated() + max(_waiting() - self._waiting, 0)
            return max(torch.cuda.max_memory_allocated() - self._before, held - self._before, 0)
        most = kilobytes(_STATUS, "VmHWM")
        return max(most - self._before, 0) or None if most is not None else None


def bytes_on_gpu(values: Iterable[Any], beside: Iterable[Tensor]) -> int:
    """The bytes that tensors among values hold of a GPU, each storage once, but for storages of others that they are views of."""
    known = {one.untyped_storage()._cdata for one in beside}
    storages = (
        one.untyped_storage()
        for one in values
        if isinstance(one, Tensor) and one.layout is torch.strided and one.is_cuda
    )
    return sum({one._cdata: one.nbytes() for one in storages if one._cdata not in known}.values())


def _waiting() -> int:
    """The bytes of the pools of CUDA graphs in which no tensor is: the next replay writes there."""
    here = torch.cuda.current_device()
    pools = (one for one in segments() if one["device"] == here and tuple(one["segment_pool_id"]) != (0, 0))
    return sum(one["total_size"] - one["allocated_size"] for one in pools)


def _give_back() -> None:
    """Give back what is free in the C library's heap: calls that take it again would seem to take nothing."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc alone has it
    if trim is not None:
        trim(0)


def _reset_peak() -> bool:
    """Begin the process's peak anew, which Linux allows a process for itself."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True
