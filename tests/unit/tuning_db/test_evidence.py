"""The evidence for a plan: kept whole, refused where it is no such thing, and bounded."""

from __future__ import annotations

import json
import math
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fuseplan.errors import StoreError
from fuseplan.judge.output import JudgedOutput
from fuseplan.tuning_db import Box, Evidence, Hit, Raced, RegionEvidence
from fuseplan.tuning_db.columns import MAX_EVIDENCE
from fuseplan.tuning_db.evidence import MOST_OPS, MOST_OUTPUTS, MOST_RACED, told_outputs
from fuseplan.tuning_db.evidence_fields import told, told_script
from fuseplan.tuning_db.exchange.intake import merge
from stored import EVIDENCE, PROGRAM, TRACE, plan, question, store_at


def rows(path: Path, sql: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def test_a_plan_keeps_its_evidence(tmp_path: Path) -> None:
    store = store_at(tmp_path / "tuning.db")
    store.add_plan(plan(evidence=EVIDENCE))
    (stored,) = store.plans()
    assert stored.evidence == EVIDENCE
    answer = store.find_plan(question())
    assert isinstance(answer, Hit)
    assert answer.plan == replace(stored, evidence=Evidence())  # who runs a plan does not wait for it
    walls = "SELECT json_extract(each.value, '$.wall_us') FROM plan, json_each(evidence, '$.raced') AS each ORDER BY each.key"
    assert rows(tmp_path / "tuning.db", walls) == [(150.0,), (100.0,), (None,)]


def test_evidence_from_before_searches_were_told_of_is_read() -> None:
    before = EVIDENCE.to_json()
    assert "searched" not in before
    assert Evidence.from_json(before).to_json() == before
    searched = replace(EVIDENCE, searched=True)
    assert Evidence.from_json(searched.to_json()) == searched == searched.bounded()


LOSS = JudgedOutput("output 0", "largest", 3e-7, 1.2e-6, 6e-7)
JUDGED = Raced("cut 3", wall_us=90.0, how="beside a run in float64", outputs=(LOSS,))


def test_how_a_plan_was_judged_is_kept_and_older_evidence_has_no_word_of_it() -> None:
    before = EVIDENCE.to_json()
    assert not {"how", "outputs"} & {name for one in json.loads(before)["raced"] for name in one}
    after = replace(EVIDENCE, raced=(*EVIDENCE.raced, JUDGED))
    assert Evidence.from_json(after.to_json()) == after == after.bounded()
    assert json.loads(after.to_json())["raced"][-1]["outputs"] == [vars(LOSS)]
    assert [one.judged for one in after.raced] == [False, False, False, True]


def test_a_script_that_shows_a_fault_is_kept_whole_or_not_at_all() -> None:
    script = "import torch\n\n\nprint(1)\n"
    shown = replace(JUDGED, script=told_script(script))
    assert Evidence.from_json(Evidence((shown,)).to_json()).raced == (shown,)
    assert "script" not in Evidence((JUDGED,)).to_json()
    assert (told_script("\x1b[2J"), told_script("x" * 20_001), told_script("")) == ("", "", "")
    with pytest.raises(StoreError, match="script"):
        Evidence((replace(JUDGED, script="\x1b[2J"),)).to_json()


def test_of_many_outputs_the_worst_stay_with_the_digits_that_say_something() -> None:
    many = [JudgedOutput(f"gradient {place}", "mean", place / 3, 100.0, 0.0) for place in range(100)]
    beyond = JudgedOutput("a\nb" + "x" * 1000, "scale", math.inf, math.nan, 1e-300)
    kept = told_outputs([*many, beyond])
    assert len(kept) == MOST_OUTPUTS
    assert (kept[1].name, kept[1].error) == ("gradient 99", 33.0)
    assert kept[2].error == 32.6667
    raced = replace(JUDGED, outputs=kept)
    assert Evidence.from_json(Evidence((raced,)).to_json()).raced == (raced,)


def test_an_error_that_is_none_is_refused_when_it_is_written() -> None:
    with pytest.raises(StoreError, match="error is inf"):
        Evidence((replace(JUDGED, outputs=(replace(LOSS, error=math.inf),)),)).to_json()


def test_evidence_fits_the_database_whatever_the_outputs_are_called() -> None:
    worst = tuple(JudgedOutput(told("🙂" * 1000), "mean", 1.0, 1.0, 1.0) for _ in range(MOST_OUTPUTS))
    raced = (*(Raced(f"cut {place}", how="x" * 400, outputs=worst) for place in range(2000)), Raced("eager", True))
    kept = Evidence(raced, EVIDENCE.regions).bounded()
    assert len(kept.to_json()) <= MAX_EVIDENCE
    assert kept.raced[0].name == "eager"
    assert {len(one.outputs) for one in kept.raced} == {0, 1}
    assert Evidence.from_json(kept.to_json()) == kept


def test_a_plan_without_evidence_is_as_good(tmp_path: Path) -> None:
    store = store_at(tmp_path / "tuning.db")
    store.add_plan(plan())
    (stored,) = store.plans()
    assert stored.evidence == Evidence()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ((), []), (("format",), 2), (("more",), 1), (("raced",), {}), (("raced", 0, "more"), 1),
        (("raced", 0, "wall_us"), -1.0), (("raced", 0, "wall_us"), "fast"), (("raced", 0, "wall_us"), 150),
        (("raced", 0, "walls"), [1.0] * 65), (("raced", 0, "walls"), [None]), (("raced", 0, "default"), 1),
        (("raced", 0, "status"), "fine"), (("raced", 0, "name"), "a\nb"), (("raced", 0, "name"), "x" * 401),
        (("regions", 0, "role"), "main"), (("regions", 0, "region"), -2), (("regions", 0, "ops"), True),
        (("regions", 0, "device_us"), 1e14), (("raced", 0, "peak_bytes"), 2**63), (("raced",), [1] * (MOST_RACED + 1)),
        (("start", 0, "regions"), [[-1]]), (("start", 0, "regions"), [[0] * (MOST_OPS + 1)]), (("start", 0, "role"), ""),
        (("searched",), 1), (("raced", 0, "how"), ""), (("raced", 0, "how"), 3), (("raced", 0, "outputs"), []),
        (("raced", 0, "outputs"), [vars(LOSS)] * (MOST_OUTPUTS + 1)), (("raced", 0, "outputs"), ["loss"]),
        (("raced", 0, "outputs"), [{**vars(LOSS), "more": 1}]), (("raced", 0, "outputs"), [{**vars(LOSS), "error": -1.0}]),
        (("raced", 0, "outputs"), [{**vars(LOSS), "error": math.inf}]), (("raced", 0, "outputs"), [{"name": "loss"}]),
        (("raced", 0, "outputs"), [{**vars(LOSS), "allowed": 1}]), (("raced", 0, "outputs"), {}),
    ],
)  # fmt: skip
def test_what_is_no_evidence_is_refused(path: tuple[Any, ...], value: object) -> None:
    document: Any = json.loads(EVIDENCE.to_json())
    if path:
        inside = document
        for step in path[:-1]:
            inside = inside[step]
        inside[path[-1]] = value
    else:
        document = value
    with pytest.raises(StoreError, match="evidence"):
        Evidence.from_json(json.dumps(document))


