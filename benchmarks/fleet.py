"""Several benchmarks at a time, each in a process of its own with a GPU and a share of the cores to itself.

`python -m benchmarks.fleet TASK` is such a process: it takes its cores before anything counts them.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from time import monotonic
from typing import Any

from benchmarks.result import ROOT, write_json
from benchmarks.together import ASKS, Sharing, asked_no_more, running

GRACE_S = 8.0
"""What a process that is out of time gets to end its workers and to keep what was measured."""
CUT_SHORT = ", all that was left"
"""How the reason ends for which a process failed that had less time than it might have had."""
CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH")
"""Where a process keeps what it has compiled, by the names of the variables that say so."""


@dataclass(frozen=True)
class Task:
    """`module.run(task)` in a process of its own, which keeps its result in the file `out`, and its output in `log`."""

    name: str
    module: str
    out: Path
    log: Path
    arguments: Mapping[str, Any] = field(default_factory=dict)
    limit_s: float = 540.0
    cores: tuple[int, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    """For its environment."""
    grace_s: float = GRACE_S

    def to_json(self) -> str:
        """One line."""
        return json.dumps({**vars(self), "out": str(self.out), "log": str(self.log)})

    @staticmethod
    def from_json(text: str) -> Task:
        """What `to_json` wrote."""
        data = json.loads(text)
        return Task(
            **{**data, "out": Path(data["out"]), "log": Path(data["log"]), "cores": tuple(data["cores"])},
        )


class Report:
    """The result of a task as far as it is known, on disk at each step: a process that dies leaves where it was."""

    def __init__(self, path: Path, *, resumed: bool = False, **fields: Any) -> None:
        """Begin anew, or with what an earlier process has left there, `resumed`."""
        self.path, self.fields = path, {**(read(path) if resumed else {}), **fields}
        self._earlier_s: float = self.fields.get("seconds", 0.0)

    def seconds(self) -> float:
        """What this process has taken, and those before it whose report it goes on with."""
        return round(self._earlier_s + running() - STARTED, 1)

    def put(self, **fields: Any) -> None:
        """Add to it."""
        self.fields |= fields
        write_json(self.path, self.fields)

    def at(self, stage: str, side: str = "") -> None:
        """Say what is done now, and with which side."""
        print(f"[{running() - STARTED:7.1f} s] {stage} {side}".rstrip(), file=sys.stderr, flush=True)
        self.put(at=stage, at_side=side)


STARTED = running()


@dataclass(frozen=True)
class Slot:
    """One GPU and some cores."""

    number: int
    gpu: str | None
    cores: tuple[int, ...]


def slots(count: int, each: int = 1) -> list[Slot]:
    """Slots on so many GPUs, so many on each; the cores are shared out evenly. With one, the GPU is whichever is the first."""
    import torch  # not above: a task takes its cores before torch counts them

    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    some = max(1, len(cores) // (count * each))
    seen = [gpu for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]
    gpus = seen or [str(number) for number in range(torch.cuda.device_count())]
    return [
        Slot(
            i,
            gpus[i % count % len(gpus)] if gpus and count > 1 else None,
            tuple(cores[i * some : (i + 1) * some] or cores),
        )
        for i in range(count * each)
    ]


def run_all(
    tasks: Sequence[Task],
    count: int,
    within_s: float,
    on_done: Callable[[Task, dict[str, Any], str], Task | None],
    least_s: float = 0.0,
    each: int = 1,
) -> list[Task]:
    """Run the tasks on so many GPUs, `each` with so many at a time, in their order; returns those that no time was left for, or less than
    `least_s`.

    `on_done` hears, one at a time and in this thread, of each: what it has reported, and why it failed if it did. It may
    return a task to run in its stead, which is the next: what was begun is finished first.
    """
    deadline = monotonic() + within_s
    waiting = deque(tasks)
    done: queue.Queue[tuple[Slot, Task, str]] = queue.Queue()
    free, at_work = slots(count, each), 0
    with _children() as children, Sharing() as sharing:
        while at_work or waiting:
            while free and waiting and monotonic() + least_s < deadline:
                slot, task = free.pop(0), waiting.popleft()
                limit = min(task.limit_s, deadline - monotonic())
                asks = task.out.with_suffix(".asks").absolute()
                asked_no_more(asks)
                shares = {ASKS: str(asks)} if each > 1 else {}
                process = _start(
                    replace(task, cores=slot.cores, limit_s=limit, variables={**task.variables, **shares}), slot
                )
                if shares:
                    sharing.joined(slot.gpu, process.pid, asks)
                children.append((process, task.grace_s))
                watched = (process, slot, task, limit, deadline, sharing, done)
                threading.Thread(target=_watch, args=watched, daemon=True).start()
                at_work += 1
            if not at_work:
                break
            slot, task, failed = done.get()
            at_work -= 1
            free.insert(0, slot)
            again = on_done(task, read(task.out), failed)
            if again is not None:
                waiting.appendleft(again)
    return list(waiting)


def run_one(
    command: Sequence[str], grace_s: float, cwd: Path = ROOT, variables: Mapping[str, str] | None = None
) -> int:
    """Wait for one command, and return what it exits with; it does not outlive the wait."""
    with _children() as children:
        environment = {**os.environ, **(variables or {})}
        process = subprocess.Popen(
            command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, start_new_session=True
        )  # fmt: skip
        children.append((process, grace_s))
        return process.wait()


def read(path: Path) -> dict[str, Any]:
    """What a report has so far; nothing where there is none, or none that can be read."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found


