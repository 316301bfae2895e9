"""`python -m fuseplan`: the command, where its script is not on the path."""

from fuseplan.cli import main

if __name__ == "__main__":
    main(prog_name="fuseplan")
