"""A folder called `fuseplan`, such as a clone, beside the script that one runs does not stand in for the package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_a_clone_beside_the_script_is_not_the_package(tmp_path: Path) -> None:
    (tmp_path / "fuseplan" / "planner").mkdir(parents=True)
    script = tmp_path / "script.py"
    script.write_text("from fuseplan import Graph, __version__\nprint(__version__)")
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, cwd=tmp_path)
    assert ran.stdout.strip(), ran.stderr
