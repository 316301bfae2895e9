"""What a plan of another machine may gain here, before it has raced: what it gained there, as far as the two machines are alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fuseplan.errors import FuseplanError
from fuseplan.graph import Graph
from fuseplan.looking.words import device_of, times
from fuseplan.models import Machine, work_of
from fuseplan.models.cost import NINE_OF_TEN
from fuseplan.models.learned import Learned
from fuseplan.models.model import Question
from fuseplan.models.shipped import planner_model
from fuseplan.plan import Plan
from fuseplan.segment import Segmentation, extract, maximal_regions
from fuseplan.solver.costs import units_of
from fuseplan.tuning_db import Environment
from fuseplan.tuning_db.offers import Offer


@dataclass(frozen=True)
class ExpectedGain:
    """How many times as fast as the best default a plan should be here: nine times of ten, or at most, between two bounds."""

    times: float
    low: float
    high: float
    learned: bool = False
    """Whether a cost model tells, which knows what the plan consists of; else only how the machines differ in what they can do."""

    def __str__(self) -> str:
        """Words for it.

        >>> str(ExpectedGain(1.2, 1.0, 1.44)), str(ExpectedGain(1.2, 1.1, 1.3, learned=True))
        ('1.20× (1.00× to 1.44×, by the rates of both machines alone: no model knows this plan)', '1.20× (1.10× to 1.30×, nine times of ten)')
        """
        how = "nine times of ten" if self.learned else "by the rates of both machines alone: no model knows this plan"
        return f"{times(self.times)} ({times(self.low)} to {times(self.high)}, {how})"


def expected_gain(
    offer: Offer, here: Environment, graphs: Sequence[tuple[str, Graph]], folder: Path | None = None
) -> ExpectedGain | None:
    """What an offered plan should gain here; None where nothing tells: it has no time beside a default's, only releases differ, or nothing
    is known of one of the machines. `graphs` are those of its program, by role; fits of models are kept in `folder`.
    """
    stored = offer.stored
    there_machine, here_machine = (_machine(place) for place in (stored.environment, here))
    if (
        stored.speedup is None
        or offer.is_of_this_machine
        or replace(there_machine, name="") == replace(here_machine, name="")
    ):
        return None
    gained, noise = math.log(stored.speedup), stored.noise or 0.0
    changes = [_change(machine, stored.plan, graphs, folder) for machine in (there_machine, here_machine)]
    there, now = changes
    if there is not None and now is not None:
        expected = gained + now[0] - there[0]
        doubt = NINE_OF_TEN * math.sqrt(there[1] ** 2 + now[1] ** 2 + noise**2)
        return _between(expected, doubt, learned=True)
    doubt = apart(there_machine, here_machine) + noise
    return _between(gained, doubt, learned=False)


def _between(expected: float, doubt: float, *, learned: bool) -> ExpectedGain:
    """A gain and its bounds, from logarithms."""
    return ExpectedGain(math.exp(expected), math.exp(expected - doubt), math.exp(expected + doubt), learned)


def apart(one: Machine, two: Machine) -> float:
    """By how much the ratio of two times may differ between machines, as a logarithm: as one of them may be bound by the rate that
    changes most between the two and the other by that which changes least.

    >>> apart(Machine.guess("NVIDIA H200"), Machine.guess("NVIDIA H200"))
    0.0
    >>> round(apart(Machine.guess("NVIDIA H200"), Machine.guess("NVIDIA H100")), 2)
    0.36
    """
    both = dict(one.matmul_tflops).keys() & dict(two.matmul_tflops).keys()
    pairs = [(one.matmul_rate(dtype), two.matmul_rate(dtype)) for dtype in both]
    pairs += [
        (one.bandwidth_gbs, two.bandwidth_gbs), (one.pointwise_tops, two.pointwise_tops),
        (one.special_tops, two.special_tops), (1 / one.launch_device_us, 1 / two.launch_device_us),
    ]  # fmt: skip
    changes = [math.log(there / here) for there, here in pairs]
    return max(changes) - min(changes)


def offer_line(offer: Offer, here: Environment, graphs: Sequence[tuple[str, Graph]], folder: Path | None = None) -> str:
    """One line on an offered plan, for people."""
    stored = offer.stored
    there = f"{device_of(stored.environment)}, torch {stored.environment.torch}"
    gained = "" if stored.speedup is None else f", {times(stored.speedup)} as fast as {stored.best_default}"
    found = expected_gain(offer, here, graphs, folder)
    expected = "nothing tells what it gains here" if found is None else f"here {found} is expected"
    return (
        f"unverified on this {device_of(here)}: {offer.name}, which won on {there}{gained}; {expected}. It runs only once it has"
        " won here, and fuseplan tune races it first"
    )


def _machine(place: Environment) -> Machine:
    return Machine.guess(device_of(place))


def _change(
    machine: Machine, plan: Plan, graphs: Sequence[tuple[str, Graph]], folder: Path | None
) -> tuple[float, float] | None:
    """The logarithm of what a plan should gain on a machine over fusing all that can be fused, and how unsure that is; None where no
    model knows: it is not cut, its graphs are not at hand, or they are unlike anything learnt from.
    """
    if plan.host != "aten" or not plan.carve_outs or plan.rewrites:
        return None
    model = planner_model(machine, folder)
    if not isinstance(model, Learned):
        return None
    first: list[Question] = []
    second: list[Question] = []
    try:
        for role, graph in graphs:
            cut = plan.cut(role, None if graph.opaque else graph.key)
            if cut is not None:
                first += _questions(graph, maximal_regions(graph, [True] * len(graph.ops), "inductor"))
                second += _questions(graph, cut)
    except FuseplanError:  # graphs of another version, which the plan is not of
        return None
    if not second or any(cost.unsure for cost in model.predict([*first, *second])):
        return None
    gap = model.gap(first, second)
    return gap.ratio, gap.spread


def _questions(graph: Graph, cut: Segmentation) -> list[Question]:
    return [
        (work_of(extract(graph, unit.ops, unit.recompute)), unit.executor, unit.variant)
        for unit in units_of(graph, cut)
    ]
