"""One model tuned twice in a process of its own, with the learned model and without. `active` starts it.

Each time from an empty database; then the two plans race each other. What the first has compiled the second finds
compiled, so that not two runs out of time are compared: `active` lets each be the first on every other model. With
`--caches`, of a benchmark before, even the first finds it compiled.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from time import monotonic
from typing import Any

from benchmarks.fleet import Report, Task, slug
from benchmarks.one_model import Accounts, account, clear, traced
from benchmarks.progress import LogProgress, heard
from benchmarks.result import commit
from benchmarks.timing import compared
from benchmarks.zoo import EVERY
from fuseplan.capture.trace import Trace
from fuseplan.errors import FuseplanError
from fuseplan.measure.jobs import RacePlans, Side
from fuseplan.measure.pool import Workers
from fuseplan.measure.race import Rule
from fuseplan.plan import Plan
from fuseplan.search.effort import Effort
from fuseplan.tuning.devices import own_workers
from fuseplan.tuning.ledger import Settings
from fuseplan.tuning.subject import device_of
from fuseplan.tuning.tuner import Tuner
from fuseplan.tuning_db import Places, Store

WITH, WITHOUT = "learned", "roofline"
ROUNDS = (15, 41)


def run(task: Task) -> None:
    """The program with the most to do stands for a model in which Dynamo finds several."""
    given = task.arguments
    order = (WITH, WITHOUT) if given["first"] == WITH else (WITHOUT, WITH)
    told = {name: given[name] for name in ("effort", "times", "launch", "first")}
    folder = Path(given["folder"]) / slug(task.name)
    caches = Path(given["caches"] or folder / "inductor")
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
    if given.get("fits"):
        (folder / "models").symlink_to(given["fits"])
    begin = monotonic()
    try:
        effort = Effort.named(given["effort"]).times(given["times"])
        with own_workers(device, effort, heard) as pool:
            tuner = Tuner(store, pool, device, effort, Settings(model=model), LogProgress(report.at))
            (tuned,) = tuner.tune(trace, (given["launch"],))
        Accounts(str(folder / "tuning.db"), trace.name).add([tuned])
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
    sides = tuple(Side(name, plan) for name, plan in plans.items())
    with Workers(device_of(trace)) as workers:
        (outcome,) = workers.map([RacePlans(trace.to_json(), sides, WITHOUT, rule)])
    if outcome.race is None:
        return {"failed": f"{outcome.status}, {outcome.detail}"}
    times = {row.name: row.wall_us for row in outcome.rows}
    return {"wall_us": times, "noise": outcome.race.noise, **compared(outcome.race, WITH, WITHOUT)}
