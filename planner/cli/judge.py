"""`fuseplan judge`: whether each plan of a program computes what it should."""

from __future__ import annotations

from pathlib import Path

import click

from fuseplan.cli.options import as_json, database, examples, keys, tell
from fuseplan.graph.words import printable

_EPILOG = examples(
    "fuseplan judge trace.json",
    "fuseplan judge GPT-2 --outputs        each output, gradient and buffer",
    "fuseplan judge 3f2c --device cuda:1   one stored plan beside the defaults",
    "fuseplan judge GPT-2 --script it.py   what torch.compile gets wrong, to run without fuseplan",
)


@click.command(epilog=_EPILOG)
@click.argument("what", metavar="KEY|TRACE", shell_complete=keys)
@click.option("--device", help="Where: cpu, cuda, cuda:1 …; else where the trace was recorded.")
@click.option("--outputs", is_flag=True, help="All outputs of each plan, not only the worst.")
@click.option(
    "--script", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    help="Where torch.compile's default is wrong, write a script of the fewest ops that show it.",
)  # fmt: skip
@database
@as_json
def judge(what: str, device: str | None, outputs: bool, script: Path | None, file: Path | None, as_json: bool) -> None:
    """Judge every plan that is known for a program, here and now: how far its results are off, of what is allowed.

    Judged are torch.compile's default and the other defaults, plan aten, and all plans that the database has for the program in
    this environment; nothing is stored of it. KEY is the beginning of a plan's or a program's key, or of a program's name;
    TRACE is a file, or a folder of such. Exit code 1 if a plan is wrong, or if none could be judged.
    """
    from fuseplan.judging import judge as judged

    found = judged(what, device=device, script=script, db=file)
    tell([one.as_dict() for one in found], lambda: "\n".join(one.text(outputs) for one in found), as_json)
    if script is not None and all(one.fault is None for one in found):
        click.echo(f"no fault of torch.compile was found: {printable(str(script))} is not written", err=True)
    if any(one.wrong for one in found):
        raise SystemExit(1)
