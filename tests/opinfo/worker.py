"""A process that answers groups of cases: JSON lines in, JSON lines out. It may die; `pool` then knows at which case."""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TextIO

import torch
from torch.testing._internal import common_utils
from torch.testing._internal.opinfo import core

from opinfo.cases import Case, Group, expand, order
from opinfo.verdict import Row, Subject, judge


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
    skip: frozenset[str] = frozenset()
    pick: int | None = None


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
    if settings.plan == "inductor":
        from torch._inductor import config

        config.fallback_random = True  # else its random numbers are not eager's
    _skip_waste()


def _skip_waste() -> None:
    """Leave out what serves nobody here and takes two fifths of the time."""
    # Dynamo times each new guard after flushing the caches, for a log line: 21 of 65 ms.
    if hasattr(torch._dynamo.guards, "profile_guard_manager"):
        torch._dynamo.guards.profile_guard_manager = lambda *_: 0.0
    # op_db walks the stack for the test that asks for samples: 0.1 s a group.
    for module in (common_utils, core):
        if hasattr(module, "extract_test_fn"):
            setattr(module, "extract_test_fn", lambda: None)  # noqa: B010 -- it is not ours


def _own_stdout() -> TextIO:
    """The pipe to the parent, which nothing else in this process may write to."""
    pipe = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return pipe


def main() -> None:
    """Serve requests from stdin until it closes."""
    settings = Settings(**json.loads(sys.argv[1]))
    pipe = _own_stdout()

    def send(**message: Any) -> None:
        pipe.write(json.dumps(message) + "\n")
        pipe.flush()

    prepare(settings)
    send(ready=True)
    for line in sys.stdin:
        told = json.loads(line)
        request = Request(Group(**told["group"]), frozenset(told["skip"]), told["pick"])
        for row in answer(request, settings, lambda case, stage: send(begins=asdict(case), stage=stage)):
            send(row=asdict(row))
        send(done=True)


if __name__ == "__main__":
    main()
