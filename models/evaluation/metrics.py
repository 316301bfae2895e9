"""What the report says in numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

SMALL_US = 10.0
"""Where the report divides regions: below, launches and the clock weigh more than work."""


def regret(found: Sequence[float]) -> dict[str, float | int]:
    """Mean, median and tail of regrets.

    >>> regret([0.0, 0.1, 0.2])["mean"]
    0.1
    """
    import numpy as np

    if not len(found):
        return {"choices": 0}
    values = np.asarray(found)
    return {
        "choices": len(values),
        "mean": round(float(values.mean()), 5),
        "p50": round(float(np.quantile(values, 0.5)), 5),
        "p90": round(float(np.quantile(values, 0.9)), 5),
        "p95": round(float(np.quantile(values, 0.95)), 5),
        "max": round(float(values.max()), 5),
    }


def errors(measured: Floats, predicted: Floats) -> dict[str, float | int]:
    """The mean and the median of absolute errors relative to what was measured, at 10 µs and above, and below."""
    import numpy as np

    off = np.abs(predicted / measured - 1.0)
    found: dict[str, float | int] = {}
    for name, here in (("from_10_us", measured >= SMALL_US), ("below_10_us", measured < SMALL_US)):
        found[f"{name}_rows"] = int(here.sum())
        if here.any():
            found[f"{name}_mape"] = round(float(off[here].mean()), 4)
            found[f"{name}_median"] = round(float(np.median(off[here])), 4)
    return found


def tau(groups: Sequence[Any], measured: Floats, predicted: Floats) -> dict[str, float | int]:
    """Kendall's tau within each region over the ways to run it, averaged over the regions that have three and more;
    of those with two, it is one or minus one. Times within 1 % of one another are ties that count for nothing.
    """
    import numpy as np

    members: dict[Any, list[int]] = {}
    for i, group in enumerate(groups):
        members.setdefault(group, []).append(i)
    taus, many, agree, pairs = [], [], 0, 0
    for rows in members.values():
        truth, guess = np.log(measured[rows]), np.log(predicted[rows])
        above = np.triu_indices(len(rows), 1)
        ahead = (truth[:, None] - truth[None, :])[above]
        thought = (guess[:, None] - guess[None, :])[above]
        count = np.abs(ahead) > 0.01
        if not count.any():
            continue
        right, wrong = int((ahead * thought > 0)[count].sum()), int((ahead * thought <= 0)[count].sum())
        taus.append((right - wrong) / (right + wrong))
        if len(rows) > 2:
            many.append(taus[-1])
        agree, pairs = agree + right, pairs + right + wrong
    if not taus:
        return {"regions": 0}
    return {
        "regions": len(taus),
        "tau": round(float(np.mean(taus)), 4),
        "regions_of_three": len(many),
        "tau_of_three": round(float(np.mean(many)), 4) if many else 0.0,
        "pairs": pairs,
        "pairs_right": round(agree / pairs, 4),
    }


def share(part: Any, of: Any | None = None) -> float:
    """How many of many, to four digits."""
    import numpy as np

    chosen = np.asarray(part) if of is None else np.asarray(part)[np.asarray(of)]
    return round(float(chosen.mean()), 4) if chosen.size else 0.0


def auc(truth: Any, score: Floats) -> float:
    """How often a row that is so scores above one that is not; a half is chance.

    >>> import numpy as np
    >>> auc(np.array([True, False, True]), np.array([0.9, 0.1, 0.4]))
    1.0
    """
    import numpy as np
    from scipy.stats import rankdata

    truth = np.asarray(truth, dtype=bool)
    ones, zeros = int(truth.sum()), int((~truth).sum())
    if not ones or not zeros:
        return 0.5
    ranks = rankdata(score)
    return round(float((ranks[truth].sum() - ones * (ones + 1) / 2) / (ones * zeros)), 4)
