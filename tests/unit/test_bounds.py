"""Bounds of memory: how large, as shares of what, and where a share means nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuseplan import host_memory
from fuseplan.errors import OptionError
from fuseplan.objective import Objective
from fuseplan.options import Options
from fuseplan.tuning_db.environment import memory_of
from stored import CPU, HERE

GIB = 2**30


def len_of(amount: object) -> str:
    """A name for a test of an amount that may have too many digits to be one."""
    return f"{amount.bit_length()} bits" if isinstance(amount, int) else f"{len(str(amount))} digits"


@pytest.mark.parametrize("amount", [10**18, 10**5000, "2000000TB", "9" * 30, "9" * 400, "9" * 5000], ids=len_of)
def test_a_bound_that_no_text_of_the_database_spells_is_refused_in_a_line(amount: object) -> None:
    with pytest.raises(OptionError, match="max_memory is") as raised:
        Options.parse({"max_memory": amount})
    assert "\n" not in str(raised.value)


def test_the_largest_bound_reads_back() -> None:
    largest = Objective.asked("time", 10**18 - 1)
    assert Objective.parse(str(largest)) == largest


@pytest.mark.parametrize(("share", "text"), [(0.25, "25%"), (1.0, "100%"), (0.29, "29%")])
def test_a_float_is_a_share(share: float, text: str) -> None:
    assert Objective.asked("time", share) == Objective.asked("time", text) == Objective(within=share)
    assert Options.parse({"max_memory": share}).max_memory == share


@pytest.mark.parametrize("share", [0.0, -0.5, 1.5, 2e10, float("nan"), float("inf"), True])
def test_no_other_number_with_a_point_is_a_bound(share: float) -> None:
    with pytest.raises(OptionError, match="max_memory is an amount of memory"):
        Objective.asked("time", share)


@pytest.mark.parametrize("share", [1 / 3, 0.07, 0.29, 0.123456789, 1.0])
def test_the_option_that_people_are_told_means_the_same_bound(share: float) -> None:
    objective = Objective(within=share)
    again = Objective.asked("time", objective.option.split()[-1])
    for gib in (1, 15, 80, 141):
        assert again.on(lambda gib=gib: gib * GIB) == objective.on(lambda gib=gib: gib * GIB)  # type: ignore[misc]


def limits(monkeypatch: pytest.MonkeyPatch, folder: Path, pages: int, limit: str) -> None:
    (folder / "memory.max").write_text(limit)
    monkeypatch.setattr(host_memory, "_CGROUPS", ((str(folder / "memory.max"), str(folder / "memory.current")),))
    monkeypatch.setattr(host_memory.os, "sysconf", {"SC_PHYS_PAGES": pages, "SC_PAGE_SIZE": 4096}.__getitem__)


@pytest.mark.parametrize(
    ("pages", "limit", "gib"),
    [
        (16 * GIB // 4096 - 90_000, "max", 16),
        (16 * GIB // 4096 - 80_000, "max\n", 16),
        (16 * GIB // 4096, f"{4 * GIB}\n", 4),
        (16 * GIB // 4096, f"{2**63 - 4096}", 16),
        (16 * GIB // 4096, f"{2**27}", 1),
    ],
)
def test_a_share_of_a_cpu_is_of_whole_gib_within_the_limit_of_its_container(
    pages: int, limit: str, gib: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    limits(monkeypatch, tmp_path, pages, limit)
    assert memory_of(CPU) == gib * GIB
    assert memory_of(HERE) == 140 * GIB, "a GPU has its own"


def test_a_share_of_a_cpu_elsewhere_is_refused_and_an_amount_is_not() -> None:
    with pytest.raises(OptionError, match="of another machine"):
        Objective(within=0.5).refuse_share()
    for objective in (Objective(), Objective("memory"), Objective(within=GIB)):
        objective.refuse_share()
