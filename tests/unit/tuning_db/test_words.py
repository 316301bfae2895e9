"""A person's word on a plan, as `fuseplan plan` takes it, and what a look-up then answers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fuseplan.cli import main
from fuseplan.plan import Plan
from fuseplan.segment.moves import Move
from fuseplan.tuning_db import Box, Hit, Miss, Stale
from stored import CPU, NVFUSER, OTHER_PROGRAM, fill, plan, question, store_at

LATER = "2026-11-21T12:00:00.000Z"
EAGER = Plan.named("eager")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Three plans that raced for one slot, the last of which won, and one for another slot."""
    store = store_at(tmp_path / "tuning.db")
    for stored in (plan(), plan(plan=NVFUSER, changed_at=LATER), plan(launch="cudagraph", wall_us=900.0)):
        assert store.add_plan(stored)
    assert store.add_plan(plan(program=OTHER_PROGRAM, environment=CPU, plan=EAGER, sizes=Box.of({"s0": (1, 64)})))
    assert store.add_program(OTHER_PROGRAM, "GPT-2")
    return tmp_path / "tuning.db"


def verb(name: str, *arguments: str, db: Path) -> Result:
    return CliRunner().invoke(main, ["plan", name, *arguments, "--db", str(db)])


def answer(file: Path) -> Hit | Stale | Miss:
    """What another process is answered now."""
    return store_at(file).find_plan(question())


def runs(file: Path) -> Plan:
    found = answer(file)
    assert isinstance(found, Hit), found
    return found.plan.plan


def test_a_pinned_plan_runs_until_it_is_unpinned(file: Path) -> None:
    assert runs(file) == NVFUSER
    older = plan().key
    told = verb("pin", older, db=file)
    assert told.output == f"plan {older[:12]} is pinned\n"
    assert runs(file) == plan().plan
    verb("unpin", older, db=file)
    assert runs(file) == NVFUSER


def test_who_pins_another_lets_the_first_go(file: Path) -> None:
    other_launch = plan(launch="cudagraph").key
    for key in (other_launch, plan(plan=NVFUSER).key, plan().key):
        assert verb("pin", key, db=file).exit_code == 0
    pinned = {stored.key for stored in store_at(file).plans() if stored.word == "pinned"}
    assert pinned == {other_launch, plan().key}
    assert runs(file) == plan().plan


def test_a_disabled_plan_is_never_run(file: Path) -> None:
    verb("disable", plan(plan=NVFUSER).key, db=file)
    assert runs(file) == plan().plan
    verb("disable", plan().key, db=file)
    assert answer(file).reason == "disabled"  # type: ignore[union-attr]


def test_what_is_to_be_tuned_anew_leaves_no_older_plan_in_its_place(file: Path) -> None:
    verb("pin", plan().key, db=file)
    told = verb("retune", plan(plan=NVFUSER).key, db=file)
    assert told.output == "2 plans must race again before the next use\n"
    assert answer(file).reason == "unverified"  # type: ignore[union-attr]
    assert isinstance(store_at(file).find_plan(question(launch="cudagraph")), Hit)
    assert store_at(file).add_plan(plan(changed_at="2099-01-01T00:00:00.000Z"))
    assert runs(file) == plan().plan


def test_a_plan_that_failed_here_is_not_pinned_and_stays_out(file: Path) -> None:
    bad = plan(plan=NVFUSER).key
    store_at(file).quarantine(bad, "illegal address")
    refused = verb("pin", bad, db=file)
    assert refused.exit_code == 2
    assert "failed here (illegal address)" in refused.output
    verb("retune", bad, db=file)
    assert store_at(file).find_plan(question(unverified=True)).plan.key == plan().key  # type: ignore[union-attr]


def test_list(file: Path) -> None:
    everything = json.loads(verb("list", "--json", db=file).output)
    assert [one["name"] for one in everything].count("GPT-2") == 1
    assert everything[0]["key"] == plan(plan=NVFUSER).key  # the latest first
    lines = verb("list", db=file).output.splitlines()
    assert len(lines) == 5
    assert lines[0].split() == "plan program device launch sizes standing µs default µs who".split()
    assert verb("list", "GPT", db=file).output.splitlines()[1].split()[1:3] == ["GPT-2", "a"]
    assert [one["sizes"] for one in json.loads(verb("list", OTHER_PROGRAM[:9], "--json", db=file).output)] == [
        "s0=1..64"
    ]
    assert verb("list", "zz", db=file).output == "no plans\n"


def test_show(tmp_path: Path) -> None:
    fill(store_at(tmp_path / "a.db"))
    (key,) = (stored.key for stored in store_at(tmp_path / "a.db").plans() if stored.moves)
    shown = verb("show", key[:10], db=tmp_path / "a.db").output
    assert "name: GPT-2, 8×1024" in shown
    assert "best_default_us: 150.0" in shown
    assert "  -21.0 µs: evict op 7" in shown
    assert Plan.from_json(shown.splitlines()[-1]) == plan().plan


def test_names_from_others_do_not_steer_the_terminal(file: Path) -> None:
    store_at(file).add_plan(replace(plan(plan=EAGER), moves=(Move("note", words="\x1b[2Jgone"),)))
    shown = verb("show", plan(plan=EAGER).key, db=file).output
    assert "\x1b" not in shown
    assert "x1b[2Jgone" in shown


@pytest.mark.parametrize("name", ["pin", "unpin", "disable", "retune", "show"])
@pytest.mark.parametrize(("key", "complaint"), [("zz", "no plan has"), ("", "no plan has")])
def test_a_key_that_is_none(file: Path, name: str, key: str, complaint: str) -> None:
    refused = verb(name, key, db=file)
    assert refused.exit_code == 2
    assert refused.output.startswith(f"Error: {complaint} a key that begins with")
    assert len(refused.output.splitlines()) == 1


def test_a_key_that_is_several_names_them(file: Path) -> None:
    store, sizes = store_at(file), 40
    for us in range(sizes):
        store.add_plan(replace(plan(), program=f"{us:064x}"))
    first = max("0123456789abcdef", key=lambda digit: len(store.plans(digit)))
    found = [stored.key[:12] for stored in store.plans(first)]
    refused = verb("pin", first, db=file)
    assert refused.exit_code == 2
    some = ", ".join([*found[:5], *(["…"] if len(found) > 5 else [])])
    assert refused.output == f"Error: {len(found)} plans have a key that begins with {first!r}: {some}\n"
