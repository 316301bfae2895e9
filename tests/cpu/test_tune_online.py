"""`options={"tune": "quick"}` as a user meets it: a script of one's own that is tuned when it first runs, and what cannot be."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch import Tensor
from torch.testing._internal.two_tensor import TwoTensor

import fuseplan
from fuseplan.backend import programs_of
from fuseplan.explain import compiled_by
from fuseplan.measure.environment import environment
from fuseplan.plan import Plan
from fuseplan.runtime import Program
from fuseplan.tuning_db import Box, Places, Store, StoredPlan
from processes import gone

# A script as a user writes it, without a guard around what it does; only the effort is less than quick.
SCRIPT = """
print("the script runs", __name__)
import dataclasses, logging, random, sys
import numpy, torch, fuseplan
import fuseplan.tuning.effort as effort

less = {"wall_s": 12.0, "device_s": 4.0, "rounds": 1, "regions_per_round": 2, "plans": 1}
effort.EFFORTS = (dataclasses.replace(effort.QUICK, **less),)
logging.basicConfig(level=logging.INFO, stream=sys.stderr)

def states():
    return torch.get_rng_state().tolist(), random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_num_threads()

def score(x):
    y = torch.nn.functional.gelu(x) * 2
    CUT
    return torch.softmax(y, -1).view(-1, 4)

x = torch.randn(16, 64, requires_grad=GRAD)
compiled = torch.compile(score, backend="fuseplan", options={"tune": "quick"})
before = states()
found = compiled(x)
assert states() == before
torch.testing.assert_close(found, score(x))
if GRAD:
    (expected,) = torch.autograd.grad(score(x).square().sum(), x)
    torch.testing.assert_close(torch.autograd.grad(found.square().sum(), x)[0], expected)
import json
print(json.dumps(fuseplan.stats()))
"""


def script(folder: Path, *, grad: bool = False, cut: str = "pass") -> list[str]:
    path = folder / "script.py"
    path.write_text(SCRIPT.replace("GRAD", str(grad)).replace("CUT", cut), encoding="utf-8")
    return [sys.executable, str(path)]


def stats_of(command: list[str]) -> dict[str, int]:
    """What a run of the script counted; nothing but its own two lines is on its stdout."""
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
    assert ran.returncode == 0, ran.stderr
    first, last = ran.stdout.splitlines()
    assert first == "the script runs __main__"
    return json.loads(last)  # type: ignore[no-any-return]


@pytest.mark.timeout(300)
def test_a_script_is_tuned_once_and_then_finds_its_plan(tmp_path: Path) -> None:
    command = script(tmp_path)
    first, second = stats_of(command), stats_of(command)
    assert (first["programs tuned when compiled"], first["plan misses: no such program"]) == (1, 1)
    assert second["plan hits"] == second["programs"] == 1
    assert "programs tuned when compiled" not in second


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("grad", "cut", "programs"),
    [(True, "pass", 1), (False, "torch._dynamo.graph_break()", 2)],
    ids=["training", "break"],
)
def test_each_program_of_a_script_is_tuned(grad: bool, cut: str, programs: int, tmp_path: Path) -> None:
    command = script(tmp_path, grad=grad, cut=cut)
    assert stats_of(command)["programs tuned when compiled"] == programs
    assert stats_of(command)["plan hits"] == programs


@pytest.mark.timeout(120)
def test_ctrl_c_ends_the_script_and_its_workers(tmp_path: Path) -> None:
    process = subprocess.Popen(script(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    while "tuning program" not in process.stderr.readline():
        assert process.poll() is None
    workers: list[int] = []
    while len(workers) < 3:
        workers = children(process.pid, "fuseplan.measure.worker")
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode != 0
    assert said.rstrip().endswith("KeyboardInterrupt")
    assert all(map(gone, workers))


def children(parent: int, of: str) -> list[int]:
    """The stem, and what it has become: workers are its children."""
    found = []
    for one in psutil.Process(parent).children(recursive=True):
        with suppress(psutil.Error):  # it has just ended
            found += [one.pid] if of in " ".join(one.cmdline()) else []
    return found


def chain(x: Tensor) -> Tensor:
    return (x * 2).relu() + 1


def branches(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))  # type: ignore[no-any-return]


@pytest.fixture
def without_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default is eager: compiling takes seconds."""
    monkeypatch.setattr("fuseplan.lookup.missing_compiler", lambda *_: "no compiler in this test")


