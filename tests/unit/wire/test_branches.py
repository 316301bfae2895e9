"""Processes that are forked from one that has imported all: they are as processes that were started, and end as these do."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from fuseplan.wire.branches import Stem
from fuseplan.wire.process import Child, LostError
from processes import gone

SERVED = """
import os, subprocess, sys
from fuseplan.wire import branching
{before}
def become():
    from fuseplan.wire.serve import AnswerPipe, end, end_with_parent, received
    end_with_parent(0.1)
    answers = AnswerPipe(str)
    helper = subprocess.Popen(["sleep", "1000"])
    for word in received(str):
        if word == "die":
            os.abort()
        if word == "exit":
            helper.kill()
            os._exit(7)
        told = {{"folder": os.getcwd(), "A": os.environ.get("A", "none"), "helper": str(helper.pid), "B": os.environ.get("B", "none")}}
        answers.send(told[word])
    end()

branching.serve(int(sys.argv[1]), become)
"""


def stem_of(before: str = "") -> Stem:
    return Stem([sys.executable, "-c", SERVED.format(before=before)])


@pytest.fixture
def stem(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stem]:
    monkeypatch.setenv("B", "inherited")
    found = stem_of()
    yield found
    found.close()


def child_of(stem: Stem, **variables: str | None) -> Child:
    return Child(stem.branch(variables), str)


def asked(child: Child, word: str) -> str:
    child.tell(word)
    return str(child.hear(30.0))


def test_each_has_its_own_variables_and_folder(stem: Stem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first, second = child_of(stem, A="1"), child_of(stem, A="2", B=None)
    assert [asked(first, "A"), asked(second, "A"), asked(first, "B"), asked(second, "B")] == [
        "1",
        "2",
        "inherited",
        "none",
    ]
    assert Path(asked(first, "folder")).samefile(tmp_path)
    assert os.getpgid(first.pid) == first.pid != second.pid
    first.kill()
    second.kill()


def test_how_it_has_ended_is_told(stem: Stem) -> None:
    for word, told in (("die", "died of SIGABRT"), ("exit", "exited with 7")):
        child = child_of(stem)
        child.tell(word)
        with pytest.raises(LostError, match=told):
            child.hear(30.0)
        assert not child.alive


def test_a_killed_one_takes_what_it_has_started_along(stem: Stem) -> None:
    child = child_of(stem)
    pid, helper = child.pid, int(asked(child, "helper"))
    child.kill()
    assert gone(pid)
    assert gone(helper)
    assert asked(child_of(stem), "B") == "inherited", "others are still to be had"


def test_one_that_is_not_there_yet_can_be_killed() -> None:
    stem = stem_of("import time; time.sleep(1.5)")
    early, late = child_of(stem), child_of(stem)
    began = time.monotonic()
    early.kill()
    assert not early.alive
    assert time.monotonic() - began < 1.0
    assert asked(late, "B") == os.environ.get("B", "none")
    assert all(gone(one.pid) for one in psutil.Process(stem.pid).children() if one.pid != late.pid)
    late.kill()
    stem.close()


def test_a_stem_that_cannot_begin_is_told_at_once() -> None:
    stem = stem_of("raise SystemExit(3)")
    child = child_of(stem)
    with pytest.raises(LostError, match="died of SIGKILL"):
        child.hear(30.0)
    assert not child.is_there
    assert not stem.alive
    with pytest.raises(OSError, match="gone"):
        stem.branch({})


def test_the_end_of_a_stem_ends_all_that_came_of_it(stem: Stem) -> None:
    child = child_of(stem)
    pid = child.pid
    os.kill(stem.pid, signal.SIGKILL)
    with pytest.raises(LostError):
        child.hear(30.0)
    assert gone(pid)


def test_a_stem_that_is_closed_lives_as_long_as_what_came_of_it(stem: Stem) -> None:
    child = child_of(stem)
    assert asked(child, "A") == "none"
    stem.close()
    assert asked(child, "A") == "none"
    child.kill()
    assert gone(stem.pid)


def test_a_stem_that_is_not_asked_for_anything_ends() -> None:
    stem = stem_of("branching.IDLE_S = 0.5; branching.PARENT_S = 0.1")
    child = child_of(stem)
    assert asked(child, "A") == "none"
    time.sleep(1.5)
    assert asked(child, "A") == "none", "not while one is there"
    child.kill()
    assert gone(stem.pid)


@pytest.mark.parametrize("how", ["killed", "ends"])
def test_nothing_is_left_where_the_parent_is_gone(how: str) -> None:
    ending = "os.kill(os.getpid(), 9)" if how == "killed" else "pass"
    script = f"""
    import os, sys
    from fuseplan.wire.branches import Stem
    from fuseplan.wire.process import Child
    stem = Stem([sys.executable, "-c", {SERVED.format(before="branching.PARENT_S = 0.1")!r}])
    child = Child(stem.branch({{}}), str)
    child.tell("helper")
    print(stem.pid, child.pid, child.hear(30.0), flush=True)
    {ending}
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False)
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) == 3, done.stderr
    assert all(gone(pid) for pid in pids)


