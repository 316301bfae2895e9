"""Whether the tests call what they call with the arguments that it has: of all that mypy says about them, this alone.

So a test that needs a GPU, or one of thousands, is known to be left behind without running it.
"""

from __future__ import annotations

import sys

from mypy import api

FOUND = "[call-arg]"
STOPPED = 2
"""What mypy ends with where it could not look at all of them."""


def main() -> int:
    """Print each such call; and all, where something keeps mypy from looking."""
    said, failed, code = api.run(["--explicit-package-bases", "--no-error-summary", "tests"])
    told = [line for line in said.splitlines() if code == STOPPED or line.endswith(FOUND)]
    for line in [*told, *failed.splitlines()]:
        print(line)
    return 1 if told or failed else 0


if __name__ == "__main__":
    sys.exit(main())
