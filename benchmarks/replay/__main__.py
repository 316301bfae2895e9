"""`scripts/replay [SECTION…]`: replays and prints what differs from what is kept; `--keep` keeps it anew."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

from benchmarks.replay.process import replay

SECTIONS = (("tuned_quick", "predicted", "tuned_full"), ("raced", "found_again", "solved", "tuned_plainly"))
"""What a run replays, beside each other: the first all need the cost model, which takes long to fit."""


def main(arguments: Sequence[str]) -> int:
    """Replay what is asked for; return 1 if anything differs."""
    named = tuple(argument for argument in arguments if not argument.startswith("--"))
    groups = [named] if named else list(SECTIONS)
    unknown = sorted(set(named).difference(*SECTIONS))
    if unknown:
        known = ", ".join(section for group in SECTIONS for section in group)
        print(f"there is no section {', '.join(unknown)}; known are {known}", file=sys.stderr)
        return 2
    with ProcessPoolExecutor(max_workers=2, mp_context=get_context("spawn")) as workers:
        differing = sum(workers.map(partial(replay, keeps="--keep" in arguments), groups))
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
