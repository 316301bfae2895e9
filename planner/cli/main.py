"""The group that holds all verbs, and how errors reach a person: one line, exit code 2, no traceback."""

from __future__ import annotations

from typing import Any

import click

import fuseplan
from fuseplan.cli.bisect import bisect
from fuseplan.cli.dashboard import dashboard
from fuseplan.cli.db import db
from fuseplan.cli.doctor import doctor
from fuseplan.cli.plan import plan
from fuseplan.cli.tune import tune
from fuseplan.errors import FuseplanError


class _Verbs(click.Group):
    def invoke(self, ctx: click.Context) -> Any:
        """Run a verb; an error that fuseplan raised on purpose is a message, not a traceback."""
        try:
            return super().invoke(ctx)
        except FuseplanError as error:
            raise _PlainError(str(error)) from error


class _PlainError(click.ClickException):
    exit_code = 2


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(fuseplan.__version__, prog_name="fuseplan")
def main() -> None:
    """Find, keep and replay the fastest way to run a PyTorch program.

    Exit codes: 0 all well, 1 something that was asked about is not well, 2 a wrong call or bad input.
    """


main.add_command(bisect)
main.add_command(dashboard)
main.add_command(db)
main.add_command(doctor)
main.add_command(plan)
main.add_command(tune)
