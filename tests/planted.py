"""Executors that go wrong in all the ways that one can, for workers that are told `--plant planted:executors`."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fuseplan.executors import Compiled, Executor, Traits
from fuseplan.executors.aten.executor import AtenExecutor
from fuseplan.graph import Graph, Op
from fuseplan.runtime import regions

Fault = Callable[[list[Any], Compiled], Sequence[Any]]


@dataclass
class Planted:
    """ATen, but for what `fault` does at each call."""

    name: str
    fault: Fault
    compiles: Callable[[], None] = lambda: None

    def version(self) -> str:
        return "1"

    @property
    def traits(self) -> Traits:
        return Traits(self.name)

    def version_on(self, device: str) -> str | None:
        return "1"

    def available(self) -> str | None:
        return None

    def supports(self, op: Op, graph: Graph) -> str | None:
        return None

    def refuses(self, region: Graph) -> str | None:
        return None

    def variants(self, region: Graph) -> tuple[str, ...]:
        return ("default",)

    def compile(self, region: Graph, variant: str = "default") -> Compiled:
        self.compiles()
        right = AtenExecutor().compile(region)
        return lambda args: self.fault(args, right)


def hang(args: list[Any], right: Compiled) -> Sequence[Any]:
    time.sleep(10_000)
    return right(args)


def hang_without_python(args: list[Any], right: Compiled) -> Sequence[Any]:
    ctypes.PyDLL(None).sleep(10_000)  # which does not let go of the interpreter's lock
    return right(args)


def abort(args: list[Any], right: Compiled) -> Sequence[Any]:
    os.abort()


def leave(args: list[Any], right: Compiled) -> Sequence[Any]:
    sys.stdout.flush()
    os._exit(3)


def killed(args: list[Any], right: Compiled) -> Sequence[Any]:
    os.kill(os.getpid(), signal.SIGKILL)
    return right(args)


def fill_memory(args: list[Any], right: Compiled) -> Sequence[Any]:
    taken = []
    while True:
        taken.append(torch.ones(2**25))


def wrong_values(args: list[Any], right: Compiled) -> Sequence[Any]:
    return [value + 0.01 for value in right(args)]


def wrong_strides(args: list[Any], right: Compiled) -> Sequence[Any]:
    return [value.t().contiguous().t() for value in right(args)]


def chatter(args: list[Any], right: Compiled) -> Sequence[Any]:
    print("this is no message, though it is on stdout", flush=True)
    os.write(1, b"outcome {}\nlost\n")
    print("x" * 100_000, file=sys.stderr, flush=True)
    return right(args)


class Second:
    """Raises at the second call and at all after it."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, args: list[Any], right: Compiled) -> Sequence[Any]:
        self.calls += 1
        if self.calls > 1:
            raise RuntimeError("no second time, says /home/somebody/secret.py")
        return right(args)


class WrongFromThird:
    """Gives what is right twice, and something else from then on, as a CUDA graph may that is captured then."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, args: list[Any], right: Compiled) -> Sequence[Any]:
        self.calls += 1
        return right(args) if self.calls < 3 else wrong_values(args, right)


class Later:
    """Dies after enough calls to have been vetted."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, args: list[Any], right: Compiled) -> Sequence[Any]:
        self.calls += 1
        if self.calls > 30:
            os.abort()
        return right(args)


class _Beyond:
    """Memory that says it is much larger than it is."""

    def __init__(self, memory: torch.Tensor) -> None:
        data = (memory.data_ptr(), False)
        self.__cuda_array_interface__ = {"shape": (1 << 36,), "typestr": "<f4", "data": data, "version": 2}


def illegal_access(args: list[Any], right: Compiled) -> Sequence[Any]:
    """A read far outside of all memory: the context of the GPU is lost."""
    memory = torch.zeros(8, device="cuda")
    beyond = torch.as_tensor(_Beyond(memory), device="cuda")[-8:]
    return [value + beyond.sum() for value in right(args)]


def fill_gpu(args: list[Any], right: Compiled) -> Sequence[Any]:
    taken = []
    while True:
        taken.append(torch.ones(2**28, device="cuda"))


def hang_on_gpu(args: list[Any], right: Compiled) -> Sequence[Any]:
    torch.cuda._sleep(1 << 50)
    return right(args)


class LaterIllegal:
    """Poisons the GPU after enough calls to have been vetted."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, args: list[Any], right: Compiled) -> Sequence[Any]:
        self.calls += 1
        return illegal_access(args, right) if self.calls > 30 else right(args)


def never_compiles() -> None:
    raise ValueError("it does not compile\nand this is the second line")


def executors() -> dict[str, Executor]:
    """All of them by name; plans find them too."""
    faults: tuple[Fault, ...] = (
        hang,
        hang_without_python,
        abort,
        leave,
        killed,
        fill_memory,
        wrong_values,
        wrong_strides,
        chatter,
        illegal_access,
        fill_gpu,
        hang_on_gpu,
    )
    found: dict[str, Executor] = {fault.__name__: Planted(fault.__name__, fault) for fault in faults}
    found["right"] = Planted("right", lambda args, right: right(args))
    found["second"] = Planted("second", Second())
    found["wrong_from_third"] = Planted("wrong_from_third", WrongFromThird())
    found["later"] = Planted("later", Later())
    found["later_illegal"] = Planted("later_illegal", LaterIllegal())
    found["never_compiles"] = Planted("never_compiles", chatter, never_compiles)
    real = regions.executors
    regions.executors = lambda: {**real(), **found}
    return found
