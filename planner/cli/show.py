"""`fuseplan show`: the plans that are stored."""

from __future__ import annotations

from pathlib import Path

import click

from fuseplan.cli.options import as_json, database, examples, keys, tell

_EPILOG = examples(
    "fuseplan show                       all plans, the latest first",
    "fuseplan show --status tuned --device H200",
    "fuseplan show GPT-2                 those of programs whose name begins so",
    "fuseplan show 3f2c                  one plan, with all that is known of it",
)


@click.command(epilog=_EPILOG)
@click.argument("wanted", default="", metavar="[KEY]", shell_complete=keys)
@click.option("--device", default="", help="Only for machines with this in their name, or for cpu or cuda.")
@click.option(
    "--status",
    default="",
    metavar="STATUS",
    help="Only tuned, default, unverified, quarantined, pinned or disabled ones.",
)
@click.option("--name", default="", help="Only of programs with this in their name.")
@database
@as_json
def show(wanted: str, device: str, status: str, name: str, file: Path | None, as_json: bool) -> None:
    """Show the plans that are stored; or one of them, in full.

    KEY is the beginning of a plan's or a program's key, or of a program's name.
    """
    from fuseplan.show import show as look

    found = look(wanted, device=device, status=status, name=name, db=file)
    tell(found.as_dict(), lambda: str(found), as_json)
