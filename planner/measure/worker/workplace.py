"""Where a worker tries things: the device, its memory, the executors, and the program that it is at."""

from __future__ import annotations

import gc
import importlib
import logging
import os
import sys
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import torch

from fuseplan.capture.trace.libraries import bring, known_in
from fuseplan.executors import Executor, executors, register
from fuseplan.executors.known import load
from fuseplan.graph import Graph
from fuseplan.judge.expected_region import ExpectedRegion
from fuseplan.measure.environment import Flags
from fuseplan.measure.jobs import Setup
from fuseplan.measure.worker.loaded import LoadedPrograms
from fuseplan.rewrites.kinds import add


class Announce(Protocol):
    """Hears which candidate is at which stage, before anything is done with it."""

    def at(self, name: str, stage: str) -> None:
        """The candidate called `name` is now at `stage`, a word."""
        ...


def _executors(setup: Setup) -> Mapping[str, Executor]:
    """All executors of this process, in which those of the process that asks are registered first, as are its kinds of rewrite."""
    if setup.executors or setup.kinds:
        sys.path += [folder for folder in setup.path if folder not in sys.path]
    add(setup.kinds)
    for place in setup.executors:
        register(load(place).traits)
    return executors()


def _stand_back(nice: int) -> None:
    """Leave the cores to others. Linux may share them out among sessions first, and a worker has one of its own."""
    if hasattr(os, "nice"):
        os.nice(nice)
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(nice), "ascii")


class Workplace:
    """What a job needs beside itself."""

    def __init__(self, setup: Setup, announce: Announce) -> None:
        self.setup = setup
        if setup.nice:
            _stand_back(setup.nice)
        self.at = announce.at
        named = torch.device(setup.device)
        self.device = torch.device("cuda", 0) if named.type == "cuda" and named.index is None else named
        self.executors: Mapping[str, Executor] = _executors(setup)
        self.programs = LoadedPrograms(self.device, self._bring)
        self._expected: ExpectedRegion | None = None
        warnings.filterwarnings("ignore")
        logging.getLogger("torch").setLevel(logging.ERROR)
        if setup.flags:
            Flags(**setup.flags).set()
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
            torch.cuda.synchronize()
        torch._inductor.config.compile_threads = setup.compile_threads
        if setup.plant:
            module, _, function = setup.plant.partition(":")
            planted = getattr(importlib.import_module(module), function)()
            self.executors = {**self.executors, **planted}

    def _bring(self, trace: str) -> None:
        operators = {**known_in(trace), **self.setup.operators}
        if bring(trace, operators, self.setup.path) and self.setup.flags:
            Flags(**self.setup.flags).set()  # a library may have set some of them for itself

    def expected(self, region: Graph) -> ExpectedRegion:
        """What a region should give. That of the last one is kept: the next job is often about the same."""
        if self._expected is None or self._expected.given != region:
            self._expected = None
            self._expected = ExpectedRegion(region)
        return self._expected

    def forget(self) -> None:
        """Let go of programs and regions."""
        self.programs.forget()
        self._expected = None

    def sweep(self) -> None:
        """Let go of what the last run has left in circles, if that was not there at a sweep before. Their memory stays with this process, for
        the next run: whoever needs it in another process waits for a turn. Going through all that a compiler has left takes longer
        than many a run.
        """
        gc.collect(1)

    def clear(self, *, again: bool = False) -> None:
        """Give back what a job took: the next one should find the machine as this one did. `again` where that was done a moment ago."""
        gc.collect(1 if again else 2)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
