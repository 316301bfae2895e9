"""`fuseplan tune --stale`: what it lists, and the table of what came of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fuseplan.cli.options import tell

if TYPE_CHECKING:
    from fuseplan.tuning.progress import Progress
    from fuseplan.tuning.queue.stale import Reraced, StaleProgram

NOTHING = "no plan is stale here"


def list_stale(file: Path | None, device: str | None, as_json: bool) -> None:
    """Tell which plans would race again, and why."""
    from fuseplan.rerace import stale

    found = stale(db=file, device=device)
    tell([_fields(one) for one in found], lambda: _lines(found) if found else NOTHING, as_json)


def rerace(
    file: Path | None,
    device: str | None,
    top: int | None,
    budget: str | None,
    progress: Progress | None,
    as_json: bool,
) -> bool:
    """Race them again; say whether each came to a verdict."""
    from fuseplan.durations import seconds
    from fuseplan.measure.process import start_ahead

    budget_s = None if budget is None else seconds(budget)
    start_ahead()
    from fuseplan.rerace import tune_stale  # brings torch, which --help does not need

    found = tune_stale(db=file, device=device, top=top, budget_s=budget_s, progress=progress)
    tell([_verdict_fields(one) for one in found], lambda: _verdict_lines(found) if found else NOTHING, as_json)
    return all(one.tuned.status != "failed" for one in found)


def _lines(found: Sequence[StaleProgram]) -> Iterator[str]:
    from fuseplan.looking.words import device_of, table, us
    from fuseplan.rerace import why_not
    from fuseplan.tuning_db.words import summary

    rows = [("program", "plan", "launch", "device", "then", "who", "what has changed")]
    for one in found:
        stored = one.stale.stored
        why = "; ".join(each for each in (one.stale.why, why_not(one)) if each)
        rows.append(
            (
                one.called, stored.key[:12], stored.slot, device_of(stored.environment), us(stored.wall_us),
                summary(stored.plan), why,
            )
        )  # fmt: skip
    yield from table(rows, right={4})


def _fields(one: StaleProgram) -> dict[str, Any]:
    from fuseplan.looking.words import fields_of
    from fuseplan.tuning_db.words import Listed

    changes = [vars(change) for change in one.stale.changes]
    return {**fields_of(Listed(one.stale.stored, one.name or None)), "changes": changes, "trace": one.trace is not None}


def _verdict_lines(found: Sequence[Reraced]) -> Iterator[str]:
    """The table: what each program took where its plan raced, and takes here under it, under the new default, and under what is kept."""
    from fuseplan.looking.words import table, times, us

    rows = [("program", "launch", "then", "old plan now", "new default", "kept", "now", "as long as then", "verdict")]
    for one in found:
        tuned, then = one.tuned, one.then_us
        ratio = tuned.wall_us / then if tuned.wall_us and then else None
        default = "-" if tuned.best_default_us is None else f"{us(tuned.best_default_us)} {tuned.best_default}"
        rows.append(
            (
                one.program.called, tuned.launch, us(then), us(one.old_us), default, tuned.winner or tuned.status,
                us(tuned.wall_us), times(ratio), one.verdict,
            )
        )  # fmt: skip
    yield from table(rows, right={2, 3, 6, 7})
    for one in found:
        yield f"{one.program.called}: {one.program.stale.why}" + "".join(
            f"; {text}" for text in (one.tuned.detail, one.why_not and f"of the old plan: {one.why_not}") if text
        )
    yield "fuseplan diff torch==OLD torch==NEW tells by which kernels"


def _verdict_fields(one: Reraced) -> dict[str, Any]:
    tuned = one.tuned
    return {
        **_fields(one.program), "then_us": one.then_us, "old_us": one.old_us, "why_not": one.why_not, "now": tuned.status,
        "winner": tuned.winner, "now_us": tuned.wall_us, "new_default": tuned.best_default,
        "new_default_us": tuned.best_default_us, "noise": tuned.noise, "verdict": one.verdict, "seconds": tuned.seconds,
        "now_detail": tuned.detail,
    }  # fmt: skip
