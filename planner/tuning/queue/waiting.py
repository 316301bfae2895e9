"""Programs that wait in the database to be tuned at another time, or by another process or machine: traces without a plan."""

from __future__ import annotations

import atexit
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import torch

from fuseplan.capture.dynamo.compilations import calling_first
from fuseplan.capture.dynamo.names import name_of
from fuseplan.capture.dynamo.numerics import Numerics
from fuseplan.capture.dynamo.own_sizes import SizeReading
from fuseplan.capture.trace.calls import Calls, larger
from fuseplan.capture.trace.format import Trace
from fuseplan.capture.trace.write import write_trace
from fuseplan.errors import GraphError, StoreError
from fuseplan.log import logger
from fuseplan.measure.environment import environment
from fuseplan.objective import TIME, Objective
from fuseplan.tuning.queue.boxes import at_sizes, boxes_that_matter
from fuseplan.tuning.queue.promises import refuse_promises
from fuseplan.tuning.traces import box_of, device_of, sizes_of
from fuseplan.tuning_db import Box, Environment, Store
from fuseplan.tuning_db.columns import MAX_TRACE
from fuseplan.tuning_db.environment import memory_of
from fuseplan.tuning_db.sizes import MOST_SIZES, STATIC, fold


def put(program: str, gm: Any, example_inputs: Sequence[Any], store: Store, promises: bool = True) -> CallsOf:
    """Put a program of this key, which is being compiled, into the queue, unless it is there. Returns who counts its calls.
    FuseplanError says why it cannot be tuned, such as since a plan would not hold for all sizes that were promised to vary.
    """
    sizes = STATIC
    if not _waits(store, program, sizes):  # to look at all that it is given may take seconds
        trace = write_trace(gm, example_inputs, name_of(gm))
        if promises:
            refuse_promises(gm, example_inputs, trace)
        sizes = box_of(trace)
        if not _waits(store, program, sizes):
            _put_in(store, program, trace)
    return _calls_of(store, program, sizes)


def _put_in(store: Store, program: str, trace: Trace) -> None:
    text = trace.to_json()
    if len(text) > MAX_TRACE or not store.add_program(program, trace.name or None, trace=text, sizes=box_of(trace)):
        raise StoreError("the database does not take its trace")


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
    """How often this process has called a program that waits, and with which sizes."""

    store: Store
    program: str
    sizes: Box
    calls: int = 0
    """Of programs whose sizes do not vary, or are not told apart."""
    by_size: list[tuple[tuple[str, ...], Mapping[Any, int]]] = field(default_factory=list)
    """Of those that run by size: what the sizes are called, and the calls with each choice of them, which go on being counted."""
    _traces: dict[Box, Trace] = field(default_factory=dict)
    """The program as it was first met in each box."""
    _kept: int = 0
    """How many calls were there when all were written down last."""

    def counted(self, compiled: Callable[..., Any], reading: SizeReading | None = None) -> Callable[..., Any]:
        """What was compiled, with its calls counted: by the sizes that a call shows, where they vary."""
        return calling_first(self._count if reading is None else self._count_by(reading), compiled)

    def _count(self, *_: Any) -> None:
        self.calls += 1

    def _count_by(self, reading: SizeReading) -> Callable[..., None]:
        calls: dict[Any, int] = {}
        met = self.follows(reading.names, calls)

        def count(*args: Any) -> None:
            sizes = reading.read(args)
            if sizes not in calls:
                if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
                    return  # to look at the arguments is to wait, which ends what is captured
                if len(calls) >= MOST_SIZES:
                    fold(calls)
                met(reading.by_name(sizes), args)
            calls[sizes] = calls.get(sizes, 0) + 1

        return count

    def follows(
        self, names: tuple[str, ...], calls: Mapping[Any, int]
    ) -> Callable[[Mapping[str, int], Sequence[Any]], None]:
        """Keep the counts of a program that runs by size. Returns who is to be told of sizes that are new."""
        self.by_size.append((names, calls))
        first = self._known(self.sizes)
        if first is not None:
            self._traces.setdefault(self.sizes, first)
        return self._met

    def _met(self, sizes: Mapping[str, int], args: Sequence[Any]) -> None:
        """Write down the program as it is first met in a box: which numbers an input may have goes with its sizes."""
        try:
            first = self._traces.get(self.sizes)
            box = self.sizes if first is None else box_of(at_sizes(first, sizes))
            if first is not None and box not in self._traces:
                self._traces[box] = at_sizes(first, sizes, args)
        except Exception as error:  # noqa: BLE001 -- whatever goes wrong with a count is no concern of the program
            logger.debug("sizes could not be written down: %s", error)

    def _known(self, box: Box) -> Trace | None:
        text = self.store.find_trace(self.program, box)
        return None if text is None else _readable(text)

    def keep(self) -> bool:
        """Write the counts down, and say whether that could be done; of what is told of one trace the largest stays."""
        first = self._known(self.sizes) if self.calls or self.by_size else None
        if first is None:
            return True
        counts = [Calls(sizes_of(first), self.calls)] if self.calls else []
        counts += [Calls(sizes, number) for sizes, number in _together(self.by_size)]
        now = sum(one.calls for one in counts)
        if now == self._kept:
            return True
        boxes: dict[Box, list[Calls]] = {}
        for one in counts:
            boxes.setdefault(box_of(at_sizes(first, one.sizes)), []).append(one)
        if not all(self._keep(box, calls, first) for box, calls in boxes.items()):
            return False
        self._kept = now
        return True

    def _keep(self, box: Box, calls: Sequence[Calls], first: Trace) -> bool:
        trace = self._known(box) or self._traces.get(box) or at_sizes(first, calls[0].sizes)
        trace = replace(trace, calls=larger(trace.calls, calls))
        return self.store.add_program(self.program, trace=trace.to_json(), sizes=box, calls=trace.times)


