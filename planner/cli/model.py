"""`fuseplan model …`: what the cost model looks at and knows, how good it is, and fitting it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fuseplan.cli.options import as_json, database, examples, tell
from fuseplan.errors import OptionError
from fuseplan.graph.words import counted, printable

if TYPE_CHECKING:
    from fuseplan.models.rows import Rows

_F = TypeVar("_F", bound=Callable[..., Any])


@click.group()
def model() -> None:
    """Look at, evaluate and fit the cost model."""


def _rows(verb: _F) -> _F:
    for option in (
        click.option("--machine", metavar="NAME", help="Part of the name of the GPU or CPU; else the one with most rows."),
        click.option(
            "--rows", "files", multiple=True, type=click.Path(path_type=Path, exists=True, dir_okay=False),
            help="Rows that scripts/collect has measured; else those that ship. May be given several times.",
        ),
    ):  # fmt: skip
        verb = option(verb)
    return verb


@model.command(epilog=examples("fuseplan model info", "fuseplan model info --json"))
@as_json
@database
def info(file: Path | None, as_json: bool) -> None:
    """Show the rows that ship, the features with the reason for each, and the fits that are kept."""
    from fuseplan.models.features import FEATURES, VERSION
    from fuseplan.models.learners import CHOSEN, FAMILIES
    from fuseplan.models.rows import counts, packaged

    kept = sorted(path.name for path in _folder(file).glob("*.npz"))
    found: dict[str, Any] = {
        "features_version": VERSION,
        "features": [{"name": one.name, "group": one.group, "reason": one.reason} for one in FEATURES],
        "functions": CHOSEN,
        "compared": list(FAMILIES),
        "rows": [counts(path) for path in packaged()],
        "folder": str(_folder(file)),
        "fits": kept,
    }
    tell(found, lambda: _info(found), as_json)


def _info(found: dict[str, Any]) -> Iterator[str]:
    for one in found["rows"]:
        rows = f"{counted(one['rows'], 'row')} of {counted(one['regions'], 'region')}"
        yield f"{one['machine']}: {rows}, {one['families']} families; {one['file']}"
    yield f"learned functions: {found['functions']}"
    yield f"{counted(len(found['fits']), 'fit')} kept in {found['folder']}"
    yield f"{len(found['features'])} features, version {found['features_version']}:"
    for one in sorted(found["features"], key=lambda one: str(one["group"])):
        yield f"  {one['group']:<11} {one['name']:<18} {one['reason']}"


@model.command(
    epilog=examples(
        "fuseplan model evaluate",
        "fuseplan model evaluate --plots benchmarks/results",
        "fuseplan model evaluate --rows mine.jsonl.xz --json",
    )
)
@_rows
@as_json
@click.option("--db", "file", type=click.Path(path_type=Path), help="Measurements of this database as well.")
@click.option("--plots", type=click.Path(path_type=Path, file_okay=False), help="Write cost-model.json and .svg there.")
@click.option("--jobs", type=click.IntRange(min=1), default=os.cpu_count() or 1, help="Processes; one a core.")
def evaluate(
    files: tuple[Path, ...], machine: str | None, file: Path | None, as_json: bool, plots: Path | None, jobs: int
) -> None:
    """Learn without one model family at a time, and compare what is predicted of it with what was measured.

    Takes some minutes, and no GPU. Exit code 1 if not all that is asked of the model is met.
    """
    from fuseplan.models.evaluation import Data
    from fuseplan.models.evaluation import evaluate as run
    from fuseplan.models.evaluation.plots import write_report

    chosen = _of_one_machine(files, file, machine)
    begin = time.monotonic()

    def say(text: str) -> None:
        click.echo(f"{time.monotonic() - begin:4.0f} s  {printable(text)}", err=True)

    report = run(Data.of(chosen), jobs=jobs, say=say)
    written = write_report(report, plots) if plots is not None else []
    tell(report.figures, lambda: "\n".join([_told(report.figures), *(f"written: {path}" for path in written)]), as_json)
    if not all(one["met"] for one in report.figures["limits"].values()):
        raise SystemExit(1)


@model.command(epilog=examples("fuseplan model fit", "fuseplan model fit --db tuned.db"))
@_rows
@as_json
@database
def fit(files: tuple[Path, ...], machine: str | None, file: Path | None, as_json: bool) -> None:
    """Fit the model on the rows that ship and the measurements of the database, and keep it for tuning.

    Tuning adapts the shipped fit to what it measures by itself; after some thousand measurements a fit of their own is better.
    """
    from fuseplan.models.evaluation import Data
    from fuseplan.models.fitting import fit_heads
    from fuseplan.models.shipped import keep, own_fit

    path = _user(file)
    chosen = _of_one_machine(files, path if path.exists() else None, machine)
    begin = time.perf_counter()
    data = Data.of(chosen)
    heads = fit_heads(data.rows, data.machine, [row.island for row in data.measured])
    seconds = time.perf_counter() - begin
    kept = own_fit(_folder(file), data.machine)
    why_not = keep(heads, kept)
    if why_not is not None:
        raise OptionError(f"the fit cannot be kept: {why_not}")
    name, rows, regions = (
        data.machine.name,
        counted(heads.about["rows"], "row"),
        counted(heads.about["regions"], "region"),
    )
    tell(
        {"machine": name, **heads.about, "seconds": round(seconds, 2), "path": str(kept)},
        lambda: f"{name}: {rows} of {regions} fitted in {seconds:.1f} s, kept as {kept}",
        as_json,
    )


def _user(file: Path | None) -> Path:
    from fuseplan.tuning_db.layers import places

    found = places(os.environ, file).user
    if found is None:
        raise OptionError("there is no home folder: set FUSEPLAN_DB, or name a file with --db")
    return found


def _folder(file: Path | None) -> Path:
    return _user(file).parent / "models"


def _of_one_machine(files: Sequence[Path], database: Path | None, machine: str | None) -> list[Rows]:
    """The rows of the machine that was named, or else of the one that has the most."""
    from fuseplan.models.rows import device_name, packaged, read_header, read_rows
    from fuseplan.tuning_db.training import rows_of

    paths = {path: device_name(read_header(path)) for path in (files or packaged())}
    own = [] if database is None else rows_of(database)
    known = sorted({*paths.values(), *(device_name(one.header) for one in own)})
    wanted = [name for name in known if machine is None or machine.lower() in name.lower()]
    if not wanted:
        raise OptionError(
            f"there are no rows of {machine or 'any machine'}; there are rows of: {', '.join(known) or 'none'}"
        )
    found = [read_rows(path) for path, name in paths.items() if name in wanted]
    by_name: dict[str, list[Rows]] = {}
    for one in [*found, *(one for one in own if device_name(one.header) in wanted)]:
        by_name.setdefault(device_name(one.header), []).append(one)
    return max(by_name.values(), key=lambda rows: sum(len(one.rows) for one in rows))


def _told(figures: dict[str, Any]) -> str:
    """The report for a person: what was asked, models side by side, plans, moves."""
    rows = figures["rows"]
    lines = [
        (
            f"{rows['machine']}: {rows['with_times']:,} rows of {rows['regions']:,} regions, {rows['families']} families,"
            f" {rows['islands']} islands with {rows['cuts']:,} cuts"
        ),
        "",
        "asked of the learned model",
    ]
    for name, one in figures["limits"].items():
        lines.append(
            f"  {name:<20} {_short(one['asked']):>14} {_short(one['found']):>10}  {'yes' if one['met'] else 'NO'}"
        )
    lines += [
        "",
        f"{'families left out':<44} {'MAPE':>6} {'<10 µs':>7} {'tau':>6} {'top-1':>7} {'P90':>7} {'top-3':>7}",
    ]
    for name, one in figures["left_out"]["models"].items():
        device, island, three = one["device"], one["island_choice"], one["island_top3"]
        numbers = (
            device.get("from_10_us_mape"), device.get("below_10_us_mape"), one["tau_in_regions"].get("tau"),
            island.get("mean"), island.get("p90"), three.get("mean"),
        )  # fmt: skip
        lines.append(f"  {name:<42} " + " ".join(f"{_short(number):>7}" for number in numbers))
    lines += ["", "mean regret of plans, by the share of rows measured"]
    for name, kinds in figures["plans"].items():
        lines.append(
            f"  {name:<42} "
            + "  ".join(f"{float(share):.0%}: {one.get('mean', 0):.1%}" for share, one in kinds["all"].items())
        )
    lines += ["", f"{'moves':<22} {'right':>6} {'wrong':>6} {'unsure':>7} {'immaterial':>11}"]
    for name, one in figures["moves"].items():
        lines.append(f"  {name:<20} {one['right']:>6} {one['wrong']:>6} {one['unsure']:>7} {one['immaterial']:>11}")
    return "\n".join(lines)


def _short(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "–".join(_short(one) for one in value)
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.3f}"
