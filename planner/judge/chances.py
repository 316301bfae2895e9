"""Random values of a whole program: what can be told of them where the numbers are others than eager's.

Both run under many random numbers, on the same inputs. Of each run some numbers are taken: how much of a tensor is zero, how far it
lies from eager's mean, along the way in which the other half of the runs differs from eager, and how much the loss falls where one
follows the gradient, which has to be as much as the gradient says: backward uses forward's own masks. Such numbers are compared as two
samples are, over several of them, and only what rounding does not explain counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from fuseplan.capture.trace.load import Loaded
from fuseplan.judge.memory import is_float

RUNS = 32
"""In a sample."""
LEAST_RUNS = 8
SAMPLES = 8
"""As long as there is time for them, and something seems to differ."""
SEEMS, SURE = 3.0, 2
"""By so many deviations, after more samples than this."""
APART = 5.5
"""How many deviations of a difference from none are no chance, over two samples or more."""
ELEMENTS = 2048
"""Of a tensor, so many are looked at, evenly spread."""
NOT_ROUNDING = 0.02
"""A share by which rounding does not change how far values scatter."""
STEP, LOW_STEP = 0.002, 0.02
"""By which share of itself a weight is moved along its gradient: in float32, and in lower precision."""
NO_STEP, NO_LOW_STEP = 0.001, 0.01
"""By which share rounding does not change what such a step gives."""
GROUPS = 3
"""Weights that are moved by themselves: the first third of them, in the order of the program, and so on."""
_FIRST = 104_729
_BEYOND = 1e6
Draw = Callable[[int], Mapping[str, Any]]
"""Runs a program under the random numbers of a seed; all that it gave and wrote, by name."""


@dataclass
class DrawnRuns:
    """Several runs under numbers of their own: of each tensor some elements, run by run, and of each run the slope along its gradient."""

    values: dict[str, Tensor] = field(default_factory=dict)
    slopes: dict[int, list[float]] = field(default_factory=dict)
    """By group of weights."""

    @property
    def runs(self) -> int:
        """How many runs were made."""
        return max((len(one) for one in self.values.values()), default=0)


@dataclass(frozen=True)
class _Difference:
    """What tells two samples apart, in deviations; `counts` if it is more than rounding explains."""

    apart: float
    counts: bool
    reason: str


@dataclass(eq=False)
class Chances:
    """Runs of eager under many random numbers, beside which others are held."""

    loaded: Loaded
    seed: int
    """Of the inputs."""
    rounding: Mapping[str, float]
    """By name of what is random: how far rounding alone moves its elements, in the mean."""
    seconds: float = math.inf
    """What eager's runs may take."""
    untold: bool = False
    """Whether there was too little time to tell anything."""
    _samples: list[DrawnRuns] = field(default_factory=list)

    def problem(self, call: Callable[..., Any], seconds: float = math.inf) -> str | None:
        """One line on what no chance explains of another way to run the program; None too where there is no time to tell."""
        sums = dict[str, float]()
        for number in range(SAMPLES):
            begin = perf_counter()
            theirs = self._eager(number)
            first = _FIRST * (number + 1) + 10**8
            mine = take(self.loaded, call, self.seed, self.rounding, first, seconds)
            if min(mine.runs, theirs.runs) < LEAST_RUNS:
                self.untold = not number
                return None
            if number == 0 and (told := self._same_seed(call, first, mine)) is not None:
                return told
            found = dict(self._differences(mine, theirs))
            root = math.sqrt(number + 1)
            sums = {key: sums.get(key, 0.0) + one.apart for key, one in found.items() if not number or key in sums}
            beyond = [key for key, total in sums.items() if number and abs(total) / root > APART and found[key].counts]
            if beyond:
                return found[beyond[0]].reason
            seconds -= perf_counter() - begin
            if number >= SURE and not any(abs(total) / root > SEEMS for total in sums.values()):
                return None
        return None

    def _eager(self, number: int) -> DrawnRuns:
        if number >= len(self._samples):
            begin = perf_counter()
            self._samples.append(take(self.loaded, None, self.seed, self.rounding, _FIRST * (number + 1), self.seconds))
            self.seconds -= perf_counter() - begin
        return self._samples[number]

    def _same_seed(self, call: Callable[..., Any], first: int, mine: DrawnRuns) -> str | None:
        """The generator's state decides everything: another run from the same gives the same."""
        found = _under(self.loaded, call, self.seed, first)
        for name, drawn in mine.values.items():
            again = _elements(found[name])
            error = float((again - drawn[0]).square().mean().sqrt())
            scatter = float((drawn[1] - drawn[0]).square().mean().sqrt())
            if error > max(0.5 * scatter, 4 * self.rounding[name]):
                return f"{name} is random, and another from the same state of the generator"
        return None

    def _differences(self, mine: DrawnRuns, theirs: DrawnRuns) -> Iterator[tuple[str, _Difference]]:
        for name, drawn in mine.values.items():
            eager = theirs.values[name]
            if drawn.shape[1:] == eager.shape[1:] and bool(torch.isfinite(drawn).all() & torch.isfinite(eager).all()):
                for what, one in _compared(drawn, eager, self.rounding[name]):
                    yield f"{name} {what}", replace(one, reason=f"{name} is random, and {one.reason}")
        mine_all, eagers_all, rounding = _all_together(mine, theirs, self.rounding)
        for what, one in _compared(mine_all, eagers_all, rounding):
            yield (
                f"all {what}",
                replace(one, reason=f"its random values together, each in units of its own: {one.reason}"),
            )
        floor = NO_LOW_STEP if _is_low(self.loaded) else NO_STEP
        for group in mine.slopes.keys() & theirs.slopes.keys():
            ours, eagers = (torch.tensor(one.slopes[group]).double() for one in (mine, theirs))
            if min(len(ours), len(eagers)) < 3:
                continue
            off = float((ours - eagers.mean()).square().mean().sqrt())
            reason = (
                f"a step along the gradients is {off:.3g} off of what they say, eager's {float(eagers.std()):.3g}: the backward"
                " has other random numbers than the forward"
            )
            yield f"slope {group}", _Difference(_signed(ours, eagers), off > floor, reason)
            logs = [(one - one.median()).abs().add(floor / 10).log() for one in (ours, eagers)]
            yield f"scatter of slope {group}", _Difference(_signed(*logs), off > floor, reason)


