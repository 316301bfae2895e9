"""What a whole program should give, for each of its inputs: exact values, and the natural spread about them.

Exact is a run in higher precision, as high as there is. The spread is how far eager moves while nothing is wrong: by itself,
on inputs and weights moved by their own rounding, and in another order of summation besides. What the runs for all inputs say
of one output is pooled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from fuseplan.capture.dynamo.numerics import Numerics
from fuseplan.capture.trace.format import Trace
from fuseplan.capture.trace.load import Loaded, load_trace
from fuseplan.judge.chances import Chances
from fuseplan.judge.compare import Leaf
from fuseplan.judge.fused import RoundedAttention
from fuseplan.judge.memory import is_float
from fuseplan.judge.moved import MovedRun
from fuseplan.judge.output import Wider
from fuseplan.judge.programs import DRAWS, JudgedRun, Layout, is_random, judge, sizes_of
from fuseplan.judge.spread import NaturalSpread

SEEDS = (0, 1)
"""Of the inputs that take turns."""
MORE = (4, 12, 16)
"""Runs of eager on moved values that are made besides, step by step, while a verdict is in doubt. Of one number a run, such as
a loss or by how much a gradient is scaled, the largest of five is less than half of one more in one of 40 cases, of nine in one
of 160, of 21 in one of 1,700, of 37 in one of 10,000."""
FIRST_S = 10.0
"""The first step has so long in any case."""
CHANCES_SHARE = 0.25
"""Of the time that judging may take, for eager's runs under other random numbers; half of that for those of each plan."""
_OTHER_NUMBERS = 7919
Results = Mapping[str, Any]
"""What a run gave and wrote, by name."""


def _nothing() -> None:
    return None


def _no_matter(error: BaseException) -> None:
    return None


@dataclass(frozen=True)
class Surroundings:
    """What whoever asks has around a run."""

    tidy: Callable[[], None] = _nothing
    """Lets go of memory, between two runs: of what is not older than the last."""
    clear: Callable[[], None] = _nothing
    """Lets go of all that nobody has any more, however old: a program in higher precision is let go behind its runs."""
    check: Callable[[BaseException], None] = _no_matter
    """Raises where the error of a run means that the device is lost."""
    roomy: Callable[[], AbstractContextManager[object]] = nullcontext
    """Around runs that say what is right: in higher precision they take several times the memory of others."""


ALONE = Surroundings()


@dataclass(eq=False)
class Expectation:
    """What a program should give, and how that came to be known."""

    leaves: Mapping[int, Mapping[str, Leaf]]
    """By the seed of the inputs."""
    _how: str
    _more: _MoreDraws
    took_s: float
    """What finding it out took, without what was waited for."""
    chances: Chances | None = None
    """Of a program that draws random numbers."""

    @property
    def how(self) -> str:
        """How what is right came to be known."""
        more = f", and {self._more.made} more moved runs, in doubt" if self._more.made else ""
        untold = self.chances is not None and self.chances.untold
        return self._how + more + (", random values by their size alone for want of time" if untold else "")

    def grant(self, seconds: float) -> None:
        """Have no more time than so many seconds for further runs."""
        self._more.seconds = min(self._more.seconds, seconds)

    def judge(
        self,
        found: Results,
        seed: int,
        layout: Layout = "eager",
        wider: Wider | float = 1.0,
        *,
        same_numbers: bool = False,
        right: Set[str] = frozenset(),
    ) -> JudgedRun:
        """What is to be said of a run on the inputs of a seed; `same_numbers` if it drew the random numbers that eager draws. Some of
        what it gave may be known to be `right`.

        Where that is in doubt eager runs some more, as long as there is time for it, and all that is judged later gains by that.
        """
        while True:
            judged = judge(found, self.leaves[seed], layout, wider, same_numbers=same_numbers, right=right)
            if not judged.doubtful or not self._more.learn():
                return judged


def expect(
    loaded: Loaded,
    seeds: Sequence[int] = SEEDS,
    *,
    seconds: float = math.inf,
    where: Surroundings = ALONE,
) -> Expectation:
    """Run a program as eager runs it, more precisely, and moved.

    Once `seconds` have passed nothing is begun that could be done without: the spread is learnt from fewer runs.
    """
    with where.roomy():
        return _expected(loaded, seeds, seconds, where)


