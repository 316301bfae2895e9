"""`run`: any script with fuseplan as the backend of every torch.compile in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from fuseplan.options import Options
from fuseplan.recording.hook import hooked
from fuseplan.recording.late import once_imported
from fuseplan.recording.named import NamedModules, compiling
from fuseplan.recording.takeover import Watcher, taken_over


@contextmanager
def run(*, compile: Sequence[str] = (), **options: Any) -> Iterator[Watcher]:
    """Inside this context every call of torch.compile gets fuseplan as its backend, whatever it asks for.

    `compile` names classes of modules that are compiled though nobody says so: "GPT2Block", or longer,
    "modeling_gpt2.GPT2Block". The options are those of the backend: `db`, `tune`, `unverified`, `plan`, `launch` …
    What comes of it is in `watcher.programs`: each program, its plan, and why it is that one.

    >>> import torch
    >>> import fuseplan
    >>> with fuseplan.run(plan="aten") as watcher:
    ...     torch.compile(lambda x: x * 2, mode="reduce-overhead")(torch.ones(2))
    tensor([2., 2.])
    >>> [program.why for program in watcher.programs]
    ['asked for by option']
    """
    Options.parse(options)
    watcher = Watcher()
    named = NamedModules(compile, _compiled)

    def begin(torch: Any) -> None:
        stack.enter_context(taken_over(torch, options, watcher))
        stack.enter_context(hooked(torch, watcher))
        if named.names:
            stack.enter_context(compiling(torch, named))

    with ExitStack() as stack:
        with once_imported("torch", begin):
            yield watcher
        for line in named.complaints():
            watcher.note(line)


def _compiled(call: Any) -> Callable[..., Any]:
    import torch

    return torch.compile(call)