def take(
    loaded: Loaded,
    call: Callable[..., Any] | None,
    seed: int,
    names: Collection[str],
    first: int,
    seconds: float,
) -> DrawnRuns:
    """A sample of runs, or of as many as there is time for."""
    begin, sample, kept = perf_counter(), DrawnRuns(), dict[str, list[Tensor]]()
    for number in range(first, first + RUNS):
        found = _under(loaded, call, seed, number)
        for name in names:
            if is_float(found.get(name)):
                kept.setdefault(name, []).append(_elements(found[name]))
        if number % 2:
            group = number // 2 % GROUPS
            slope = _slope(loaded, call, seed, number, found, group)
            if slope is not None:
                sample.slopes.setdefault(group, []).append(slope)
        if perf_counter() - begin > seconds:
            break
    sample.values = {name: torch.stack(drawn) for name, drawn in kept.items()}
    return sample


def _under(loaded: Loaded, call: Callable[..., Any] | None, seed: int, numbers: int) -> Mapping[str, Any]:
    def drawing(*args: Any) -> Any:
        torch.manual_seed(numbers)
        return (loaded.module if call is None else call)(*args)

    found = loaded.run(drawing, seed)
    if call is not None:
        # What is held when the next call comes is copied out of a CUDA graph from then on: the program would be timed with that.
        for name, value in found.items():  # one after the other: there may be no room for all of it twice
            found[name] = value.clone() if isinstance(value, Tensor) else value
    return found


