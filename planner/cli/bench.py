"""`fuseplan bench`: a stored plan against the defaults, here and now."""

from __future__ import annotations

from pathlib import Path

import click

from fuseplan.cli.options import as_json, database, examples, keys, tell

_EPILOG = examples(
    "fuseplan bench trace.json",
    "fuseplan bench GPT-2 --device cuda:1 --launch cudagraph --seconds 30",
)


@click.command(epilog=_EPILOG)
@click.argument("what", metavar="KEY|TRACE", shell_complete=keys)
@click.option(
    "--launch", type=click.Choice(["plain", "cudagraph"]), help="How calls reach the GPU; else as in the plan."
)
@click.option("--device", help="Where: cpu, cuda, cuda:1 …; else where the trace was recorded.")
@click.option(
    "--seconds", type=click.FloatRange(0, min_open=True), default=10.0, show_default=True, help="What a race may take."
)
@database
@as_json
def bench(what: str, launch: str | None, device: str | None, seconds: float, file: Path | None, as_json: bool) -> None:
    """Race the stored plan of a program against the defaults, here and now, and store nothing of it.

    KEY is the beginning of a plan's or a program's key, or of a program's name; TRACE is a file, or a folder of such. Exit
    code 1 if a plan is slower than a default by now, or could not be raced.
    """
    from fuseplan.bench import bench as race
    from fuseplan.bench import failed

    found = race(what, launch=launch, device=device, seconds=seconds, db=file)
    tell([one.as_dict() for one in found], lambda: "\n".join(map(str, found)), as_json)
    if failed(found):
        raise SystemExit(1)
