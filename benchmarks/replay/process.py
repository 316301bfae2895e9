"""The process that replays some sections: its clock stands still before anything of fuseplan is imported."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time

from benchmarks.replay import clock
from benchmarks.replay.kept import compare, keep


def replay(sections: Sequence[str], *, keeps: bool) -> int:
    """Replay sections one after the other; return how many cases differ from those kept, and say how."""
    clock.stop()
    from benchmarks.replay.sections import SECTIONS

    differing = 0
    with TemporaryDirectory() as folder:
        for section in sections:
            begin = process_time()
            found = json.loads(json.dumps(dict(SECTIONS[section](Path(folder)))))
            if keeps:
                keep(section, found)
            else:
                differing += compare(section, found)
            print(f"{section}: {len(found)} cases, {process_time() - begin:.0f} s of the CPU", file=sys.stderr)
    return differing