@pytest.fixture
def without_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that is refused is worth the start of a worker."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a worker was started")

    monkeypatch.setattr("fuseplan.measure.process.WorkerProcess.start", refuse)


def run(f: Callable[..., Any], x: Tensor, **options: Any) -> Program:
    compiled = fuseplan.compile(f, tune="quick", **options)
    torch.testing.assert_close(compiled(x), f(x))
    (program,) = programs_of(compiled_by(compiled))
    return program


def marked(low: int | None = None, high: int | None = None) -> Tensor:
    x = torch.randn(48, 4)
    torch._dynamo.mark_dynamic(x, 0, min=low, max=high)
    return x


@pytest.mark.usefixtures("without_inductor", "without_workers")
@pytest.mark.parametrize(
    ("f", "make", "why"),
    [
        (branches, lambda: torch.randn(4), "cond is a higher-order operator, which a trace cannot hold"),
        (chain, lambda: TwoTensor(torch.ones(2), torch.ones(2)), "an input is a TwoTensor, a subclass of Tensor"),
        (chain, lambda: marked(2, 1000), "s0 was promised to vary over 2..1000, and a plan tuned here is for 33..64"),
    ],
    ids=["higher-order", "subclass", "promised"],
)
def test_what_cannot_be_tuned_runs_under_the_default_with_one_warning(
    f: Callable[..., Any], make: Callable[[], Tensor], why: str
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        program = run(f, make())
    said = [str(one.message) for one in caught if str(one.message).startswith("fuseplan: ")]
    assert len(said) == 1
    assert said[0].startswith(f"fuseplan: {f.__name__} could not be tuned, and runs under the default: ")
    assert said[0].endswith(why)
    assert program.plan == Plan.named("eager")
    assert why in program.why


@pytest.mark.usefixtures("without_inductor", "without_workers")
def test_all_processes_of_a_run_but_the_first_take_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 1)
    before = fuseplan.stats().get("programs tuned when compiled", 0)
    program = run(chain, torch.randn(4))
    assert program.plan == Plan.named("eager")
    assert program.why.startswith("no plan is stored for program ")
    assert fuseplan.stats().get("programs tuned when compiled", 0) == before


@pytest.mark.usefixtures("without_inductor", "without_workers")
def test_what_somebody_disabled_is_not_tuned_anew(own_database: Path) -> None:
    compiled = fuseplan.compile(chain)
    compiled(torch.randn(4))
    (found,) = programs_of(compiled_by(compiled))
    assert found.key is not None
    plan = StoredPlan(found.key, environment("cpu"), Plan.named("aten"), status="tuned", wall_us=1.0, word="disabled")
    Store(Places(user=own_database)).add_plan(plan)
    torch._dynamo.reset()
    assert "disabled by hand" in run(chain, torch.randn(4)).why


def test_sizes_that_are_promised_are_part_of_a_program() -> None:
    keys = []
    for x in (marked(), marked(), marked(40, 50)):
        torch._dynamo.reset()
        (trace,) = fuseplan.traces_of(chain, x)
        keys.append(trace.key)
    assert keys[0] == keys[1] != keys[2]


def test_the_box_of_a_plan_stays_out_of_the_compilers_caches(
    own_database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    (trace,) = fuseplan.traces_of(chain, marked().requires_grad_())  # else it runs by size
    box = Box.of({"s0": (33, 64)})
    plan = StoredPlan(trace.key, environment("cpu"), Plan.named("inductor"), status="default", wall_us=1.0, sizes=box)
    Store(Places(user=own_database)).add_plan(plan)
    torch._dynamo.reset()
    compiled = fuseplan.compile(chain)
    x = marked().requires_grad_()
    torch.testing.assert_close(compiled(x), chain(x))
    (program,) = programs_of(compiled_by(compiled))
    assert program.why.startswith("default plan ")
    torch._dynamo.reset()
    x = marked(2, 1000).requires_grad_()  # Dynamo raises where what comes out of a cache would narrow this
    torch.testing.assert_close(torch.compile(chain)(x), chain(x))
