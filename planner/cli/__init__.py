"""The command `fuseplan`: one file per verb. A verb prints what a library function of the same name returns."""

from fuseplan.cli.main import main

__all__ = ["main"]
