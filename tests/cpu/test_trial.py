"""Trying a large region in a process that can be killed: a clock bounds it, and so does the process's own end."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import subprocess
import sys
from pathlib import Path
from threading import Thread
from time import monotonic
from types import SimpleNamespace

import pytest
import torch

from fuseplan.errors import ExecutorError
from fuseplan.executors.nvfuser import available, executor
from fuseplan.executors.nvfuser import kept as kept_here
from fuseplan.executors.nvfuser.executor import NvfuserExecutor
from fuseplan.executors.nvfuser.kept import KnownRegions
from fuseplan.executors.nvfuser.trial import MIN_OPS, Trials
from fuseplan.graph import Graph, Op, Ref, TensorType, Value


def trials(body: str, seconds: float = 20.0) -> Trials:
    """A process that reads each region into `line`, and does what `body` says; `say` answers."""
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    begin = "import json, os, sys, time\ndef say(word): print(json.dumps(word), flush=True)\nsay('ready')\n"
    script = f"{begin}for line in map(json.loads, sys.stdin):\n{lines}\n"
    return Trials((sys.executable, "-c", script), seconds)


def test_what_ends_in_time_is_not_refused_and_the_process_goes_on(tmp_path: Path) -> None:
    log = tmp_path / "pids"
    tried = trials(f"print(os.getpid(), line, file=open({str(log)!r}, 'a'))\nsay('done')")
    assert [tried.refusal(key, text) for key, text in (("1", "one"), ("2", "two"), ("1", "one"))] == [None] * 3
    pids, regions = zip(*(line.split() for line in log.read_text().splitlines()), strict=True)
    assert regions == ("one", "two"), "a region is tried once"
    assert len(set(pids)) == 1, "in one process"


def test_a_region_whose_json_has_several_lines_is_one_region() -> None:
    tried = trials("say('done') if line == 'one\\n\\ntwo' else os._exit(1)")
    assert tried.refusal("key", "one\n\ntwo") is None


def test_what_takes_too_long_is_given_up_and_remembered() -> None:
    tried = trials("time.sleep(60) if 'slow' in line else say('done')", seconds=2.0)
    assert tried.refusal("slow", "slow one") == "it was not compiled within 2 s"
    start = monotonic()
    assert tried.refusal("slow", "slow one") == "it was not compiled within 2 s"
    assert monotonic() - start < 1, "the second time it is known"
    assert tried.refusal("quick", "another") is None, "a new process takes the next"


@pytest.mark.parametrize(
    ("ending", "reason"),
    [
        ("os.kill(os.getpid(), 11)", "compiling it ended a process with SIGSEGV"),
        ("os._exit(3)", "compiling it ended a process with status 3"),
        ("os.close(1); time.sleep(60)", "compiling it ended a process with status 1"),
    ],
)
def test_what_brings_the_process_down_is_given_up(ending: str, reason: str) -> None:
    assert trials(ending).refusal("key", "region") == reason


def test_a_process_that_left_for_want_of_work_is_no_verdict(tmp_path: Path) -> None:
    """It goes when a second region comes, as if it had not seen it; the next process takes that one."""
    seen = tmp_path / "seen"
    tried = trials(
        f"if os.path.exists({str(seen)!r}): os.remove({str(seen)!r}); os._exit(0)\n"
        f"if 'first' in line: open({str(seen)!r}, 'w')\n"
        "say('done')"
    )
    assert tried.refusal("1", "first") is None
    assert tried.refusal("2", "second") is None
    assert not seen.exists()


@pytest.mark.parametrize("command", [("/nonexistent",), (sys.executable, "-c", "raise SystemExit(1)")])
def test_where_no_process_starts_nothing_is_refused(command: tuple[str, ...]) -> None:
    assert Trials(command).refusal("key", "region") is None


def test_a_long_region_reaches_the_process_whole() -> None:
    tried = trials("say('done') if len(line) == 1_000_000 else os._exit(1)")
    assert tried.refusal("key", "x" * 1_000_000) is None


def test_several_threads_ask_in_turn() -> None:
    tried = trials("time.sleep(0.05)\nsay('done')")
    found: list[str | None] = []
    threads = [Thread(target=lambda i=i: found.append(tried.refusal(str(i), "region"))) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [None] * 6


def test_no_process_is_left_behind() -> None:
    script = (
        "import sys; from fuseplan.executors.nvfuser.trial import Trials\n"
        "tried = Trials((sys.executable, '-c', 'import json, time; print(json.dumps(\"ready\"), flush=True); time.sleep(60)'), 0.1)\n"
        "running = tried._running(); print(running.pid)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert not Path(f"/proc/{done.stdout.strip()}").exists()


def test_good_news_is_kept_for_the_next_process_and_bad_news_is_not(tmp_path: Path) -> None:
    kept = KnownRegions(tmp_path / "kept")
    words = "say('failed' if 'bad' in line else 'done')"
    first = trials(f"time.sleep(60) if 'slow' in line else {words}", seconds=2.0)
    first.kept = kept
    assert first.refusal("quick", "region") is None
    assert first.refusal("bad", "bad one") is None  # not in this process: it will see for itself
    assert first.refusal("slow", "slow one") is not None
    nobody = Trials(("/nonexistent",), kept=kept)
    assert nobody.refusal("other", "region") is None  # nothing was learned of it
    assert [what in kept for what in ("quick", "bad", "slow", "other")] == [True, False, False, False]
    broken = trials("print('garbage', flush=True); time.sleep(60)", seconds=2.0)
    broken.kept = kept
    assert broken.refusal("quick", "region") is None, "it was asked again"


def test_the_process_says_when_it_could_not_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # the region is for a GPU
    kept = KnownRegions(tmp_path / "kept")
    tried = Trials(kept=kept)
    assert tried.refusal("key", chain(3).to_json()) is None
    assert tried._process is not None, "it has answered, and waits for the next"
    assert "key" not in kept


def test_where_nothing_can_be_written_nothing_is_kept(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    kept = KnownRegions(tmp_path / "file" / "folder")
    kept.add("one")
    kept.drop("one")
    assert "one" not in kept


@pytest.mark.parametrize("status", [0, 1])
def test_a_process_that_finds_that_nvfuser_runs_spares_the_next_one_the_trial(
    status: int, own_database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []

    def run(*_: object, **__: object) -> subprocess.CompletedProcess[str]:
        tried.append(status)
        return subprocess.CompletedProcess((), status, "", "ImportError: no such symbol")

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: importlib.machinery.ModuleSpec(name, None))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda i: SimpleNamespace(name=f"GPU {i}"))
    driver = tmp_path / "version"
    driver.write_text(f"of {tmp_path}")
    monkeypatch.setattr(kept_here, "_DRIVER", driver)
    monkeypatch.setattr(kept_here, "_meeting", kept_here._meeting.__wrapped__)
    monkeypatch.setattr(subprocess, "run", run)
    misfit = available._misfit.__wrapped__
    verdicts = [misfit(), misfit()]
    assert (verdicts == [None, None]) == (status == 0)
    assert len(tried) == (1 if status == 0 else 2), "bad news may be mended"
    assert (own_database.parent / "nvfuser" / kept_here._meeting() / "fits").exists() == (status == 0)
    tried.clear()
    driver.write_text(f"another of {tmp_path}")
    misfit()
    assert tried == [status], "under another driver nothing is known"


def chain(length: int) -> Graph:
    kind = TensorType("float32", (4,), (1,), "cuda:0")
    ops = tuple(Op("aten.neg.default", (Ref(f"v{i}"),), (), (Value(f"v{i + 1}", kind),)) for i in range(length))
    return Graph((Value("v0", kind),), ops, (Ref(f"v{length}"),))


def test_nvfuser_gives_up_a_large_region_with_the_reason_and_asks_about_no_small_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The executor of a machine without nvFuser: what would compile is left out, what decides before is not."""
    asked: list[int] = []

    class Slow(Trials):
        def refusal(self, key: str, text: str) -> str | None:
            asked.append(len(Graph.from_json(text).ops))
            return "it was not compiled within 30 s"

    monkeypatch.setattr(executor, "_trials", Slow)
    monkeypatch.setattr(executor, "build", lambda region: len(region.ops))
    assert NvfuserExecutor().compile(chain(MIN_OPS)) == MIN_OPS  # type: ignore[comparison-overlap]
    assert asked == []
    with pytest.raises(ExecutorError, match=rf"{MIN_OPS + 1} ops: it was not compiled within 30 s"):
        NvfuserExecutor().compile(chain(MIN_OPS + 1))
    assert asked == [MIN_OPS + 1]
