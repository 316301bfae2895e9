"""`fuseplan tune`: find, prove and store the fastest plan of each program in some traces."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from fuseplan.cli.options import as_json as json_option
from fuseplan.cli.options import database as file_option
from fuseplan.cli.options import tell
from fuseplan.graph.words import counted
from fuseplan.objective import OBJECTIVES, Objective
from fuseplan.options import WEIGHTS

if TYPE_CHECKING:
    from fuseplan.tuning.program.result import Tuned
    from fuseplan.tuning.progress import Progress
    from fuseplan.tuning.queue.agenda import Agenda, Item
    from fuseplan.tuning.queue.shards import ChosenShard

_MOVES = 2
"""So many moves of a plan are shown; `fuseplan explain` shows all."""
_EXAMPLES = """\b
Examples:
  fuseplan tune traces/ --dry-run
  fuseplan tune traces/ --effort full --device cuda:0,cuda:1 --budget 1h30m
  fuseplan tune traces/ --top 3 --launch both --json
  fuseplan tune traces/ --shard 3/16 --db shard-3.db
  fuseplan tune repro.py --device cuda
  fuseplan tune gpt2 --again
  fuseplan tune traces/ --max-memory 20GB
  fuseplan tune --queue --budget 8h
  fuseplan tune --queue --watch --device cuda:0
  fuseplan tune traces/ --on ray
  fuseplan tune --stale --dry-run
  fuseplan tune --stale --budget 30m