def _expected(loaded: Loaded, seeds: Sequence[int], seconds: float, where: Surroundings) -> Expectation:
    begin = perf_counter()
    eager = {seed: loaded.run(seed=seed) for seed in seeds}
    where.tidy()
    exact, how = _exact_runs(loaded, seeds, where)
    first, *turns = _turns(seeds)
    moved, draws = first.run(loaded)
    random = {seed: _random(loaded, seed, eager[seed]) if draws else {} for seed in seeds}
    spreads = Spreads(eager, exact, random)
    spreads.learn(first.seed, moved)
    del moved
    skipped = 0
    for turn in turns:
        where.tidy()
        if perf_counter() - begin > seconds:
            skipped += 1
        else:
            spreads.learn(turn.seed, turn.run(loaded)[0])
    more = _MoreDraws(loaded, spreads, _further_turns(seeds), where, seconds - (perf_counter() - begin))
    how += f", without {skipped} moved runs for want of time" if skipped else ""
    chances = _chances(loaded, seeds[0], spreads.leaves[seeds[0]], CHANCES_SHARE * seconds)
    return Expectation(spreads.leaves, how, more, perf_counter() - begin, chances)


def _chances(loaded: Loaded, seed: int, leaves: Mapping[str, Leaf], seconds: float) -> Chances | None:
    """What is to be compared of random floats; None where there are none."""
    rounding = {
        name: max(leaf.spread.rms, default=0.0)
        for name, leaf in leaves.items()
        if leaf.sizes is not None and leaf.spread is not None
    }
    return Chances(loaded, seed, rounding, seconds) if rounding else None


@dataclass(frozen=True)
class _Turn:
    """One run of eager on moved values."""

    number: int
    seed: int
    reordered: bool

    def run(self, loaded: Loaded) -> tuple[Results, bool]:
        """What it gave, and whether anything drew random numbers."""
        mode = MovedRun(loaded.tensors.owned.values(), 1000 * self.seed + self.number, reordered=self.reordered)

        def call(*args: Any) -> Any:
            for arg in args:
                mode.know(arg)
            with RoundedAttention() if self.reordered else nullcontext():
                return loaded.module(*args)

        return loaded.run(call, self.seed, within=mode), mode.random


def _turns(seeds: Sequence[int]) -> list[_Turn]:
    """The runs that say how far results move: for all inputs, and in another order of summation for the last."""
    plain = [_Turn(number, seed, False) for number, seed in enumerate(seeds)]
    return [*plain, _Turn(len(plain), seeds[-1], True)]


