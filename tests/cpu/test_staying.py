"""Workers that stay for the next program, and those that start ahead of the first."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.backends import registry

from fuseplan import backend
from fuseplan.tuning.effort import INSTANT
from fuseplan.tuning.queue import staying


class Counted:
    """In the place of workers."""

    made: list[Counted]

    def __init__(self, device: str, operators: Mapping[str, str]) -> None:
        self.setup = type("S", (), {})
        self.device, self.operators, self.started, self.closed = device, operators, 0, False
        self.made.append(self)

    def start(self, *, racing: bool) -> None:
        self.started += 1

    def rest(self) -> None: ...

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Counted]]:
    Counted.made = []
    monkeypatch.setattr(staying, "workers_for", lambda device, effort: Counted(device, {}))
    monkeypatch.setattr(staying, "_has_room", lambda device: True)
    monkeypatch.setattr(staying, "_alike", lambda one, other: one.operators == other.operators)
    yield Counted.made
    for one in list(staying._staying):
        one.end.cancel()
    staying._staying.clear()


@contextmanager
def used(device: str = "cuda:0") -> Iterator[Any]:
    with staying.staying_workers(device, INSTANT) as pool:
        yield pool


def test_the_next_program_finds_the_workers_of_the_last(made: list[Counted]) -> None:
    with used() as first:
        pass
    with used() as second:
        pass
    with used("cuda:1") as elsewhere:
        pass
    assert first is second
    assert elsewhere is not first
    assert (first.started, first.closed) == (1, False)
    assert len(staying._staying) == 2


def test_nobody_comes_and_they_end(made: list[Counted], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staying, "STAY_S", 0.05)
    monkeypatch.setattr(staying._let_stay, "__defaults__", (0.05,))
    with used() as first:
        pass
    for one in list(staying._staying):
        one.end.join(10)
    assert first.closed
    assert not staying._staying


def test_after_an_error_and_on_a_cpu_none_stay(made: list[Counted]) -> None:
    with pytest.raises(KeyError), used() as first:
        raise KeyError
    with used("cpu") as other:
        pass
    assert first.closed
    assert other.closed
    assert not staying._staying


def test_workers_that_started_ahead_are_taken_up(made: list[Counted]) -> None:
    staying.start_ahead("cuda:0", "instant")
    staying.start_ahead("cuda:0", "instant")
    with used() as pool:
        assert pool is made[0]
    assert sum(one.started for one in made) == 1


def test_workers_are_alike_if_they_would_be_started_so_now() -> None:
    one, other = (staying.workers_for("cpu", INSTANT) for _ in range(2))
    assert staying._alike(one, other)
    setup = other.racer.setup
    for process in (other.racer, *other.vetters):
        process.setup = replace(process.setup, operators={**setup.operators, "x::y": "torch.distributed.z"})
    assert staying._alike(one, other), "torch brings its own"
    for process in (other.racer, *other.vetters):
        process.setup = replace(process.setup, operators={**setup.operators, "x::y": "mine"})
    assert not staying._alike(one, other)
    flags = {**setup.flags, "another": 1}
    for process in (other.racer, *other.vetters):
        process.setup = replace(setup, flags=flags)
    assert not staying._alike(one, other)


@pytest.mark.parametrize(
    ("options", "there", "cuda", "starts"),
    [
        ({"tune": "instant"}, False, True, True),
        ({"tune": "quick"}, False, True, True),
        ({"tune": "later"}, False, True, False),
        ({"tune": "instant"}, True, True, False),
        ({"tune": "instant"}, False, False, False),
        ({"tune": "instant", "db": 3}, False, True, False),
        ({"tune": "instant", "plan": "aten"}, False, True, False),
        ({}, False, True, False),
    ],
)
def test_the_first_that_asks_for_tuning_has_workers_started(
    options: dict[str, Any], there: bool, cuda: bool, starts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a database is there already, the program may well be known."""
    file, started = tmp_path / "tuning.db", list[tuple[str, str]]()
    if there:
        file.touch()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: cuda)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(staying, "start_ahead", lambda device, effort: started.append((device, effort)))
    backend._asked({"db": str(file), **options})
    assert started == ([("cuda:1", options["tune"])] if starts else [])


def test_torch_compile_tells_of_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Mapping[str, Any]] = []
    table = registry._COMPILER_FNS
    monkeypatch.setattr(table, "_asked", heard.append)
    torch.compile(lambda x: x, backend="fuseplan", options={"tune": "instant"})
    torch.compile(lambda x: x, backend="fuseplan")
    torch.compile(lambda x: x, backend="eager", options={})
    backend.compile(lambda x: x, tune="later")
    assert {"tune": "instant"} in heard
    assert {"tune": "later"} in heard
    assert {} in heard
    assert all(options in ({"tune": "instant"}, {"tune": "later"}, {}) for options in heard)
    assert registry.list_backends(), "what is no call of torch.compile tells nothing"


@pytest.mark.parametrize(("options", "brings"), [("{}", True), ("{'plan': 'aten'}", False)])
def test_who_is_going_to_compile_brings_inductor_at_once(options: str, brings: bool) -> None:
    """While nobody looks for garbage: the first call would do so once more, for a quarter of a second."""
    code = f"""
import gc, sys, torch
torch.compile(lambda x: x, backend="eager")
gc.collect()
looked = []
gc.callbacks.append(lambda phase, of: looked.append(of["generation"]))
torch.compile(lambda x: x, backend="fuseplan", options={options})
print("torch._inductor.compile_fx" in sys.modules, 2 in looked)
"""
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert ran.stdout.split() == [str(brings), "False"]


def test_options_that_are_none_are_as_wrong_as_before(tmp_path: Path) -> None:
    """Pairs were always taken, and whatever else is wrong is told of at the first call."""

    class Other:
        def __init__(self, options: object) -> None:
            self.found = registry.lookup_backend("fuseplan")

    pairs: Any = [("plan", "eager")]
    compiled = torch.compile(lambda x: x + 1, backend="fuseplan", options=pairs)
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    compiled = torch.compile(lambda x: x + 1, backend="fuseplan", options={"db"})  # type: ignore[arg-type]
    with pytest.raises(Exception, match="OptionError"):
        compiled(torch.ones(2))
    assert Other(torch.ones(2)).found


def test_a_head_start_that_fails_is_nobodys_matter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fails(*_: Any) -> None:
        raise BlockingIOError

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(staying, "start_ahead", fails)
    backend._asked({"tune": "instant", "db": str(tmp_path / "a.db")})
    started: list[Any] = []
    monkeypatch.setattr(staying, "start_ahead", lambda *given: started.append(given))
    monkeypatch.setattr(backend, "tunes_here", lambda: False)
    backend._asked({"tune": "instant", "db": str(tmp_path / "a.db")})
    assert not started, "another rank tunes"
