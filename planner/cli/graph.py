"""`fuseplan graph`: a program drawn, cut as its plan cuts it."""

from __future__ import annotations

from pathlib import Path

import click

from fuseplan.cli.options import as_json, database, examples, keys, tell

_EPILOG = examples(
    "fuseplan graph 3f2c --svg plan.svg",
    "fuseplan graph GPT-2 --role backward --svg backward.svg",
    "fuseplan graph trace.json           to plan.svg, or to plan-forward.svg and plan-backward.svg",
)


@click.command(epilog=_EPILOG)
@click.argument("what", metavar="KEY|TRACE", shell_complete=keys)
@click.option(
    "--svg", "to", type=click.Path(path_type=Path, dir_okay=False), default="plan.svg", show_default=True,
    help="Where to. Of several graphs, each goes to a file of its own, such as plan-forward.svg.",
)  # fmt: skip
@click.option("--role", metavar="ROLE", help="Only this graph: inference, forward or backward.")
@database
@as_json
def graph(what: str, to: Path, role: str | None, file: Path | None, as_json: bool) -> None:
    """Draw the graphs of a program as SVG: its ops, the regions that its plan cuts it into, and who runs each.

    KEY is the beginning of a plan's or a program's key, or its name; TRACE is a file.
    """
    from fuseplan.draw import draw, path_of

    drawn = draw(what, to, role=role, db=file)
    paths = {its: str(path_of(to, its, len(drawn))) for its in drawn}
    tell(paths, lambda: (f"{its} graph drawn to {path}" for its, path in paths.items()), as_json)
