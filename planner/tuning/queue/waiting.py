"""Programs that wait in the database to be tuned at another time, or by another process or machine: traces without a plan."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch

from fuseplan.capture.dynamo.names import name_of
from fuseplan.capture.trace.calls import Calls, larger
from fuseplan.capture.trace.format import Trace
from fuseplan.capture.trace.write import write_trace
from fuseplan.errors import GraphError, StoreError
from fuseplan.measure.environment import environment
from fuseplan.tuning.queue.promises import refuse_promises
from fuseplan.tuning.traces import box_of, device_of, sizes_of
from fuseplan.tuning_db import Box, Environment, Store
from fuseplan.tuning_db.columns import MAX_TRACE

_NUMERICS = ("matmul_precision", "cudnn_tf32", "fp16_reduction", "bf16_reduction")
"""What of an environment a process sets for itself: a trace knows under which it was recorded."""


def put(gm: Any, example_inputs: Sequence[Any], store: Store) -> CallsOf | None:
    """Put a program that is being compiled into the queue, unless it is there. Returns who counts its calls; None where another
    process of the same program does. FuseplanError says why it cannot be tuned.
    """
    trace = write_trace(gm, example_inputs, name_of(gm))
    refuse_promises(gm, example_inputs, trace)
    if torch.distributed.is_available() and torch.distributed.is_initialized() and torch.distributed.get_rank() != 0:
        return None
    sizes = box_of(trace)
    if store.find_trace(trace.key, sizes) is None:
        text = trace.to_json()
        if len(text) > MAX_TRACE or not store.add_program(trace.key, trace.name or None, trace=text, sizes=sizes):
            raise StoreError("the database does not take its trace")
    return _calls_of(store, trace.key, sizes)


@dataclass
class CallsOf:
    """How often this process has called a program that waits."""

    store: Store
    program: str
    sizes: Box
    calls: int = 0

    def counted(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """What was compiled, with its calls counted."""
        if hasattr(compiled, "serialize_compile_artifacts"):  # of what is to be pickled, Dynamo wants the very object
            return compiled

        def call(*args: Any) -> Any:
            self.calls += 1
            return compiled(*args)

        return call

    def keep(self) -> None:
        """Write the count down; of what is told of one trace the largest stays."""
        text = self.store.find_trace(self.program, self.sizes) if self.calls else None
        trace = None if text is None else _readable(text)
        if trace is None:
            return
        trace = replace(trace, calls=larger(trace.calls, (Calls(sizes_of(trace), self.calls),)))
        self.store.add_program(self.program, trace=trace.to_json(), sizes=self.sizes, calls=trace.times)


@cache
def _calls_of(store: Store, program: str, sizes: Box) -> CallsOf:
    """One for each program of this process, whose count is kept when that ends."""
    found = CallsOf(store, program, sizes)
    atexit.register(found.keep)
    return found


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

    def alike(other: Environment) -> bool:
        mine = here.get(other.device)
        return mine is not None and replace(other, **{name: getattr(mine, name) for name in _NUMERICS}) == mine

    traces = map(_readable, store.waiting(alike))
    return [trace for trace in traces if trace is not None and device_of(trace).partition(":")[0] in here]


def _readable(text: str) -> Trace | None:
    """A stored trace; None where a newer fuseplan has written it."""
    try:
        return Trace.from_json(text)
    except GraphError:
        return None
