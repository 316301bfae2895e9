"""`scripts/bench` and the result files: what stands beside a figure."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import result
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


def test_rows_of_one_kind_of_gpu_are_not_put_among_those_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every kind has a file of its own, beside which its chart stands, and none is written over."""
    monkeypatch.setattr(result, "RESULTS", tmp_path)
    machines = {"first": "NVIDIA H200, 580.1", "other": "NVIDIA H100 80GB HBM3, 580.1", "newer": "NVIDIA H200, 590.2"}
    found = {}
    for name, gpu in machines.items():
        monkeypatch.setattr(result, "_gpu", lambda gpu=gpu: {"gpu": gpu, "gpus": 1})
        earlier = result.earlier_results("models")
        found[name] = result.write_result("models", ["--append"], {**earlier, name: 1.0})
        chart = result.result_file("models", "svg")
        assert chart.name == found[name].with_suffix(".svg").name
    assert [path.name for path in found.values()] == [
        "models.gpu.json", "models.nvidia-h100-80gb-hbm3.gpu.json", "models.gpu.json",
    ]  # fmt: skip
    assert result.read_json(found["first"])["results"] == {"first": 1.0, "newer": 1.0}
    assert result.read_json(found["other"])["results"] == {"other": 1.0}


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