"""


@click.command(epilog=_EXAMPLES)
@click.argument("traces", nargs=-1, metavar="TRACE…")
@click.option(
    "--queue", is_flag=True,
    help="Tune what waits in the database: what ran with the option tune=later, or else has a trace there, and no plan for this machine.",
)  # fmt: skip
@click.option(
    "--stale", is_flag=True,
    help="Race the plans again that an upgrade has made stale, beside the new defaults and a few neighbours: at most 30 s each beyond compiling.",
)  # fmt: skip
@click.option(
    "--watch",
    is_flag=True,
    help="With --queue: go on with what comes to wait, whenever the device is idle, until Ctrl-C.",
)
@click.option(
    "--effort", type=click.Choice(["none", "instant", "quick", "full"]), default="quick", show_default=True,
    help="instant takes seconds beyond compiling, quick at most about 2 minutes a program, full 8; none only predicts.",
)  # fmt: skip
@click.option(
    "--launch", type=click.Choice(["plain", "cudagraph", "both"]),
    help="How calls reach the GPU; both tunes each. Without it, they race each other. A CPU has plain alone.",
)  # fmt: skip
@click.option(
    "--device", metavar="DEVICE[,…]",
    help="Where to tune: cpu, or cuda:0, or several that work at once as in cuda:0,cuda:1; else where each was recorded.",
)  # fmt: skip
@click.option(
    "--on", type=click.Choice(["ray"]),
    help="Tune on all devices of a Ray cluster, that which RAY_ADDRESS names or one that is started here; --device says which type.",
)  # fmt: skip
@click.option("--budget", metavar="TIME", help="Time for all of it, such as 90s, 10m or 1h30m.")
@click.option(
    "--shard", metavar="I/N",
    help="Only the I-th of N parts, such as 3/16: all machines that are given the same traces and effort split them alike.",
)  # fmt: skip
@click.option("--top", type=click.IntRange(min=1), metavar="N", help="Only the N programs that could gain the most.")
@click.option(
    "--rewrites", default="all", show_default=True, metavar="KIND[,…]",
    help="Kinds of rewrite that plans may have: all, none, or some.",
)  # fmt: skip
@click.option(
    "--weights", type=click.Choice(WEIGHTS), default="free", show_default=True,
    help="fixed: plans may also read weights merged, for processes that promise that these stay.",
)  # fmt: skip
@click.option(
    "--objective", type=click.Choice(OBJECTIVES), default="time", show_default=True,
    help="memory: plans that take the least memory, at whatever cost in time, for processes that ask for that.",
)  # fmt: skip
@click.option(
    "--max-memory", metavar="SIZE",
    help="The fastest plans that take no more at their peak, as in 20GB or 25% of the device's memory.",
)  # fmt: skip
@click.option(
    "--profile", is_flag=True,
    help="Also profile the default of each, whatever the effort: diff then tells by which kernels another version is slower.",
)  # fmt: skip
@click.option("--again", is_flag=True, help="Also tune what has a plan, and try once more what failed.")
@click.option(
    "--model", type=click.Choice(["learned", "roofline", "best-single-executor", "random"]), default="learned",
    show_default=True, help="What predicts times: learned leaves out what is not worth measuring, the others nothing.",
)  # fmt: skip
@click.option(
    "--sampler", type=click.Choice(["ours", "tpe", "random"]), default="ours", show_default=True,
    help="Who proposes the plans that race; tpe and random are Optuna's own, for comparison.",
)  # fmt: skip
@click.option(
    "--storage", metavar="URL",
    help="Keep the search there, for optuna-dashboard: sqlite:///study.db, or journal:study.log.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only list what would be tuned, in which order and why.")
@file_option
@json_option
def tune(
    traces: tuple[str, ...], queue: bool, stale: bool, watch: bool, effort: str, launch: str | None, device: str | None, on: str | None,
    budget: str | None, shard: str | None, top: int | None, rewrites: str, weights: str, objective: str, max_memory: str | None, profile: bool, again: bool, model: str, sampler: str, storage: str | None,
    dry_run: bool,
    file: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Find, prove and store the fastest plan of each program.

    TRACE is a file that holds a trace, a folder of such, an nvFuser script (.py), or the name or key of a program that
    was tuned before. Those come first whose calls could gain the most together. Each result is in the database at once:
    the same command goes on where an earlier one was ended. With --queue, in the place of a TRACE, it works off what waits;
    with --watch also what comes to wait, one program after another, as long as nobody else uses the device. With --stale,
    it races the plans again that raced on this machine under another torch, CUDA, driver, or executor that they use.

    Exit codes: 0 every program has its verdict, but for those that the budget left out; 1 one could not be tuned;
    2 a wrong call or bad input, and nothing was written; 130 interrupted.
    """
    if stale:
        _stale(file, device, top, budget, dry_run, as_json)
        return
    if bool(traces) is queue:
        raise click.UsageError(
            "name either a TRACE or --queue, not both." if queue else "name a TRACE, or give --queue or --stale."
        )
    if watch:
        _watch(
            queue,
            {
                "shard": shard,
                "top": top,
                "budget": budget,
                "again": again,
                "profile": profile,
                "dry-run": dry_run,
                "on": on,
            },
        )
    chosen: dict[str, Any] = {"effort": effort, "launch": launch, "device": device, "top": top, "again": again}
    chosen["shard"] = _shard(shard, queue)
    if on is not None:
        chosen["on"] = on
    Objective.asked(objective, max_memory)
    chosen |= {"rewrites": rewrites, "weights": weights, "objective": objective, "max_memory": max_memory}
    try:
        if watch:
            _serve(
                {name: value for name, value in chosen.items() if name not in ("top", "again", "shard", "on")}
                | {"db": file},
                as_json,
            )
        elif dry_run:
            _check(budget)
            _list(traces or None, chosen | {"db": file}, as_json)
        else:
            search = {"model": model, "sampler": sampler, "storage": storage, "profile": profile}
            _tune(traces or None, chosen | {"db": file, "budget": budget} | search, as_json)
    except KeyboardInterrupt:
        _leave("interrupted: what was measured is kept, and the same command goes on from there")


