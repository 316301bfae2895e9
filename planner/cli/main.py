"""The group that holds all verbs, and how errors reach a person: one line, exit code 2, no traceback."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

import fuseplan
from fuseplan.cli.bench import bench
from fuseplan.cli.bisect import bisect
from fuseplan.cli.completion import completion
from fuseplan.cli.dashboard import dashboard
from fuseplan.cli.db import db
from fuseplan.cli.diff import diff
from fuseplan.cli.doctor import doctor
from fuseplan.cli.explain import explain
from fuseplan.cli.graph import graph
from fuseplan.cli.judge import judge
from fuseplan.cli.model import model
from fuseplan.cli.plan import plan
from fuseplan.cli.record import record
from fuseplan.cli.run import run
from fuseplan.cli.show import show
from fuseplan.cli.text import plain_warnings
from fuseplan.cli.tune import tune
from fuseplan.errors import FuseplanError


class _Verbs(click.Group):
    def make_context(self, *given: Any, **more: Any) -> click.Context:
        """Take the words that come before the verb."""
        with _in_one_line():
            return super().make_context(*given, **more)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a verb; an error that fuseplan raised on purpose is a message, not a traceback."""
        with _in_one_line(), plain_warnings():
            return super().invoke(ctx)


class _PlainError(click.ClickException):
    exit_code = 2


@contextmanager
def _in_one_line() -> Iterator[None]:
    try:
        yield
    except FuseplanError as error:
        raise _PlainError(" ".join(str(error).split())) from error
    except OSError as error:  # of what is printed too
        if error.errno not in _NO_ROOM:
            raise
        raise _PlainError(f"{error.strerror}{f': {error.filename}' if error.filename else ''}") from error
    except _HELP_INSTEAD:
        raise
    except click.UsageError as error:
        told = " ".join(error.format_message().split())
        see = f" See {error.ctx.command_path} --help." if error.ctx is not None else ""
        raise _PlainError(f"{told}{see}") from error


_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
_HELP_INSTEAD: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())
"""What newer versions of click raise where a group is called without a verb."""
_EPILOG = """\b
Exit codes:
  0    all is well
  1    what was asked about is not: a check failed, a plan is slower, a program could not be tuned
  2    a wrong call or bad input; one line on stderr says which, and nothing was changed
  130  Ctrl-C; what was known by then is kept
run and record end with the code of the script that they ran.
"""


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]}, epilog=_EPILOG)
@click.version_option(fuseplan.__version__, prog_name="fuseplan")
@click.option(
    "--import", "modules", multiple=True, metavar="MODULE",
    help="Import it first: a library whose operators are in the traces. May be given again.",
)  # fmt: skip
def main(modules: tuple[str, ...]) -> None:
    """Find, keep and replay the fastest way to run a PyTorch program."""
    if modules:
        from fuseplan.capture.trace.libraries import load  # brings torch, as such a library does

        for module in modules:
            load(module)


main.add_command(bench)
main.add_command(bisect)
main.add_command(completion)
main.add_command(dashboard)
main.add_command(db)
main.add_command(diff)
main.add_command(doctor)
main.add_command(explain)
main.add_command(graph)
main.add_command(judge)
main.add_command(model)
main.add_command(plan)
main.add_command(record)
main.add_command(run)
main.add_command(show)
main.add_command(tune)
