"""Scripts on a GPU: recorded there, or on the CPU and retargeted; tuned in another process; replayed with hits only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

FUSEPLAN = (sys.executable, "-c", "from fuseplan.cli import main; main(prog_name='fuseplan')")
SCRIPTS = Path(__file__).parents[1] / "scripts_to_record"
NANO = ("--eval_interval=4", "--n_embd=256", "--n_head=4", "--block_size=128", "--batch_size=8")
HF = ("--output_dir", "out", "--max_steps", "3", "--report_to", "none", "--disable_tqdm", "True")


def called(*command: str | Path, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command; everything that it says is printed, for whoever has to find out what went wrong."""
    # one GPU: given several, transformers' Trainer wraps the model in DataParallel, and torch.compile compiles nothing
    one = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": one, **env}
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True, timeout=900, check=False
    )  # fmt: skip
    print("$", *command[3:] if command[:3] == FUSEPLAN else command)
    print(done.stdout[-3000:], done.stderr[-6000:], f"exit code {done.returncode}", sep="\n")
    return done


def told(done: subprocess.CompletedProcess[str]) -> Mapping[str, Any]:
    """The line of JSON at the end of stderr."""
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line for line in done.stderr.splitlines() if line.startswith('{"')]
    return json.loads(lines[-1])  # type: ignore[no-any-return]


def losses(text: str) -> list[float]:
    words = text.replace(":", " ").split()
    return [float(words[i + 1]) for i, word in enumerate(words[:-1]) if word == "loss"]


def tune(cwd: Path, *options: str) -> None:
    done = called(
        *FUSEPLAN,
        "tune",
        "traces",
        "--effort",
        "quick",
        "--budget",
        "150s",
        "--db",
        "tuning.db",
        "--json",
        *options,
        cwd=cwd,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def replay(cwd: Path, script: Path, *args: str, keys: set[str], expected: list[float]) -> None:
    """The native run looks up these keys, finds every one, and computes what eager does."""
    ran = called(*FUSEPLAN, "run", "--db", "tuning.db", "--json", script, *args, cwd=cwd)
    found = told(ran)
    for program in found["programs"]:
        print(program)
    assert {program["key"] for program in found["programs"]} == keys
    assert [event for event in found["stats"] if event.startswith(("plan misses", "plans refused"))] == []
    assert found["stats"]["plan hits"] == found["stats"]["programs"]
    assert losses(ran.stdout) == pytest.approx(expected, rel=5e-3)


@pytest.mark.parametrize(
    ("script", "args", "eager"),
    [
        ("nano_gpt.py", (*NANO, "--device=cuda"), ("--compile=False",)),
        ("hf_train.py", (*HF, "--torch_compile"), ()),
    ],
)
def test_a_script_is_recorded_tuned_and_replayed(
    tmp_path: Path, script: str, args: tuple[str, ...], eager: tuple[str, ...]
) -> None:
    file = SCRIPTS / script
    bare = tuple(arg for arg in args if arg != "--torch_compile")
    plain = called(sys.executable, file, *bare, *eager, cwd=tmp_path, TORCHDYNAMO_DISABLE="1")
    recorded = called(*FUSEPLAN, "record", "-o", "traces", "--json", file, *args, cwd=tmp_path)
    known = told(recorded)
    assert known["notes"] == []
    assert losses(recorded.stdout) == pytest.approx(losses(plain.stdout), rel=5e-3)
    assert all(program["calls"] and program["seconds"] > 0 for program in known["programs"])
    tune(tmp_path)
    keys = {program["key"] for program in known["programs"]}
    replay(tmp_path, file, *args, keys=keys, expected=losses(plain.stdout))


@pytest.mark.parametrize("how", ["record --retarget", "tune --device"])
def test_a_trace_of_the_cpu_is_tuned_and_hit_on_the_gpu(tmp_path: Path, how: str) -> None:
    file = SCRIPTS / "nano_gpt.py"
    native = (*NANO, "--device=cuda")
    plain = called(sys.executable, file, *native, "--compile=False", cwd=tmp_path)
    aimed = ("--retarget", "cuda") if how == "record --retarget" else ()
    recorded = called(*FUSEPLAN, "record", "-o", "traces", *aimed, "--json", file, *NANO, "--device=cpu", cwd=tmp_path)
    known = told(recorded)
    assert known["notes"] == []
    tune(tmp_path, *(() if aimed else ("--device", "cuda")))
    seen = told(called(*FUSEPLAN, "record", "-o", "seen", "--json", file, *native, cwd=tmp_path))
    keys = {program["key"] for program in seen["programs"]}
    if aimed:
        assert keys == {program["key"] for program in known["programs"]}
    replay(tmp_path, file, *native, keys=keys, expected=losses(plain.stdout))
