"""What is measured in this process: the clock of a CPU, memory, the environment, and what failures are called."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from clocks import check_clock, check_failures, pause
from fuseplan.errors import ExecutorError, PlanError
from fuseplan.measure.clocks import CpuClock
from fuseplan.measure.environment import Flags, environment, run_facts
from fuseplan.measure.failures import COMPILE, RUN, failure, line
from fuseplan.measure.memory import Peak
from fuseplan.measure.race import HELD_UP


def test_the_clock_of_a_cpu() -> None:
    check_clock(CpuClock(), pause)
    check_failures(CpuClock())


def test_on_a_cpu_all_time_is_device_time() -> None:
    clock = CpuClock()
    clock.add("pause", [pause(1)])
    sample = clock.block("pause")
    assert sample.device_us == sample.wall_us >= 1000
    assert sample.host_us == 0
    assert sample.held_up > HELD_UP, "nobody computes meanwhile"


def test_the_environment_follows_the_flags_of_the_process() -> None:
    flags, before = Flags.here(), environment("cpu")
    try:
        torch.set_float32_matmul_precision("high")
        torch.set_num_threads(flags.threads + 1)
        changed = environment("cpu")
    finally:
        flags.set()
    assert (changed.matmul_precision, changed.cpu_threads) == ("high", flags.threads + 1)
    assert changed.key != before.key
    assert environment("cpu").key == before.key
    assert Flags.here() == flags


NEWER_WORDS = """
import torch
torch.backends.cuda.matmul.fp32_precision = "tf32"
torch.backends.cudnn.conv.fp32_precision = "ieee"
from fuseplan.measure.environment import Flags
here = Flags.here()
print(here.matmul_precision, here.cudnn_tf32)
"""


def test_flags_that_were_set_in_torchs_newer_words_are_read_all_the_same() -> None:
    """torch then refuses to say them in the older ones. In a process of its own: they cannot be taken back."""
    done = subprocess.run([sys.executable, "-c", NEWER_WORDS], capture_output=True, text=True, check=False)
    assert done.stdout == "high False\n", done.stderr


def test_a_cpu_is_known_by_what_changes_its_code() -> None:
    here = environment("cpu")
    assert here.cpu
    assert here.cpu_isa
    assert here.gpu is None
    assert here.version("nvfuser") is None
    if here.version("inductor") is not None:
        assert here.cpu_compiler is not None
        assert any(digit.isdigit() for digit in here.cpu_compiler)
        assert "/" not in here.cpu_compiler
    assert run_facts("cpu").driver is None


def test_memory_that_was_held_before_is_not_counted() -> None:
    held = torch.ones(2**25)
    peak = Peak(torch.device("cpu"))
    peak.settle()
    taken = torch.ones(2**24)
    del taken
    found = peak.bytes()
    assert found is None or 0.9 * 2**26 <= found < 2**27
    assert held.sum() == 2**25


@pytest.mark.parametrize(
    ("error", "stage", "status"),
    [
        (torch.OutOfMemoryError("CUDA out of memory."), RUN, "out-of-memory"),
        (MemoryError(), COMPILE, "out-of-memory"),
        (RuntimeError("std::bad_alloc"), RUN, "out-of-memory"),
        (PlanError("not for this graph"), RUN, "refused"),
        (ExecutorError("no kernel"), RUN, "compile-error"),
        (ValueError("what"), COMPILE, "compile-error"),
        (ValueError("what"), RUN, "error"),
    ],
)
def test_failures_have_the_words_of_the_database(error: Exception, stage: str, status: str) -> None:
    wrapped = RuntimeError("backend failed")
    wrapped.__cause__ = error
    assert failure(error, stage)[0] == status
    assert failure(wrapped, stage)[0] == status


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("in /home/someone/model.py, line 3", "in model.py, line 3"),
        ("C:\\Users\\me\\x.dll is missing", "x.dll is missing"),
        ("one\ntwo", "one"),
        ("", ""),
        ("error 3/4 of a/b", "error 3/4 of a/b"),
        ("('/tmp/torchinductor_me/ab/cab.py')", "('cab.py')"),
    ],
)
def test_nothing_of_a_path_is_shown(text: str, shown: str) -> None:
    assert line(text) == shown
