"""`fuseplan diff`: what is faster, slower or otherwise run in one set of plans than in another."""

from __future__ import annotations

from pathlib import Path

import click

from fuseplan.cli.options import as_json, database, examples, keys, tell

_EPILOG = examples(
    "fuseplan diff 3f2c 91ab             two plans: times, places, and the moves between them",
    "fuseplan diff before.db after.db    two databases",
    "fuseplan diff e07a 55d1             two environments: their keys are in fuseplan db info --json",
    "fuseplan diff torch==2.12 torch==2.13   before an upgrade: what is slower, and by which kernels",
)


@click.command(epilog=_EPILOG)
@click.argument("first", metavar="A", shell_complete=keys)
@click.argument("second", metavar="B", shell_complete=keys)
@click.option("--kernels", is_flag=True, help="Also the kernels of programs that differ by no more than the noise.")
@database
@as_json
def diff(first: str, second: str, kernels: bool, file: Path | None, as_json: bool) -> None:
    """Compare two plans, two databases, two environments or releases of a database: what is faster or slower in B, beyond noise.

    A and B are database files, beginnings of keys, or releases such as torch==2.13.0. Exit code 1 if anything is slower in B.
    """
    from fuseplan.diff import diff as compare

    found = compare(first, second, db=file, kernels=kernels)
    tell(found.as_dict(), lambda: str(found), as_json)
    if any(pair.verdict == "slower" for pair in found.pairs):
        raise SystemExit(1)
