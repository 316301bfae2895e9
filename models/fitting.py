"""From rows to Heads: everything is learnt on the log ratio to the roofline, and trusted as far as unseen regions allow."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

from fuseplan.errors import OptionError
from fuseplan.graph.words import counted
from fuseplan.models.conformal import bands, quantile
from fuseplan.models.features import Looking
from fuseplan.models.heads import HOST_FLOOR_US, Heads, QuestionTable, with_scatter
from fuseplan.models.learners import CHOSEN, FAMILIES, Fit, Fitted, classifier, small_boosting
from fuseplan.models.machine import Machine
from fuseplan.models.model import Row
from fuseplan.models.roofline import Rates, Roofline
from fuseplan.models.support import support

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

FOLDS = 4
LEAST = 40
"""Rows with times: fewer are a matter for the roofline alone."""
WILD = 3.0
"""Log ratios beyond this are clocks that stumbled, or a kernel gone mad: they count as this much."""
NEAR = 1.03
UNSURE = 0.09
"""The share of unseen regions that is called unsure: those of which the largest errors are expected. What lies far from all
that was learnt from is unsure as well."""
LEAST_ERROR = 0.01
"""What clocks differ by from run to run: no error is expected to be smaller."""
SEED = 7


def fit_heads(
    rows: Sequence[Row], machine: Machine, groups: Sequence[str] | None = None, *, family: str = CHOSEN
) -> Heads:
    """Learn from rows. Those of one of the `groups`, islands say, are much alike: none vouches for another.

    The same rows in the same order give the same heads.
    """
    import numpy as np

    idle = machine.device != "cpu"  # views alone launch nothing on a GPU, so that there is nothing to learn
    usable = [i for i, row in enumerate(rows) if row.usable and (row.work.ops or not idle)]
    if len(usable) < LEAST:
        raise OptionError(f"{counted(len(usable), 'row')} with times: too few to learn from, which takes {LEAST}")
    looking = Looking(machine, most=max(200_000, 2 * len(rows)))
    roofline = Roofline(machine)
    roofline.update([rows[i] for i in usable])
    rates = _copied(roofline.rates)
    every = QuestionTable.of([(row.work, row.executor, row.variant) for row in rows], looking, rates)
    known = _Known.of([rows[i] for i in usable], every, np.array(usable), groups)
    fit = FAMILIES[family]
    unseen = known.unseen(fit)
    error, score = _errors(known, unseen)
    functions: dict[str, Fitted] = {
        "device": fit(known.rows, known.ratio, SEED),
        "host": small_boosting(known.rows, known.host_ratio, SEED),
        "fails": classifier(every.features, np.array([row.status != "ok" for row in rows]), SEED),
        "near": classifier(known.rows, known.near(), SEED),
        "error": error,
    }
    expected = score.expected
    return Heads(
        machine,
        rates,
        functions,
        support(known.rows, known.folds, SEED),
        bands(known.executors, unseen.device_us, score.error / expected),
        _pairs(known, score),
        float(np.quantile(expected, 1.0 - UNSURE)),
        {"rows": len(usable), "failed": len(rows) - len(usable), "regions": len(set(known.regions)), "family": family},
    )


@dataclass(frozen=True, eq=False)
class _Unseen:
    """What models that had not seen a row's group say of it."""

    ratio: Floats
    scatter: Floats
    device_us: Floats


@dataclass(frozen=True, eq=False)
class _Score:
    """How far off that was, in log time, and how far it was expected to be."""

    error: Floats
    signed: Floats
    expected: Floats


@dataclass(frozen=True, eq=False)
class _Known:
    """Rows with times, as arrays."""

    rows: Any
    roofline_us: Floats
    device_us: Floats
    ratio: Floats
    host_ratio: Floats
    executors: list[str]
    regions: list[int]
    """Rows of equal number are of one region."""
    folds: Any

    @staticmethod
    def of(rows: Sequence[Row], every: QuestionTable, usable: Any, groups: Sequence[str] | None) -> _Known:
        import numpy as np

        device = np.array([row.device_us for row in rows])
        host = np.array([row.host_us for row in rows])
        roofline = np.maximum(every.device_us[usable], 1e-3)
        numbers: dict[object, int] = {}
        regions = [numbers.setdefault(row.work, len(numbers)) for row in rows]
        names = [groups[i] for i in usable] if groups is not None else [str(number) for number in regions]
        return _Known(
            every.features[usable],
            roofline,
            device,
            np.clip(np.log(device / roofline), -WILD, WILD),
            np.clip(np.log((host + HOST_FLOOR_US) / (every.host_us[usable] + HOST_FLOOR_US)), -WILD, WILD),
            [row.executor for row in rows],
            regions,
            np.array([_fold(name) for name in names]),
        )

    def unseen(self, fit: Fit) -> _Unseen:
        """Every row predicted by a model that has not seen its group."""
        import numpy as np

        ratio, scatter = np.zeros(len(self.rows)), np.zeros(len(self.rows))
        for fold in range(FOLDS):
            out = self.folds == fold
            if out.any() and not out.all():
                ratio[out], scatter[out] = fit(self.rows[~out], self.ratio[~out], SEED).both(self.rows[out])
        return _Unseen(ratio, scatter, self.roofline_us * np.exp(ratio))

    def near(self) -> Any:
        """Whether each row is within 3 % of the best of its region."""
        import numpy as np

        best = np.full(max(self.regions) + 1, np.inf)
        np.minimum.at(best, self.regions, self.device_us)
        return self.device_us <= NEAR * best[self.regions]


def _fold(name: str) -> int:
    return hashlib.blake2b(name.encode(), digest_size=4).digest()[0] % FOLDS


def _errors(known: _Known, unseen: _Unseen) -> tuple[Fitted, _Score]:
    """A function for the error to expect, and the errors of unseen rows beside what one like it expected of them."""
    import numpy as np

    signed = np.clip(np.log(known.device_us / known.roofline_us), -WILD, WILD) - unseen.ratio
    error = np.maximum(np.abs(signed), LEAST_ERROR)
    rows, target = with_scatter(known.rows, unseen.scatter, unseen.ratio), np.log(error)
    expected = np.full(len(error), float(np.mean(target)))
    for half in (0, 1):
        out = known.folds % 2 == half
        if out.any() and not out.all():
            expected[out] = small_boosting(rows[~out], target[~out], SEED).predict(rows[out])
    return small_boosting(rows, target, SEED), _Score(error, signed, np.exp(expected))


def _pairs(known: _Known, score: _Score) -> dict[tuple[str, str], float]:
    """How far differences inside a region are off, against what is expected of both: by two executors, and of any two."""
    import numpy as np

    members: dict[int, list[int]] = {}
    for i, region in enumerate(known.regions):
        members.setdefault(region, []).append(i)
    found: dict[tuple[str, str], list[float]] = {("", ""): []}
    for rows in members.values():
        for i, j in combinations(rows, 2):
            off = abs(score.signed[i] - score.signed[j]) / np.hypot(score.expected[i], score.expected[j])
            names = sorted((known.executors[i], known.executors[j]))
            found.setdefault((names[0], names[1]), []).append(off)
            found["", ""].append(off)
    if not found["", ""]:
        return {("", ""): 2.0}
    return {pair: quantile(np.array(offs), 0.9) for pair, offs in found.items() if len(offs) >= 30 or pair == ("", "")}


def _copied(rates: Rates) -> Rates:
    return Rates(dict(rates.device), dict(rates.host), _plain(rates.variants))


def _plain(variants: Mapping[tuple[str, str], float]) -> dict[tuple[str, str], float]:
    return dict(sorted(variants.items()))
