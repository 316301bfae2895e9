"""`record`: a trace of every program that torch.compile meets, from a script that knows nothing of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from fuseplan.capture.trace.format import Trace
from fuseplan.errors import GraphError, OptionError
from fuseplan.recording.book import Recording
from fuseplan.recording.folder import check_folder
from fuseplan.recording.hook import hooked
from fuseplan.recording.late import once_imported
from fuseplan.recording.named import NamedModules, compiling
from fuseplan.recording.observer import ProgramObserver


@contextmanager
def record(
    folder: str | Path | None = None,
    *,
    compile: Sequence[str] = (),
    retarget: str | None = None,
    name: str = "",
) -> Iterator[Recording]:
    """Write a trace of each program that is compiled inside this context, whatever the backend.

    Each program is one file in `folder`, or none at all without a folder, written when it is met; its calls are counted
    until the end. `recording.programs` are the traces, `recording.notes` says what could not be recorded, and why. What
    is computed stays as it is. A program that was compiled before is not met again: `torch.compiler.reset()` forgets
    them.

    `compile` names classes of modules that are to be recorded though nobody compiles them: "GPT2Block", or longer,
    "modeling_gpt2.GPT2Block". They are captured, and run as eager does. `retarget` is the kind of device that the traces
    are to be tuned for, where it is another: "cuda". `name` is put before the names of programs.

    >>> import torch
    >>> import fuseplan
    >>> double = torch.compile(lambda x: x * 2, backend="eager")
    >>> with fuseplan.record() as recording:
    ...     _ = double(torch.ones(2)), double(torch.ones(2))
    >>> [trace.times for trace in recording.programs]
    [2]
    """
    place = None if folder is None else Path(folder)
    _check_device(retarget)
    named = NamedModules(compile, _as_eager)
    if place is not None:
        check_folder(place)
    recording = Recording(place, name=name, device=retarget)

    def begin(torch: Any) -> None:
        stack.enter_context(hooked(torch, ProgramObserver(recording)))
        if named.names:
            stack.enter_context(compiling(torch, named))

    with ExitStack() as stack:
        try:
            with once_imported("torch", begin):
                yield recording
        finally:
            for line in named.complaints():
                recording.note(line)
            recording.close()


def read_nvfuser(scripts: Sequence[str | Path], folder: str | Path, *, retarget: str | None = None) -> Recording:
    """Write a trace of each fusion that nvFuser scripts define; they are parsed, and not run."""
    from fuseplan.capture.nvfuser_script import read_scripts
    from fuseplan.recording.meeting import entry_of

    _check_device(retarget)

    def read(script: Path) -> list[Trace]:
        try:
            return read_scripts(script.read_text(encoding="utf-8"), script.stem)
        except OSError as error:
            raise OptionError(f"{script} cannot be read: {error.strerror or error}") from None
        except (UnicodeDecodeError, GraphError) as error:
            raise GraphError(f"{script} is no nvFuser script that can be read: {error}") from None

    found = [trace for script in scripts for trace in read(Path(script))]
    check_folder(Path(folder))
    recording = Recording(Path(folder), device=retarget)
    for trace in found:
        entry_of(recording, trace)
    return recording


def _check_device(device: str | None) -> None:
    if device is not None and not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise OptionError(f"traces are retargeted to cpu or cuda, not to {device!r}")


def _as_eager(call: Any) -> Callable[..., Any]:
    """Capture what is called, and run it as it was captured."""
    import torch

    return torch.compile(call, backend=_run_as_captured)


def _run_as_captured(gm: Any, example_inputs: list[Any]) -> Callable[..., Any]:
    import torch
    from torch._dynamo.backends.debugging import aot_eager

    checkpointed = gm.graph.find_nodes(op="call_function", target=torch.ops.higher_order.tag_activation_checkpoint)
    # run as it is, a block that is computed again would draw other random numbers than it did the first time
    return aot_eager(gm, example_inputs) if checkpointed else gm.forward
