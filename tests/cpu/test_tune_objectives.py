"""What is told of a program that need not be tuned, or has no time to be: by what its plan was, or would have been, chosen."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import fuseplan
from fuseplan.capture.dynamo.numerics import Numerics
from fuseplan.capture.trace.format import Trace
from fuseplan.errors import OptionError
from fuseplan.measure.environment import RunFacts, environment
from fuseplan.objective import Objective
from fuseplan.tuning.effort import Effort
from fuseplan.tuning.program.result import verdict_line
from fuseplan.tuning.program.services import Pool
from fuseplan.tuning.queue.devices import DeviceKind
from stored import plan, store_at

MEMORY = Objective("memory")


@pytest.fixture(scope="module")
def trace() -> Trace:
    (found,) = fuseplan.traces_of(lambda x: x.relu() + 1, torch.ones(3), name="ramp")
    return found


def test_a_plan_that_is_known_says_what_it_was_chosen_by(trace: Trace, tmp_path: Path) -> None:
    path = tmp_path / "tuning.db"
    store = store_at(path)
    assert store.add_program(trace.key, "ramp")
    assert store.add_plan(plan(program=trace.key, environment=environment("cpu"), objective=MEMORY, peak_bytes=5))
    store.close()
    (found,) = fuseplan.tune([trace], objective="memory", db=path)
    assert (found.winner, found.objective) == ("the plan in the database", MEMORY)
    assert "for memory" in verdict_line(found)


def test_a_program_that_is_left_says_what_its_plan_would_be_chosen_by(trace: Trace, tmp_path: Path) -> None:
    (found,) = fuseplan.tune([trace], max_memory=4096, budget=1e-9, db=tmp_path / "tuning.db")
    assert (found.status, found.objective) == ("left", Objective(within=4096))


class CpuElsewhere:
    """A machine of which nobody knows how much memory it has."""

    def kinds(self) -> list[DeviceKind]:
        return [DeviceKind(replace(environment("cpu"), cpu="another CPU"), ("there",), Numerics.here())]

    def facts(self, where: str) -> RunFacts:
        raise AssertionError(where)

    def workers(self, where: str, effort: Effort) -> AbstractContextManager[Pool]:
        raise AssertionError(where)


@pytest.mark.parametrize("share", [0.5, "50%"])
def test_a_share_of_the_memory_of_a_cpu_elsewhere_is_refused(share: float | str, trace: Trace, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="a CPU of another machine") as raised:
        fuseplan.tune([trace], max_memory=share, on=CpuElsewhere(), db=tmp_path / "tuning.db")
    assert "\n" not in str(raised.value)
    (item,) = fuseplan.agenda([trace], max_memory=4096, on=CpuElsewhere(), db=tmp_path / "tuning.db").items
    assert item.objective == Objective(within=4096)
