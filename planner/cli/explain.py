"""`fuseplan explain`: why a program runs as it does."""

from __future__ import annotations

from pathlib import Path

import click

from fuseplan.cli.options import as_json, database, examples, keys, tell

_EPILOG = examples(
    "fuseplan explain 3f2c               a plan: its graph cut up, its race, what was rejected",
    "fuseplan explain GPT-2 --brief      without the operators",
    "fuseplan explain GPT-2 --gaps       is it worth tuning? where its time goes, and what is left",
    "fuseplan explain trace.json         the graph of a trace, and the plan that it would get",
)


@click.command(epilog=_EPILOG)
@click.argument("what", metavar="KEY|TRACE", shell_complete=keys)
@click.option("--brief", is_flag=True, help="Without the operators.")
@click.option(
    "--gaps", is_flag=True, help="Only where a step's time goes, kernel by kernel, and how much of it is left."
)
@database
@as_json
def explain(what: str, brief: bool, gaps: bool, file: Path | None, as_json: bool) -> None:
    """Explain a plan: its graph as Python with regions marked, who runs each, and what was rejected by how much.

    KEY is the beginning of a plan's or a program's key, or of a program's name; TRACE is a file, or a folder of such. Of a
    trace that was not tuned, the graph is shown, and the plan that would run, and why.
    """
    from fuseplan.explain import explained

    found = explained(what, db=file)
    tell(
        [one.gaps_as_dict() if gaps else one.as_dict() for one in found],
        lambda: "\n\n".join(one.gaps() if gaps else one.text(not brief) for one in found),
        as_json,
    )
