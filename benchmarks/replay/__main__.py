"""`scripts/replay [SECTION…]`: replays and prints what differs from what is kept."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

import benchmarks.replay
from benchmarks.replay.process import replay

BESIDE = (("tuned_quick", "solved"), ("raced", "found_again", "tuned_plainly", "predicted", "tuned_full"))
"""The sections, in two processes beside each other."""
SECTIONS = tuple(section for group in BESIDE for section in group)


def main(arguments: Sequence[str]) -> int:
    """Replay what is asked for; return 1 if anything differs."""
    parser = argparse.ArgumentParser(
        "scripts/replay", description=benchmarks.replay.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("section", nargs="*", help=f"of {', '.join(SECTIONS)}; all, if none is named")
    parser.add_argument(
        "--keep", action="store_true", help="keep what comes of them, for who changes decisions on purpose"
    )
    given = parser.parse_args(arguments)
    unknown = sorted(set(given.section).difference(SECTIONS))
    if unknown:
        parser.error(f"there is no section {', '.join(unknown)}; known are {', '.join(SECTIONS)}")
    groups = [given.section] if given.section else list(BESIDE)
    with ProcessPoolExecutor(max_workers=2, mp_context=get_context("spawn")) as workers:
        differing = sum(workers.map(partial(replay, keeps=given.keep), groups))
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
