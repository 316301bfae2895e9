"""What learned models look at: numbers from the Graph alone, each with its reason. A change of any is a new VERSION."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from math import log2
from typing import NamedTuple

from fuseplan.executors.known import traits_of
from fuseplan.models.machine import Machine
from fuseplan.models.model import Question
from fuseplan.models.terms import Terms, device_terms, host_terms
from fuseplan.models.work import CLASSES, Work

VERSION = 1
EXECUTORS = ("aten", "inductor", "nvfuser")
"""Those that have a column of their own; rows of another have a zero in each, until a new VERSION has been fitted to rows of it."""
VARIANTS = ("default", "tuned", "flash", "cudnn", "efficient", "math", "padded", "channels_last")
"""Those that have a number of their own; a new one looks like a default until rows of it are learnt from."""


class Feature(NamedTuple):
    """One number of a region on a machine."""

    name: str
    group: str
    reason: str
    of: Callable[[Work, Machine], float]


class ChoiceFeature(NamedTuple):
    """One number of a region under an executor and variant: from the terms of its device and host time."""

    name: str
    group: str
    reason: str
    of: Callable[[Work, str, str, Terms, Terms], float]


def _log(value: float) -> float:
    return log2(1.0 + value) if value > 0 else 0.0


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _blocks(work: Work) -> float:
    """Blocks that a fused kernel would have: a sum each, or so many elements as a block's threads take at once."""
    traits = work.traits
    return float(traits.sums) if traits.sums else traits.largest / 1024.0


REGION = (
    Feature("bytes_in", "roofline", "what must be read at least", lambda w, m: _log(w.bytes_in)),
    Feature("bytes_out", "roofline", "what must be written at least", lambda w, m: _log(w.bytes_out)),
    Feature("bytes_between", "roofline", "what kernels of one fusion hand on through memory", lambda w, m: _log(w.bytes_between)),
    Feature("bytes_alone", "roofline", "what the ops one by one move", lambda w, m: _log(w.bytes_alone)),
    Feature("saved", "roofline", "the share of that which fusing saves", lambda w, m: _share(w.bytes_saved, w.bytes_alone)),
    Feature("written", "roofline", "writes cost more than reads", lambda w, m: _share(w.bytes_out, w.bytes_moved)),
    Feature("pointwise", "roofline", "elements of cheap arithmetic", lambda w, m: _log(w.pointwise)),
    Feature("special", "roofline", "elements through exponentials and the like", lambda w, m: _log(w.special)),
    Feature("reduced", "roofline", "elements that go into sums", lambda w, m: _log(w.reduced)),
    Feature("anchor_flops", "roofline", "arithmetic of matmuls, convolutions, attention", lambda w, m: _log(w.flops)),
    Feature("arithmetic", "roofline", "operations for each byte: bound by memory or not", lambda w, m: _share(w.pointwise + 8.0 * w.special, w.bytes_moved)),
    Feature("l2_share", "roofline", "the working set against the L2 cache", lambda w, m: _log(256.0 * w.bytes_moved / m.l2_bytes)),
    Feature("l2_input", "neighbours", "what comes in may still lie in the L2 cache", lambda w, m: min(1.0, _share(m.l2_bytes, w.bytes_in))),
    Feature("l2_alone", "neighbours", "what one op leaves to the next in the L2 cache", lambda w, m: min(2.0, _share(m.l2_bytes * max(1, w.ops), w.bytes_alone))),
    Feature("largest", "shape", "elements of the largest tensor", lambda w, m: _log(w.traits.largest)),
    Feature("inner", "shape", "the size along memory: short rows waste loads", lambda w, m: _log(w.traits.inner)),
    Feature("item", "shape", "bytes of an element", lambda w, m: float(w.traits.item)),
    Feature("wide", "shape", "the share of bytes in elements of four bytes and more", lambda w, m: _share(w.traits.wide, w.traits.touched)),
    Feature("broadcast", "shape", "the share of operands that are repeated", lambda w, m: _share(w.traits.broadcast, w.traits.touched)),
    Feature("aligned", "shape", "the share of bytes that vector loads can take", lambda w, m: _share(w.traits.aligned, w.traits.touched)),
    Feature("strided", "shape", "the share of bytes that is not contiguous", lambda w, m: _share(w.traits.strided, w.traits.touched)),
    Feature("scattered", "shape", "the share of a fusion's bytes that cross its loops", lambda w, m: _share(w.scattered, w.bytes_moved)),
    Feature("scattered_alone", "shape", "the same of the ops one by one", lambda w, m: _share(w.scattered_alone, w.bytes_alone)),
    Feature("sum_length", "shape", "how long sums are: registers, shared memory, or two kernels", lambda w, m: _log(w.traits.sum_length)),
    Feature("sums", "shape", "how many sums there are: too few fill no GPU", lambda w, m: _log(w.traits.sums)),
    Feature("inner_sums", "shape", "ops that sum along memory", lambda w, m: float(w.traits.inner_sums)),
    Feature("outer_sums", "shape", "ops that sum across memory", lambda w, m: float(w.traits.outer_sums)),
    Feature("ops", "structure", "ops that compute", lambda w, m: float(w.ops)),
    *(
        Feature(f"ops_{name}", "structure", f"ops of the class {name}", lambda w, m, i=i: float(w.traits.classes[i]))  # type: ignore[misc]
        for i, name in enumerate(CLASSES)
    ),
    Feature("views", "structure", "views that keep ops apart or cost a call", lambda w, m: float(w.views)),
    Feature("head_views", "structure", "views that could be peeled off the head", lambda w, m: float(w.traits.head_views)),
    Feature("tail_views", "structure", "views that could be peeled off the tail", lambda w, m: float(w.traits.tail_views)),
    Feature("single", "structure", "one op alone: nothing to fuse", lambda w, m: float(w.ops == 1)),
    Feature("depth", "structure", "the longest chain of ops", lambda w, m: float(w.traits.depth)),
    Feature("width", "structure", "ops side by side", lambda w, m: float(w.traits.width)),
    Feature("live", "structure", "values alive at once: registers", lambda w, m: float(w.traits.live)),
    Feature("axes", "structure", "reductions that cannot share a loop", lambda w, m: float(w.traits.axes)),
    Feature("escaping", "structure", "values used inside that others need as well", lambda w, m: float(w.traits.escaping)),
    Feature("kernels", "structure", "kernels of the fusion, by our guess", lambda w, m: float(w.kernels)),
    Feature("kernels_alone", "structure", "kernels of the ops one by one", lambda w, m: float(w.kernels_alone)),
    Feature("blocks", "occupancy", "blocks of a fused kernel", lambda w, m: _log(_blocks(w))),
    Feature("waves", "occupancy", "blocks for each multiprocessor: below one, part of the GPU idles", lambda w, m: _log(16.0 * _blocks(w) / m.units)),
    Feature("inputs", "host", "tensors handed in: checked and wrapped on every call", lambda w, m: float(w.inputs)),
    Feature("outputs", "host", "tensors handed out: allocated on every call", lambda w, m: float(w.outputs)),
)  # fmt: skip
"""What is the same for all executors."""

