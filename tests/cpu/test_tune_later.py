"""Option tune=later: a program without a plan runs under the default, and waits in the database for who tunes it elsewhere."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor

import fuseplan
from fuseplan.backend import programs_of
from fuseplan.capture.dynamo.numerics import Numerics
from fuseplan.capture.trace.format import Trace
from fuseplan.cli import main
from fuseplan.explain import compiled_by
from fuseplan.measure.environment import environment
from fuseplan.plan import Plan, Rewrite
from fuseplan.runtime import Program
from fuseplan.tuning.queue import waiting as waiting_module
from fuseplan.tuning.queue.waiting import waiting
from fuseplan.tuning_db import Box, Places, Store, StoredPlan, schema
from fuseplan.tuning_db.exchange import export, import_file
from fuseplan.tuning_db.files import Database
from fuseplan.tuning_db.programs import trace_row

WAITS = "it waits for fuseplan tune --queue"


def chain(x: Tensor) -> Tensor:
    return (x * 2).relu() + 1


@pytest.fixture(autouse=True)
def without_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default is eager: which plan is chosen does not depend on it, and compiling takes seconds."""
    monkeypatch.setattr("fuseplan.lookup.missing_compiler", lambda *_: "no compiler in this test")


def run(*inputs: Tensor, f: Callable[..., Any] = chain, **options: Any) -> Program:
    torch._dynamo.reset()
    given = inputs or (torch.randn(4, 8),)
    compiled = fuseplan.compile(f, **{"tune": "later", **options})
    torch.testing.assert_close(compiled(*given), f(*given))
    (program,) = programs_of(compiled_by(compiled))
    return program


def queue(path: Path) -> list[Trace]:
    store = Store(Places(path))
    try:
        return waiting(store)
    finally:
        store.close()


def add(path: Path, *plans: StoredPlan) -> None:
    store = Store(Places(path))
    assert all(store.add_plan(plan) for plan in plans)
    store.close()


def plan_of(program: Program, **fields: Any) -> StoredPlan:
    assert program.key is not None
    here = replace(environment("cpu"), **fields.pop("elsewhere", {}))
    plan = fields.pop("plan", Plan.named("aten"))
    return StoredPlan(program.key, here, plan, **{"wall_us": 10.0, **fields})


def test_it_waits_once_and_no_longer_once_it_has_a_plan(own_database: Path) -> None:
    first, again = run(), run()
    assert first.plan == again.plan == Plan.named("eager")
    assert first.why.endswith(WAITS)
    assert again.why == first.why
    (trace,) = queue(own_database)
    assert (trace.key, trace.name) == (first.key, "chain")
    add(own_database, plan_of(first))
    assert run().plan == Plan.named("aten")
    assert queue(own_database) == []


@pytest.mark.parametrize(
    ("fields", "waits"),
    [
        ({"status": "default"}, False),
        ({"word": "pinned"}, False),
        ({"word": "disabled"}, False),
        ({"status": "unverified"}, True),
        ({"status": "quarantined", "detail": "wrong result"}, True),
        ({"elsewhere": {"torch": "1.0"}}, True),
        ({"elsewhere": {"matmul_precision": "medium"}}, True),
    ],
    ids=["default", "pinned", "disabled", "unverified", "quarantined", "another torch", "other numerics"],
)
def test_which_plans_count(own_database: Path, fields: dict[str, Any], waits: bool) -> None:
    program = run()
    add(own_database, plan_of(program, **fields))
    assert [trace.key for trace in queue(own_database)] == [program.key] * waits


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({"word": "disabled"}, {}),
        ({}, {"launch": "cudagraph"}),
        ({"plan": Plan("aten", (Rewrite("attention", 0, "auto"),))}, {"rewrites": "none"}),
    ],
    ids=["by hand", "another launch", "no rewrites"],
)
def test_what_somebody_said_no_to_is_not_put_there(
    own_database: Path, fields: dict[str, Any], options: dict[str, Any]
) -> None:
    program = run(tune="off")
    add(own_database, plan_of(program, **fields))
    assert WAITS not in run(**options).why
    assert Store(Places(own_database)).traces(str(program.key)) == []


def test_a_stale_plan_runs_meanwhile(own_database: Path) -> None:
    program = run(tune="off")
    add(own_database, plan_of(program, elsewhere={"candidates": "0"}))
    stale = run()
    assert stale.plan == Plan.named("aten")
    assert stale.why.endswith(WAITS)
    assert [trace.key for trace in queue(own_database)] == [program.key]


