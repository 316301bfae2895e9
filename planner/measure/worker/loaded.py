"""The program that a worker is at: its trace, loaded, what it should compute, and all that a race of it needs."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from fuseplan.capture.gradients import goes_back
from fuseplan.capture.trace.format import Trace
from fuseplan.capture.trace.load import Loaded, load_trace
from fuseplan.judge.expect import SEEDS, Expectation
from fuseplan.measure.entry import RaceEntry
from fuseplan.tuning.traces import calls_that_came, may_train

RACED_SIZES = 4
"""With so many choices of sizes a program whose sizes vary is raced, where they were counted."""


@dataclass(eq=False)
class LoadedProgram:
    """A trace that was loaded, and what it should compute, where somebody has asked."""

    loaded: Loaded
    expectation: Expectation | None = None
    course: RaceCourse | None = None


@dataclass(eq=False)
class RaceCourse:
    """What a race needs beside its entries, and the entries that were prepared for it, by name and plan."""

    inputs: list[list[Tensor]]
    tangents: dict[int, Tensor]
    counters: list[tuple[list[Tensor], list[Tensor]]]
    """For each set of inputs the whole numbers that a step writes to, and what was there before."""
    prepared: dict[RaceEntry, Callable[..., Any]]
    turns: int = 1
    """How many sets of inputs belong together, since their sizes differ."""
    clock: Any = None
    """Of a worker that times what it keeps."""

    def calls(self, compiled: Callable[..., Any], loaded: Loaded) -> list[Callable[[], None]]:
        """A step on each set of inputs, under what was compiled."""
        return [
            _Step(compiled, args, self.tangents, counters, loaded)
            for args, counters in zip(self.inputs, self.counters, strict=True)
        ]


def calls_to_settle(entry: RaceEntry, sets: int = len(SEEDS)) -> int:
    """How many calls of an entry run otherwise than all that follow: CUDA graphs are captured once it is known what is held, and
    anew where large inputs have moved since, as they do from one of so many sets to the next.
    """
    if entry.plan is None or entry.plan.launch == "plain":
        return 0
    from fuseplan.runtime.capture_place import SETTLING  # it brings Inductor, which a plain launch may do without

    return SETTLING * max(1, sets // len(SEEDS))


class LoadedPrograms:
    """Loads traces, and keeps the last one: the next job is about the same program."""

    def __init__(self, device: torch.device, bring: Callable[[str], None]) -> None:
        """`bring` sees to it that the operators are there which a trace, as text, names."""
        self.device, self._bring = device, bring
        self._text = ""
        self._case: LoadedProgram | None = None

    def case(self, text: str) -> LoadedProgram:
        """The program that a trace spells."""
        if self._case is None or text != self._text:
            self.forget()
            self._bring(text)
            self._case, self._text = LoadedProgram(load_trace(Trace.from_json(text), self.device)), text
        return self._case

    def course(self, text: str) -> RaceCourse:
        """What a race of the program's entries needs."""
        case = self.case(text)
        if case.course is None:
            case.course = _course(case.loaded)
        return case.course

    def forget(self) -> None:
        """Keep nothing."""
        if self._case is not None and self._case.course is not None:
            torch._dynamo.reset()
        self._case, self._text = None, ""


class _PassedOn(torch.autograd.Function):
    """What another program would have given: its gradient goes back to that one, and nobody here keeps it."""

    @staticmethod
    def forward(_: Any, given: Tensor) -> Tensor:
        """In memory of its own. A program that writes to it cannot be raced, as to a leaf that has a gradient."""
        return given.clone()

    @staticmethod
    def backward(_: Any, *gradients: Tensor) -> None:
        """The end of the way."""


