"""The judge that is looked at, and the rule before it, behind one interface: what to expect of a program, and is this it?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from benchmarks.judging.earlier import DRAWS, EarlierLeaf, Layout, disagreement, expected, with_draw
from fuseplan.capture.trace.load import Loaded, load_trace
from fuseplan.judge.expect import SEEDS as SEEDS
from fuseplan.judge.expect import expect

_OTHER_NUMBERS = 7919


class Finding(Protocol):
    """What is said of one output: its error, what it was allowed, and the error of eager itself where its inputs are moved."""

    @property
    def name(self) -> str: ...
    @property
    def measure(self) -> str: ...
    @property
    def error(self) -> float: ...
    @property
    def allowed(self) -> float: ...
    @property
    def natural(self) -> float: ...


class Said(Protocol):
    """What is said of one run."""

    @property
    def problem(self) -> str | None: ...
    @property
    def evidence(self) -> Sequence[Finding]: ...


class Expectation(Protocol):
    """What a program should give, and how that came to be known."""

    @property
    def how(self) -> str: ...

    def judge(
        self, found: Mapping[str, Any], seed: int, layout: Layout, wider: float = 1.0, *, same_numbers: bool = False
    ) -> Said:
        """Tell whether this is it; whether eager's own random numbers were drawn may say more."""


Judge = Callable[[Loaded, Sequence[int]], Expectation]


@dataclass(frozen=True)
class _Plain:
    """A problem or none, and nothing that shows it."""

    problem: str | None
    evidence: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class _Earlier:
    """What the earlier rule expects, by seed."""

    leaves: Mapping[int, Mapping[str, EarlierLeaf]]
    how: str = ""

    def judge(
        self, found: Mapping[str, Any], seed: int, layout: Layout, wider: float = 1.0, *, same_numbers: bool = False
    ) -> _Plain:
        return _Plain(disagreement(found, self.leaves[seed], layout))


def earlier(loaded: Loaded, seeds: Sequence[int]) -> Expectation:
    """The rule before: eager, one run in double precision, and one or more under other random numbers."""
    return _Earlier({seed: _leaves(loaded, seed) for seed in seeds})


def _leaves(loaded: Loaded, seed: int) -> dict[str, EarlierLeaf]:
    def under(numbers: int) -> dict[str, Any]:
        def with_other_numbers(*args: Any) -> Any:
            torch.manual_seed(numbers)
            return loaded.module(*args)

        return loaded.run(with_other_numbers, seed)

    leaves = expected(loaded.run(seed=seed), _in_double(loaded, seed), under(_OTHER_NUMBERS))
    random = any(leaf.sizes is not None for leaf in leaves.values())
    for draw in range(1, DRAWS if random else 1):
        leaves = with_draw(leaves, under(_OTHER_NUMBERS + draw))
    return leaves


def _in_double(loaded: Loaded, seed: int) -> dict[str, Any] | None:
    try:
        return load_trace(loaded.trace.in_double(), "cpu").run(seed=seed)
    except (RuntimeError, TypeError, ValueError, MemoryError):
        return None


def judges() -> dict[str, Judge]:
    """Those that there are, by name: the one that tuning asks, and the one before."""
    return {"today": earlier, "expect": expect}