@pytest.mark.parametrize(
    "text", ["{", "[" * 100_000, "NaN", '{"format":1,"raced":[],"regions":NaN,"start":[]}', "null"]
)
def test_what_is_no_json_of_evidence_is_refused(text: str) -> None:
    with pytest.raises(StoreError, match="evidence"):
        Evidence.from_json(text)


def test_a_time_that_is_none_is_refused_when_it_is_written() -> None:
    with pytest.raises(StoreError, match="wall_us is nan"):
        Evidence((Raced("eager", wall_us=float("nan")),)).to_json()


def test_of_more_than_the_database_takes_the_weightiest_regions_stay() -> None:
    regions = tuple(RegionEvidence("forward", i, "ab" * 32, "nvfuser", device_us=float(i)) for i in range(15_000))
    raced = (Raced("cut"), Raced("eager", True))
    kept = Evidence(raced, regions).bounded()
    assert len(kept.to_json()) <= MAX_EVIDENCE < len(Evidence((), regions).to_json())
    places = [region.region for region in kept.regions]
    assert places == list(range(15_000 - len(places), 15_000))
    assert set(kept.raced) == set(raced)


def test_a_reason_becomes_one_short_line() -> None:
    assert told("a\n  b\x00\u202e c") == "a b c"
    assert len(told("x" * 1000)) == 400


def test_of_one_trace_the_largest_count_of_calls_stays(tmp_path: Path) -> None:
    mine, theirs = store_at(tmp_path / "a.db"), store_at(tmp_path / "b.db")
    mine.add_program(PROGRAM, trace=TRACE, calls=7)
    mine.add_program(PROGRAM, trace=TRACE)  # tuned again, by somebody who did not count
    mine.add_program(PROGRAM, trace=TRACE, sizes=Box.of({"s0": (1, 64)}), calls=2)
    theirs.add_program(PROGRAM, trace=TRACE, calls=5)
    for into, other in ((mine, "b.db"), (theirs, "a.db")):
        merge(into.file, tmp_path / other)
        counts = "SELECT sizes, calls FROM trace ORDER BY calls"
        assert rows(into.file.path, counts) == [("s0=1..64", 2), ("", 7)]  # type: ignore[arg-type]
    assert mine.find_trace(PROGRAM) == TRACE
