"""The command line as a person meets it: in a process of its own, but for what is about the answer alone."""

from __future__ import annotations

import json
import subprocess
import sys

import torch
from click.testing import CliRunner

import fuseplan
from fuseplan.cli import main


def fuseplan_cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from fuseplan.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_doctor_says_which_executors_run_here_and_why_others_do_not() -> None:
    shown = fuseplan_cli("doctor")
    assert shown.returncode == 0, shown.stderr
    assert torch.__version__ in shown.stdout
    for name in ("aten", "inductor", "nvfuser"):
        assert name in shown.stdout
    assert "available" in shown.stdout


def test_doctor_as_json() -> None:
    found = json.loads(CliRunner().invoke(main, ["doctor", "--json"]).stdout)
    states = {state["name"]: state["unavailable"] for state in found["executors"]}
    assert states["aten"] is None
    assert found["torch"] == torch.__version__
    if not torch.cuda.is_available():
        assert states["nvfuser"]
        assert found["nvfuser_install"] is None


def test_help_needs_no_torch_and_shows_an_example() -> None:
    script = "import sys; from fuseplan.cli import main\ntry: main(['doctor', '--help'])\nfinally: print('torch' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False).stdout
    assert "Example: fuseplan doctor --json" in shown
    assert shown.strip().endswith("False")


def test_version_and_wrong_calls() -> None:
    assert fuseplan.__version__ in fuseplan_cli("--version").stdout
    wrong = fuseplan_cli("doctr")
    assert wrong.returncode == 2
    assert "No such command" in wrong.stderr
    assert "Traceback" not in wrong.stderr