def _together(counted: Sequence[tuple[tuple[str, ...], Mapping[Any, int]]]) -> list[tuple[dict[str, int], int]]:
    """The calls with each choice of sizes, of all functions that have the program."""
    found: Counter[tuple[tuple[str, int], ...]] = Counter()
    for names, calls in counted:
        for sizes, number in list(calls.items()):
            found[tuple(zip(names, sizes if len(names) > 1 else (sizes,), strict=True))] += number
    return [(dict(sizes), number) for sizes, number in found.items() if number]


_counting: dict[tuple[Store, str, Box], CallsOf] = {}
_one_at_a_time = threading.Lock()


def _calls_of(store: Store, program: str, sizes: Box) -> CallsOf:
    """One for each program of this process, whose count is kept when that ends."""
    with _one_at_a_time:
        return _counting.setdefault((store, program, sizes), CallsOf(store, program, sizes))


@atexit.register
def keep_counts() -> None:
    """Write down what this process has counted until now, up to the first count that cannot be written: each may wait half a minute for a
    database that another process holds.
    """
    for one in list(_counting.values()):
        if not one.keep():
            return


def waiting(store: Store, devices: Iterable[str] = (), objective: Objective = TIME) -> list[Trace]:
    """The programs that have no plan for an objective yet for a device of this machine, or of these types, on which they were recorded.

    >>> waiting(Store.open({"HOME": "/home/ada"}))
    []
    """
    named = {device.partition(":")[0] for device in devices} or {
        "cpu",
        *(["cuda"] if torch.cuda.is_available() else []),
    }
    here = {kind: environment(kind) for kind in sorted(named)} if store.programs("") else {}
    found: dict[tuple[str, str], list[tuple[Trace, bool]]] = {}
    for text, planned in store.traced():
        trace = _readable(text)
        mine = here.get(device_of(trace).partition(":")[0]) if trace is not None else None
        if trace is not None and mine is not None:
            chosen_by = objective.on(partial(memory_of, mine))
            known = (_as_recorded(mine, trace), str(chosen_by)) in planned
            found.setdefault((trace.key, repr(Numerics.of(trace.numerics))), []).append((trace, known))
    return [trace for traces in found.values() for trace in _left(traces)]


def _left(traces: Sequence[tuple[Trace, bool]]) -> list[Trace]:
    """Of one program the boxes of sizes that are still to be tuned: those that matter, whoever of them has its plan already."""
    matter = boxes_that_matter([trace for trace, _ in traces])
    return [trace for trace, known in traces if not known and box_of(trace) in matter]


def _as_recorded(here: Environment, trace: Trace) -> Environment:
    """This machine in a process that computes as the one did that the trace is of."""
    return replace(here, **asdict(Numerics.of(trace.numerics)))


def _readable(text: str) -> Trace | None:
    """A stored trace; None where a newer fuseplan has written it."""
    try:
        return Trace.from_json(text)
    except GraphError:
        return None
