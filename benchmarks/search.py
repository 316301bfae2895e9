"""Three ways to search compared on replayed timings: regret against measurements spent, for our sampler, TPE and random.

A measurement is one region timed under one executor, and none is spent twice, whoever searches: a whole plan costs what of
it was not measured yet. Regret is how much longer the best plan so far takes than the best plan known, by the two clocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchmarks.given import numbers
from benchmarks.replay.corpus import NOISE
from benchmarks.result import RESULTS
from benchmarks.search_replay import SearchedProgram
from benchmarks.search_tables import Table, tables
from fuseplan.charts import Panel, chart
from fuseplan.models import Cost, Machine, Roofline, Row
from fuseplan.solver.costs import Timings
from fuseplan.solver.solve import Solver
from fuseplan.study.ledger import SAMPLERS, Ledger
from fuseplan.study.names import Params, Point, encode
from fuseplan.tuning.effort import FULL

SPENT = (50, 100, 150, 200, 300, 500)
LEAST = 0.01
"""In the plot, whose axis is logarithmic, what is less stands there."""
ELSEWHERE = "NVIDIA A100-SXM4-80GB"
"""Our search starts from the roofline of this GPU: were it that of the timings, there would be little to find out."""


@dataclass
class Trace:
    """How one search went."""

    spent: list[int] = field(default_factory=list)
    best_us: list[float] = field(default_factory=list)
    trials: int = 0
    refused: int = 0

    def at(self, spent: int) -> float | None:
        """The best time that was known after so many measurements."""
        known = [best for count, best in zip(self.spent, self.best_us, strict=True) if count <= spent]
        return known[-1] if known else None


def measure(arguments: list[str]) -> dict[str, Any]:
    """With so many whole plans proposed by each search, and seeds of TPE and random."""
    trials, seeds = numbers("search", __doc__, arguments, plans=60, seeds=3)
    programs, panels = {}, []
    for table in tables():
        found, panel = _compare(table, trials, seeds)
        programs[table.name] = found
        panels.append(panel)
    (RESULTS / "search.svg").write_text(chart(panels), encoding="utf-8")
    return {"trials": trials, "seeds": seeds, "plot": "search.svg", "programs": programs}


def _compare(table: Table, trials: int, seeds: int) -> tuple[dict[str, Any], Panel]:
    replay = SearchedProgram(table)
    truth = [replay.truth(number) for number in range(len(replay.graphs))]
    best = Solver(replay.graphs, replay.fusible).solve(truth, k=FULL.k, prices=FULL.prices)[0].total_us
    traces = {
        name: [_search(replay, name, trials, seed) for seed in range(seeds if name != "ours" else 1)]
        for name in SAMPLERS
    }
    best = min(best, *(trace.best_us[-1] for many in traces.values() for trace in many))
    found = {
        "source": table.source,
        "times measured": len(table.times),
        "times filled in": replay.filled,
        "error of those filled in": NOISE,
        "best known us": best,
        "defaults us": {name: _take(replay, point)[1] for name, point in replay.defaults().items()},
        "searches": {name: _summary(many, best) for name, many in traces.items()},
    }
    lines = {
        name: [(n, max(LEAST, 100 * (us / best - 1))) for n, us in zip(many[0].spent, many[0].best_us, strict=True)]
        for name, many in traces.items()
    }
    found["plotted"] = {name: [[n, round(y, 3)] for n, y in _corners(line)] for name, line in lines.items()}
    return found, Panel(
        table.name, "measurements spent", "regret, % (0.01 is none)", lines, log_x=True, log_y=True, steps=True
    )


def _corners(line: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Where the best plan changed, and the end."""
    kept = [point for before, point in zip([(0, -1.0), *line], line, strict=False) if point[1] != before[1]]
    return kept if kept[-1] == line[-1] else [*kept, line[-1]]


def _search(replay: SearchedProgram, name: str, trials: int, seed: int) -> Trace:
    """Let one sampler propose whole plans, and measure of each what was not measured yet."""
    search = _Knowledge(replay)
    ledger = Ledger(replay.space, "program", "replay", sampler=name, source=search.proposals, seed=seed)
    ledger.enqueue(replay.defaults())
    trace = Trace()
    while trace.trials < trials and (proposal := ledger.ask()) is not None:
        trace.trials += 1
        new, total = search.measure(proposal.point)
        ledger.tell(proposal, total, "ok" if total is not None else "refused")
        if ledger.best is not None:
            trace.spent.append((trace.spent[-1] if trace.spent else 0) + new)
            trace.best_us.append(ledger.best[1])
    statuses = [trial.user_attrs.get("status") for trial in ledger.study.get_trials(deepcopy=False)]
    trace.refused = statuses.count("refused")
    return trace


class _Knowledge:
    """What one search has measured, and the model that learns from it."""

    def __init__(self, replay: SearchedProgram) -> None:
        self._replay = replay
        self._timings = Timings()
        self._model = Roofline(Machine.guess(ELSEWHERE))
        self._costs = replay.costs_of(self._model, self._timings, FULL.optimism)

    def proposals(self) -> Iterator[Params]:
        """The solver's best plans by what is known now."""
        replay = self._replay
        for solution in Solver(replay.graphs, replay.fusible).solve(self._costs, k=FULL.k, prices=FULL.prices):
            yield encode(replay.space, Point.of(dict(zip(replay.roles, solution.segmentations, strict=True))))

    def measure(self, point: Point) -> tuple[int, float | None]:
        """Measure what of a plan is new; return how many regions that were, and the time of the plan if it can run."""
        rows: list[Row] = []
        costs: list[Cost] = []
        for number, region in self._replay.units(point):
            case = self._costs[number].case(region.ops, region.recompute)
            choice = (region.executor, region.variant)
            if choice not in case.choices:
                return len(rows), None
            costs.append(self._replay.time(case, *choice))
            if choice not in self._timings.of(case.region.key):
                self._timings.add(case.region, choice, costs[-1])
                rows.append(Row(case.work, *choice, costs[-1].device_us, costs[-1].host_us))
        self._model.update(rows)
        return len(rows), self._replay.total(costs)


def _take(replay: SearchedProgram, point: Point) -> tuple[int, float | None]:
    return _Knowledge(replay).measure(point)


def _summary(traces: list[Trace], best: float) -> dict[str, Any]:
    def regret(spent: int) -> float | None:
        known = [us for trace in traces if (us := trace.at(spent)) is not None]
        return round(100 * (median(known) / best - 1), 2) if known else None

    return {
        "regret % after measurements": {str(spent): regret(spent) for spent in SPENT},
        "regret % at the end": round(100 * (median(trace.best_us[-1] for trace in traces) / best - 1), 2),
        "measurements at the end": median(trace.spent[-1] for trace in traces),
        "plans": median(trace.trials for trace in traces),
        "refused": median(trace.refused for trace in traces),
    }
