"""`fuseplan record` and `run` take along the processes that a script starts."""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import fuseplan
from cpu.test_record_scripts import FUSEPLAN, called, last_line
from fuseplan.capture.trace.format import Trace
from fuseplan.following import processes

COMPILES = """
import os, sys
import torch
double = torch.compile(lambda x: x * 2 + 1, backend="eager")
for _ in range(int(sys.argv[1])):
    double(torch.ones(3))
print("child", os.environ.get("RANK"))
"""
COMPILES_OTHER = "import torch\ntorch.compile(lambda x: x - 1, backend='eager')(torch.ones(2))\n"
AWAITS_CHILD = """
import time
from pathlib import Path
for _ in range(6000):
    if list(Path("traces").glob("child*.json")):
        break
    time.sleep(0.01)
"""
STARTS = """
import os, subprocess, sys
children = [subprocess.Popen([sys.executable, "child.py", "3"], env={**os.environ, "RANK": str(i)}) for i in range(2)]
sys.exit(max(child.wait() for child in children))
"""
STARTS_ONE = "import subprocess, sys\nsys.exit(subprocess.run([sys.executable, 'child.py', '1']).returncode)\n"
SPAWNS = """
import multiprocessing
import torch

def work(times):
    double = torch.compile(lambda x: x * 2 + 1, backend="eager")
    for _ in range(times):
        double(torch.ones(3))

if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=work, args=(4,))
    child.start()
    child.join()
"""


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    texts = {"child.py": COMPILES, "starts.py": STARTS, "one.py": STARTS_ONE, "spawns.py": SPAWNS}
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def only_trace(folder: Path) -> Trace:
    (file,) = folder.glob("*.json")
    return Trace.from_json(file.read_text(encoding="utf-8"))


def test_what_two_processes_compile_is_recorded_as_one_program(scripts: Path) -> None:
    done = called(*FUSEPLAN, "record", "-o", "traces", "starts.py", cwd=scripts)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split("\n")) == ["", "child 0", "child 1"]
    assert "recorded 1 program in traces, met by 2 processes that it started:" in done.stderr
    trace = only_trace(scripts / "traces")
    assert (trace.name.split(".")[0], trace.times) == ("child", 3)


def test_two_recordings_that_share_a_folder_are_told_of_apart(scripts: Path) -> None:
    (scripts / "other.py").write_text(COMPILES_OTHER + AWAITS_CHILD, encoding="utf-8")
    with ThreadPoolExecutor(2) as two:
        record = [*FUSEPLAN, "record", "--json", "-o", "traces"]
        told = list(
            two.map(lambda words: last_line(called(*record, *words, cwd=scripts)), [["other.py"], ["child.py", "2"]])
        )
    assert [(len(one["programs"]), one["processes"]) for one in told] == [(1, 0), (1, 0)]
    assert len(list((scripts / "traces").glob("*.json"))) == 2


def test_what_a_killed_process_met_is_told(scripts: Path) -> None:
    text = COMPILES + "os.kill(os.getpid(), 9)\n"
    (scripts / "killed.py").write_text(text, encoding="utf-8")
    starts = "import subprocess, sys\nsubprocess.run([sys.executable, 'killed.py', '2'])\n"
    (scripts / "starts.py").write_text(starts, encoding="utf-8")
    told = last_line(called(*FUSEPLAN, "record", "--json", "-o", "traces", "starts.py", cwd=scripts))
    assert (told["processes"], len(told["programs"])) == (1, 1)


def test_without_room_for_what_others_tell_it_goes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: object) -> str:
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(processes, "mkdtemp", full)
    with processes.followed("record") as reports:
        assert processes.VARIABLE not in os.environ
        assert reports() == []


def test_a_process_of_multiprocessing_counts_its_calls(scripts: Path) -> None:
    done = called(*FUSEPLAN, "record", "--json", "-o", "traces", "spawns.py", cwd=scripts)
    told = last_line(done)
    assert (told["processes"], [one["calls"] for one in told["programs"]], told["notes"]) == (1, [4], [])
    assert only_trace(scripts / "traces").name.startswith("spawns.")


def test_another_folder_and_what_it_held_before(scripts: Path) -> None:
    """What an earlier run has left there is not told of, and where the child stands is its own affair."""
    with fuseplan.record(scripts / "traces"):
        torch.compile(lambda x: x - 1, backend="eager")(torch.ones(2))
    (scripts / "elsewhere").mkdir()
    moved = "import os, subprocess, sys\nos.chdir('elsewhere')\nsubprocess.run([sys.executable, '../child.py', '3'])\n"
    (scripts / "moved.py").write_text(moved, encoding="utf-8")
    told = last_line(called(*FUSEPLAN, "record", "--json", "-o", "traces", "moved.py", cwd=scripts))
    assert [one["calls"] for one in told["programs"]] == [3]
    assert len(list((scripts / "traces").glob("*.json"))) == 2
    assert not list((scripts / "elsewhere").iterdir())


