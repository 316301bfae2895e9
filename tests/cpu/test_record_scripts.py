"""`fuseplan record` and `fuseplan run`: a script that knows nothing of them behaves as under Python itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fuseplan.capture.trace import Trace, load_trace

FUSEPLAN = (sys.executable, "-c", "from fuseplan.cli import main; main(prog_name='fuseplan')")
SCRIPTS = Path(__file__).parents[1] / "scripts_to_record"


def called(*command: str | Path, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """What a command prints and exits with, its colours and widths those of no terminal."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **env}
    return subprocess.run(
        [*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True, timeout=600, check=False
    )  # fmt: skip


def last_line(done: subprocess.CompletedProcess[str]) -> Mapping[str, Any]:
    """The line of JSON that `--json` ends with."""
    try:
        return json.loads(done.stderr.splitlines()[-1])  # type: ignore[no-any-return]
    except (IndexError, ValueError):
        raise AssertionError(f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}") from None


# as Python itself


BEHAVIOURS = {
    "arguments": "import sys\nprint(sys.argv, __name__, __file__, sys.path[0], 'torch' in sys.modules)",
    "a neighbour": "import beside\nprint(beside.__name__)",
    "exit code": "import sys\nprint('bye')\nsys.exit(3)",
    "exit message": "import sys\nsys.exit('no data')",
    "an exception": "def f(x):\n    return 1 / x\n\nf(0)",
    "an error of ours": "import fuseplan\nraise fuseplan.OptionError('mine')",
    "a syntax error": "print('x'",
    "interrupted": "raise KeyboardInterrupt",
    "a main that others import": (
        "import multiprocessing\n\ndef double(x):\n    return 2 * x\n\nif __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n        print(pool.map(double, [1, 2]))"
    ),
    "a fork": "import os, sys\nif os.fork() == 0:\n    sys.exit(0)\nos.wait()\nprint('parent')",
}


@pytest.mark.parametrize(
    ("behaviour", "verb"), [*((name, "record") for name in BEHAVIOURS), ("arguments", "run"), ("an exception", "run")]
)
def test_a_script_behaves_as_under_python(tmp_path: Path, behaviour: str, verb: str) -> None:
    (tmp_path / "beside.py").touch()
    script = tmp_path / "script.py"
    script.write_text(BEHAVIOURS[behaviour])
    given = ("--json", "-o", "x y", "--", "a b")
    plain = called(sys.executable, script, *given, cwd=tmp_path)
    watched = called(*FUSEPLAN, verb, script, *given, cwd=tmp_path)
    assert watched.stdout == plain.stdout
    told = watched.stderr.splitlines()
    (place,) = [i for i, line in enumerate(told) if line.startswith(("fuseplan re", "fuseplan ran"))]
    assert told[:place] == plain.stderr.splitlines()
    assert watched.returncode == (130 if behaviour == "interrupted" else plain.returncode)


def test_a_module_behaves_as_under_python(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "train.py").write_text(
        "import sys\nfrom package import __name__ as name\nprint(sys.argv, name)"
    )
    plain = called(sys.executable, "-m", "package.train", "--lr", "3", cwd=tmp_path)
    watched = called(*FUSEPLAN, "record", "-m", "package.train", "--lr", "3", cwd=tmp_path)
    assert plain.stdout == watched.stdout != ""


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["record", "absent.py"], "there is no script absent.py"),
        (["run", "absent.py"], "there is no script absent.py"),
        (["record", "-m", "absent.module"], "there is no module absent.module"),
        (["record", "-o", "script.py", "script.py"], "nothing can be recorded in script.py"),
        (["record", "--retarget", "tpu", "script.py"], "not to 'tpu'"),
        (["record", "--compile", "x/y", "script.py"], "not 'x/y'"),
        (["record", "--from-nvfuser", "script.py"], "script.py is no nvFuser script that can be read"),
        (["run", "--plan", "fastest", "script.py"], "there is no plan called 'fastest'"),
        (["record"], "Missing argument"),
        (["record", "--nonsense", "script.py"], "No such option"),
    ],
)
def test_a_wrong_call_is_told_before_the_script_runs(tmp_path: Path, words: list[str], complaint: str) -> None:
    (tmp_path / "script.py").write_text("print('ran')")
    done = called(*FUSEPLAN, *words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert complaint in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["script.py"]


def test_a_killed_run_keeps_what_it_met(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import os, signal, torch\n"
        "model = torch.compile(torch.nn.Linear(4, 4), backend='eager')\n"
        "model(torch.ones(2, 4))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = called(*FUSEPLAN, "record", "-o", "traces", "script.py", cwd=tmp_path)
    assert done.returncode == -signal.SIGKILL
    (file,) = (tmp_path / "traces").iterdir()
    trace = Trace.from_json(file.read_text())
    assert trace.name == "script.Linear"
    assert [out.shape for out in load_trace(trace).step()] == [(2, 4)]


# recorded, tuned elsewhere, replayed


def losses(text: str) -> list[float]:
    """The numbers that follow the word loss in what a script prints."""
    words = text.replace(":", " ").split()
    return [float(words[i + 1]) for i, word in enumerate(words[:-1]) if word == "loss"]


def show(tmp_path: Path, script: str, *args: str, eager: tuple[str, ...], budget: str) -> None:
    """Record a script, tune its traces in another process, and run it again: hits only, and eager's results."""
    file = SCRIPTS / script
    plain = called(sys.executable, file, *eager, cwd=tmp_path, TORCHDYNAMO_DISABLE="1")
    recorded = called(*FUSEPLAN, "record", "-o", "traces", "--json", file, *args, cwd=tmp_path)
    known = last_line(recorded)
    assert (known["exit_code"], known["notes"]) == (0, [])
    assert recorded.stdout.count("loss") == plain.stdout.count("loss") > 0
    assert losses(recorded.stdout) == pytest.approx(losses(plain.stdout), rel=1e-3)
    tuned = called(
        *FUSEPLAN, "tune", "traces", "--effort", "quick", "--budget", budget, "--db", "tuning.db", "--json", cwd=tmp_path
    )  # fmt: skip
    assert tuned.returncode == 0, tuned.stderr
    ran = called(*FUSEPLAN, "run", "--db", "tuning.db", "--json", file, *args, cwd=tmp_path)
    found = last_line(ran)
    assert {program["key"] for program in found["programs"]} == {program["key"] for program in known["programs"]}
    assert [event for event in found["stats"] if event.startswith(("plan misses", "plans refused"))] == []
    assert found["stats"]["plan hits"] == found["stats"]["programs"] == len(known["programs"])
    assert losses(ran.stdout) == pytest.approx(losses(plain.stdout), rel=1e-3)


def test_a_nano_gpt_is_recorded_tuned_and_replayed(tmp_path: Path) -> None:
    args = ("--n_layer=1", "--eval_interval=0")
    show(tmp_path, "nano_gpt.py", *args, eager=(*args, "--compile=False"), budget="5s")


HF = ("--output_dir", "out", "--max_steps", "3", "--report_to", "none", "--use_cpu", "--disable_tqdm", "True")


def test_transformers_trainer_is_recorded_tuned_and_replayed(tmp_path: Path) -> None:
    args = (*HF, "--torch_compile", "--torch_compile_backend", "aot_eager")
    show(tmp_path, "hf_train.py", *args, eager=HF, budget="60s")


@pytest.mark.exhaustive
def test_whole_scripts_are_recorded_tuned_and_replayed(tmp_path: Path) -> None:
    for folder in ("nano", "hf"):
        (tmp_path / folder).mkdir()
    show(tmp_path / "nano", "nano_gpt.py", eager=("--compile=False",), budget="3m")
    show(tmp_path / "hf", "hf_train.py", *HF, "--torch_compile", eager=HF, budget="3m")