def _course(loaded: Loaded) -> RaceCourse:
    sizes = sizes_that_come(loaded.trace)
    turns = len(sizes) if len({tuple(one.items()) for _, one in sizes}) > 1 else 1
    inputs = [loaded.inputs(seed, one) for seed, one in sizes]
    owned = {i: one._version for i, one in loaded.tensors.owned.items() if _counts(one)}
    given = {i: one._version for i, one in enumerate(inputs[0]) if _counts(one)}
    tangents = _tangents(loaded, inputs[0])
    numbers = [i for i, version in owned.items() if loaded.tensors.owned[i]._version != version]
    places = [i for i, version in given.items() if inputs[0][i]._version != version]
    loaded.tensors.make_anew(numbers)
    if places:
        inputs[0] = loaded.inputs(*sizes[0])
    if tangents:
        _share_what_is_passed_on(inputs)
    written = [[*(loaded.tensors.owned[i] for i in numbers), *(args[i] for i in places)] for args in inputs]
    return RaceCourse(inputs, tangents, [(found, [one.clone() for one in found]) for found in written], {}, turns)


def sizes_that_come(trace: Trace) -> list[tuple[int, Mapping[str, int]]]:
    """The inputs of a race, by their seed and sizes: those of the box of the trace that its calls had where these were counted, each as often
    as it came; else those that it was met with.
    """
    calls = sorted(calls_that_came(trace), key=lambda one: sorted(one.sizes.items()))
    if len(calls) < 2 or may_train(trace):
        return [(seed, {}) for seed in SEEDS]
    ends = list(accumulate(one.calls for one in calls))
    places = [ends[-1] * (i + 0.5) / RACED_SIZES for i in range(RACED_SIZES)]
    return [(SEEDS[i % len(SEEDS)], calls[bisect_left(ends, place)].sizes) for i, place in enumerate(places)]


def _share_what_is_passed_on(inputs: Sequence[list[Any]]) -> None:
    """What has a gradient and is no parameter comes from another program of the model, as around a graph break: at each step
    from the same place, no leaf, and as much in the cache as it can be.
    """
    for i, one in enumerate(inputs[0]):
        if isinstance(one, Tensor) and one.requires_grad:
            passed_on = _PassedOn.apply(one)  # type: ignore[no-untyped-call]
            for args in inputs:
                args[i] = passed_on


def _counts(one: Any) -> bool:
    """Whether it may say where something is written or read next: whole numbers."""
    return isinstance(one, Tensor) and not (one.is_floating_point() or one.is_complex())


def _tangents(loaded: Loaded, args: Sequence[Tensor]) -> dict[int, Tensor]:
    """What backward starts from, by the number of the output."""
    outputs = loaded.step(args=args)
    wanted = [i for i, out in enumerate(outputs) if goes_back(out)]
    return {i: loaded.tensors.tangent(n, outputs[i]) for n, i in enumerate(wanted)}


class _Step:
    """One step on one set of inputs, with as little around the program as can be; it leaves nothing behind.

    Outputs and gradients are dropped at its end: a CUDA graph whose outputs are held is not replayed. Counters are put back:
    the place in a cache that a program writes to next would soon lie beyond its end.
    """

    def __init__(
        self, call: Callable[..., Any], args: Sequence[Tensor], tangents: dict[int, Tensor],
        counters: tuple[list[Tensor], list[Tensor]], loaded: Loaded,
    ) -> None:  # fmt: skip
        self.call, self.args, self.counters = call, args, counters
        self.numbers, self.tangents = list(tangents), list(tangents.values())
        self.leaves = [one for _, one in loaded.tensors.leaves(list(args)) if one.is_leaf] if tangents else []
        self.autocast = bool(loaded.trace.fields["modes"]["autocast"])

    def __call__(self) -> None:
        if self.autocast:
            torch.clear_autocast_cache()  # what leaving autocast does after each step of a program
        outputs = self.call(*self.args)
        if self.numbers:
            torch.autograd.backward([outputs[i] for i in self.numbers], self.tangents)
            for leaf in self.leaves:
                leaf.grad = None
        if self.counters[0]:
            torch._foreach_copy_(*self.counters)
