"""Objectives: what is chosen by each, how they are written down, and what cannot be asked for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuseplan.errors import FuseplanError, OptionError
from fuseplan.objective import ALIKE, ALIKE_BYTES, TIME, Objective
from fuseplan.options import Options

MEMORY = Objective("memory")
PEAKS = st.dictionaries(st.text("abcdef", min_size=1, max_size=3), st.none() | st.integers(0, 10**12), max_size=8)
BOUNDS = st.integers(1, 10**12)


@given(PEAKS)
def test_for_time_memory_is_nothing(peaks: dict[str, int | None]) -> None:
    assert TIME.among(peaks, peaks.__getitem__) == list(peaks)


@given(PEAKS)
def test_for_memory_all_that_are_about_the_least_are_left(peaks: dict[str, int | None]) -> None:
    known = {name: peak for name, peak in peaks.items() if peak is not None}
    found = MEMORY.among(peaks, peaks.__getitem__)
    least = min(known.values(), default=0)
    most = max(least * (1 + ALIKE), least + ALIKE_BYTES)
    assert found == ([name for name, peak in known.items() if peak <= most] or list(peaks))


@pytest.mark.parametrize("objective", [MEMORY, Objective(within=1)])
def test_what_a_cpu_cannot_tell_apart_is_alike(objective: Objective) -> None:
    peaks = {"least": 4096, "some": 4_000_000, "more": 5_000_000}
    assert objective.among(peaks, peaks.__getitem__) == ["least", "some"]


@given(PEAKS, BOUNDS)
def test_within_a_bound_all_that_fit_are_left_and_else_the_least(peaks: dict[str, int | None], bound: int) -> None:
    objective = Objective(within=bound)
    found = objective.among(peaks, peaks.__getitem__)
    fit = [name for name, peak in peaks.items() if peak is not None and peak <= bound]
    assert found == (fit or MEMORY.among(peaks, peaks.__getitem__))
    assert all(bool(objective.unmet(peaks[name])) is (name not in fit) for name in found)


@given(PEAKS, BOUNDS)
def test_a_larger_bound_leaves_no_fewer_that_fit(peaks: dict[str, int | None], bound: int) -> None:
    small, large = (Objective(within=one) for one in (bound, 2 * bound))
    assert {name for name in peaks if small.fits(peaks[name])} <= {name for name in peaks if large.fits(peaks[name])}


@given(st.just(TIME) | st.just(MEMORY) | st.builds(Objective, within=BOUNDS))
def test_what_is_written_reads_back(objective: Objective) -> None:
    assert Objective.parse(str(objective)) == objective
    assert len(str(objective)) <= 40


@pytest.mark.parametrize(
    "text", ["", "speed", "time within", "time within 0 B", "memory within 5 B", "time within 5 GB"]
)
def test_what_nobody_has_written_is_no_objective(text: str) -> None:
    with pytest.raises(FuseplanError, match="is no objective"):
        Objective.parse(text)


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ({}, TIME),
        ({"objective": "memory"}, MEMORY),
        ({"max_memory": "20GB"}, Objective(within=20 * 10**9)),
        ({"objective": "time", "max_memory": 4096}, Objective(within=4096)),
        ({"max_memory": "25%"}, Objective(within=0.25)),
    ],
)
def test_options_say_it(asked: dict[str, object], meant: Objective) -> None:
    assert Options.parse(asked).wanted == meant


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"objective": "energy"}, "objective is time or memory, not 'energy'"),
        ({"max_memory": "much"}, "max_memory is an amount of memory"),
        ({"max_memory": "120%"}, "max_memory is an amount of memory"),
        ({"max_memory": 0}, "max_memory is an amount of memory"),
        ({"objective": "memory", "max_memory": "4GB"}, "max_memory bounds objective time alone"),
    ],
)
def test_what_cannot_be_asked_for_is_told_in_a_line(asked: dict[str, object], told: str) -> None:
    with pytest.raises(OptionError, match=told) as raised:
        Options.parse(asked)
    assert "\n" not in str(raised.value)
