"""What tuning a program may gain, before anything of it is compiled: by this the programs of a run are put in order.

A program is run once on the meta device, where nothing is computed: milliseconds. That tells its ATen ops, what they move
and multiply, and which of them stand between the same anchors. From this the cost model predicts two times:

- the default: eager, op by op, or Inductor with everything between two anchors fused, whichever is faster by the two clocks;
- the least: the anchors, and of all else only what goes from one island to another, with no time of the host.

The difference, times how often the program is called, is what could be gained at most. A default that was timed here takes
the place of the predicted one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from fuseplan.capture.trace.flex_call import let_through
from fuseplan.capture.trace.format import Trace
from fuseplan.capture.trace.load import load_trace
from fuseplan.models import AnchorWork, Roofline, Work
from fuseplan.solver.two_clock import two_clock
from fuseplan.tuning_db import DefaultTiming

GUESSED_US = 5.0
"""What a call of an op takes that does little."""


@dataclass(frozen=True)
class Gain:
    """What one call takes as it is, and what it would take at best; `source` says how the first is known."""

    default_us: float
    least_us: float
    source: str
    """`timed`: the default was raced here; `predicted`; or `guessed`, by the number of calls in the program alone."""

    @property
    def us(self) -> float:
        """What a call may gain.

        >>> Gain(30.0, 10.0, "timed").us
        20.0
        """
        return max(0.0, self.default_us - self.least_us)


def expected_gains(
    trace: Trace, model: Roofline, launches: Sequence[str] = ("plain",), timed: Iterable[DefaultTiming] = ()
) -> list[Gain]:
    """What tuning the program may gain under each launch; `timed` are its defaults as they were raced here.

    >>> import fuseplan, torch
    >>> from fuseplan.models import Machine
    >>> (trace,) = fuseplan.traces_of(lambda x: (x * 2).relu() + 1, torch.ones(64, 64))
    >>> [found] = expected_gains(trace, Roofline(Machine.guess("a CPU")))
    >>> found.source, found.default_us > found.least_us > 0
    ('predicted', True)
    """
    try:
        levels = _levels(trace)
    except Exception:  # noqa: BLE001 -- a program of others: one that cannot be looked at is tuned all the same
        levels = []
    timed = list(timed)
    return [_expected_gain(trace, levels, model, launch, timed) for launch in launches]


def _expected_gain(
    trace: Trace, levels: Sequence[_Level], model: Roofline, launch: str, timed: Sequence[DefaultTiming]
) -> Gain:
    default, least = _predicted(levels, model, launch) if levels else (guessed_gain(trace).default_us, 0.0)
    walls = [one.wall_us for one in timed if one.launch == launch and one.status == "ok" and one.wall_us is not None]
    if walls:
        return Gain(min(walls), least, "timed")
    return Gain(default, least, "predicted" if levels else "guessed")


def guessed_gain(trace: Trace) -> Gain:
    """A few µs for each of its calls, where there is no time to look closer."""
    return Gain(GUESSED_US * len(trace.fields["nodes"]), 0.0, "guessed")


@dataclass
class _Level:
    """What stands at one depth of anchors: they come first, and an island behind them."""

    alone: list[Work] = field(default_factory=list)
    anchors: list[Work] = field(default_factory=list)
    made: set[int] = field(default_factory=set)
    read: dict[int, int] = field(default_factory=dict)
    written: dict[int, int] = field(default_factory=dict)
    elements: int = 0

    def fused(self, results: set[int]) -> Work:
        """Everything but the anchors as one kernel."""
        before = {one: size for one, size in self.read.items() if one not in self.made}
        after = {one: size for one, size in self.written.items() if one in results}
        return Work(
            ops=len(self.alone), kernels=bool(self.alone), inputs=len(before), outputs=len(after),
            bytes_in=sum(before.values()), bytes_out=sum(after.values()), pointwise=self.elements,
        )  # fmt: skip


def _predicted(levels: Sequence[_Level], model: Roofline, launch: str) -> tuple[float, float]:
    """The time of the better default, and the least."""
    results = _results(levels)
    fused = [level.fused(results[depth]) for depth, level in enumerate(levels)]
    eager = [(work, "aten", "default") for level in levels for work in (*level.anchors, *level.alone)]
    inductor = [
        (work, "inductor", "default")
        for level, rest in zip(levels, fused, strict=True)
        for work in (*level.anchors, rest)
        if work.ops
    ]
    defaults = [[cost.times for cost in model.predict(calls)] for calls in (eager, inductor)]
    byte_us = 1e-3 / model.machine.bandwidth_gbs
    anchors = sum(cost.device_us for cost in model.predict([(w, "aten", "default") for v in levels for w in v.anchors]))
    least = anchors + sum((rest.bytes_in + rest.bytes_out) * byte_us for rest in fused)
    return min(two_clock(calls, launch) for calls in defaults), least


def _results(levels: Sequence[_Level]) -> list[set[int]]:
    """The results of each level: what is read at another, or by nobody, as the results of the program are."""
    readers: dict[int, set[int]] = {}
    for depth, level in enumerate(levels):
        for one in level.read:
            readers.setdefault(one, set()).add(depth)
    return [
        {one for one in level.written if one not in readers or readers[one] - {depth}}
        for depth, level in enumerate(levels)
    ]


def _levels(trace: Trace) -> list[_Level]:
    """The ATen ops of a program, backward among them, by the anchors before them."""
    loaded = load_trace(trace, "meta")
    with _Recorder() as recorder:
        loaded.step()
    return [recorder.levels[depth] for depth in sorted(recorder.levels)]


class _Recorder(TorchDispatchMode):
    """Writes down each op that runs under it. A tensor is known by its memory, so that views are what they show."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.levels: dict[int, _Level] = {}
        self._depths: dict[int, int] = {}
        self._kept: list[Any] = []  # else the address of one that is gone would soon be another's

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the op, and note what it is."""
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            self._note(func, list(_tensors((args, kwargs or {}))), list(_tensors(result)), args, kwargs or {}, result)
        return result

    def _note(
        self, func: Any, ins: list[Tensor], outs: list[Tensor], args: Any, kwargs: Mapping[str, Any], result: Any
    ) -> None:
        if not outs:
            return
        reads = {self._name(one): _bytes(one) for one in ins}
        writes = {self._name(one): _bytes(one) for one in outs}
        flops = _flops(func, args, kwargs, result)
        anchor = flops is not None
        depth = max((self._depths.get(name, 0) for name in reads), default=0) + anchor
        level = self.levels.setdefault(depth, _Level())
        self._depths.update(dict.fromkeys(writes, depth))
        moved = sum(reads.values()) + sum(writes.values())
        plain = Work(
            ops=1, kernels=1, kernels_alone=1, inputs=len(ins), outputs=len(outs),
            bytes_in=sum(reads.values()), bytes_out=sum(writes.values()), bytes_alone=moved,
        )  # fmt: skip
        if flops is not None:
            work = AnchorWork(_kind(func), str(outs[0].dtype).removeprefix("torch."), flops, moved)
            level.anchors.append(replace(plain, anchors=(work,)))
            return
        elements = max(one.numel() for one in (*ins, *outs))
        level.alone.append(replace(plain, pointwise=elements))
        level.elements += elements
        level.made.update(writes.keys() - reads.keys())
        level.written |= writes
        level.read |= reads

    def _name(self, tensor: Tensor) -> int:
        storage = tensor.untyped_storage()
        self._kept.append(storage)
        return int(storage._cdata)


let_through(_Recorder)


def _tensors(tree: Any) -> Iterator[Tensor]:
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, (tuple, list)):
        for item in tree:
            yield from _tensors(item)
    elif isinstance(tree, dict):
        yield from _tensors(list(tree.values()))


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _kind(func: Any) -> str:
    name = func._schema.name
    return "attention" if "attention" in name else "convolution" if "conv" in name else "matmul"


def _flops(func: Any, args: Any, kwargs: Mapping[str, Any], result: Any) -> int | None:
    """The arithmetic of an anchor; None for an op that is none."""
    count: Callable[..., Any] | None = flop_registry.get(func._overloadpacket)
    if count is None:
        return None
    try:
        found = count(*args, **kwargs, out_val=result)
    except (TypeError, AssertionError, ValueError):
        return 0  # an overload that the registry does not know how to count
    return int(found) if math.isfinite(found) else 0
