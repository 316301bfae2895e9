"""One model under Thunder in a process of its own: its regions tuned, and all sides against each other. `thunder` starts it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from torch import Tensor

import fuseplan
import fuseplan.thunder
from benchmarks.fleet import Report, Task
from benchmarks.progress import LogProgress, heard
from benchmarks.result import commit
from benchmarks.thunder_models import EVERY, ThunderCase
from benchmarks.timing import contest, paired
from benchmarks.tuned_model import PASSES, account, clear
from fuseplan.errors import UnsupportedError
from fuseplan.measure.failures import RUN, check_device, failure
from fuseplan.measure.race import RaceResult
from fuseplan.tune import tune
from fuseplan.tuning.queue.devices import own_workers

NVFUSER, TORCH, BEFORE, AFTER = "nvFuser", "torch.compile executor", "fuseplan", "fuseplan tuned"
OWN = (NVFUSER, TORCH)
"""Thunder's own ways to fuse."""
SIDES = (*OWN, BEFORE, AFTER)


def run(task: Task) -> None:
    """Tune, compile and race."""
    given, report = task.arguments, Report(task.out)
    report.put(commit=commit(), effort=given["effort"])
    case = EVERY[task.name]
    if AFTER in given["sides"]:
        report.put(tuning=tuned(task, case, report))
    report.at("loading")
    model, batch = case.load(given["device"])
    expected = step_of(model, model, batch, case.train)().cpu()  # where no kernel of anybody's can write
    rows: dict[str, dict[str, Any]] = {}
    steps: dict[str, Callable[[], Tensor]] = {}
    for side in given["sides"]:
        report.at("compiling", side)
        try:
            steps[side], rows[side] = side_of(side, case, model, batch, given, expected)
        except Exception as error:  # noqa: BLE001 - one side that fails is a row, and the others are measured
            check_device(error)
            rows[side] = {"failed": ": ".join(failure(error, RUN))}
        report.put(sides=rows)
    del expected
    contested = contest(steps, given["device"], given["seconds"], report.at, more_s=given["more"], twice=OWN)
    rows = {side: {**rows[side], **contested.rows.get(side, {})} for side in given["sides"]}
    report.put(sides=rows, rounds=0, seconds=report.seconds())
    if contested.race is not None:
        report.put(**raced(contested.race, rows), **({"noisy": contested.noisy} if contested.noisy else {}))


def raced(race: RaceResult, rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """How many times as fast each side is as the best of Thunder's own, by the blocks that ran beside each other."""
    best = min((side for side in OWN if "wall_us" in rows.get(side, {})), key=lambda one: rows[one]["wall_us"], default="")  # fmt: skip
    able = [side for side, row in rows.items() if best and "wall_us" in row]
    gains = {side: {"ratio": paired(race, best, side), "verdict": race.compared(side, best)} for side in able}
    return {"noise": race.noise, "noise_of": race.incumbent, "rounds": race.rounds, "best_own": best, "gains": gains}


def tuned(task: Task, case: ThunderCase, report: Report) -> dict[str, Any]:
    """Tune the regions of a model. What a single op is measured for may change regions: those are tuned as well."""
    given, began, known, found = task.arguments, monotonic(), set[str](), list[dict[str, Any]]()
    workers = partial(own_workers, on_stage=heard)
    for _ in range(PASSES):
        report.at("recording")
        model, batch = case.load(given["device"])
        with fuseplan.record(name=task.name) as recording:
            step_of(jitted(AFTER, model, given), model, batch, case.train)()
        new = [trace for trace in recording.programs if trace.key not in known]
        del model, batch
        clear(given["device"])
        if not new:
            break
        known |= {trace.key for trace in new}
        results = tune(
            new, effort=given["effort"], db=given["db"], progress=LogProgress(report.at), workers=workers
        )  # each program gets what the effort grants it
        found += [account(one) for one in results]
        report.put(tuning={"seconds": round(monotonic() - began, 2), "programs": found})
    return {"seconds": round(monotonic() - began, 2), "programs": found}


def side_of(
    side: str, case: ThunderCase, model: torch.nn.Module, batch: tuple[Tensor, ...], given: Any, expected: Tensor
) -> tuple[Callable[[], Tensor], dict[str, Any]]:
    """One step of a side, compiled, with how far its first result is from eager's, as a share of that, and what was counted meanwhile."""
    before, begin = fuseplan.stats(), monotonic()
    call = jitted(side, model, given)
    step = step_of(call, model, batch, case.train)
    got = step()
    row: dict[str, Any] = {"first_s": round(monotonic() - begin, 2)}
    row["off"] = float((got.cpu() - expected).abs().max() / expected.abs().max())
    if side in (BEFORE, AFTER):
        counted = {event: n - before.get(event, 0) for event, n in fuseplan.stats().items()}
        row["counted"] = {event: n for event, n in counted.items() if n}
        row["regions"] = fuseplan.thunder.explain(call, graphs=False).splitlines()
    return step, row


def jitted(side: str, model: torch.nn.Module, given: Any) -> Callable[..., Tensor]:
    """The model under Thunder, with one executor that fuses, beside all of Thunder's that take single ops."""
    import thunder
    from thunder.executors.torch_compile import torch_compile_ex
    from thunder.extend import FusionExecutor

    usual = thunder.get_default_executors()
    singles = [one for one in usual if not isinstance(one, FusionExecutor)]
    if side == NVFUSER:
        if "nvfuser" not in {one.name for one in usual}:
            raise UnsupportedError("Thunder has no nvFuser here")
        chosen = list(usual)
    elif side == TORCH:
        chosen = [*singles, torch_compile_ex]
    else:
        db = Path(given["folder"]) / "empty.db" if side == BEFORE else given["db"]
        chosen = [*singles, fuseplan.thunder.executor(db=db)]
    found: Callable[..., Tensor] = thunder.jit(model, executors=chosen)
    return found


def step_of(
    call: Callable[..., Tensor], model: torch.nn.Module, batch: tuple[Tensor, ...], train: bool
) -> Callable[[], Tensor]:
    """One forward without gradients, or one forward and backward."""

    def infer() -> Tensor:
        with torch.no_grad():
            return call(*batch)

    def step() -> Tensor:
        model.zero_grad(set_to_none=True)
        loss = call(*batch)
        loss.backward()
        return loss.detach()

    return step if train else infer
