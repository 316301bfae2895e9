"""Processes that take turns at what needs room."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from fuseplan.turns import take_turn


def test_two_processes_take_turns_at_what_needs_room(tmp_path: Path) -> None:
    """As runs in higher precision do, which would not fit beside each other."""
    file = tmp_path / "turn"
    with take_turn(file) as mine:
        code = (
            "import sys; from pathlib import Path; from fuseplan.turns import take_turn\n"
            "with take_turn(Path(sys.argv[1]), 0.2) as mine: print(mine)"
        )
        waited = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=True)
    assert mine
    assert waited.stdout == "False\n"
    with take_turn(file, 0.0) as mine:
        assert mine
    with take_turn(tmp_path / "no folder" / "turn") as mine:
        assert not mine
