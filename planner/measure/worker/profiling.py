"""The job that profiles a program under Inductor: its kernels, by the ops of which they were made."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import partial
from itertools import cycle, islice
from statistics import median
from typing import Any

import torch
from torch.fx import GraphModule

from fuseplan.capture.trace.load import Loaded
from fuseplan.measure.jobs import Outcome, ProfilePlan
from fuseplan.measure.memory import roomy
from fuseplan.measure.profile import KernelTime, Profile
from fuseplan.measure.worker.workplace import Workplace
from fuseplan.plan import Plan
from fuseplan.rewrites.apply import rewritten
from fuseplan.runtime.counts_beside import counts_beside
from fuseplan.runtime.made_of import MadeKernel, MadeOf, compile_to_tell, options_of, range_of
from fuseplan.runtime.merged import Merging

STEPS = 5
"""Over so many a profile is the median of each call: others may be at work beside it."""
WARM = 3
ELSEWHERE = ""
"""The role of what no compiled graph calls, such as copies of inputs."""


def profile(job: ProfilePlan, place: Workplace) -> Outcome:
    """Run the program a few times under the profiler, launched plain: in a CUDA graph the same kernels have no names."""
    place.at(job.entry.name, "loading")
    case, course = place.programs.case(job.trace), place.programs.course(job.trace)
    place.at(job.entry.name, "compiling, to be profiled")
    place.clear()
    assert job.entry.plan is not None
    found = MadeOf()
    compiled = _compiled(job.entry.plan, case.loaded, found)
    with case.loaded.modes():
        sets = course.calls(compiled, case.loaded)[: 1 if course.turns > 1 else None]  # of one size
        calls = list(islice(cycle(sets), WARM + STEPS))
        for call in calls[:WARM]:
            call()
        with roomy(place.device, lambda: place.at(job.entry.name, "waiting for its turn")):
            place.at(job.entry.name, "profiling")
            events = _events(calls[WARM:], place.device)
    del compiled, sets, calls, call  # what was prepared for a race stays as it is
    if not course.prepared:
        case.course = None
    place.clear()
    kernels = tuple(_read(events, found, place.device.type == "cuda"))
    return Outcome(profile=Profile(tuple(found.graphs.items()), kernels, tuple(found.parts.values())))


def _compiled(plan: Plan, loaded: Loaded, found: MadeOf) -> Callable[..., Any]:
    def backend(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        whole = rewritten(gm, plan.rewrites).gm
        telling = partial(compile_to_tell, patches=options_of(plan), found=found)
        # with counts beside it, as regions are carved out of it
        return Merging().around(whole, example_inputs, lambda inputs: counts_beside(whole, inputs, telling))

    assert isinstance(loaded.module, GraphModule)
    module = GraphModule(loaded.module, copy.deepcopy(loaded.module.graph))
    compiled: Callable[..., Any] = torch.compile(module, backend=backend)
    return compiled


def _events(steps: Sequence[Callable[[], None]], device: torch.device) -> list[Any]:
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        torch.cuda.synchronize()
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profiled:
        for step in steps:
            step()
        if device.type == "cuda":
            torch.cuda.synchronize()
    return list(profiled.events())


@dataclass
class _Called:
    """The kernels of one compiled graph, each call in its place, and what they took in each step."""

    made: Sequence[MadeKernel]
    times: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Of each what it took, call by call."""
    others: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Of kernels that Inductor did not tell of, by name."""

    def __post_init__(self) -> None:
        self._named: dict[str, list[int]] = defaultdict(list)
        for place, one in enumerate(self.made):
            if not one.is_library:
                self._named[one.name].append(place)
        self._libraries = [place for place, one in enumerate(self.made) if one.is_library]

    def begin(self) -> None:
        """A call of the graph begins."""
        self._total: dict[int, float] = defaultdict(float)
        self._next = {name: iter(places) for name, places in self._named.items()}
        self._last: int | None = None
        self._seen: list[tuple[str, float, int | None]] = []

    def kernel(self, name: str, us: float) -> bool:
        """Whether a kernel of this name was compiled for the graph; then that is what its next call takes."""
        known = next((one for one in (name, _plain(name)) if one in self._named), None)
        place = next(self._next[known], None) if known is not None else None
        if place is None:
            return False
        self._last = place
        self._total[place] += us
        return True

    def library(self, name: str, us: float) -> None:
        """What the next call of an operator takes."""
        self._seen.append((name, us, self._last))

    def end(self) -> None:
        """The call is over: the operators that were called are matched with those that were told of, as many as can be in order."""
        told = [_called(self.made[place].name) for place in self._libraries]
        seen = [_called(name) for name, *_ in self._seen]
        matched: dict[int, int] = {}
        for block in SequenceMatcher(None, told, seen, autojunk=False).get_matching_blocks():
            matched |= {block.b + i: self._libraries[block.a + i] for i in range(block.size)}
        for i, (name, us, behind) in enumerate(self._seen):
            if i in matched:
                self._total[matched[i]] += us
            elif behind is not None and self.made[behind].ends_apart:
                self._total[behind] += us
            else:
                self.others[name] += us
        for place, us in self._total.items():
            self.times[place].append(us)

    def kernels(self, steps: int) -> Iterator[KernelTime]:
        """Each call, and what nobody told of."""
        for place, one in enumerate(self.made):
            if times := self.times[place]:
                us = median(times) if len(times) == steps else sum(times) / steps
                yield KernelTime(one.role, one.name, us, one.ops, one.is_library)
        for name, us in self.others.items():
            yield KernelTime(self.made[0].role, name, us / steps)


def _read(events: Sequence[Any], found: MadeOf, on_gpu: bool) -> Iterator[KernelTime]:
    roles = list(dict.fromkeys(one.role for one in found.kernels))
    own = [event for event in events if event.device_type.name == "CPU"]
    for role in roles:
        called = _Called([one for one in found.kernels if one.role == role])
        for event in own:
            if event.name == range_of(role):
                called.begin()
                _take(event, called, on_gpu)
                called.end()
        yield from called.kernels(STEPS)
    elsewhere: dict[str, float] = defaultdict(float)
    for event in own:
        if on_gpu and event.cpu_parent is None and event.name not in map(range_of, roles):
            for name, us in _kernels_below(event, {range_of(role) for role in roles}):
                elsewhere[name] += us / STEPS
    for name, us in elsewhere.items():
        yield KernelTime(ELSEWHERE, name, us)


def _take(event: Any, called: _Called, on_gpu: bool) -> None:
    """What is called within an event, in its order."""
    for kernel in event.kernels:
        if not called.kernel(kernel.name, kernel.duration):
            called.others[kernel.name] += kernel.duration
    for child in event.cpu_children:
        below = list(_kernels_below(child, ())) if on_gpu else []
        us = sum(us for _, us in below) if on_gpu else child.cpu_time_total
        if called.kernel(child.name, us):
            continue
        if "::" in child.name:
            if us:
                called.library(child.name, us)
        else:
            _take(child, called, on_gpu)


def _kernels_below(event: Any, beside: Any) -> Iterator[tuple[str, float]]:
    """The kernels that an event and all within it have sent to the device."""
    if event.name in beside:
        return
    for kernel in event.kernels:
        yield kernel.name, kernel.duration
    for child in event.cpu_children:
        yield from _kernels_below(child, beside)


def _plain(name: str) -> str:
    """The name of a CPU's kernel, which a profiler calls by its graph as well.

    >>> _plain("graph_0_cpp_fused_add_0"), _plain("triton_poi_fused_add_0")
    ('cpp_fused_add_0', 'triton_poi_fused_add_0')
    """
    if not name.startswith("graph_"):
        return name
    return name.partition("_")[2].partition("_")[2]


def _called(name: str) -> str:
    """The operator that a call is of, by its name for a profiler or for Inductor.

    >>> _called("aten::addmm"), _called("extern_kernels.addmm"), _called("aten.randint.low_out")
    ('addmm', 'addmm', 'randint')
    >>> _called("torch.ops.aten._scaled_dot_product_flash_attention.default")
    '_scaled_dot_product_flash_attention'
    """
    if "::" in name:
        return name.rpartition("::")[2]
    parts = name.removeprefix("torch.ops.").split(".")
    return parts[1] if len(parts) > 1 else name
