"""Does a compiled region compute what the region says? Tuning and tests ask here before they trust a result.

Each trial draws inputs as they were recorded and compares everything that a caller could notice: number, types, sizes,
strides and aliasing of outputs, writes to inputs, and values by the rule that whole programs are judged by.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fuseplan.capture.fx.to_fx import SizeSpace
from fuseplan.graph import Graph, Ref, TensorType
from fuseplan.judge.compare import Leaf, elsewhere, too_many, unlikely
from fuseplan.judge.expected_region import APART, RUN_ERRORS, ExpectedRegion, ExpectedTrial, seeded
from fuseplan.judge.memory import is_float, owners, same_bits, same_strides, spread_out, storage, twin
from fuseplan.judge.output import JudgedOutput
from fuseplan.judge.trials import Trial

Compiled = Callable[[list[Any]], Sequence[Any]]
"""A compiled region, as executors give it."""
SEEDS = (0, 1, 2, 3)


@dataclass(frozen=True)
class CheckResult:
    """Whether a compiled region is right; if not, one line that says what is wrong, and where."""

    ok: bool
    reason: str = ""
    outputs: tuple[JudgedOutput, ...] = ()
    """Of each output of floats the worst that any trial gave, the worst output first."""
    how: str = ""
    """How what is right came to be known."""
    trials: int = 0

    @property
    def share(self) -> float:
        """The largest error, as a share of what is allowed: beyond 1 it is wrong."""
        return max((one.share for one in self.outputs), default=0.0)


def check(
    region: Graph,
    compiled: Compiled,
    *,
    seeds: Sequence[int] = SEEDS,
    device: str | None = None,
    sizes: Sequence[Mapping[str, int]] | None = None,
    expected: ExpectedRegion | None = None,
    gaps: bool = False,
    wider: float = 1.0,
) -> CheckResult:
    """Return whether `compiled` does what `region` says, over several draws of inputs.

    Of every four seeds, one draws around zero, one away from zero and off alignment, one over many magnitudes, one
    with NaN and, where no sums are made of them, infinities. `sizes` lists values of the symbols to try; without it,
    those recorded and two others that the region allows. `expected` saves work when many executors are checked for
    one region. With `gaps` there may be some between the rows of outputs. `wider` is how many times further off floats may
    be than the natural spread allows.

    >>> from fuseplan.graph import Op, Value
    >>> kind = TensorType("float32", (4,), (1,))
    >>> op = Op("aten.relu.default", (Ref("x"),), (), (Value("y", kind),))
    >>> region = Graph((Value("x", kind),), (op,), (Ref("y"),))
    >>> check(region, lambda args: [torch.relu(*args)]).ok
    True
    >>> check(region, lambda args: [torch.relu(*args) + 1e-3], seeds=[0]).reason[:28]
    'output 0 is off by 0.001 (la'
    """
    expected = expected or ExpectedRegion(region, device)
    examiner = _Examiner(compiled, expected, gaps, wider)
    for trial in expected.trials(seeds, sizes):
        problem = examiner.run(trial)
        if problem is not None:
            return examiner.result(f"{problem} ({trial.trial})")
    return examiner.result(examiner.verdict())


@dataclass
class _Jumps:
    """Over all trials, the elements of one output that are on the other side of a jump, and those that are by nature."""

    mine: int = 0
    natural: int = 0
    count: int = 0


@dataclass
class _Examiner:
    """Runs trials against one compiled region and adds up what it finds."""

    compiled: Compiled
    expected: ExpectedRegion
    gaps: bool = False
    wider: float = 1.0
    count: int = 0
    how: str = ""
    outputs: dict[str, JudgedOutput] = field(default_factory=dict)
    jumps: dict[str, _Jumps] = field(default_factory=dict)
    kept: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def result(self, reason: str | None) -> CheckResult:
        outputs = sorted(self.outputs.values(), key=lambda one: -one.share)
        return CheckResult(reason is None, reason or "", tuple(outputs), self.how, self.count)

    def verdict(self) -> str | None:
        for name, found in self.jumps.items():
            if too_many(found.mine, found.natural, found.count):
                return (
                    f"{name}: {found.mine} of {found.count} elements are on the wrong side of a jump, "
                    f"of eager's at most {found.natural}"
                )
        return None

    def run(self, trial: ExpectedTrial) -> str | None:
        """What is wrong in this trial, or None."""
        if trial.error is not None and trial.trial.must_run:
            return f"the region itself does not run under ATen: {_first_line(trial.error)}"
        if not trial.fits:
            return None
        mine_in = [twin(value) for value in trial.inputs]
        with trial.seeded():
            try:
                mine = self._call(mine_in)
            except RUN_ERRORS as error:
                return f"raises {type(error).__name__}: {_first_line(error)}"
        self.count += 1
        return (
            self._layout(mine, trial.eager, trial.trial)
            or self._aliases(owners(mine_in, mine), trial.owners)
            or self._inputs(mine_in, trial.inputs)
            or self._values(mine, trial)
            or self._redraw(mine, trial)
            or self._keep(mine)
        )

    def _call(self, inputs: list[Any]) -> list[Any]:
        outputs = [*self.compiled(list(inputs)), *(inputs[i] for i in self.expected.written)]
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # what a kernel did wrong shows here
        return outputs

    def _layout(self, mine: list[Any], theirs: list[Any], trial: Trial) -> str | None:
        if len(mine) != len(theirs):
            return f"gives {len(mine)} outputs, the region has {len(theirs)}"
        space = SizeSpace(dict(trial.sizes))
        for i, (got, want, arg) in enumerate(zip(mine, theirs, self.expected.region.outputs, strict=True)):
            if not (isinstance(got, Tensor) and isinstance(want, Tensor)):
                if type(got) is not type(want) or got != want:
                    return f"output {i}: {_short(got)}, eager {_short(want)}"
                continue
            kind = self.expected.region.types[arg.name] if isinstance(arg, Ref) else None
            for name in ("dtype", "device", "shape"):
                # what tracing says of a batch norm's running values is not the dtype that the kernel gives
                traced = name == "dtype" and isinstance(kind, TensorType) and str(got.dtype) == f"torch.{kind.dtype}"
                if getattr(got, name) != getattr(want, name) and not traced:
                    return f"output {i}: {name} {getattr(got, name)}, eager {getattr(want, name)}"
            declared = tuple(int(space(d)) for d in kind.stride) if isinstance(kind, TensorType) else want.stride()
            if self.gaps and spread_out(got, declared):
                continue
            if not same_strides(got, declared) and (
                same_strides(want, declared) or not same_strides(got, want.stride())
            ):
                return f"output {i}: strides {got.stride()}, the region says {declared} for {tuple(got.shape)}"
        return None

    def _aliases(self, got: list[tuple[str, int] | None], want: list[tuple[str, int] | None]) -> str | None:
        for i, (a, b) in enumerate(zip(got, want, strict=True)):
            if a != b:
                return f"output {i} {_shares(a)}, under eager it {_shares(b)}"
        return None

    def _inputs(self, mine_in: list[Any], before: list[Any]) -> str | None:
        for i, (got, old) in enumerate(zip(mine_in, before, strict=True)):
            if not isinstance(got, Tensor) or i in self.expected.written:
                continue
            if not same_bits(storage(got), storage(old)):
                return f"input {i} ({self.expected.given.inputs[i].name}) was written to"
        return None

    def _values(self, mine: list[Any], trial: ExpectedTrial) -> str | None:
        leaves = trial.leaves(mine)
        self.how = self.how or trial.how
        for i, got in enumerate(mine):
            if isinstance(got, Tensor) and got.numel():
                problem = self._value(i, got, trial, leaves)
                if problem is not None:
                    return problem
        return None

    def _value(self, i: int, got: Tensor, trial: ExpectedTrial, leaves: Mapping[str, Leaf]) -> str | None:
        nature, name = self.expected.nature(i), self.expected.names[i]
        if nature.garbage or (trial.trial.specials and nature.unsaid):
            return None  # there is no right answer
        if nature.random or self.expected.is_pinned(i):
            problem = unlikely(got, trial.eager[i])
            return None if problem is None else f"{name}: {problem}"
        leaf = leaves[name]
        if nature.fragile:
            exact = leaf.eager if leaf.exact is None else leaf.exact
            found = self.jumps.setdefault(name, _Jumps())
            there = elsewhere(got, exact, trial.usual.get(name, 0.0))
            found.mine += int(there.sum())
            found.natural += trial.jumps[name]
            found.count += got.numel()
            got = torch.where(there, exact.to(got.dtype), got)
        if is_float(got):
            return self._floats(name, got, trial, leaf)
        if nature.fragile or torch.equal(got, leaf.eager):
            return None
        return f"{name}: {_first_difference(got, leaf.eager)}"

    def _floats(self, name: str, got: Tensor, trial: ExpectedTrial, leaf: Leaf) -> str | None:
        judged = trial.judge(name, got, leaf, self.wider)
        found = judged.evidence
        if found is not None and (name not in self.outputs or found.share > self.outputs[name].share):
            self.outputs[name] = found
        return judged.problem

    def _redraw(self, mine: list[Any], trial: ExpectedTrial) -> str | None:
        """The same seed draws the same numbers, and the generator moves on between two calls."""
        if not self.expected.random:
            return None
        with seeded(trial.trial.seed + APART):
            again, later = (self._call([twin(value) for value in trial.inputs]) for _ in range(2))
        for i, got in enumerate(mine):
            if not isinstance(got, Tensor):
                continue
            if not same_bits(got, again[i]):
                return f"output {i}: other random numbers under the same seed"
            if trial.moves_on[i] and same_bits(again[i], later[i]):
                return f"output {i}: the same random numbers at the next call"
        return None

    def _keep(self, mine: list[Any]) -> str | None:
        """What an earlier call gave must still be there after a later one."""
        for i, (earlier, copy) in enumerate(self.kept):
            if not same_bits(earlier, copy):
                return f"output {i} of an earlier call was overwritten"
        if not self.kept:
            tensors = [v if isinstance(v, Tensor) else torch.empty(0) for v in mine]
            self.kept = [(v, v.clone()) for v in tensors]
        return None


def _shares(owner: tuple[str, int] | None) -> str:
    return "has memory of its own" if owner is None else f"shares memory with {owner[0]} {owner[1]}"


def _first_difference(got: Tensor, want: Tensor) -> str:
    places = (got != want).reshape(-1).nonzero().reshape(-1)
    first = int(places[0])
    mine, theirs = got.reshape(-1)[first].item(), want.reshape(-1)[first].item()
    return f"{len(places)} of {got.numel()} elements differ; at flat position {first} {mine}, eager {theirs}"


def _short(value: Any) -> str:
    return f"a {type(value).__name__}" if isinstance(value, Tensor) else repr(value)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
