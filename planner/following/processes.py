"""Processes that a script starts, such as the ranks of `torchrun`: each records, or runs under its plans, as the script does.

They inherit a variable that says how, and a folder on their path whose module Python runs before anything else. What each has
come to it writes to a file, which the process that was started first reads at the end.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

from fuseplan.errors import FuseplanError
from fuseplan.recording.late import once_imported

VARIABLE = "FUSEPLAN_FOLLOW"
STARTED = Path(__file__).parent / "started"
_OF_TOOLS = re.compile(
    r"^fuseplan\.measure\.|^torch\._inductor\.|[/\\]torch[/\\]_inductor[/\\]|\bmultiprocessing\.resource_tracker\b"
)
"""What stands in the command line of a process that some library has started for itself: it runs no program of the script's."""


@dataclass(frozen=True)
class Following:
    """What a process that a script has started is to do, and where it tells what came of it."""

    verb: str
    reports: str
    arguments: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def inherited(variables: Mapping[str, str]) -> Following | None:
        """What this process was told, if it was started by a script that is followed.

        >>> Following.inherited({}) is None
        True
        """
        try:
            fields = json.loads(variables[VARIABLE])
            return Following(fields["verb"], fields["reports"], fields["arguments"])
        except (KeyError, TypeError, ValueError):
            return None


@contextmanager
def followed(verb: str, **arguments: Any) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """While it lasts, what this process starts does the same; what is given tells at the end what each came to."""
    try:
        folder, process = mkdtemp(prefix="fuseplan-"), os.getpid()
    except OSError:  # no room for what others would tell: then this process goes alone
        yield list
        return
    told = json.dumps(asdict(Following(verb, folder, arguments)))
    path = os.pathsep.join([str(STARTED), *filter(None, [os.environ.get("PYTHONPATH")])])
    before = {name: os.environ.get(name) for name in (VARIABLE, "PYTHONPATH")}
    os.environ.update({VARIABLE: told, "PYTHONPATH": path})
    try:
        yield lambda: _reports(Path(folder))
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if os.getpid() == process:  # and no child that the script forked
            rmtree(folder, ignore_errors=True)


def _reports(folder: Path) -> list[dict[str, Any]]:
    found = []
    for file in sorted(folder.glob("*.json")):
        with suppress(OSError, ValueError):  # of a process that was killed over it
            found.append(json.loads(file.read_text(encoding="utf-8")))
    return found


def agreed(told: Sequence[tuple[bool, Sequence[str]]]) -> list[str]:
    """The notes of several processes, each with whether a program came to it: that a class was never called only if none has called it.

    >>> agreed([(False, ["--compile Net: none"]), (True, ["a"]), (True, ["--compile Net: none", "a"])])
    ['a']
    >>> agreed([(False, ["--compile Net: none"]), (False, [])])
    ['--compile Net: none']
    """
    counted = [notes for came, notes in told if came] or [notes for _, notes in told[:1]]
    every = dict.fromkeys(note for _, notes in told for note in notes)
    return [note for note in every if not note.startswith("--compile ") or all(note in notes for notes in counted)]


def follow() -> None:
    """Do in this process, once it imports torch, what the process does that has started it."""
    following = Following.inherited(os.environ)
    if following is None or any(map(_OF_TOOLS.search, sys.orig_argv[1:])):
        return
    stack, process = ExitStack(), os.getpid()

    def end() -> None:
        if os.getpid() != process:  # one that it has forked
            return
        with suppress(Exception):  # the process is its own; there is nobody to tell
            stack.close()

    def begin(_: object) -> None:
        with suppress(FuseplanError):  # which the first process has said
            stack.enter_context(_VERBS[following.verb](following))

    stack.enter_context(once_imported("torch", begin))  # until then it is as fast as ever
    _at_the_end(end)


def _at_the_end(end: Callable[[], None]) -> None:
    """Have `end` called when the process ends by itself. One that multiprocessing has started runs only what that knows of."""
    atexit.register(end)
    if any("multiprocessing" in argument for argument in sys.orig_argv):
        from multiprocessing import util

        def known(_: object) -> None:
            util.Finalize(None, end, exitpriority=-100)

        util.register_after_fork(end, known)


@contextmanager
def _recording(following: Following) -> Iterator[None]:
    from fuseplan.record import record
    from fuseplan.recording.folder import file_name

    given = dict(following.arguments)

    def tell() -> None:
        files = [file_name(trace) for trace in recording.programs]
        _tell(following, {"came": recording.came, "notes": recording.notes, "files": files})

    with record(**{**given, "name": _name() or given["name"]}) as recording:
        recording.heard = tell  # the process may be killed
        yield
    if recording.came or recording.notes:
        tell()


@contextmanager
def _running(following: Following) -> Iterator[None]:
    from fuseplan.run import run
    from fuseplan.stats import stats

    with run(**following.arguments) as watcher:
        yield
    if watcher.programs or watcher.unfinished or watcher.notes:
        programs = [vars(one) for one in watcher.programs]
        rest = {"unfinished": watcher.unfinished, "notes": list(watcher.notes), "stats": stats()}
        _tell(following, {"programs": programs, **rest})


_VERBS: dict[str, Callable[[Following], Any]] = {"record": _recording, "run": _running}


def _name() -> str:
    """What the script of this process is called: Python has not said so yet, but for what it was started with."""
    words = iter(sys.orig_argv[1:])
    for word in words:
        if word == "-m":
            return next(words, "").split(".")[-1]
        if word in ("-W", "-X", "--check-hash-based-pycs"):
            next(words, "")
        elif not word.startswith("-"):
            return Path(word).stem
        elif word == "-c":
            break
    return ""


def _tell(following: Following, report: Mapping[str, Any]) -> None:
    place = Path(following.reports)
    unfinished = place / f"{os.getpid()}.part"
    with suppress(OSError):  # the first process is gone, or its disk is full
        unfinished.write_text(json.dumps(report), encoding="utf-8")
        os.replace(unfinished, place / f"{os.getpid()}.json")
