"""What each kind of job makes a worker do."""

from __future__ import annotations

import torch

from fuseplan.measure.failures import RUN, DeviceLostError, check_device, failure
from fuseplan.measure.jobs import (
    Calibrate,
    Capture,
    FindFault,
    Job,
    Outcome,
    Prepare,
    ProfilePlan,
    RacePlans,
    RaceRegion,
    Rest,
    TimeKept,
    VetPlan,
    VetRegion,
)
from fuseplan.measure.memory import limit_memory
from fuseplan.measure.worker import kept, machine, programs, regions, vetting
from fuseplan.measure.worker.workplace import Workplace


def answer(job: Job, place: Workplace) -> Outcome:
    """Do what a job asks. Whatever goes wrong is an outcome, but for the loss of the device."""
    try:
        limit_memory(place.device, place.setup.memory_bytes, job.share)
        outcome = _answer(job, place)
        if place.device.type == "cuda":
            torch.cuda.synchronize()
    except DeviceLostError:
        raise
    except Exception as error:  # noqa: BLE001 -- the boundary where failures of others' code become data
        check_device(error)
        return Outcome(*failure(error, RUN))
    return outcome


def _answer(job: Job, place: Workplace) -> Outcome:
    match job:
        case VetRegion():
            return regions.vet(job, place)
        case RaceRegion():
            return regions.race_choices(job, place)
        case Capture():
            return programs.capture(job, place)
        case VetPlan():
            return vetting.vet(job, place)
        case FindFault():
            return programs.fault(job, place)
        case Prepare():
            return programs.prepare(job, place)
        case TimeKept():
            return kept.time(job, place)
        case RacePlans():
            return programs.race_entries(job, place)
        case ProfilePlan():
            from fuseplan.measure.worker import profiling  # it brings Inductor, which not every job needs

            return profiling.profile(job, place)
        case Calibrate():
            place.at("machine", "calibrating")
            return Outcome(machine=machine.calibrate(place.device))
        case Rest():
            place.forget()
            return Outcome()
    raise NotImplementedError(type(job).__name__)
