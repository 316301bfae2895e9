"""`scripts/bench` and the result files: what stands beside a figure."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import campaign, result
from benchmarks.fleet import GRACE_S, Task
from checks.project import ROOT


def test_an_unknown_name_gets_the_known_ones() -> None:
    command = [sys.executable, "-m", "benchmarks", "nonesuch"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert "import_time" in ran.stderr
    assert "__init__" not in ran.stderr


def test_a_result_says_what_was_measured_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result, "RESULTS", tmp_path / "results")
    path = result.write_result("graph", ["--ops", "10 000"], {"seconds": 0.5})
    content = json.loads(path.read_text())
    assert path.name in ("graph.json", "graph.gpu.json")
    assert content["command"] == "scripts/bench graph --ops '10 000'"
    assert content["results"] == {"seconds": 0.5}
    assert content["commit"]
    assert content["environment"]["cores"] >= 1
    assert content["environment"]["python"].startswith(f"{sys.version_info.major}.{sys.version_info.minor}.")


def test_a_campaign_hands_on_what_it_has_tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def ran(command: list[str], grace_s: float) -> int:
        assert grace_s > GRACE_S
        commands.append(command)
        if "active" in command:
            kept = tmp_path / "kept" / "tiny-bert"
            (kept / "learned.db.tuned").mkdir(parents=True)
            (kept / "learned.db").write_text("tuned")
        return int("ablation" in command)

    monkeypatch.setattr(campaign, "run_one", ran)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")
    told = {
        "steps": list(campaign.STEPS),
        "folder": str(tmp_path),
        "device": "cpu",
        "least_s": 1.0,
        "times": 2.0,
        "launches": ["plain"],
    }
    task = Task("tiny bert", "", tmp_path / "out.json", tmp_path / "log", told, limit_s=60.0)
    campaign.run(task)
    assert [command[3] for command in commands] == list(campaign.STEPS)
    assert all(command[command.index("--db") + 1] == str(tmp_path / "tiny-bert.db") for command in commands[1:])
    assert commands[2][-2:] == ["--launch", "plain"]
    assert (tmp_path / "tiny-bert.db").read_text() == "tuned"
    ends = json.loads(task.out.read_text())["steps"]
    assert {step: how.partition(" in ")[0] for step, how in ends.items()} == {
        "active": "done", "models": "done", "ablation": "ended with 1", "startup": "done"
    }  # fmt: skip


def test_ctrl_c_ends_what_a_step_has_started() -> None:
    step = """if True:
        import signal, subprocess, sys
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        print("started", flush=True)
        child.wait()
    """
    waits = f"import sys; from benchmarks.fleet import run_one; run_one([sys.executable, '-c', {step!r}], 0.5)"
    process = subprocess.Popen([sys.executable, "-c", waits], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"started\n"
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=30)  # ends when nobody is left who could write to it
    assert b"KeyboardInterrupt" in told


def test_a_step_is_not_begun_without_time_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")
    told = {
        "steps": ["active"],
        "folder": str(tmp_path),
        "device": "cpu",
        "least_s": 120.0,
        "times": 1.0,
        "launches": [],
    }
    task = Task("tiny bert", "", tmp_path / "out.json", tmp_path / "log", told, limit_s=60.0)
    campaign.run(task)
    assert json.loads(task.out.read_text())["steps"] == {"active": "no time was left for it"}
