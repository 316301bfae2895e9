"""Puts fuseplan in the place of the backend that a script asks torch.compile for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any

_INDUCTOR = (None, "inductor")


@dataclass(frozen=True)
class Ran:
    """One program that was compiled: its name, its key or why it has none, the plan it runs under, and why that one; and what
    of the plan could not be had.
    """

    name: str
    key: str | None
    plan: str
    why: str


class Watcher:
    """Sees what fuseplan makes of each program."""

    def __init__(self) -> None:
        self.programs: list[Ran] = []
        self.unfinished: list[str] = []
        """The names of programs that were met, and whose compiling has not come to its end: an error, or Ctrl-C."""
        self.notes: dict[str, None] = {}

    def met(self, wrapper: object, gm: Any, example_inputs: Sequence[Any]) -> Callable[[Any], Any] | None:
        """See a program; once it is compiled, note its plan."""
        from fuseplan.backend import programs_of
        from fuseplan.capture.dynamo.names import name_of
        from fuseplan.looking.words import describe

        name, known = name_of(gm), len(programs_of(wrapper))
        self.unfinished.append(name)

        def then(compiled: Any) -> Any:
            self.unfinished.remove(name)
            new = programs_of(wrapper)[known:]
            self.programs += [Ran(name, one.key, describe(one.plan), "; ".join([one.why, *one.remarks])) for one in new]
            return compiled

        return then

    def note(self, text: str) -> None:
        """Note, once, what the script asked for and does not get."""
        self.notes.setdefault(text)


@contextmanager
def taken_over(torch: Any, options: Mapping[str, Any], watcher: Watcher) -> Iterator[None]:
    """Have every call of torch.compile in this context ask for fuseplan, with these options.

    A mode that the script asks for is kept: it says how what has no plan is compiled. So are the options of a script
    that asks for fuseplan itself.
    """
    original = torch.compile

    @wraps(original)
    def compile(model: Any = None, **arguments: Any) -> Any:
        if model is None:
            return lambda found: compile(found, **arguments)
        backend, own = arguments.get("backend"), arguments.get("options")
        if _is_torchs_own(sys._getframe(1), backend):
            return original(model, **arguments)
        chosen = dict(options)
        if backend == "fuseplan":
            chosen |= dict(own or {})
        elif own:
            named = ", ".join(map(str, own))
            watcher.note(f"options of torch.compile that are those of another backend were left out: {named}")
        if backend not in (*_INDUCTOR, "fuseplan"):
            watcher.note(f"backend {getattr(backend, '__name__', backend)!s} was replaced")
        if arguments.get("mode") is not None:
            chosen.setdefault("mode", arguments["mode"])
        rest = {name: value for name, value in arguments.items() if name not in ("backend", "mode", "options")}
        return original(model, backend="fuseplan", options=chosen or None, **rest)

    torch.compile = compile
    try:
        yield
    finally:
        torch.compile = original


def _is_torchs_own(caller: Any, backend: object) -> bool:
    """Whether torch compiles for a purpose of its own, such as to run a higher-order operator eagerly."""
    return backend == "eager" and str(caller.f_globals.get("__name__", "")).split(".")[0] == "torch"
