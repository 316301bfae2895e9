"""`fuseplan record` and `fuseplan run`: a script that knows nothing of them behaves as under Python itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fuseplan.capture.trace.format import Trace
from fuseplan.capture.trace.load import load_trace
from fuseplan.cli import main

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


@pytest.mark.parametrize("verb", ["record", "run"])
def test_a_script_by_a_relative_path_behaves_as_under_python(tmp_path: Path, verb: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "script.py").write_text(
        "from __future__ import annotations\n"
        "import inspect, os, sys\n"
        "def f(x: Unknown) -> None:\n    return 1 / x\n"
        "os.chdir('/')\n"
        "print(__file__, sys.argv, sys.path[0], __package__, __spec__, __loader__.get_filename(), inspect.getsource(f))\n"
        "print(sys.modules['__main__'].f is f)\n"
        "f(0)\n"
    )
    for path in ("script.py", "./script.py", "folder/../script.py"):
        plain = called(sys.executable, path, "a b", cwd=tmp_path)
        watched = called(*FUSEPLAN, verb, path, "a b", cwd=tmp_path)
        assert watched.stdout == plain.stdout != ""
        lines = plain.stderr.splitlines()
        assert watched.stderr.splitlines()[: len(lines)] == lines


def test_a_program_that_was_being_tuned_when_interrupted_came_to_torch_compile(tmp_path: Path) -> None:
    """Ctrl-C, when it comes while a backend is at work."""
    (tmp_path / "script.py").write_text(
        "import importlib, sys\n"
        "def interrupted(*args, **kwargs):\n    raise KeyboardInterrupt\n"
        "if sys.argv[1] == 'before':\n    interrupted()\n"
        "import torch\n"
        "importlib.import_module('fuseplan.backend').Lookup = interrupted\n"
        "torch.compile(torch.nn.Linear(4, 4))(torch.ones(2, 4))\n"
    )
    during, before = (called(*FUSEPLAN, "run", "script.py", when, cwd=tmp_path) for when in ("during", "before"))
    assert during.returncode == before.returncode == 130
    assert during.stderr.splitlines()[-2:] == [
        "fuseplan ran nothing: no program was compiled to its end",
        "  Linear: not compiled to its end",
    ]
    told = before.stderr.splitlines()[-1]
    assert told == "fuseplan ran nothing: it was interrupted before a program came to torch.compile"


@pytest.mark.parametrize(("verb", "option"), [("record", "--output=there"), ("run", "--launch")])
def test_an_option_behind_the_script_is_pointed_at_where_nothing_came_of_it(
    tmp_path: Path, verb: str, option: str
) -> None:
    (tmp_path / "script.py").write_text("import sys\nsys.exit(2)\n")
    told, other = (called(*FUSEPLAN, verb, "script.py", one, cwd=tmp_path).stderr for one in (option, "--lr"))
    hint = f"  {option} stands behind the script, whose it is: to be fuseplan's it has to stand before it"
    assert told.splitlines()[-1] == hint
    assert "stands behind" not in other


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
        (["run", "--db", "absent.db", "script.py"], "absent.db"),
        (["run", "--db", "script.py", "script.py"], "script.py is not a tuning database"),
        (["run", "--db", "script.py", "--tune", "quick", "script.py"], "script.py is not a tuning database"),
        (["record", "."], ". is a folder with no __main__.py in it"),
        (["record"], "Missing argument"),
        (["record", "--nonsense", "script.py"], "No such option"),
    ],
)
def test_a_wrong_call_is_told_before_the_script_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], complaint: str
) -> None:
    (tmp_path / "script.py").write_text("print('ran')")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, words)
    assert (done.exit_code, done.stdout) == (2, "")
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


@dataclass(frozen=True)
class Case:
    """A script as its user calls it, and what is to be said for it to run eagerly instead."""

    script: str
    args: tuple[str, ...]
    eager: tuple[str, ...]

    def losses(self, folder: Path) -> list[float]:
        plain = called(sys.executable, SCRIPTS / self.script, *self.eager, cwd=folder, TORCHDYNAMO_DISABLE="1")
        assert plain.returncode == 0, plain.stderr
        return losses(plain.stdout)

    def record(self, folder: Path) -> subprocess.CompletedProcess[str]:
        command = ("record", "-o", "traces", "--json", SCRIPTS / self.script, *self.args)
        return called(*FUSEPLAN, *command, cwd=folder)

    def run(self, folder: Path) -> subprocess.CompletedProcess[str]:
        command = ("run", "--db", "tuning.db", "--json", SCRIPTS / self.script, *self.args)
        return called(*FUSEPLAN, *command, cwd=folder)


def tune(folder: Path, effort: str, budget: str) -> None:
    """Tune the traces; where the budget ends before the turn of one, go on as often as it takes."""
    command = ("tune", "traces", "--effort", effort, "--budget", budget, "--db", "tuning.db", "--json")
    for _ in range(5):
        tuned = called(*FUSEPLAN, *command, cwd=folder)
        assert tuned.returncode == 0, tuned.stderr
        if '"left"' not in tuned.stdout:
            return
    raise AssertionError(f"there is still something to tune: {tuned.stdout}")


def show(folder: Path, cases: Sequence[Case], effort: str, budget: str) -> None:
    """Record scripts, tune their traces in another process, and run them again: hits only, and eager's results."""
    with ThreadPoolExecutor(2) as two:  # processes, of which each has one thread
        recordings = list(two.map(lambda case: case.record(folder), cases))
        expected = list(two.map(lambda case: case.losses(folder), cases))
    known = [last_line(recorded) for recorded in recordings]
    for recorded, what, numbers in zip(recordings, known, expected, strict=True):
        assert (what["exit_code"], what["notes"]) == (0, [])
        assert len(numbers) > 0
        assert losses(recorded.stdout) == pytest.approx(numbers, rel=1e-3)
    tune(folder, effort, budget)
    with ThreadPoolExecutor(2) as two:
        runs = list(two.map(lambda case: case.run(folder), cases))
    for ran, what, numbers in zip(runs, known, expected, strict=True):
        found = last_line(ran)
        assert {program["key"] for program in found["programs"]} == {program["key"] for program in what["programs"]}
        assert [event for event in found["stats"] if event.startswith(("plan misses", "plans refused"))] == []
        assert found["stats"]["plan hits"] == found["stats"]["programs"] == len(what["programs"])
        assert losses(ran.stdout) == pytest.approx(numbers, rel=1e-3)


