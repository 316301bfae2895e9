"""Tuning with the learned model against tuning without it: measurements, GPU-seconds and final speed side by side.

A model is tuned twice in a process of its own, each time from an empty database; then the two plans race each other. What
the first has compiled the second finds compiled, so that not two runs out of time are compared: each is the first on every
other model. With --caches, of a benchmark before, even the first finds it compiled. With --replay nothing is run: the rows
that ship are measured again in thought, each model by a fit that saw none of it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from time import monotonic
from typing import Any

from benchmarks.fleet import CACHES, Report, Task
from benchmarks.harness import LAUNCHES, Rows, measure_models, model_options, print_lines
from benchmarks.progress import LogProgress, heard
from benchmarks.result import commit, earlier_results, slug
from benchmarks.timing import compared
from benchmarks.tuned_model import Accounts, account, clear, traced
from benchmarks.zoo import EVERY, SHOWN
from fuseplan.capture.trace.format import Trace
from fuseplan.errors import FuseplanError
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.jobs import RacePlans
from fuseplan.measure.pool import Workers
from fuseplan.measure.race import Rule
from fuseplan.plan import Plan
from fuseplan.tuning.effort import Effort
from fuseplan.tuning.program.combine import Settings
from fuseplan.tuning.program.tuner import Tuner
from fuseplan.tuning.queue.devices import own_workers
from fuseplan.tuning.traces import device_of
from fuseplan.tuning_db import Places, Store

WITH, WITHOUT = "learned", "roofline"
ROUNDS = (15, 41)
SLOWER, SHARE = 0.99, 0.5
"""What is asked for: at least so much of the speed on each model, with at most that share of all measurements."""


def measure(arguments: list[str]) -> dict[str, Any] | Rows:
    """All chosen models, or the replay."""
    given = model_options("active", __doc__)
    given.add_argument("--launch", choices=LAUNCHES, default="plain")
    given.add_argument(
        "--times", type=float, default=1.0, help="the budget of the effort, so many times over: for programs with which"
        " both models run out of time before they have measured what they would"
    )  # fmt: skip
    given.add_argument("--replay", action="store_true", help="on the rows that ship, without a GPU")
    given.add_argument("--rows", type=Path, help="another file of rows to replay")
    given.add_argument(
        "--caches", type=Path, metavar="FOLDER", help="where Inductor keeps what it compiles, and may have kept it"
    )
    given.add_argument("--keep", type=Path, metavar="FOLDER", help="keep all tuning databases, for `models --db`")
    chosen = given.parse_args(arguments)
    if chosen.times <= 0:
        given.error(f"--times is more than nothing, not {chosen.times:g}")
    if chosen.replay:
        return {**earlier_results("active"), "replay": replay(chosen.rows)}
    rows = Rows(
        "active", arguments, lambda found: {**earlier_results("active"), **results_of(found)}, keep=chosen.append
    )
    keep, caches = (folder and str(folder.absolute()) for folder in (chosen.keep, chosen.caches))
    return measure_models(
        rows, chosen, "active", print_rows, told=lambda name: {"first": WITHOUT if name in SHOWN[1::2] else WITH},
        launch=chosen.launch, times=chosen.times, keep=keep, caches=caches,
    )  # fmt: skip


def run(task: Task) -> None:
    """The program with the most to do stands for a model in which Dynamo finds several."""
    given = task.arguments
    order = (WITH, WITHOUT) if given["first"] == WITH else (WITHOUT, WITH)
    told = {name: given[name] for name in ("effort", "times", "launch", "first")}
    folder = Path(given["folder"]) / slug(task.name)
    caches = Path(given["caches"] or task.variables.get(CACHES[0]) or folder / "inductor")
    report = Report(task.out, commit=commit(), **told, warm=caches.is_dir() and any(caches.iterdir()))
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(caches)  # workers inherit it
    report.at("loading, to be traced")
    trace = max(traced(task.name, EVERY[task.name], given["device"]), key=lambda one: len(one.fields["nodes"]))
    clear(given["device"])
    found: dict[str, Any] = {}
    plans: dict[str, Plan] = {}
    for model in order:
        report.at("tuning", model)
        found[model], plan = _tuned(trace, model, given, folder / model, report)
        if plan is not None:
            plans[model] = plan
        report.put(sides=found)
    if len(plans) == 2:
        report.at("racing the two plans")
        report.put(race=_raced(trace, plans, given))
    report.put(at="", at_side="")


def _tuned(trace: Trace, model: str, given: Any, folder: Path, report: Report) -> tuple[dict[str, Any], Plan | None]:
    folder.mkdir(parents=True)
    store, device = Store(Places(user=folder / "tuning.db")), device_of(trace)
    fits = Path(given["folder"]) / "models"  # the model that ships is fitted once, for all
    fits.mkdir(exist_ok=True)
    (folder / "models").symlink_to(fits)
    begin = monotonic()
    try:
        effort = Effort.named(given["effort"]).times(given["times"])
        with own_workers(device, effort, heard) as pool:
            tuner = Tuner(store, pool, device, effort, Settings(model=model), LogProgress(report.at))
            (tuned,) = tuner.tune(trace, (given["launch"],))
        Accounts(str(folder / "tuning.db"), trace.name).add([tuned], given["launch"])
        row = account(tuned) | {"wall_s": round(monotonic() - begin, 1)}
        return row | _audit(store), tuned.plan
    except FuseplanError as error:
        return {"failed": str(error)}, None
    finally:
        store.close()
        if given.get("keep"):
            kept = Path(given["keep"]) / slug(trace.name)
            kept.mkdir(parents=True, exist_ok=True)
            shutil.copy(folder / "tuning.db", kept / f"{model}.db")
            if (folder / "tuning.db.tuned").is_dir():
                shutil.copytree(folder / "tuning.db.tuned", kept / f"{model}.db.tuned", dirs_exist_ok=True)


def _audit(store: Store) -> dict[str, Any]:
    """How far the model was off where it was not asked."""
    rows = store.file.read(
        lambda connection: connection.execute("SELECT audited, audit_error, audit_within FROM run").fetchall()
    )
    return {"audit": dict(zip(("audited", "error", "within"), rows[-1], strict=True))} if rows else {}


def _raced(trace: Trace, plans: dict[str, Plan], given: Any) -> dict[str, Any]:
    if plans[WITH] == plans[WITHOUT]:
        return {"same plan": True, "ratio": 1.0}
    least, most = ROUNDS
    rule = Rule(most=most, least=least, hopeless=1e9, seconds=given["seconds"])
    sides = tuple(RaceEntry(name, plan) for name, plan in plans.items())
    with Workers(device_of(trace)) as workers:
        (outcome,) = workers.map([RacePlans(trace.to_json(), sides, WITHOUT, rule)])
    if outcome.race is None:
        return {"failed": f"{outcome.status}, {outcome.detail}"}
    times = {row.name: row.wall_us for row in outcome.rows}
    return {"wall_us": times, "noise": outcome.race.noise, **compared(outcome.race, WITH, WITHOUT)}


def results_of(rows: Mapping[str, Any]) -> dict[str, Any]:
    """The rows, and what they come to."""
    both = {name: row for name, row in rows.items() if {WITH, WITHOUT} <= row.get("sides", {}).keys() and "race" in row}
    shares = {name: _share(row, "measured") for name, row in both.items()}
    seconds = {name: _share(row, "device_seconds") for name, row in both.items()}
    speeds = {name: row["race"]["ratio"] for name, row in both.items() if "ratio" in row["race"]}
    measured = [sum(row["sides"][side].get("measured", 0) for row in both.values()) for side in (WITH, WITHOUT)]
    share = round(measured[0] / measured[1], 4) if measured[1] else None
    summary = {
        "measurements, share of all": share,
        "measurements, mean share": _mean(shares),
        "GPU-seconds, share": _mean(seconds),
        "speed, as a share": _mean(speeds),
        "slowest": min(speeds.values(), default=None),
        "as asked": bool(speeds)
        and len(speeds) == len(rows)
        and all(ratio >= SLOWER for ratio in speeds.values())
        and share is not None
        and share <= SHARE,
    }
    return {"summary": summary, "models": dict(rows)}


def _share(row: Mapping[str, Any], name: str) -> float | None:
    sides = row["sides"]
    known = [sides[side].get(name) for side in (WITH, WITHOUT)]
    return round(known[0] / known[1], 4) if known[0] is not None and known[1] else None


def _mean(found: Mapping[str, float | None]) -> float | None:
    known = [value for value in found.values() if value]
    return round(geometric_mean(known), 4) if known else None


def print_rows(rows: Mapping[str, Any]) -> None:
    """One line a model."""
    headings = ("model", "measured", "GPU-seconds", "seconds", "ms a step", "speed", "audited, off by")
    print_lines(f"tuning with the {WITH} model against {WITHOUT}", headings, _lines(rows))


def _lines(rows: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    for name, row in rows.items():
        sides = [row.get("sides", {}).get(side, {}) for side in (WITH, WITHOUT)]
        race, audit = row.get("race", {}), sides[0].get("audit", {})

        def pair(field: str, digits: int = 0, scale: float = 1.0, sides: list[Any] = sides) -> str:
            return " / ".join("-" if one.get(field) is None else f"{one[field] / scale:.{digits}f}" for one in sides)

        yield (
            name,
            pair("measured"),
            pair("device_seconds", 1),
            pair("wall_s"),
            pair("wall_us", 3, 1e3),
            row.get("failed") or f"{race.get('ratio', '-')} ({race.get('low', '-')}..{race.get('high', '-')})",
            f"{audit.get('audited', 0)}, {audit.get('error') if audit.get('error') is None else round(audit['error'], 3)}",
        )


def replay(path: Path | None) -> dict[str, Any]:
    """Regret against what is spent, on rows: the budget counted in rows and in seconds, our rule beside others."""
    from benchmarks.active_replay import BUDGETS, OURS, RULES, fits_of, of_plans, regret, side_by_side
    from fuseplan.models.evaluation.data import Data
    from fuseplan.models.evaluation.replay import Spent
    from fuseplan.models.rows import packaged, read_rows

    chosen = path or next(one for one in packaged() if "h200" in one.name)
    data = Data.of([read_rows(chosen)])
    fits = fits_of(data)

    def point(one: Spent) -> dict[str, Any]:
        return {
            "share": one.share, "spent": round(one.taken, 4), "measured": one.measured, "rows": one.rows,
            "regret": round(regret(one), 5),
        }  # fmt: skip

    plans = {
        budget: {name: list(map(point, points)) for name, points in of_plans(data, fits, RULES[OURS], budget).items()}
        for budget in BUDGETS
    }
    return {"rows": chosen.name, "ours": OURS, "by budget": side_by_side(data, fits), "plans": plans}
