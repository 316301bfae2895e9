"""`fuseplan run`: run a script with fuseplan as the backend of every torch.compile in it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fuseplan.cli.options import database as file_option
from fuseplan.cli.options import tell
from fuseplan.cli.record import SCRIPT
from fuseplan.cli.text import misplaced
from fuseplan.graph.words import counted
from fuseplan.objective import OBJECTIVES
from fuseplan.options import ATTENTION, TUNE, VERIFY, WEIGHTS
from fuseplan.plan import LAUNCHES

if TYPE_CHECKING:
    from fuseplan.recording.takeover import Watcher


@click.command(
    context_settings=SCRIPT,
    epilog="Examples: fuseplan run train.py --steps 10; fuseplan run --db tuning.db --compile GPT2Block generate.py; "
    "fuseplan run --tune quick -m myproject.train; fuseplan run --max-memory 20GB train.py",
)
@file_option
@click.option(
    "--compile", "classes", multiple=True, metavar="CLASS",
    help="Also compile modules of this class: GPT2Block, or longer, modeling_gpt2.GPT2Block.",
)  # fmt: skip
@click.option(
    "--tune",
    type=click.Choice(TUNE),
    default="off",
    show_default=True,
    help="Tune what has no plan when it is compiled; later: put it into the queue of fuseplan tune.",
)
@click.option(
    "--reload",
    metavar="TIME",
    help="So often, as in 60s, look for new plans while the script runs, and change over to them.",
)
@click.option(
    "--verify",
    type=click.Choice(VERIFY),
    default="off",
    show_default=True,
    help="sampled: give a few calls to the default, and take back a plan that has become slower.",
)
@click.option(
    "--unverified", is_flag=True, help="Also use plans that were predicted or imported, and never raced here."
)
@click.option("--plan", help="One plan for every program: inductor, eager, aten, nvfuser-greedy …")
@click.option("--launch", type=click.Choice(LAUNCHES), help="How calls reach the GPU; else as each plan says.")
@click.option(
    "--cuda-graph-memory", metavar="SIZE",
    help="So much memory, as in 4GB or 20%, CUDA graphs may hold of a device; without it, there is no bound.",
)  # fmt: skip
@click.option("--attention", type=click.Choice(ATTENTION), help="Whether masks that are proven to change nothing go.")
@click.option("--rewrites", metavar="KIND[,…]", help="Kinds of rewrite that plans may have: all, none, or some.")
@click.option(
    "--weights", type=click.Choice(WEIGHTS), help="fixed: a promise that weights stay, so that plans may merge them."
)
@click.option(
    "--merged-memory", metavar="SIZE",
    help="So much memory of a device, as in 4GB or 20%, merged weights may take; without it, half of what is free.",
)  # fmt: skip
@click.option(
    "--objective",
    type=click.Choice(OBJECTIVES),
    help="memory: under the plans that take the least memory, where such are tuned.",
)
@click.option(
    "--max-memory", metavar="SIZE",
    help="Under the fastest plans that take no more memory at their peak, as in 20GB or 25%, where such are tuned.",
)  # fmt: skip
@click.option("-m", "module", is_flag=True, help="SCRIPT is the name of a module, as with python -m.")
@click.option("--json", "as_json", is_flag=True, help="End with one line of JSON on stderr.")
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]…")
def run(
    file: Path | None, classes: tuple[str, ...], module: bool, as_json: bool, words: tuple[str, ...], **chosen: Any
) -> None:
    """Run SCRIPT, unmodified, and replay the plan of each program that torch.compile meets in it, whatever the backend.

    What has no plan runs as torch.compile runs it. What the script prints and exits with is its own; at the end, stderr
    says under which plan each program ran, and why.
    """
    from fuseplan.following.processes import followed
    from fuseplan.recording.script import INTERRUPTED, Script, run_to_end
    from fuseplan.run import run as taken_over
    from fuseplan.stats import stats

    options = {name: value for name, value in chosen.items() if value not in (None, False, "off")}
    if file is not None:
        options["db"] = file
        _check(file, "tune" in options)
    script = Script(words[0], words[1:], module).found()
    script.check()
    process = os.getpid()
    alike = options if file is None else {**options, "db": str(file.absolute())}
    with followed("run", compile=classes, **alike) as reports:
        with taken_over(compile=classes, **options) as watcher:
            ended = run_to_end(script)
            code = ended.tell()
            if os.getpid() != process:  # a child that the script forked, and that left by its own way
                raise SystemExit(code)
        others = reports()
    counts = _together(watcher, stats(), others)
    fields = _fields(watcher, counts, code) | {"processes": len(others)}
    lines = partial(_lines, watcher, counts, code == INTERRUPTED, words, len(others))
    tell(fields, lines, as_json, indent=None, err=True)
    raise SystemExit(code)


def _together(watcher: Watcher, counts: Mapping[str, int], reports: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Add to what this process has seen what those that it has started have; return the counts of all."""
    from fuseplan.following.processes import agreed
    from fuseplan.recording.takeover import Ran

    added = Counter(counts)
    told = [(bool(watcher.programs), [*watcher.notes])]
    told += [(bool(report["programs"]), report["notes"]) for report in reports]
    watcher.notes = dict.fromkeys(agreed(told))
    for report in reports:
        watcher.programs += [Ran(**fields) for fields in report["programs"]]
        watcher.unfinished += report["unfinished"]
        added.update(report["stats"])
    return dict(sorted(added.items()))


def _check(file: Path, tuning: bool) -> None:
    """Better no run than one without the plans that were meant. Who tunes may begin a database."""
    from fuseplan.tuning_db import Store

    opened = Store.open(os.environ, file).required(there=False) if tuning else Store.reading(os.environ, file)
    opened.close()


def _fields(watcher: Watcher, stats: dict[str, int], code: int) -> dict[str, Any]:
    programs = [vars(one) for one in watcher.programs]
    return {
        "programs": programs,
        "unfinished": watcher.unfinished,
        "stats": stats,
        "notes": list(watcher.notes),
        "exit_code": code,
    }


def _why_nothing(watcher: Watcher, interrupted: bool) -> str:
    if watcher.unfinished:
        return "no program was compiled to its end"
    return f"{'it was interrupted before a' if interrupted else 'no'} program came to torch.compile"


def _lines(
    watcher: Watcher, stats: dict[str, int], interrupted: bool, words: Sequence[str], processes: int
) -> list[str]:
    if not watcher.programs:
        lines = [f"fuseplan ran nothing: {_why_nothing(watcher, interrupted)}", *misplaced(words)]
    else:
        hits = stats.get("plan hits", 0) + stats.get("plan stale hits", 0)
        misses = sum(times for event, times in stats.items() if event.startswith("plan misses"))
        compiled = counted(len(watcher.programs), "program")
        by = f", with {counted(processes, 'process')} that the script started" if processes else ""
        lines = [f"fuseplan compiled {compiled}{by}: {counted(hits, 'plan')} found, {misses} missed"]
    same = Counter((one.name, (one.key or "no key")[:12], one.plan, one.why) for one in watcher.programs)
    for (name, key, plan, why), times in same.items():
        again = f" ({times} times)" if times > 1 else ""
        lines.append(f"  {name} {key}: {plan}{again}")
        lines.append(f"    {why}")
    lines += [f"  {name}: not compiled to its end" for name in watcher.unfinished]
    lines += [f"  {event}: {times}" for event, times in stats.items() if event.startswith(("region", "plans refused"))]
    return [*lines, *(f"  {note}" for note in watcher.notes)]
