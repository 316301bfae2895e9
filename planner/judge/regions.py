"""Does a compiled region compute what the region says? Tuning and tests ask here before they trust a result.

Each trial draws inputs as they were recorded and compares everything that a caller could notice: number, types, sizes,
strides and aliasing of outputs, writes to inputs, and values against the same region in higher precision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fuseplan.capture.fx.targets import find_target
from fuseplan.capture.fx.to_fx import SizeSpace
from fuseplan.errors import GraphError
from fuseplan.graph import Graph, Op, Ref, TensorType
from fuseplan.judge.compare import (
    BLIND_FLOOR,
    FLOOR,
    Errors,
    Yardstick,
    flips,
    float_errors,
    too_many,
    unlikely,
)
from fuseplan.judge.inputs import Spread, default_sizes, make_inputs
from fuseplan.judge.memory import is_float, owners, same_bits, same_strides, spread_out, storage, twin
from fuseplan.judge.reference import Nature
from fuseplan.judge.truth import RUN_ERRORS, Reference, Truth

Compiled = Callable[[list[Any]], Sequence[Any]]
"""A compiled region, as executors give it."""
SEEDS = (0, 1, 2, 3)
APART = 7919
"""How far the seed of random ops lies from the seed of the inputs: of one seed, the two would be the same numbers."""
NAN = (float("nan"),) * 2
INFINITE = (float("nan"), float("inf"), float("-inf"))


@dataclass(frozen=True)
class CheckResult:
    """Whether a compiled region is right; if not, one line that says what is wrong, and where."""

    ok: bool
    reason: str = ""
    error: float = 0.0  # the worst error of a float, as a share of what is allowed: beyond 1 it is wrong
    trials: int = 0


@dataclass(frozen=True)
class Trial:
    """One draw of inputs."""

    seed: int
    sizes: Mapping[str, int]
    spread: Spread = "normal"
    specials: tuple[float, ...] = ()
    offset: int = 0
    must_run: bool = True  # False for sizes that nobody recorded: the region itself may not allow them

    def __str__(self) -> str:
        sizes = "".join(f", {name}={size}" for name, size in self.sizes.items())
        return f"seed {self.seed}{sizes}"

    def inputs(self, region: Graph, device: str | None) -> list[Any]:
        """The inputs of this trial."""
        return make_inputs(
            region,
            self.seed,
            device,
            sizes=self.sizes,
            spread=self.spread,
            specials=self.specials,
            offset=self.offset,
        )


def check(
    region: Graph,
    compiled: Compiled,
    *,
    seeds: Sequence[int] = SEEDS,
    device: str | None = None,
    sizes: Sequence[Mapping[str, int]] | None = None,
    reference: Reference | None = None,
    gaps: bool = False,
) -> CheckResult:
    """Return whether `compiled` does what `region` says, over several draws of inputs.

    Of every four seeds, one draws around zero, one away from zero and off alignment, one over many magnitudes, one
    with NaN and, where no sums are made of them, infinities. `sizes` lists values of the symbols to try; without it,
    those recorded and two others that the region allows. `reference` saves work when many executors are checked for
    one region. With `gaps` there may be some between the rows of outputs.

    >>> from fuseplan.graph import Op, Value
    >>> kind = TensorType("float32", (4,), (1,))
    >>> op = Op("aten.relu.default", (Ref("x"),), (), (Value("y", kind),))
    >>> region = Graph((Value("x", kind),), (op,), (Ref("y"),))
    >>> check(region, lambda args: [torch.relu(*args)]).ok
    True
    >>> check(region, lambda args: [torch.relu(*args) + 1e-3], seeds=[0]).reason.split(":")[0]
    'output 0'
    """
    reference = reference or Reference(region)
    examiner = _Examiner(reference.region, compiled, reference, device, gaps)
    for trial in trials(region, seeds, sizes):
        problem = examiner.run(trial)
        if problem is not None:
            return examiner.result(f"{problem} ({trial})")
    return examiner.result(examiner.verdict())


def trials(region: Graph, seeds: Sequence[int], sizes: Sequence[Mapping[str, int]] | None = None) -> Iterator[Trial]:
    """The draws that `check` makes."""
    recorded = default_sizes(region)
    every = [{**recorded, **chosen} for chosen in sizes] if sizes else [recorded]
    spreads: tuple[Spread, ...] = ("normal", "positive", "wide", "normal")
    planted = INFINITE if all(_elementwise(op) for op in region.ops) else NAN
    aligned = any("cudnn_attention" in op.target for op in region.ops)  # eager itself dies of inputs that are not
    for seed in seeds:
        kind = seed % len(spreads)
        yield Trial(seed, every[0], spreads[kind], planted if kind == 3 else (), offset=int(kind == 1 and not aligned))
    for i, chosen in enumerate(every[1:]):
        yield Trial(seeds[0] + i, chosen)
    if sizes is None and recorded:
        for i, scale in enumerate((1, 2)):
            yield Trial(seeds[0] + i, _other_sizes(region, scale), must_run=False)


def _elementwise(op: Op) -> bool:
    """Whether an infinity stays what it is; sums and means of it may come out infinite or NaN, as they go about it."""
    try:
        return op.is_view or torch.Tag.pointwise in getattr(find_target(op.target), "tags", ())
    except GraphError:
        return False


def _other_sizes(region: Graph, scale: int) -> dict[str, int]:
    """Every size a little larger, or doubled; each within its range."""
    result = {}
    for i, (symbol, size) in enumerate(zip(region.symbols, default_sizes(region).values(), strict=True)):
        wanted = 2 * size if scale == 2 else size + 3 + i
        result[symbol.name] = wanted if symbol.high is None else min(wanted, symbol.high)
    return result


@dataclass
class _Examiner:
    """Runs trials against one compiled region and adds up what it finds."""

    region: Graph
    compiled: Compiled
    reference: Reference
    device: str | None
    gaps: bool = False
    count: int = 0
    errors: Errors = field(default_factory=Errors)
    jumps: dict[int, Errors] = field(default_factory=dict)  # by output: those behind a jump are judged at the end
    kept: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def result(self, reason: str | None) -> CheckResult:
        return CheckResult(reason is None, reason or "", self.errors.worst, self.count)

    def verdict(self) -> str | None:
        for i, errors in self.jumps.items():
            if too_many(errors):
                return (
                    f"output {i}: {errors.outliers} of {errors.count} elements are on the wrong side of a jump, "
                    f"eager has {errors.eager_outliers}"
                )
        return None

    def run(self, trial: Trial) -> str | None:
        """What is wrong in this trial, or None."""
        inputs = trial.inputs(self.region, self.device)
        theirs_in = [twin(value) for value in inputs]
        with _seeded(trial.seed + APART):
            try:
                theirs = list(self.reference.eager(list(theirs_in)))
                fits = trial.must_run or self._as_declared(theirs, trial)
            except RUN_ERRORS as error:
                if not trial.must_run:
                    return None
                return f"the region itself does not run under ATen: {_first_line(error)}"
        if not fits:
            return None
        mine_in = [twin(value) for value in inputs]
        with _seeded(trial.seed + APART):
            try:
                mine = self._call(mine_in)
            except RUN_ERRORS as error:
                return f"raises {type(error).__name__}: {_first_line(error)}"
        self.count += 1
        return (
            self._layout(mine, theirs, trial)
            or self._aliases(mine, theirs, mine_in, theirs_in)
            or self._inputs(mine_in, inputs)
            or self._values(mine, theirs, inputs, trial)
            or self._redraw(mine, inputs, trial)
            or self._keep(mine)
        )

    def _call(self, inputs: list[Any]) -> list[Any]:
        outputs = [*self.compiled(list(inputs)), *(inputs[i] for i in self.reference.written)]
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # what a kernel did wrong shows here
        return outputs

    def _as_declared(self, outputs: list[Any], trial: Trial) -> bool:
        space = SizeSpace(dict(trial.sizes))
        for arg, value in zip(self.region.outputs, outputs, strict=True):
            kind = self.region.types[arg.name] if isinstance(arg, Ref) else None
            if isinstance(kind, TensorType) and [int(space(d)) for d in kind.shape] != list(value.shape):
                return False
        return True

    def _layout(self, mine: list[Any], theirs: list[Any], trial: Trial) -> str | None:
        if len(mine) != len(theirs):
            return f"gives {len(mine)} outputs, the region has {len(theirs)}"
        space = SizeSpace(dict(trial.sizes))
        for i, (got, want, arg) in enumerate(zip(mine, theirs, self.region.outputs, strict=True)):
            if not (isinstance(got, Tensor) and isinstance(want, Tensor)):
                if type(got) is not type(want) or got != want:
                    return f"output {i}: {_short(got)}, eager {_short(want)}"
                continue
            kind = self.region.types[arg.name] if isinstance(arg, Ref) else None
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

    def _aliases(self, mine: list[Any], theirs: list[Any], mine_in: list[Any], theirs_in: list[Any]) -> str | None:
        got, want = owners(mine_in, mine), owners(theirs_in, theirs)
        for i, (a, b) in enumerate(zip(got, want, strict=True)):
            if a != b:
                return f"output {i} {_shares(a)}, under eager it {_shares(b)}"
        return None

    def _inputs(self, mine_in: list[Any], before: list[Any]) -> str | None:
        for i, (got, old) in enumerate(zip(mine_in, before, strict=True)):
            if not isinstance(got, Tensor) or i in self.reference.written:
                continue
            if not same_bits(storage(got), storage(old)):
                return f"input {i} ({self.region.inputs[i].name}) was written to"
        return None

    def _values(self, mine: list[Any], theirs: list[Any], inputs: list[Any], trial: Trial) -> str | None:
        written = [(i, v) for i, v in enumerate(mine) if isinstance(v, Tensor) and v.numel()]
        truth: Truth | None = None
        given = self.reference.pinned_eager(inputs, mine) or theirs
        for i, got in written:
            arg = self.region.outputs[i]
            nature = self.reference.natures[arg.name] if isinstance(arg, Ref) else Nature()
            if nature.garbage or (trial.specials and nature.picked):
                problem = None  # there is no right answer
            elif nature.random or (self.reference.pinned and i in self.reference.pinned[1]):
                problem = unlikely(got, theirs[i])
            elif is_float(got) or nature.fragile:
                truth = truth or self.reference.truth(inputs, mine, trial.seed)
                problem = self._judge(i, got, given[i], truth, nature, trial)
            else:
                problem = None if torch.equal(got, given[i]) else _first_difference(got, given[i])
            if problem is not None:
                return f"output {i}: {problem}"
        return None

    def _judge(self, i: int, got: Tensor, want: Tensor, truth: Truth, nature: Nature, trial: Trial) -> str | None:
        exact = truth.values[i]
        if not is_float(got):
            self.jumps[i] = self.jumps.get(i, Errors()).plus(flips(got, want, exact))
            return None
        shake = truth.shakes[i]
        if got.is_complex():
            got, want, exact = (torch.view_as_real(v.resolve_conj()) for v in (got, want, exact))
            shake = torch.stack([shake, shake], -1)
        yardstick = Yardstick(got.dtype, BLIND_FLOOR if truth.blind else FLOOR, any_infinite=trial.specials == INFINITE)
        errors = float_errors(got, want, exact, shake, yardstick)
        if nature.fragile:
            self.jumps[i] = self.jumps.get(i, Errors()).plus(errors)
            return None
        self.errors = self.errors.plus(errors)
        if errors.classes:
            return f"{errors.classes} of {errors.count} elements are NaN or infinite, or finite, where eager's are not"
        if errors.worst > 1:
            value, right = got.reshape(-1)[errors.where].item(), exact.reshape(-1)[errors.where].item()
            return (
                f"{value!r} at flat position {errors.where}, should be {right!r}: {errors.units:.3g} units off, "
                f"{errors.worst:.3g} times what is allowed"
            )
        return None

    def _redraw(self, mine: list[Any], inputs: list[Any], trial: Trial) -> str | None:
        """The same seed draws the same numbers, and the generator moves on between two calls."""
        if not self.reference.random:
            return None
        with _seeded(trial.seed + APART):
            again = self._call([twin(value) for value in inputs])
            later = self._call([twin(value) for value in inputs])
        with _seeded(trial.seed + APART):
            eager_first = list(self.reference.eager([twin(value) for value in inputs]))
            eager_later = list(self.reference.eager([twin(value) for value in inputs]))
        for i, got in enumerate(mine):
            if not isinstance(got, Tensor):
                continue
            if not same_bits(got, again[i]):
                return f"output {i}: other random numbers under the same seed"
            fresh = got.numel() >= 64 and not same_bits(eager_first[i], eager_later[i])
            if fresh and same_bits(again[i], later[i]):
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


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Within, torch draws from this seed; after, its generators are as they were."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices), torch.no_grad():
        torch.manual_seed(seed)
        yield


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
