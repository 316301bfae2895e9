"""A process that answers groups of cases: JSON lines in, JSON lines out. It may die; `pool` then knows at which case."""

from __future__ import annotations

import faulthandler
import gc
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.testing._internal import common_utils
from torch.testing._internal.opinfo import core

from fuseplan.wire import codec
from fuseplan.wire.serve import AnswerPipe, received
from opinfo.cases import Case, Group, expand, order
from opinfo.verdict import Row, Subject, judge
from unnoted import leave_unnoted


@dataclass(frozen=True)
class Settings:
    """What a run of cases is told once; `both` asks for aot_eager's verdict on passing cases too."""

    device: str = "cpu"
    samples: int = 5
    backend: str = "fuseplan"
    plan: str = "aten"
    both: bool = False


@dataclass(frozen=True)
class Request:
    """A group, less the cases that are already answered; `pick` takes only so many, in a fixed shuffle."""

    group: Group
    skip: tuple[str, ...] = ()
    pick: int | None = None


@dataclass(frozen=True)
class Ready:
    """The process waits for requests."""


@dataclass(frozen=True)
class Begins:
    """What it does next: if it dies, it dies of that."""

    case: Case
    stage: str


@dataclass(frozen=True)
class Done:
    """All rows of a request are told."""


ANSWERS = Ready | Begins | Row | Done


def answer(request: Request, settings: Settings, stage: Callable[[Case, str], None]) -> Iterator[Row]:
    """The rows of a group's cases."""
    subject = Subject(settings.backend, settings.plan)
    for case, sample in _chosen(request, settings):
        if case.key not in request.skip:
            yield judge(case, sample, subject, partial(stage, case), both=settings.both)


def _chosen(request: Request, settings: Settings) -> list[tuple[Case, Any]]:
    all_cases = list(expand(request.group, settings.device, settings.samples))
    if request.pick is None:
        return all_cases
    return sorted(all_cases, key=lambda pair: order(pair[0].key))[: request.pick]


def prepare(settings: Settings) -> None:
    """Make this process quiet, single-threaded, and quick to compile in."""
    faulthandler.enable()
    warnings.filterwarnings("ignore")
    logging.getLogger("torch").setLevel(logging.CRITICAL)
    torch.set_num_threads(1)
    if settings.backend == "written":
        from opinfo.written import register

        register()
    if settings.backend == "carved":
        from carving import every_second

        torch._dynamo.register_backend(every_second, name="carved")
    if settings.plan == "inductor":
        from torch._inductor import config

        config.fallback_random = True  # else its random numbers are not eager's
    _skip_waste()


def _skip_waste() -> None:
    """Leave out what serves nobody here and takes two fifths of the time."""
    leave_unnoted()  # 21 of 65 ms, and 7 more
    # op_db walks the stack for the test that asks for samples: 0.1 s a group.
    for module in (common_utils, core):
        if hasattr(module, "extract_test_fn"):
            setattr(module, "extract_test_fn", lambda: None)  # noqa: B010 -- it is not ours


def main() -> None:
    """Serve requests from stdin until it closes."""
    settings = codec.from_json(Settings, sys.argv[1])
    answers = AnswerPipe(ANSWERS)
    prepare(settings)
    gc.freeze()  # as in tests/conftest.py
    gc.set_threshold(100_000, 20, 20)
    answers.send(Ready())
    for request in received(Request):
        for row in answer(request, settings, lambda case, stage: answers.send(Begins(case, stage))):
            answers.send(row)
        answers.send(Done())


if __name__ == "__main__":
    main()