HF = ("--output_dir", "out", "--max_steps", "3", "--report_to", "none", "--use_cpu", "--disable_tqdm", "True")


SMALL, ONE_LAYER = ("--n_layer=1", "--eval_interval=0", "--max_iters=3"), (*HF, "--layers", "1")


@pytest.mark.parametrize(
    "case",
    [
        Case("hf_train.py", (*ONE_LAYER, "--torch_compile", "--torch_compile_backend", "aot_eager"), ONE_LAYER),
        pytest.param(Case("nano_gpt.py", SMALL, (*SMALL, "--compile=False")), marks=pytest.mark.exhaustive),
    ],
    ids=lambda case: case.script,
)
def test_an_unmodified_script_is_recorded_tuned_and_replayed(case: Case, tmp_path: Path) -> None:
    show(tmp_path, [case], "instant", budget="5s")


@pytest.mark.exhaustive
def test_scripts_with_evaluation_and_inductor_are_recorded_tuned_and_replayed(tmp_path: Path) -> None:
    cases = [
        Case("nano_gpt.py", (), ("--compile=False",)),
        Case("nano_gpt.py", ("--dtype=bfloat16",), ("--compile=False", "--dtype=bfloat16")),
        Case("hf_train.py", (*HF, "--torch_compile"), HF),
    ]
    for i, case in enumerate(cases):
        (tmp_path / str(i)).mkdir()
        show(tmp_path / str(i), [case], "quick", budget="6m")