def _elements(value: Tensor) -> Tensor:
    flat = (torch.view_as_real(value.resolve_conj()) if value.is_complex() else value).detach().reshape(-1)
    return flat[:: max(1, flat.numel() // ELEMENTS)].double()


# what is compared of one tensor


def _all_together(mine: DrawnRuns, theirs: DrawnRuns, rounding: Mapping[str, float]) -> tuple[Tensor, Tensor, float]:
    """All tensors as one, in which each scatters alike and weighs the same: what changes all a little shows there the most."""
    parts, rounded = list[tuple[Tensor, Tensor]](), 0.0
    for name, drawn in mine.values.items():
        eager = theirs.values[name]
        size = float(eager.var(0).mean().sqrt())
        if (
            size
            and drawn.shape[1:] == eager.shape[1:]
            and bool(torch.isfinite(drawn).all() & torch.isfinite(eager).all())
        ):
            unit = size * math.sqrt(drawn.shape[1])
            parts.append((drawn / unit, eager / unit))
            rounded += (rounding[name] / size) ** 2
    if not parts:
        return torch.zeros(mine.runs, 1), torch.zeros(theirs.runs, 1), 0.0
    ours, eagers = (torch.cat(found, 1) for found in zip(*parts, strict=True))
    return ours, eagers, math.sqrt(rounded / ours.shape[1])


def _compared(mine: Tensor, eager: Tensor, rounding: float) -> Iterator[tuple[str, _Difference]]:
    """What differs between two samples of a tensor, by name."""
    zero, zeros = (mine == 0).double().mean(1), (eager == 0).double().mean(1)
    share, shares = float(zero.mean()), float(zeros.mean())
    reason = f"{share:.3g} of it is zero, of eager's {shares:.3g}"
    yield "zeros", _Difference(_signed(zero, zeros), abs(share - shares) > NOT_ROUNDING / 4, reason)
    around, center = mine - mine.mean(0), eager - eager.mean(0)
    spread, spreads = around.square().mean(1), center.square().mean(1)
    wide, wides = float(spread.mean()), float(spreads.mean())
    floor = NOT_ROUNDING + 4 * rounding**2 / wides if wides else math.inf
    reason = f"scatters by {wide**0.5:.3g}, eager's by {wides**0.5:.3g}"
    yield "scatter", _Difference(_signed(spread, spreads), abs(wide - wides) > floor * wides, reason)
    along = _crosswise(mine, eager)
    yield "mean", _Difference(along.apart, along.size > 2 * rounding, f"{along.size:.3g} off in the mean of many runs")
    squares = _crosswise(around.square(), center.square())
    size = float(center.square().mean(0).square().mean().sqrt())
    reason = "scatters more in some elements, and less in others, than eager's"
    yield "variance", _Difference(squares.apart, squares.size > floor * size, reason)


@dataclass(frozen=True)
class _Along:
    """How far two samples of vectors are apart along what tells them apart."""

    apart: float
    """In deviations."""
    size: float
    """Per element, as a root mean square."""


def _crosswise(mine: Tensor, eager: Tensor) -> _Along:
    """One half of the runs says in which direction the two differ, the other by how much; and the other way round."""
    apart = size = 0.0
    for here, there in ((0, 1), (1, 0)):
        way = mine[here::2].mean(0) - eager[here::2].mean(0)
        length = float(way.norm())
        if not length:
            return _Along(0.0, 0.0)
        ours, theirs = mine[there::2] @ way / length, eager[there::2] @ way / length
        apart += _signed(ours, theirs) / 2  # the two halves' words are one and the same: both are no surer than one
        size += float(ours.mean() - theirs.mean()) / math.sqrt(way.numel()) / 2
    return _Along(apart, size)


def _signed(mine: Tensor, theirs: Tensor) -> float:
    """By how many deviations of their difference two means differ."""
    difference = float(mine.mean() - theirs.mean())
    error = math.sqrt(float(mine.var()) / len(mine) + float(theirs.var()) / len(theirs))
    return difference / error if error else math.copysign(_BEYOND, difference) if difference else 0.0


# a step along the gradients


def _slope(
    loaded: Loaded, call: Callable[..., Any] | None, seed: int, numbers: int, found: Mapping[str, Any], group: int
) -> float | None:
    """How much the outputs move along a small step of some weights, as a share of what the gradients say; None of what has none."""
    moved = [
        (tensor, found[f"gradient of {loaded.tensors.name(i)}"])
        for i, tensor in loaded.tensors.owned.items()
        if tensor.requires_grad and tensor.is_leaf and is_float(found.get(f"gradient of {loaded.tensors.name(i)}"))
    ]
    moved = moved[group * len(moved) // GROUPS : (group + 1) * len(moved) // GROUPS]
    if not moved:
        return None
    share = LOW_STEP if _is_low(loaded) else STEP
    steps = [_step(tensor, gradient, share) for tensor, gradient in moved]
    before = [tensor.detach().clone() for tensor, _ in moved]
    ends, said = list[float](), 0.0
    try:
        for sign in (1, -1):
            for (tensor, gradient), step, was in zip(moved, steps, before, strict=True):
                tensor.data.copy_(was + sign * step)
                said += sign * float((tensor.detach().double() - was.double()).mul_(gradient.double()).sum())
            ends.append(_weighed(loaded, _under(loaded, call, seed, numbers)))
    finally:
        for (tensor, _), was in zip(moved, before, strict=True):
            tensor.data.copy_(was)
    return (ends[0] - ends[1]) / said if said else None


def _step(tensor: Tensor, gradient: Tensor, share: float) -> Tensor:
    """As large a step for each weight, along its gradient."""
    size = gradient.double().square().mean().sqrt()
    length = share * tensor.detach().double().square().mean().sqrt() / size
    return torch.nan_to_num(gradient * length.to(gradient.dtype), 0.0, 0.0, 0.0)


def _is_low(loaded: Loaded) -> bool:
    """Whether weights have less than 24 bits, or may be cast to less."""
    low = any(is_float(one) and one.dtype.itemsize < 4 for one in loaded.tensors.owned.values())
    return low or any(loaded.trace.fields["modes"]["autocast"].values())


def _weighed(loaded: Loaded, found: Mapping[str, Any]) -> float:
    """What backward starts from, summed: the loss, or outputs with their weights."""
    outputs = [found[name] for name in found if name.startswith("output ")]
    number, total = 0, 0.0
    for out in outputs:
        if number in loaded.tensors._tangents and is_float(out):
            total += float((out.double() * loaded.tensors.tangent(number, out).double()).sum())
            number += 1
    return total
