"""Programs that wait in the database to be tuned at another time, or by another process or machine: traces without a plan."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from fuseplan.capture.dynamo.compilations import calling_first
from fuseplan.capture.dynamo.names import name_of
from fuseplan.capture.dynamo.numerics import Numerics
from fuseplan.capture.trace.calls import Calls, larger
from fuseplan.capture.trace.format import Trace
from fuseplan.capture.trace.write import write_trace
from fuseplan.errors import GraphError, StoreError
from fuseplan.measure.environment import environment
from fuseplan.tuning.queue.promises import refuse_promises
from fuseplan.tuning.traces import box_of, device_of, sizes_of
from fuseplan.tuning_db import Box, Environment, Store
from fuseplan.tuning_db.columns import MAX_TRACE
from fuseplan.tuning_db.sizes import STATIC


def put(program: str, gm: Any, example_inputs: Sequence[Any], store: Store) -> CallsOf:
    """Put a program of this key, which is being compiled, into the queue, unless it is there. Returns who counts its calls.
    FuseplanError says why it cannot be tuned.
    """
    sizes = STATIC
    if not _waits(store, program, sizes):  # to look at all that it is given may take seconds
        trace = write_trace(gm, example_inputs, name_of(gm))
        refuse_promises(gm, example_inputs, trace)
        sizes = box_of(trace)
        if not _waits(store, program, sizes):
            text = trace.to_json()
            if len(text) > MAX_TRACE or not store.add_program(program, trace.name or None, trace=text, sizes=sizes):
                raise StoreError("the database does not take its trace")
    return _calls_of(store, program, sizes)


def _waits(store: Store, program: str, sizes: Box) -> bool:
    """Whether a trace of it is there that computes as this process does."""
    text = store.find_trace(program, sizes)
    trace = None if text is None else _readable(text)
    if trace is None or Numerics.of(trace.numerics) != Numerics.here():
        return False
    if store.holds_back:
        raise StoreError("the database does not take its trace")
    return True


@dataclass
class CallsOf:
    """How often this process has called a program that waits."""

    store: Store
    program: str
    sizes: Box
    calls: int = 0

    def counted(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """What was compiled, with its calls counted."""
        return calling_first(self._count, compiled)

    def _count(self) -> None:
        self.calls += 1

    def keep(self) -> bool:
        """Write the count down, and say whether that could be done; of what is told of one trace the largest stays."""
        text = self.store.find_trace(self.program, self.sizes) if self.calls else None
        trace = None if text is None else _readable(text)
        if trace is None:
            return True
        trace = replace(trace, calls=larger(trace.calls, (Calls(sizes_of(trace), self.calls),)))
        return self.store.add_program(self.program, trace=trace.to_json(), sizes=self.sizes, calls=trace.times)


_counting: dict[tuple[Store, str, Box], CallsOf] = {}
_one_at_a_time = threading.Lock()


def _calls_of(store: Store, program: str, sizes: Box) -> CallsOf:
    """One for each program of this process, whose count is kept when that ends."""
    with _one_at_a_time:
        return _counting.setdefault((store, program, sizes), CallsOf(store, program, sizes))


@atexit.register
def _keep_counts() -> None:
    """All of them, up to the first that cannot be written: each may wait half a minute for a database that another process holds."""
    for one in _counting.values():
        if not one.keep():
            return


def waiting(store: Store, devices: Iterable[str] = ()) -> list[Trace]:
    """The programs that have no plan yet for a device of this machine, or of these types, on which they were recorded.

    >>> waiting(Store.open({"HOME": "/home/ada"}))
    []
    """
    named = {device.partition(":")[0] for device in devices} or {
        "cpu",
        *(["cuda"] if torch.cuda.is_available() else []),
    }
    here = {kind: environment(kind) for kind in sorted(named)} if store.programs("") else {}
    found = []
    for text, planned in store.traced():
        trace = _readable(text)
        mine = here.get(device_of(trace).partition(":")[0]) if trace is not None else None
        if trace is not None and mine is not None and _as_recorded(mine, trace) not in planned:
            found.append(trace)
    return found


def _as_recorded(here: Environment, trace: Trace) -> Environment:
    """This machine in a process that computes as the one did that the trace is of."""
    return replace(here, **asdict(Numerics.of(trace.numerics)))


def _readable(text: str) -> Trace | None:
    """A stored trace; None where a newer fuseplan has written it."""
    try:
        return Trace.from_json(text)
    except GraphError:
        return None
