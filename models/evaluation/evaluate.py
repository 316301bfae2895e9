"""The whole evaluation: model families left out one by one, islands left out at random, and all figures of the report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import chain
from multiprocessing import get_context
from statistics import NormalDist
from time import perf_counter
from typing import Any

from fuseplan.errors import OptionError
from fuseplan.models.cost import NINE_OF_TEN
from fuseplan.models.evaluation import metrics
from fuseplan.models.evaluation.contenders import LEARNED
from fuseplan.models.evaluation.data import MADE_UP, Data
from fuseplan.models.evaluation.importance import importances
from fuseplan.models.evaluation.limits import limits_met
from fuseplan.models.evaluation.moves import table
from fuseplan.models.evaluation.replay import Spent
from fuseplan.models.evaluation.splits import Split, SplitResult, grouped, left_out, run_split
from fuseplan.models.features import VERSION
from fuseplan.models.learners import CHOSEN

GROUPED_FOLDS = 3


@dataclass(frozen=True)
class Report:
    """All figures, as JSON would have them, and what plots are drawn of."""

    figures: dict[str, Any]
    measured_us: list[float]
    predicted_us: list[float]
    unsure: list[bool]
    curves: dict[str, list[tuple[float, float]]]
    """By model, the mean plan regret over the share of rows measured."""
    coverage: dict[str, list[tuple[float, float]]]
    """By kind of split, over the share of errors in percent that intervals are said to hold, the share that they do."""


def evaluate(data: Data, *, jobs: int = 1, say: Callable[[str], None] = lambda _: None) -> Report:
    """Evaluate all models on the rows of one machine. `jobs` processes share the splits."""
    begin = perf_counter()
    apart, shuffled = left_out(data), grouped(data, GROUPED_FOLDS)
    if len(apart) < 2:
        raise OptionError("rows of one model family alone leave nothing to learn from: at least two are needed")
    results = _run(data, [(one, True) for one in apart] + [(one, False) for one in shuffled], jobs, say)
    outside, inside = results[: len(apart)], results[len(apart) :]
    figures = _figures(data, outside, inside)
    say("which features carry the decisions")
    figures["features"] = importances(data)
    figures["seconds"] = round(perf_counter() - begin, 1)
    figures["limits"] = limits_met(figures)
    rows = [i for found in outside for i in found.test if data.timed[i]]
    keep = [[data.timed[i] for i in found.test] for found in outside]
    picked = [list(_picked(found.device[LEARNED], mine)) for found, mine in zip(outside, keep, strict=True)]
    unsure = [list(_picked(found.unsure, mine)) for found, mine in zip(outside, keep, strict=True)]
    return Report(
        figures,
        [data.rows[i].device_us for i in rows],
        list(chain.from_iterable(picked)),
        list(chain.from_iterable(unsure)),
        _curves(outside),
        {"families left out": _coverage(data, outside), "islands left out": _coverage(data, inside)},
    )


def _picked(values: Any, keep: Sequence[bool]) -> Iterator[Any]:
    return (value for value, kept in zip(values.tolist(), keep, strict=True) if kept)


def _run(data: Data, splits: Sequence[tuple[Split, bool]], jobs: int, say: Callable[[str], None]) -> list[SplitResult]:
    if jobs < 2:
        found = []
        for number, (split, contenders) in enumerate(splits, 1):
            say(f"{number} of {len(splits)}: without {split.name}")
            found.append(run_split(data, split, contenders=contenders))
        return found
    with ProcessPoolExecutor(jobs, get_context("spawn"), _begin, (data,)) as pool:
        found = []
        for one in pool.map(_one, splits):
            found.append(one)
            say(f"{len(found)} of {len(splits)}: without {one.name}")
        return found


_held: list[Data] = []
"""In a process of the pool: what all its splits are of."""


def _begin(data: Data) -> None:
    _held[:] = [data]


def _one(task: tuple[Split, bool]) -> SplitResult:
    split, contenders = task
    return run_split(_held[0], split, contenders=contenders)


def _figures(data: Data, outside: Sequence[SplitResult], inside: Sequence[SplitResult]) -> dict[str, Any]:
    models = list(outside[0].device)
    return {
        "command": "fuseplan model evaluate --plots benchmarks/results",
        "rows": _rows(data),
        "features_version": VERSION,
        "family_of_functions": CHOSEN,
        "left_out": {
            "splits": {found.name: {"train": found.train, "test": len(found.test)} for found in outside},
            "models": {name: _model(data, outside, name) for name in models},
            "learned": _learned(data, outside),
            "by_family": {found.name: _model(data, [found], LEARNED) for found in outside},
        },
        "grouped": {"learned": _learned(data, inside), "models": {LEARNED: _model(data, inside, LEARNED)}},
        "moves": table([move for found in outside for move in found.moves]),
        "plans": _plans(outside),
    }


def _rows(data: Data) -> dict[str, Any]:
    usable = [row for row in data.measured if row.ok]
    names = sorted({row.executor for row in usable})
    return {
        "machine": data.machine.name,
        "measured_with": {name: data.header.get(name) for name in ("environment", "command", "commit", "when")},
        "measured": len(data.measured),
        "with_times": len(usable),
        "regions": len({row.region for row in usable}),
        "families": len({row.family for row in usable}),
        "model_families": len(set(data.families)),
        "islands": len(data.decisions),
        "cuts": sum(len(one.cuts) for one in data.decisions),
        "executors": {name: sum(row.executor == name for row in usable) for name in names},
    }


def _model(data: Data, results: Sequence[SplitResult], name: str) -> dict[str, Any]:
    """One model over all splits: errors on rows with times, order within regions, and choices."""
    import numpy as np

    rows = [i for found in results for i in found.test]
    predicted = np.concatenate([found.device[name] for found in results])
    device = np.array([data.rows[i].device_us for i in rows])
    known = np.array([data.timed[i] for i in rows])
    regions = [data.measured[i].region for i, kept in zip(rows, known, strict=True) if kept]
    regrets = [found.regrets[name] for found in results]
    return {
        "device": metrics.errors(device[known], np.maximum(predicted[known], 1e-3)),
        "tau_in_regions": metrics.tau(regions, device[known], np.maximum(predicted[known], 1e-3)),
        "executor_choice": metrics.regret([x for one in regrets for x in one.executor]),
        "executor_top3": metrics.regret([x for one in regrets for x in one.executor_3]),
        "island_choice": metrics.regret([x for one in regrets for x in one.island]),
        "island_top3": metrics.regret([x for one in regrets for x in one.island_3]),
    }


def _learned(data: Data, results: Sequence[SplitResult]) -> dict[str, Any]:
    """What only the learned model says: intervals, what it is unsure of, host times, failures."""
    import numpy as np

    rows = [i for found in results for i in found.test]
    known = np.array([data.timed[i] for i in rows])
    device = np.array([data.rows[i].device_us for i in rows])[known]
    host = np.array([data.rows[i].host_us for i in rows])[known]
    joined = {name: np.concatenate([getattr(found, name) for found in results]) for name in _COLUMNS}
    sure = ~joined["unsure"][known]
    predicted = np.concatenate([found.device[LEARNED] for found in results])[known]
    held = (joined["low"][known] <= device) & (device <= joined["high"][known])
    best: dict[str, float] = {}
    for i in rows:
        if data.timed[i]:
            region = data.measured[i].region
            best[region] = min(best.get(region, np.inf), data.rows[i].device_us)
    near = [data.rows[i].device_us <= 1.03 * best[data.measured[i].region] for i in rows if data.timed[i]]
    failed = np.array([not data.measured[i].ok for i in rows])
    executors = np.array([data.measured[i].executor for i in rows])[known]
    found: dict[str, Any] = {
        "flagged": metrics.share(~sure),
        "device_not_flagged": metrics.errors(device[sure], predicted[sure]),
        "coverage_90": metrics.share(held),
        "coverage_90_not_flagged": metrics.share(held, sure),
        "coverage_by_executor": {name: metrics.share(held, executors == name) for name in sorted(set(executors))},
        "interval_width": round(float(np.median(joined["high"][known] / np.maximum(joined["low"][known], 1e-3))), 3),
        "near_best_auc": metrics.auc(near, joined["near"][known]),
        "failures": int(failed.sum()),
        "failure_auc": metrics.auc(failed, joined["fails"]),
    }
    called = host > 0
    if called.any():
        for name, of in (("host_mape", "host"), ("host_mape_roofline", "host_roofline")):
            off = np.abs(joined[of][known][called] / host[called] - 1.0)
            found[name] = round(float(off.mean()), 4)
    return found


_COLUMNS = ("low", "high", "unsure", "fails", "near", "host", "host_roofline")


def _plans(results: Sequence[SplitResult]) -> dict[str, Any]:
    """Regret of plans by model and by the share of rows that might be measured; those of models by themselves too."""
    report: dict[str, Any] = {}
    for name in results[0].plans:
        sessions = [one for found in results for one in found.plans[name]]
        kinds = {"all": sessions, "programs": [one for one in sessions if not one[0].startswith(MADE_UP)]}
        report[name] = {
            kind: {
                f"{share:g}": metrics.regret([regret for point in _at(chosen, share) for regret in point.regrets])
                | {"measured_share": _spent(_at(chosen, share))}
                for share in _shares(chosen)
            }
            for kind, chosen in kinds.items()
        }
    return report


def _at(sessions: Sequence[tuple[str, list[Spent]]], share: float) -> list[Spent]:
    return [point for _, points in sessions for point in points if point.share == share]


def _shares(sessions: Sequence[tuple[str, list[Spent]]]) -> list[float]:
    return sorted({point.share for _, points in sessions for point in points})


def _spent(points: Sequence[Spent]) -> float:
    rows = sum(point.rows for point in points)
    return round(sum(point.measured for point in points) / rows, 4) if rows else 0.0


def _curves(results: Sequence[SplitResult]) -> dict[str, list[tuple[float, float]]]:
    curves = {}
    for name in results[0].plans:
        plans = [one for found in results for one in found.plans[name]]
        shares = _shares(plans)
        means = {share: [regret for point in _at(plans, share) for regret in point.regrets] for share in shares}
        curves[name] = [(100 * share, 100 * sum(found) / len(found)) for share, found in means.items() if found]
    return curves


def _coverage(data: Data, results: Sequence[SplitResult]) -> list[tuple[float, float]]:
    """Intervals wider and narrower than the one that was learnt are so as those of a normal distribution."""
    import numpy as np

    known = np.array([data.timed[i] for found in results for i in found.test])
    device = np.array([data.rows[i].device_us for found in results for i in found.test])[known]
    low, high = (np.concatenate([getattr(found, name) for found in results])[known] for name in ("low", "high"))
    away = np.abs(np.log(device / np.sqrt(low * high))) / (np.log(high / low) / 2)
    normal = NormalDist()
    shares = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
    return [(100 * q, 100 * metrics.share(away <= normal.inv_cdf(0.5 + q / 2) / NINE_OF_TEN)) for q in shares]