def test_all_run_under_the_plan_and_are_told_of_together(scripts: Path) -> None:
    done = called(*FUSEPLAN, "run", "--json", "--plan", "aten", "starts.py", cwd=scripts)
    told = last_line(done)
    assert told["processes"] == 2
    assert [one["why"] for one in told["programs"]] == ["asked for by option"] * 2
    assert told["stats"]["programs"] == 2
    assert told["notes"] == ["backend eager was replaced"]


def test_a_class_that_some_process_has_called_was_called(scripts: Path) -> None:
    text = (
        COMPILES
        + "class Net(torch.nn.Module):\n    def forward(self, x):\n        return x - 1\nNet()(torch.ones(2))\n"
    )
    (scripts / "child.py").write_text(text, encoding="utf-8")
    classes = ("--compile", "Net", "--compile", "Other")
    for verb in (["record", "-o", "traces"], ["run", "--plan", "eager"]):
        told = last_line(called(*FUSEPLAN, verb[0], "--json", *verb[1:], *classes, "one.py", cwd=scripts))
        (never_called,) = [note for note in told["notes"] if "--compile" in note]
        assert "--compile Other" in never_called
        assert {one["name"].split(".")[-1] for one in told["programs"]} >= {"Net"}


def test_a_launcher_is_found_by_its_name(scripts: Path) -> None:
    launcher = scripts / "bin" / "launcher"
    launcher.parent.mkdir()
    launcher.write_text(
        f"#!{sys.executable}\nimport runpy, sys\nsys.argv[:] = sys.argv[1:]\nrunpy.run_path(sys.argv[0])\n"
    )
    launcher.chmod(0o755)
    path = os.pathsep.join([str(launcher.parent), os.environ["PATH"]])
    done = called(*FUSEPLAN, "run", "--plan", "aten", "launcher", "one.py", cwd=scripts, PATH=path)
    assert "compiled 1 program, with 1 process that the script started" in done.stderr, done.stderr
    done = called(*FUSEPLAN, "record", "-o", "traces", "ls", cwd=scripts)
    assert "there is no script ls" in done.stderr
    assert done.returncode == 2


def test_what_a_process_would_have_run_first_still_runs(scripts: Path) -> None:
    own = scripts / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text(
        "import sys\nprint('mine', __name__, len([p for p in sys.path if 'started' in p]))\n"
    )
    done = called(*FUSEPLAN, "record", "-o", "traces", "one.py", cwd=scripts, PYTHONPATH=str(own))
    assert done.stdout.endswith("mine sitecustomize 0\nchild None\n")
    assert "met by 1 process that" in done.stderr


@pytest.mark.parametrize("fault", ["no fuseplan", "a variable that is none", "isolated"])
def test_a_process_that_cannot_follow_runs_as_ever(scripts: Path, fault: str) -> None:
    own = scripts / "own"
    own.mkdir()
    lost = "import sys\nsys.modules['fuseplan.following.processes'] = None\n"
    (own / "sitecustomize.py").write_text(lost, encoding="utf-8")
    change = {
        "no fuseplan": f"env['PYTHONPATH'] += os.pathsep + {str(own)!r}",
        "a variable that is none": "env['FUSEPLAN_FOLLOW'] = '[1'",
        "isolated": "flags.append('-I')",
    }[fault]
    text = f"import os, subprocess, sys\nenv, flags = dict(os.environ), []\n{change}\n"
    text += "sys.exit(subprocess.run([sys.executable, *flags, 'child.py', '1'], env=env).returncode)\n"
    (scripts / "odd.py").write_text(text, encoding="utf-8")
    done = called(*FUSEPLAN, "record", "-o", "traces", "odd.py", cwd=scripts)
    assert (done.returncode, done.stdout) == (0, "child None\n"), done.stderr
    assert "recorded nothing" in done.stderr


@pytest.mark.parametrize(
    "command",
    [
        ["python", "-P", "-m", "fuseplan.measure.worker"],
        ["python", "/site-packages/torch/_inductor/compile_worker/__main__.py", "--pickler=torch"],
        ["python", "-c", "from multiprocessing.resource_tracker import main;main(5)"],
    ],
)
def test_processes_of_tools_are_not_taken_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    """They would record what they compile for others, or run it under plans that are yet to be found."""
    began: list[str] = []
    monkeypatch.setattr(processes, "_VERBS", {"run": lambda following: began.append(following.verb)})
    monkeypatch.setattr(sys, "orig_argv", command)
    told = {"verb": "run", "reports": str(tmp_path), "arguments": {}}
    monkeypatch.setenv(processes.VARIABLE, json.dumps(told))
    processes.follow()
    assert began == []
    monkeypatch.setattr(sys, "orig_argv", ["/opt/fuseplan.d/bin/python", "train_fuseplan.py", "/of/fuseplan.measure/x"])
    assert not any(map(processes._OF_TOOLS.search, sys.orig_argv[1:]))