def _stale(
    file: Path | None, device: str | None, top: int | None, budget: str | None, dry_run: bool, as_json: bool
) -> None:
    """Race stale plans again, or list them."""
    context = click.get_current_context()
    for name in set(context.params) - {"stale", "file", "device", "top", "budget", "dry_run", "as_json"}:
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            given = "a TRACE" if name == "traces" else f"--{name.replace('_', '-')}"
            raise click.UsageError(f"{given} does not go with --stale, which finds its programs in the database.")
    from fuseplan.cli.stale import list_stale, rerace

    if dry_run:
        list_stale(file, device, as_json)
        return
    try:
        if not rerace(file, device, top, budget, _progress(), as_json):
            raise SystemExit(1)
    except KeyboardInterrupt:
        _leave("interrupted: what has raced is kept, and the same command goes on from there")


def _watch(queue: bool, others: dict[str, object]) -> None:
    """What cannot be asked for beside it."""
    if not queue:
        raise click.UsageError("--watch goes with --queue.")
    beside = next((name for name, value in others.items() if value), None)
    if beside is not None:
        raise click.UsageError(f"--{beside} does not go with --watch, which has no end.")


def _shard(text: str | None, queue: bool) -> tuple[int, int] | None:
    """The shard that is meant, told before torch is imported."""
    from fuseplan.tuning.queue.shards import Shard

    if text is None:
        return None
    if queue:
        raise click.UsageError("--shard goes with a TRACE: what waits in a database is another on each machine.")
    shard = Shard.named(text)
    return shard.number, shard.of


def _serve(chosen: dict[str, Any], as_json: bool) -> None:
    """One line for each verdict, as it is known."""
    from fuseplan.tuning.program.result import verdict_line
    from fuseplan.watch import watch

    click.echo("waiting for programs to tune; Ctrl-C ends it, and loses nothing", err=True)
    for one in watch(progress=_progress(), **chosen):
        click.echo(json.dumps(_fields(one)) if as_json else verdict_line(one))
        sys.stdout.flush()


def _check(budget: str | None) -> None:
    from fuseplan.durations import seconds

    if budget is not None:
        seconds(budget)


def _list(traces: tuple[str, ...] | None, chosen: dict[str, Any], as_json: bool) -> None:
    from fuseplan.tune import agenda
    from fuseplan.tuning.queue.agenda import described

    found = agenda(traces, **chosen)
    fields: dict[str, Any] = {
        "read": found.read, "programs": found.programs, "left_out": found.left_out, "devices": found.devices,
        "seconds": round(found.seconds, 1), "items": [described(item) for item in found.items],
    }  # fmt: skip
    if found.chosen is not None:
        fields["shard"] = _shard_fields(found.chosen)
    tell(fields, lambda: _agenda_lines(found), as_json)


def _tune(traces: tuple[str, ...] | None, chosen: dict[str, Any], as_json: bool) -> None:
    from fuseplan.measure.process import start_ahead

    start_ahead()
    from fuseplan.tune import tune as search  # brings torch, which --help does not need

    found = search(traces, progress=_progress(), **chosen)
    nothing = "nothing waits in the database that could be tuned here"
    if traces:
        nothing = "this shard holds no program: there are more shards than programs"
    tell([_fields(one) for one in found], lambda: _lines(found) if found else nothing, as_json)
    if any(one.status == "failed" for one in found):
        raise SystemExit(1)


def _progress() -> Progress | None:
    """Bars for a person, lines for a log."""
    from fuseplan.tuning.progress import Lines, watched

    return None if watched() else Lines(lambda line: click.echo(line, err=True))


def _leave(text: str) -> NoReturn:
    """End this process now. All is written and the workers are gone; what Python would tear down of torch takes seconds."""
    click.echo(text, err=True)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(130)


def _fields(one: Tuned) -> dict[str, Any]:
    from fuseplan.tuning.program.result import TOLD

    flat = {field.name: getattr(one, field.name) for field in fields(one)}
    flat["plan"] = None if one.plan is None else json.loads(one.plan.to_json())
    flat["objective"] = str(one.objective)
    flat["timed"] = [timed.told(TOLD) for timed in one.timed]
    return flat | {"speedup": one.speedup, "error_median": one.error_at(0.5), "error_p90": one.error_at(0.9)}