def test_what_cannot_be_traced_runs_as_ever_and_says_why(own_database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def branches(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y - 1, (x,))  # type: ignore[no-any-return]

    assert "; it cannot be tuned later: cond is a higher-order operator" in run(f=branches).why
    x = torch.randn(4, 8)
    monkeypatch.setattr(waiting_module, "write_trace", lambda *_: x.reshape(5))
    why = run().why
    assert "; it cannot be tuned later: RuntimeError: shape '[5]' is invalid" in why
    assert WAITS not in why


def test_under_other_numerics_it_waits_again(own_database: Path) -> None:
    program = run()
    add(own_database, plan_of(program))
    assert queue(own_database) == []
    with Numerics("medium", True, True, True).applied():
        again = run()
        assert again.why.endswith(WAITS)
        (trace,) = queue(own_database)
        assert Numerics.of(trace.numerics).matmul_precision == "medium"
        add(own_database, plan_of(program))
        assert queue(own_database) == []
        assert run().plan == Plan.named("aten")


def test_what_waits_already_is_not_looked_at_again(own_database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run()
    monkeypatch.setattr(waiting_module, "write_trace", lambda *_: pytest.fail("it is there"))
    assert run().why.endswith(WAITS)


def test_what_is_compiled_keeps_what_else_it_is(own_database: Path) -> None:
    def compiled(x: int) -> int:
        return x + 1

    compiled.serialize = lambda: b"bytes"  # type: ignore[attr-defined]
    calls = waiting_module.CallsOf(Store(Places(own_database)), "ab" * 32, Box())
    counted: Any = calls.counted(compiled)
    assert (counted(1), calls.calls, counted.serialize()) == (2, 1, b"bytes")


def test_a_row_with_impossible_sizes_keeps_no_other_waiting(own_database: Path) -> None:
    program = run()
    row = trace_row(str(program.key), "s0=1..", "{}", 0)
    store = Store(Places(own_database))
    assert store._put([(schema.TRACE, row)])
    assert [trace.key for trace in waiting(store)] == [program.key]


def test_another_size_waits_by_itself(own_database: Path) -> None:
    for rows in (5, 100):
        x = torch.randn(rows, 8)
        torch._dynamo.mark_dynamic(x, 0)
        run(x)
    assert sorted(trace.fields["symbols"][0]["hint"] for trace in queue(own_database)) == [5, 100]


def test_one_of_a_device_that_is_not_here_waits_for_another_machine(own_database: Path) -> None:
    run()
    (trace,) = queue(own_database)
    store = Store(Places(own_database))
    text = trace.to_json().replace('"cpu"', '"cuda:0"')
    assert store.add_program("ab" * 32, "elsewhere", trace=text)
    assert len(store.traced()) == 2
    assert [one.key for one in waiting(store)] == [trace.key]


def test_a_trace_that_nobody_can_read_keeps_no_other_waiting(own_database: Path) -> None:
    program = run()
    store = Store(Places(own_database))
    assert store.add_program("cd" * 32, "newer", trace='{"format": "fuseplan trace 99"}')
    assert [trace.key for trace in waiting(store)] == [program.key]


def test_where_nothing_can_be_written_it_runs_and_says_so(own_database: Path, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="kept in memory"):
        whys = [run(db=tmp_path).why for _ in range(2)]  # a folder
    assert all("it cannot be tuned later: the database does not take its trace" in why for why in whys)


SCRIPT = """
import os, signal, sys
import torch
import fuseplan.lookup
fuseplan.lookup.missing_compiler = lambda *_: "no compiler in this test"
compiled = torch.compile(lambda x: x.sin() * 2, backend="fuseplan", options={"tune": "later"})
for _ in range(int(sys.argv[1])):
    compiled(torch.ones(8))
if sys.argv[2] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
"""


def called(path: Path, times: int, ends: str = "as ever") -> int:
    env = {**os.environ, "FUSEPLAN_DB": str(path)}
    return subprocess.run([sys.executable, "-c", SCRIPT, str(times), ends], env=env, check=False).returncode


def test_calls_are_counted_and_a_kill_loses_no_program(own_database: Path, tmp_path: Path) -> None:
    assert called(own_database, 3, "killed") == -signal.SIGKILL
    assert [trace.times for trace in queue(own_database)] == [1]  # nobody was left to count
    for times, known in ((5, 5), (2, 5)):  # the larger count stays
        assert called(own_database, times) == 0
        assert [trace.times for trace in queue(own_database)] == [known]
    export(Database(own_database), tmp_path / "rows.jsonl")
    elsewhere = Database(tmp_path / "elsewhere.db")
    assert import_file(elsewhere, tmp_path / "rows.jsonl").refused == []
    elsewhere.close()
    assert [trace.times for trace in queue(tmp_path / "elsewhere.db")] == [5]


def test_the_plan_of_sizes_that_hang_on_values_fits(own_database: Path) -> None:
    def chosen(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.nonzero(), (x[x > 0] * 2).sin()

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        program = run(torch.randn(10), f=chosen)
        tuned = fuseplan.tune(None, effort="none")
        assert [(one.program, one.status) for one in tuned] == [(program.key, "unverified")]
        again = run(torch.randn(10), f=chosen, tune="off", unverified=True)
    assert again.plan == tuned[0].plan != Plan.named("eager")
    assert again.why.startswith("unverified plan ")


def test_the_command_works_the_queue_off(own_database: Path) -> None:
    program = run()
    listed = CliRunner().invoke(main, ["tune", "--queue", "--dry-run", "--json"], catch_exceptions=False)
    (item,) = json.loads(listed.output)["items"]
    assert (item["program"], item["calls"], item["known"]) == (program.key, 1, None)
    tuned = fuseplan.tune(None, effort="none")
    assert [(one.program, one.status) for one in tuned] == [(program.key, "unverified")]
    assert len(queue(own_database)) == 1  # a prediction is no verdict
    add(own_database, plan_of(program))
    nothing = CliRunner().invoke(main, ["tune", "--queue"], catch_exceptions=False)
    assert nothing.stdout == "nothing waits in the database that could be tuned here\n"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["tune"], "name a TRACE, or give --queue or --stale."),
        (["tune", "--queue", "trace.json"], "name either a TRACE or --queue, not both."),
        (["tune", "--queue", "--db", "none.db"], "there is no file {folder}/none.db: nothing waits yet. Programs come"),
    ],
)
def test_a_wrong_call(words: list[str], complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ran = CliRunner().invoke(main, words)
    assert ran.exit_code == 2
    assert ran.stderr.startswith(f"Error: {complaint.format(folder=tmp_path)}")
    assert list(tmp_path.iterdir()) == []
