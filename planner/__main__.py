"""`python -m fuseplan`: the command, where its script is not on the path."""

from fuseplan.cli import main

main(prog_name="fuseplan")