def _further_turns(seeds: Sequence[int]) -> list[list[_Turn]]:
    """More of them, in steps: for all inputs in turn, in both orders of summation."""
    numbers = iter(range(len(seeds) + 1, len(seeds) + 1 + sum(MORE)))
    return [
        [_Turn(next(numbers), seeds[i % len(seeds)], i // len(seeds) % 2 == 1) for i in range(count)] for count in MORE
    ]


@dataclass(eq=False)
class _MoreDraws:
    """The runs of eager that are made where a verdict is in doubt."""

    loaded: Loaded
    spreads: Spreads
    steps: list[list[_Turn]]
    where: Surroundings
    seconds: float
    """What they may take."""
    made: int = 0

    def learn(self) -> bool:
        """Make the runs of one step; False where there are none left, no time for them, or no room. There is for the first step: the
        few runs that were made without a doubt may all lie close to each other, and what is right be called wrong.
        """
        first = len(self.steps) == len(MORE)
        if not self.steps or (self.seconds <= 0 and not first):
            return False
        begin = perf_counter()
        try:
            for turn in self.steps.pop(0):
                self.where.tidy()
                self.spreads.learn(turn.seed, turn.run(self.loaded)[0])
                self.made += 1
                if perf_counter() - begin > max(self.seconds, FIRST_S if first else 0.0):
                    break
        except (RuntimeError, MemoryError) as error:  # what is judged holds memory
            self.where.check(error)
            self.steps.clear()
        finally:
            self.seconds -= perf_counter() - begin
        return True


def leaves_of(eager: Results, exact: Results | None = None, draws: Sequence[Results] = ()) -> Mapping[str, Leaf]:
    """What each value should be, by results that are known: of eager, in higher precision, and of other right runs.

    >>> x = torch.tensor([1.0, 2.0])
    >>> leaves = leaves_of({"y": x}, {"y": x.double() + 1e-7}, [{"y": x - 1e-7}])
    >>> judge({"y": x + 3e-7}, leaves).problem, str(judge({"y": x + 1e-3}, leaves).problem)[:30]
    (None, 'y is off by 0.001 (largest), w')
    """
    spreads = Spreads({0: eager}, None if exact is None else {0: exact})
    for draw in draws:
        spreads.learn(0, draw)
    return spreads.leaves[0]


class Spreads:
    """The spread of each output, while it is being learnt, and what each output should be, for each input.

    `sizes` is how large eager had what is random, by seed and name: of that nothing is compared with what is exact.
    """

    def __init__(
        self,
        eager: Mapping[int, Results],
        exact: Mapping[int, Results] | None,
        sizes: Mapping[int, Mapping[str, tuple[float, ...]]] | None = None,
    ) -> None:
        sizes = sizes or {}
        random = {name for known in sizes.values() for name in known}  # in higher precision other numbers are drawn
        first = next(iter(eager.values()))
        self.known = {name: NaturalSpread.of(value) for name, value in first.items() if is_float(value)}
        self.leaves: dict[int, dict[str, Leaf]] = {}
        for seed, results in eager.items():
            known = {} if exact is None else comparable(results, exact[seed])
            self.leaves[seed] = {
                name: Leaf(
                    value,
                    None if name in random else known.get(name),
                    self.known.get(name),
                    sizes.get(seed, {}).get(name),
                )
                for name, value in results.items()
            }
            if exact is not None:
                self.learn(seed, results)

    def learn(self, seed: int, found: Results) -> None:
        """Take in a run of eager that is right."""
        for name, leaf in self.leaves[seed].items():
            draw = found.get(name)
            if leaf.spread is None or not isinstance(draw, Tensor) or not isinstance(leaf.eager, Tensor):
                continue
            if draw is not leaf.right.values and draw.shape == leaf.eager.shape:  # not eager beside itself
                leaf.spread.learn(draw, leaf.right)


def comparable(eager: Results, exact: Results) -> dict[str, Tensor]:
    """The exact values of tensors that eager gives, no wider than they need to be."""
    found = {}
    for name, value in exact.items():
        mine = eager.get(name)
        if isinstance(value, Tensor) and isinstance(mine, Tensor) and value.shape == mine.shape:
            found[name] = value.detach().to(_kept(mine.dtype)) if is_float(mine) else value
    return found


def _kept(dtype: torch.dtype) -> torch.dtype:
    """In which the exact values are kept: eight bytes say nothing more of what has two."""
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype in (torch.float32, torch.float64) else torch.float32


def _exact_runs(loaded: Loaded, seeds: Sequence[int], where: Surroundings) -> tuple[dict[int, Results] | None, str]:
    """The same in higher precision, the highest that runs; None where none does."""
    reasons = []
    precisions: tuple[tuple[str, Trace], ...] = (
        ("float64", loaded.trace.in_double()),
        ("float32", loaded.trace.in_single()),
    )
    for name, trace in precisions:
        if trace == loaded.trace:
            continue
        try:
            return _runs_of(trace, loaded, seeds), f"beside a run in {name}"
        except (RuntimeError, TypeError, ValueError, MemoryError) as error:
            where.check(error)
            reasons.append(f"{name}: {_first_line(error)}")
        finally:
            where.clear()
    why = "; ".join(reasons) or "there is none"
    return None, f"beside eager itself, since nothing more precise runs ({why})"


def _runs_of(trace: Trace, loaded: Loaded, seeds: Sequence[int]) -> dict[int, Results]:
    with _without_tensor_cores(loaded):
        wide = load_trace(trace, loaded.device)
        return {seed: wide.run(seed=seed) for seed in seeds}


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}{': ' + lines[0][:200] if lines else ''}"


def _without_tensor_cores(loaded: Loaded) -> AbstractContextManager[None]:
    """Within, a GPU computes float32 in float32."""
    if not loaded.tensors.cuda_devices():
        return nullcontext()
    return replace(Numerics.here(), matmul_precision="highest", cudnn_tf32=False).applied()


def _random(loaded: Loaded, seed: int, eager: Results) -> dict[str, tuple[float, ...]]:
    """The values that hang on random numbers, and how large eager has them under others."""

    def under(numbers: int) -> Results:
        def with_other_numbers(*args: Any) -> Any:
            torch.manual_seed(numbers)
            return loaded.module(*args)

        return loaded.run(with_other_numbers, seed)

    first = under(_OTHER_NUMBERS)
    sizes = {name: sizes_of(first.get(name)) for name, value in eager.items() if is_random(value, first.get(name))}
    for draw in range(1, DRAWS if sizes else 1):
        found = under(_OTHER_NUMBERS + draw)
        sizes = {name: known + sizes_of(found.get(name)) for name, known in sizes.items()}
    return sizes
