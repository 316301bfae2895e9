"""Where a worker tries things: the device, its memory, the executors, and one method for each kind of job."""

from __future__ import annotations

import gc
import importlib
import logging
import warnings
from collections.abc import Mapping
from typing import Protocol

import torch

from fuseplan.capture.libraries import bring
from fuseplan.executors import Executor, executors
from fuseplan.measure.environment import Flags
from fuseplan.measure.failures import RUN, DeviceLostError, check_device, failure
from fuseplan.measure.jobs import (
    Calibrate,
    Capture,
    Job,
    Outcome,
    Prepare,
    RacePlans,
    RaceRegion,
    Rest,
    Setup,
    VetPlan,
    VetRegion,
)
from fuseplan.measure.memory import limit_memory
from fuseplan.measure.worker import machine, programs, regions


class Announce(Protocol):
    """Hears which candidate is at which stage, before anything is done with it."""

    def at(self, name: str, stage: str) -> None:
        """The candidate called `name` is now at `stage`, a word."""
        ...


class Bench:
    """What a job needs beside itself."""

    def __init__(self, setup: Setup, announce: Announce) -> None:
        self.setup = setup
        self.at = announce.at
        named = torch.device(setup.device)
        self.device = torch.device("cuda", 0) if named.type == "cuda" and named.index is None else named
        self.executors: Mapping[str, Executor] = executors()
        self.programs = programs.Programs(self.device, self._bring)
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
        if bring(trace, self.setup.operators, self.setup.path) and self.setup.flags:
            Flags(**self.setup.flags).set()  # a library may have set some of them for itself

    def answer(self, job: Job) -> Outcome:
        """Do what a job asks. Whatever goes wrong is an outcome, but for the loss of the device."""
        try:
            limit_memory(self.device, self.setup.memory_bytes, self.setup.share)
            outcome = self._answer(job)
            if self.device.type == "cuda":
                torch.cuda.synchronize()
        except DeviceLostError:
            raise
        except Exception as error:  # noqa: BLE001 -- the boundary where failures of others' code become data
            check_device(error)
            return Outcome(*failure(error, RUN))
        return outcome

    def _answer(self, job: Job) -> Outcome:
        match job:
            case VetRegion():
                return regions.vet(job, self)
            case RaceRegion():
                return regions.race_choices(job, self)
            case Capture():
                return programs.capture(job, self)
            case VetPlan():
                return programs.vet(job, self)
            case Prepare():
                return programs.prepare(job, self)
            case RacePlans():
                return programs.race_sides(job, self)
            case Calibrate():
                self.at("machine", "calibrating")
                return Outcome(machine=machine.calibrate(self.device))
            case Rest():
                self.programs.forget()
                return Outcome()
        raise NotImplementedError(type(job).__name__)

    def clear(self) -> None:
        """Give back what a job took: the next one should find the machine as this one did."""
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
