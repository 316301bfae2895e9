"""`fuseplan tune`: find, prove and store the fastest plan of each program in some traces."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fuseplan.cli.text import printable
from fuseplan.errors import OptionError

if TYPE_CHECKING:
    from fuseplan.tuning.keep import Tuned

_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


@click.command(epilog="Example: fuseplan tune traces/ --effort full --budget 30m")
@click.argument("traces", nargs=-1, required=True, metavar="TRACE…")
@click.option(
    "--effort", type=click.Choice(["none", "quick", "full"]), default="quick", show_default=True,
    help="quick is at most about 2 minutes a program, full 8; none only predicts.",
)  # fmt: skip
@click.option(
    "--launch", type=click.Choice(["plain", "cudagraph", "both"]), default="plain", show_default=True,
    help="How calls reach the GPU.",
)  # fmt: skip
@click.option("--device", help="Where to tune: cpu, cuda, cuda:1 …; else where each trace was recorded.")
@click.option("--budget", metavar="TIME", help="Time for all of it, such as 90s, 10m or 1h.")
@click.option("--again", is_flag=True, help="Also tune what has a plan.")
@click.option("--db", "file", type=click.Path(path_type=Path), help="The file; else FUSEPLAN_DB, or the cache's.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def tune(
    traces: tuple[str, ...], effort: str, launch: str, device: str | None, budget: str | None, again: bool,
    file: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Find, prove and store the fastest plan of each program. Exit code 1 if one could not be tuned.

    TRACE is a file that holds a trace, a folder of such, or the name or key of a program that was tuned before.
    """
    seconds = None if budget is None else _seconds(budget)
    from fuseplan.tune import tune as search  # brings torch, which --help does not need

    found = search(
        traces, effort=effort, launch=launch, device=device, db=file, budget=seconds, again=again
    )  # fmt: skip
    if as_json:
        click.echo(json.dumps([_fields(one) for one in found], indent=2))
    else:
        _show(found)
    if any(one.status == "failed" for one in found):
        raise SystemExit(1)


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    if match is None or float(match[1]) == 0:
        raise OptionError(f"--budget takes a time such as 90s, 10m or 1h, not {text!r}")
    return float(match[1]) * _SECONDS[match[2]]


def _fields(one: Tuned) -> dict[str, Any]:
    flat = {field.name: getattr(one, field.name) for field in fields(one)}
    flat["plan"] = None if one.plan is None else json.loads(one.plan.to_json())
    flat["timed"] = [vars(timed) for timed in one.timed]
    return flat | {"speedup": one.speedup, "error_median": one.error_at(0.5), "error_p90": one.error_at(0.9)}


def _show(found: list[Tuned]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(
        "program",
        "launch",
        "best default",
        "tuned",
        "speed-up",
        "noise",
        "off by",
        "status",
        "cost",
        box=None,
        padding=(0, 2, 0, 0),
    )
    for one in found:
        table.add_row(*(Text(printable(cell)) for cell in _row(one)))
    console = Console()
    console.print(table)
    for one in found:
        if one.status == "failed":
            console.print(f"{printable(one.name or one.program[:12])}: {printable(one.detail)}", markup=False)


def _off_by(one: Tuned) -> str:
    """How far the predicted times of whole plans were from those of their race: median and P90."""
    half, most = one.error_at(0.5), one.error_at(0.9)
    return "-" if half is None or most is None else f"{half:.0%} (P90 {most:.0%})"


def _row(one: Tuned) -> tuple[str, ...]:
    cost = f"{one.seconds:.0f} s" if one.seconds else "-"
    return (
        one.name or one.program[:12],
        one.launch,
        "-" if one.best_default_us is None else f"{_time(one.best_default_us)} {one.best_default}",
        "-" if one.wall_us is None else _time(one.wall_us),
        "-" if one.speedup is None else f"{one.speedup:.2f}×",
        "-" if one.noise is None else f"{one.noise:.1%}",
        _off_by(one),
        one.status,
        cost if not one.measured else f"{cost}, {one.measured} timed",
    )


def _time(us: float) -> str:
    return f"{us / 1000:,.2f} ms" if us >= 1000 else f"{us:.1f} µs"