CHOICE = (
    *(
        ChoiceFeature(f"is_{name}", "executor", f"run by {name}", lambda w, e, v, d, h, name=name: float(e == name))  # type: ignore[misc]
        for name in EXECUTORS
    ),
    ChoiceFeature("variant", "executor", "which variant of the executor", lambda w, e, v, d, h: float(VARIANTS.index(v) if v in VARIANTS else 0)),
    ChoiceFeature("roofline_us", "roofline", "the device time of an ideal machine", lambda w, e, v, d, h: log2(1e-3 + sum(d))),
    ChoiceFeature("launch_share", "roofline", "how much of that is launching kernels", lambda w, e, v, d, h: _share(d[0], sum(d))),
    ChoiceFeature("memory_us", "roofline", "the time to move the bytes", lambda w, e, v, d, h: log2(1e-3 + d[1] + d[2])),
    ChoiceFeature("starved_us", "occupancy", "the same where too few blocks share it", lambda w, e, v, d, h: log2(1e-3 + (d[1] + d[2]) * max(1.0, 256.0 / max(1.0, _blocks(w))))),
    ChoiceFeature("compute_us", "roofline", "the time to compute", lambda w, e, v, d, h: log2(1e-3 + sum(d[3:]))),
    ChoiceFeature("bound_us", "roofline", "the larger of the two: what overlap leaves", lambda w, e, v, d, h: log2(1e-3 + max(d[1] + d[2], sum(d[3:])))),
    ChoiceFeature("callables", "host", "calls that the host makes", lambda w, e, v, d, h: float(1 if traits_of(e).fuses else w.kernels_alone + w.views)),
    ChoiceFeature("host_us", "host", "the host time of an ideal machine", lambda w, e, v, d, h: sum(h)),
)  # fmt: skip
"""What differs between executors and variants."""

FEATURES: tuple[Feature | ChoiceFeature, ...] = (*REGION, *CHOICE)


def region_features(work: Work, machine: Machine) -> tuple[float, ...]:
    """The numbers that are the same for all executors, in the order of REGION.

    >>> features = region_features(Work(ops=2, bytes_in=1023), Machine.guess("NVIDIA H200"))
    >>> len(features) == len(REGION), features[0]
    (True, 10.0)
    """
    return tuple([feature.of(work, machine) for feature in REGION])


def choice_features(work: Work, executor: str, variant: str, device: Terms, host: Terms) -> tuple[float, ...]:
    """The numbers that differ between executors, from the terms of the roofline, in the order of CHOICE."""
    return tuple([feature.of(work, executor, variant, device, host) for feature in CHOICE])


class Seen(NamedTuple):
    """A question, looked at: all features, packed as float32, and the terms of the roofline."""

    packed: bytes
    device: Terms
    host: Terms


class Looking:
    """Looks at each region once: what it saw is kept while the regions are asked for again and again.

    >>> looking = Looking(Machine.guess("NVIDIA H200"))
    >>> len(looking.at([(Work(ops=1), "aten", "default")])[0].packed) == 4 * len(FEATURES)
    True
    """

    def __init__(self, machine: Machine, most: int = 200_000) -> None:
        self.machine, self.most = machine, most
        self._regions: dict[Work, tuple[float, ...]] = {}
        self._seen: dict[Question, Seen] = {}

    def at(self, questions: Iterable[Question]) -> Sequence[Seen]:
        """All of `asked`, in order."""
        return [self._seen.get(one) or self._look(one) for one in questions]

    def _look(self, question: Question) -> Seen:
        work, executor, variant = question
        if len(self._seen) >= self.most:  # whoever asks for so many will not ask for the first again
            self._seen.clear()
            self._regions.clear()
        region = self._regions.get(work)
        if region is None:
            region = self._regions[work] = region_features(work, self.machine)
        device, host = device_terms(work, executor, self.machine), host_terms(work, executor, self.machine)
        packed = array("f", (*region, *choice_features(work, executor, variant, device, host))).tobytes()
        seen = Seen(packed, device, host)
        self._seen[question] = seen
        return seen