def test_a_fork_of_the_parent_has_none_of_it(stem: Stem) -> None:
    """Neither does it branch, nor does its end, or what it closes, touch what the parent has."""
    child = child_of(stem)
    assert asked(child, "A") == "none"
    if (pid := os.fork()) == 0:
        alive = stem.alive
        stem.close()
        child.kill()
        os._exit(alive)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert asked(child, "A") == "none"
    assert asked(child_of(stem), "A") == "none"


def test_a_fork_that_ends_as_usual_ends_no_process_of_the_parent() -> None:
    script = f"""
    import os, sys
    from fuseplan.wire.branches import Stem
    from fuseplan.wire.process import Child
    stem = Stem([sys.executable, "-c", {SERVED.format(before="")!r}])
    child = Child(stem.branch({{}}), str)
    child.tell("A")
    child.hear(30.0)
    if (pid := os.fork()) == 0:
        sys.exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    child.tell("A")
    print(child.hear(30.0))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False)
    assert done.stdout == "none\n", done.stderr


def test_a_stem_that_has_made_one_is_not_barren(stem: Stem) -> None:
    child = child_of(stem)
    assert asked(child, "A") == "none"
    os.kill(stem.pid, signal.SIGSTOP)
    unborn = child_of(stem)
    os.kill(stem.pid, signal.SIGKILL)
    with pytest.raises(LostError):
        unborn.hear(30.0)
    assert not unborn.is_there
    assert not stem.barren
    with pytest.raises(ProcessLookupError):
        unborn.pid  # noqa: B018


def test_a_stem_that_dies_first_is_barren() -> None:
    stem = stem_of("raise SystemExit(3)")
    with pytest.raises(LostError):
        child_of(stem).hear(30.0)
    assert stem.barren


FAILS = """
real, left = os.fork, [1]
def fork():
    if not left:
        raise BlockingIOError(11, "too many processes")
    left.pop()
    return real()
os.fork = fork
"""


def test_where_no_process_can_be_made_those_that_are_there_go_on() -> None:
    stem = stem_of(FAILS)
    first = child_of(stem)
    assert asked(first, "A") == "none"
    with pytest.raises(LostError):
        child_of(stem).hear(30.0)
    assert asked(first, "A") == "none"
    first.kill()
    stem.close()


def test_a_parent_may_have_more_files_open_than_select_can_wait_for() -> None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit[1] < 2048:
        pytest.skip("this machine allows no more than 1024 files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048, limit[1]))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        stem = stem_of()
        child = child_of(stem)
        assert asked(child, "A") == "none"
        child.kill()
        stem.close()
    finally:
        for one in files:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
