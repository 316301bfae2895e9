"""How long one call takes, with the backward behind it: on the host's clock, or on the device's, which nobody waits for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any, Protocol

import torch

from fuseplan.capture.gradients import goes_back

_NODE = "CompiledFunctionBackward"
"""What AOTAutograd makes of a program is one node of autograd, of this name; its outputs may be views of what that gives."""
_NEAR = 32
"""So many nodes around the outputs are looked at for it."""


class CallClock(Protocol):
    """Marks moments, and tells how far two are apart."""

    def now(self) -> Any:
        """A mark."""

    def us(self, start: Any, end: Any) -> float | None:
        """Microseconds between two marks; None as long as the later one is not reached."""


class HostClock:
    """The time of a program on the CPU."""

    def now(self) -> int:
        return perf_counter_ns()

    def us(self, start: int, end: int) -> float:
        return (end - start) / 1e3


@dataclass(frozen=True)
class DeviceClock:
    """The time between two places in a stream of a GPU: what a call costs whoever waits for it there, the host's share included."""

    device: torch.device
    """That of the program, which need not be the one that its caller has chosen."""

    def now(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    def us(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float | None:
        return start.elapsed_time(end) * 1e3 if end.query() else None


class CallTime:
    """The time of one call, which is known once the backward that belongs to it, if any, has run."""

    def __init__(self, clock: CallClock) -> None:
        self._clock = clock
        self._spans: list[tuple[Any, Any]] = []
        self._awaited = False

    def run(self, called: Callable[..., Any], args: Sequence[Any]) -> Any:
        """Call it, and time that."""
        start = self._clock.now()
        found = called(*args)
        self._spans.append((start, self._clock.now()))
        return found

    def await_backward(self, node: Any) -> None:
        """Time the backward, too, whose node this is: the first time that it runs to its end."""
        self._awaited = True
        start: Any = None

        def before(*_: Any) -> None:
            nonlocal start
            if not is_traced() and self._awaited:
                start = self._clock.now()

        def after(*_: Any) -> None:
            if not is_traced() and self._awaited:
                self._awaited = False
                self._spans.append((start, self._clock.now()))

        node.register_prehook(before)
        node.register_hook(after)

    def us(self) -> float | None:
        """Microseconds of all of it; None as long as something is not over."""
        if self._awaited:
            return None
        spans = [self._clock.us(*span) for span in self._spans]
        return None if None in spans else sum(us for us in spans if us is not None)


def is_traced() -> bool:
    """Whether a hook is being traced, as compiled autograd does, and not called: what it does then would be part of what is compiled."""
    return torch.compiler.is_dynamo_compiling()


def backward_of(outputs: Any, inputs: Sequence[Any]) -> tuple[Any, bool]:
    """The node of autograd that a program's backward is, if there is just one; and whether it has a backward at all."""
    seen = {one.grad_fn for one in _tensors(inputs) if one.grad_fn is not None}  # of whoever was called before
    nodes = [one.grad_fn for one in _tensors(outputs) if one.grad_fn is not None and one.grad_fn not in seen]
    most, found = len(seen) + _NEAR, []
    while nodes and len(seen) < most:
        node = nodes.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.name() == _NODE:
            found.append(node)
        else:
            nodes += [parent for parent, _ in node.next_functions if parent is not None]
    return (found[0] if len(found) == 1 else None), any(map(goes_back, _tensors(outputs)))


def _tensors(outputs: Any) -> Iterable[torch.Tensor]:
    found = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
    return (one for one in found if isinstance(one, torch.Tensor))
