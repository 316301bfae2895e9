"""`show` and `diff` over databases as tuning leaves them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fuseplan.cli import main
from fuseplan.diff import diff
from fuseplan.errors import OptionError, StoreError
from fuseplan.plan import Plan
from fuseplan.show import show
from fuseplan.tuning_db import Evidence, Raced, Run
from fuseplan.tuning_db.pairs import Pair, PairKey
from fuseplan.tuning_db.words import Listed
from stored import CPU, HERE, plan, store_at
from tuned_samples import add_program, key_of


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory, tuned_database: Path) -> Path:
    path = Path(shutil.copy(tuned_database, tmp_path_factory.mktemp("look")))
    store = store_at(path)
    cpu = plan(program=key_of(9), environment=CPU, plan=Plan.named("eager"), status="default", wall_us=5.0)
    store.add_plan(cpu)
    store.add_plan(plan(program=key_of(9), plan=Plan.named("aten"), status="quarantined", detail="it crashed"))
    store.add_program(key_of(9), "tiny")
    store.close()
    return path


def verb(*arguments: str, db: Path) -> Result:
    return CliRunner().invoke(main, [*arguments, "--db", str(db)])


def names(**filters: str) -> list[str]:
    return sorted(str(one.name) for one in show(**filters))  # type: ignore[arg-type]


def test_filters(file: Path) -> None:
    assert len(show(db=file)) == 8
    assert names(db=str(file), name="gpt", status="tuned") == ["GPT-2, graph 0"] * 2 + ["GPT-2, graph 1"]
    assert names(db=str(file), device="cpu") == ["tiny"]
    assert names(db=str(file), device="h200", status="quarantined") == ["tiny"]
    assert names(db=str(file), wanted="BERT") == ["BERT, graph 0"] * 2
    assert names(db=str(file), wanted=key_of(2)[:64]) == ["GPT-2, graph 1"] * 2


def test_the_table_and_one_plan_in_full(file: Path) -> None:
    table = verb("show", "GPT-2, graph 0", db=file).output.splitlines()
    assert table[0].split() == "plan program device launch sizes standing time best default faster who".split()
    assert len(table) == 3
    assert "1.42×" in table[2]
    assert "tuned" in table[2]
    key = table[2].split()[0]
    full = verb("show", key[:8], db=file).output
    assert "moves:\n  inference: 4 × -4.2 µs: peel the views at the head off the region at op 1, and the like" in full
    race, _, judged = full.partition("raced:\n")[2].partition("judged beside a run in float64:\n")
    raced = {line.split("  ")[1]: line for line in race.splitlines() if line.startswith("  ")}
    assert "1.00×" in raced["cut 7f31"]
    assert "67 MB" in raced["cut 7f31"]
    assert "3.27×" in raced["eager"] or "3.2" in raced["eager"]
    assert raced["eager"].endswith("default")
    assert "timeout: silent for 60 s" in raced["inductor max-autotune"]
    (wrong,) = [line for line in judged.splitlines() if "cut 91e0" in line]
    assert wrong.split() == "cut 91e0 wrong 0.31 0.02 1550.0 % 0.01 largest output 0".split()
    as_data = json.loads(verb("show", key, "--json", db=file).output)["plans"]
    assert [one["key"][: len(key)] for one in as_data] == [key]
    assert as_data[0]["evidence"]["raced"][0]["name"] == "inductor"
    assert as_data[0]["plan"]["host"] == "aten"


def test_nothing_to_show_is_no_error(file: Path) -> None:
    assert verb("show", "no such program", db=file).output == "no plans\n"
    assert json.loads(verb("show", "no such program", "--json", db=file).output) == {"plans": [], "failed": []}


@pytest.mark.parametrize("arguments", [["show"], ["show", "x"], ["diff", "a", "b"]])
def test_a_file_that_is_no_database(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "photo.db").write_bytes(b"\xff\xd8\xff\xe0" + b"JFIF" * 500)
    (tmp_path / "empty.db").touch()
    for name in ("photo.db", "empty.db", "none.db"):
        told = verb(*arguments, db=tmp_path / name)
        assert told.exit_code == 2
        assert told.output.count("\n") == 1
        assert name in told.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty.db", "photo.db"]
    assert (tmp_path / "photo.db").read_bytes().startswith(b"\xff\xd8")


def test_show_and_diff_need_no_torch(file: Path) -> None:
    script = (
        "import sys\nfrom fuseplan.cli import main\n"
        f"for call in (['show'], ['show', 'GPT'], ['diff', {str(file)!r}, {str(file)!r}], ['completion', 'zsh']):\n"
        f"    db = [] if call[0] == 'completion' else ['--db', {str(file)!r}]\n"
        "    try: main([*call, *db])\n    except SystemExit as end: assert not end.code, end.code\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)


# diff


def test_environments_are_compared_program_by_program(file: Path) -> None:
    older, newer = (
        one.stored.environment.key for one in (show("GPT-2, graph 0", db=file)[1], show("GPT-2, graph 0", db=file)[0])
    )
    found = diff(older[:12], newer[:12], db=file)
    pairs = {pair.first.name if pair.first else "?": pair for pair in found.pairs}
    assert pairs["GPT-2, graph 0"].verdict == "faster"
    assert pairs["GPT-2, graph 0"].ratio == pytest.approx(1.42 / 1.61, rel=0.02)
    assert pairs["GPT-2, graph 1"].changed  # from a default to a cut
    assert pairs["BERT, graph 0"].verdict == "slower"
    assert found.pairs[0].verdict == "slower"  # which matters most
    told = verb("diff", older[:12], newer[:12], db=file)
    assert told.exit_code == 1
    assert told.output.splitlines()[-1] == "1 slower, 2 faster, 1 with another plan"
    back = verb("diff", newer[:12], older[:12], "--json", db=file)
    assert sorted(pair["verdict"] for pair in json.loads(back.output)["pairs"]) == ["faster", "slower", "slower"]


def test_two_databases(file: Path, tmp_path: Path) -> None:
    store = store_at(tmp_path / "other.db")
    add_program(store, 1, "GPT-2, graph 0", layers=4, gain=1.42)
    add_program(store, 7, "new", gain=1.2)
    store.close()
    found = diff(tmp_path / "other.db", file, db=file)
    verdicts = {(pair.second or pair.first).name: pair.verdict for pair in found.pairs}  # type: ignore[union-attr]
    assert verdicts["new"] == "only first"
    assert verdicts["BERT, graph 0"] == "only second"
    same = [pair for pair in found.pairs if pair.verdict == "same"]
    assert [(pair.first.name, pair.changed) for pair in same if pair.first] == [("GPT-2, graph 0", False)]


def test_a_database_equals_itself(file: Path) -> None:
    told = verb("diff", str(file), str(file), db=file)
    assert told.exit_code == 0
    assert told.output.splitlines()[-1] == "7 same, 0 with another plan"


def test_two_plans_differ_in_moves_and_places(file: Path) -> None:
    newer, older = show("GPT-2, graph 1", db=file)
    told = diff(older.stored.key, newer.stored.key, db=file)
    assert "made with other torch 2.11.0 -> 2.12.0" in told.differences
    assert "plan: whole program under inductor -> host aten, saving min-cut, launch plain" in told.differences
    newer, older = show("GPT-2, graph 0", db=file)
    told = diff(older.stored.key, newer.stored.key, db=file)
    assert told.differences[-1] == "the plans are equal"
    assert told.pairs[0].verdict == "faster"


def test_moves_lead_from_one_plan_to_another(tmp_path: Path) -> None:
    store = store_at(tmp_path / "tuning.db")
    sample = add_program(store, 1, "GPT-2", layers=2)
    cut = sample.plan.plan
    part = cut.carve_outs[0]
    less = replace(part, segmentation=replace(part.segmentation, regions=part.segmentation.regions[:1]))
    fewer = replace(sample.plan, plan=replace(cut, carve_outs=(less,)))  # type: ignore[type-var]
    store.add_plan(fewer)
    store.close()
    differences = diff(fewer.key, sample.plan.key, db=tmp_path / "tuning.db").differences
    assert any(line.startswith("inference: run ") and line.endswith("under nvfuser") for line in differences)


def test_the_verdict_allows_for_noise_and_drift() -> None:
    def pair(first: float | None, second: float | None, run: str | None = None) -> Pair[Listed]:
        sides = [
            Listed(plan(wall_us=us, noise_us=None if us is None else us / 100, run=run), None) for us in (first, second)
        ]
        return Pair(PairKey("p", "plain", ""), *sides)

    assert pair(100.0, 102.5).verdict == "same"  # 1 % of noise on either side, and 3 % between runs
    assert pair(100.0, 102.5, run="5" * 32).verdict == "slower"
    assert pair(100.0, 106.0).verdict == "slower"
    assert pair(106.0, 100.0).verdict == "faster"
    assert pair(100.0, None).verdict == "unknown"


def test_what_cannot_be_compared(file: Path) -> None:
    key = show("BERT", db=file)[0].stored.key
    with pytest.raises(OptionError, match="a plan is compared with a plan"):
        diff(key, HERE.key, db=file)
    with pytest.raises(StoreError, match="is no file, and no plan or environment"):
        diff("zzz", key, db=file)


def test_of_two_launches_that_raced_together_the_one_that_runs_is_explained(tmp_path: Path) -> None:
    store = store_at(tmp_path / "tuning.db")
    run = Run(key_of(9), HERE, key="1" * 32)
    store.add_run(run)
    raced = Evidence((Raced("inductor", True, wall_us=100.0), Raced("inductor, cudagraph", True, wall_us=99.9)))
    slower = plan(program=key_of(9), run=run.key, noise_us=0.5, evidence=raced)
    store.add_plan(slower)
    store.add_plan(
        plan(
            "cudagraph",
            program=key_of(9),
            run=run.key,
            noise_us=0.5,
            wall_us=99.9,
            changed_at="2026-12-01T00:00:00.000Z",
        )
    )
    store.close()
    told = verb("explain", key_of(9)[:64], db=tmp_path / "tuning.db").output
    assert f"plan {slower.key[:12]} is tuned" in told  # the plain one, though the other is later and seems faster
    assert "launch plain (raced with cudagraph)" in told
    assert "its other plans:" in told