def _start(task: Task, slot: Slot) -> subprocess.Popen[bytes]:
    for path in (task.out, task.log):
        path.parent.mkdir(parents=True, exist_ok=True)
    gpu = {} if slot.gpu is None else {"CUDA_VISIBLE_DEVICES": slot.gpu}
    with task.log.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "benchmarks.fleet", task.to_json()],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=ROOT, env={**os.environ, **gpu, **task.variables, _PARENT: str(os.getpid())}, start_new_session=True,
        )  # fmt: skip


def _watch(
    process: subprocess.Popen[bytes],
    slot: Slot,
    task: Task,
    limit_s: float,
    deadline: float,
    sharing: Sharing,
    done: Any,
) -> None:
    began, lost_s = monotonic(), 0.0
    try:
        while True:
            try:
                code = process.wait(max(0.0, min(began + limit_s + lost_s, deadline) - monotonic()))
                break
            except subprocess.TimeoutExpired:
                more_s = sharing.lost_s(slot.gpu, process.pid)
                if more_s <= lost_s or monotonic() >= deadline:
                    raise
                lost_s = more_s
        sharing.left(slot.gpu, process.pid)
        _kill_group(process)  # what it has left, such as a compiler that it gave up
        failed = "" if code == 0 else f"the process ended with {code}"
    except subprocess.TimeoutExpired:
        sharing.left(slot.gpu, process.pid)
        _end(process, task.grace_s)
        failed = f"it did not end within {limit_s:.0f} s{CUT_SHORT if limit_s < task.limit_s else ''}"
    done.put((slot, task, failed))


@contextlib.contextmanager
def _children() -> Iterator[list[tuple[subprocess.Popen[bytes], float]]]:
    """Processes that are gone afterwards, whatever happens, each after the grace that is given with it at most."""
    children: list[tuple[subprocess.Popen[bytes], float]] = []
    try:
        yield children
    finally:
        left = [(process, grace_s) for process, grace_s in children if process.poll() is None]
        for process, _ in left:
            process.send_signal(signal.SIGINT)
        for process, grace_s in left:
            _end(process, grace_s)


def _end(process: subprocess.Popen[bytes], grace_s: float) -> None:
    """As Ctrl-C would; then for good."""
    process.send_signal(signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(grace_s)
    _kill_group(process)
    process.wait()


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def end_with_parent() -> None:
    """Have this process killed when the one that started it ends, however that ends: nothing goes on measuring unseen."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != int(os.environ.get(_PARENT, os.getppid())):  # it has ended already
            sys.exit("nobody waits for this")


_PR_SET_PDEATHSIG = 1
_PARENT = "FUSEPLAN_BENCHMARKS_PARENT"
"""The process that has started this one, as a variable of the environment."""

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has its background jobs ignore it
    end_with_parent()
    mine = Task.from_json(sys.argv[1])
    if mine.cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, mine.cores)
    import_module(mine.module).run(mine)
    # all is reported: what still compiles, or holds on to a device, may not keep the next one waiting
    last = threading.Timer(mine.grace_s, os._exit, (0,))
    last.daemon = True
    last.start()
