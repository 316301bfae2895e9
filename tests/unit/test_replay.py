"""`scripts/replay`: what it says of a case that is not the one kept, and what two plans have to share to mean the same."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.replay.__main__ import SECTIONS, main
from benchmarks.replay.exact import exact
from benchmarks.replay.kept import KEPT, compare, keep
from fuseplan.models import Cost


def test_a_case_that_differs_is_printed_with_its_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = {"host": "aten", "parts": {"forward ab": ["inductor default: 0 1", "aten default: 2"]}}
    keep("solved", {"a": plan, "b": {"host": "eager"}, "gone": 1}, tmp_path)
    other = {**plan, "parts": {"forward ab": ["inductor default: 0 1 2", "aten default: 2"]}}
    assert compare("solved", {"a": other, "b": {"host": "eager"}}, tmp_path) == 2
    printed = capsys.readouterr().out
    assert 'parts.forward ab[0]: kept "inductor default: 0 1", now "inductor default: 0 1 2"' in printed
    assert "solved: gone" in printed
    assert "solved: b" not in printed


def test_nothing_is_printed_where_nothing_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep("raced", {"a": [1, 2.5]}, tmp_path)
    assert compare("raced", {"a": [1, 2.5]}, tmp_path) == 0
    assert capsys.readouterr().out == ""


def test_a_section_of_which_nothing_is_kept_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare("solved", {"a": 1}, tmp_path) == 1
    assert "solved: a" in capsys.readouterr().out


def test_every_section_has_something_kept_and_none_is_kept_of_no_section() -> None:
    assert {file.name.removesuffix(".json.xz") for file in KEPT.iterdir()} == set(SECTIONS)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--help"], 0, "tuned_quick"),
        (["--kept"], 2, "--kept"),
        (["solved", "sloved"], 2, "there is no section sloved"),
    ],
)
def test_what_it_is_given_is_checked_before_anything_is_replayed(
    arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    printed = capsys.readouterr()
    assert (ended.value.code, said in printed.out + printed.err) == (code, True)


def test_costs_that_differ_in_the_last_digits_are_one() -> None:
    cost = Cost(math.pi, 1.0 / 3.0, 0.1, 0.01, 0.9, True)
    moved = replace(cost, device_us=math.pi * (1 + 1e-13), host_us=math.nextafter(1.0 / 3.0, 1.0))
    assert exact(cost) == exact(moved) != cost
    assert exact(cost).lowered(1.5) == exact(moved).lowered(1.5)
    assert exact(cost).lowered(1.5).device_us == pytest.approx(cost.lowered(1.5).device_us, rel=1e-4)


def test_sums_of_costs_do_not_hang_on_their_order() -> None:
    draw = random.Random(0)
    times = [exact(Cost(draw.expovariate(0.01), 1.0)).device_us for _ in range(200)]
    assert sum(times) == sum(sorted(times)) == sum(sorted(times, reverse=True)) == math.fsum(times)