# Tables


def _agenda_lines(found: Agenda) -> Iterator[str]:
    from fuseplan.durations import spelled
    from fuseplan.looking.words import table

    headings = ("", "program", "calls", "launch", "device", "to gain", "why", "measured", "time")
    yield from table([headings, *((str(number), *_agenda_row(item)) for number, item in enumerate(found.items, 1))])
    left = f"; {found.left_out:,} left out" if found.left_out else ""
    tuned = sum(item.known is None for item in found.items)
    about = f", about {spelled(found.seconds)}" if tuned else ""
    yield f"{counted(found.read, 'trace')} read, {found.programs:,} distinct, {tuned:,} to tune{about}{left}"
    if found.chosen is not None:
        yield ""
        yield from _shard_lines(found.chosen)


def _shard_lines(chosen: ChosenShard) -> Iterator[str]:
    """All shards, by which one chooses how many there are to be."""
    from fuseplan.durations import spelled
    from fuseplan.looking.words import table

    of, shards = chosen.shard.of, chosen.split.shards
    rows = [("shard", "programs", "predicted work")]
    for number, one in enumerate(shards, 1):
        this = ", this one" if number == chosen.shard.number else ""
        rows.append((f"{number}/{of}", f"{len(one.programs):,}", f"{spelled(one.ms / 1000)}{this}"))
    yield from table(rows)
    together = spelled(sum(one.ms for one in shards) / 1000)
    yield f"{chosen}; all take {together}, the longest {spelled(chosen.split.longest_ms / 1000)}"


def _shard_fields(chosen: ChosenShard) -> dict[str, Any]:
    works = [{"programs": len(one.programs), "seconds": one.ms / 1000} for one in chosen.split.shards]
    return {"number": chosen.shard.number, "of": chosen.shard.of, "split": chosen.split.key, "shards": works}


def _agenda_row(item: Item) -> tuple[str, ...]:
    from fuseplan.durations import spelled
    from fuseplan.looking.words import us

    return (
        f"{item.name} {item.sizes.short}".strip(),
        f"{item.trace.times:,}",
        item.launch,
        ",".join(item.kind.devices),
        us(item.worth_us) if item.gain.source != "guessed" else "-",
        item.why,
        f"{item.measurements:,}",
        spelled(item.seconds) if item.seconds else "-",
    )


def _lines(found: list[Tuned]) -> Iterator[str]:
    from fuseplan.looking.words import table

    headings = (
        "program", "calls", "launch", "best default", "tuned", "speed-up", "moves", "noise", "off by", "status", "cost",
    )  # fmt: skip
    yield from table([headings, *map(_row, found)])
    yield from (f"{one.called}: {one.detail}" for one in found if one.detail)


def _row(one: Tuned) -> tuple[str, ...]:
    from fuseplan.looking.words import times, us

    cost = f"{one.seconds:.0f} s" if one.seconds else "-"
    return (
        one.called,
        f"{one.calls:,}",
        one.objective.beside(one.launch),
        "-" if one.best_default_us is None else f"{us(one.best_default_us)} {one.best_default}",
        us(one.wall_us),
        times(one.speedup),
        _moves(one),
        "-" if one.noise is None else f"{one.noise:.1%}",
        _off_by(one),
        one.status,
        cost if not one.measured else f"{cost}, {one.measured} timed",
    )


def _moves(one: Tuned) -> str:
    shown = [line if len(line) <= 60 else f"{line[:59]}…" for line in (move.line for move in one.moves[:_MOVES])]
    more = len(one.moves) - len(shown)
    return "\n".join([*shown, *([f"and {more} more"] if more else [])]) or "-"


def _off_by(one: Tuned) -> str:
    """How far the predicted times of whole plans were from those of their race: median and P90."""
    half, most = one.error_at(0.5), one.error_at(0.9)
    return "-" if half is None or most is None else f"{half:.0%} (P90 {most:.0%})"
