"""What a region should give, for each draw of its inputs: exact values, and the natural spread about them.

By the same rule as a whole program, and computed once, whoever runs the region. Runs of eager are the region op by op under
ATen. Each draw of inputs has a spread of its own: what is random around zero is off by other amounts than what is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from fuseplan.capture.fx.to_fx import SizeSpace
from fuseplan.errors import FuseplanError
from fuseplan.graph import Graph, Ref, TensorType
from fuseplan.judge.compare import JudgedLeaf, Leaf, elsewhere, judge_floats, usual_error
from fuseplan.judge.evaluate import evaluate
from fuseplan.judge.expect import MORE, Spreads
from fuseplan.judge.fused import RoundedAttention
from fuseplan.judge.memory import like, owners, same_bits, storage, twin
from fuseplan.judge.moved import MovedRun
from fuseplan.judge.reference import WIDENINGS, Nature, natures, pin, widen
from fuseplan.judge.trials import INFINITE, Trial, trials

MOVED = (False, False, True)
"""The moved runs of eager that each draw of inputs gets: whether in another order of summation."""
APART = 7919
"""How far the seed of random ops lies from the seed of the inputs: of one seed, the two would be the same numbers."""
KEPT_BYTES = 2**28
"""What draws may keep of inputs and results together; those beyond it are computed anew for whoever is judged next."""
DOUBT_SECONDS = 10.0
"""After which no more moved runs are begun to settle doubts about a region."""
RUN_ERRORS = (
    RuntimeError, AssertionError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError, FuseplanError,
)  # fmt: skip
"""What running a region raises when it goes wrong."""
Results = dict[str, Any]


class ExpectedRegion:
    """A region, and what it should give: under ATen, moved, and in higher precision where ATen has it."""

    def __init__(self, region: Graph, device: str | None = None) -> None:
        self.given = region
        written = {name for op in region.ops for name in op.mutates}
        self.written = tuple(i for i, value in enumerate(region.inputs) if value.name in written)
        self.names = [f"output {i}" for i in range(len(region.outputs))]
        self.names += [f"{region.inputs[i].name} after" for i in self.written]
        # what the region writes to an input is judged like an output
        region = replace(region, outputs=(*region.outputs, *(Ref(region.inputs[i].name) for i in self.written)))
        self.region, self.device = region, device
        self.pinned = pin(region)
        self.judged = self.pinned[0] if self.pinned else region
        self.random = any(nature.random for nature in natures(region).values())
        self._wider = [(names, graph) for names in WIDENINGS if (graph := widen(self.judged, names)) is not None]
        self._natures = natures(self.judged)
        self._kept: dict[str, ExpectedTrial] = {}
        self._bytes = 0
        self.doubt_s = DOUBT_SECONDS

    def trials(self, seeds: Sequence[int], sizes: Sequence[Mapping[str, int]] | None = None) -> Iterator[ExpectedTrial]:
        """What is expected for each draw of inputs."""
        for trial in trials(self.given, seeds, sizes):
            key = repr(trial)
            found = self._kept.get(key) or ExpectedTrial(self, trial)
            yield found
            if key not in self._kept and self._bytes + found.nbytes <= KEPT_BYTES:
                self._kept[key] = found
                self._bytes += found.nbytes

    def nature(self, i: int) -> Nature:
        """The nature of an output."""
        arg = self.region.outputs[i]
        return self._natures[arg.name] if isinstance(arg, Ref) else Nature()

    def is_pinned(self, i: int) -> bool:
        """Whether an output holds random numbers that the region shows."""
        return self.pinned is not None and i in self.pinned[1]

    def eager(self, inputs: list[Any]) -> list[Any]:
        """What ATen gives."""
        return evaluate(self.region, inputs)

    def given_numbers(self, inputs: list[Any], outputs: Sequence[Any]) -> list[Any]:
        """The inputs, and the random numbers that a run drew, where the region shows them."""
        return [*inputs, *(outputs[i] for i in self.pinned[1])] if self.pinned else inputs

    def named(self, outputs: Sequence[Any]) -> Results:
        """The outputs that exact values say something of, by name."""
        return {
            name: value
            for i, (name, value) in enumerate(zip(self.names, outputs, strict=True))
            if not (self.nature(i).random or self.nature(i).garbage or self.is_pinned(i))
        }

    def exact(self, given: list[Any]) -> tuple[Results | None, str]:
        """The outputs in the highest precision that there is, and how that went; None where nothing more precise runs."""
        for dtypes, graph in self._wider:
            try:
                found = evaluate(graph, [_widened(value, dtypes) for value in given])
            except RUN_ERRORS:  # no kernel, or no memory, for this precision
                continue
            return self.named(found), f"beside a run in {max(dtypes.values(), key=_is_real)}"
        return None, "beside eager itself, since nothing more precise runs"

    def moved(self, given: list[Any], seed: int, reordered: bool) -> Results:
        """The outputs of eager on inputs that are moved by their rounding."""
        given = [twin(value) for value in given]
        with RoundedAttention() if reordered else nullcontext(), MovedRun(given, seed, reordered=reordered):
            return self.named(evaluate(self.judged, given))


def _is_real(dtype: str) -> bool:
    return not dtype.startswith("complex")


def _widened(value: Any, wider: Mapping[str, str]) -> Any:
    name = str(value.dtype).removeprefix("torch.") if isinstance(value, Tensor) else ""
    return like(value, storage(value).to(getattr(torch, wider[name]))) if name in wider else twin(value)


class ExpectedTrial:
    """What a region should give for one draw of inputs; `error` if it does not run at all, `fits` if as it was recorded."""

    def __init__(self, of: ExpectedRegion, trial: Trial) -> None:
        self.of, self.trial = of, trial
        self.inputs = trial.inputs(of.given, of.device)
        self.error: BaseException | None = None
        self.eager: list[Any] = []
        given = [twin(value) for value in self.inputs]
        try:
            with self.seeded():
                self.eager = of.eager(list(given))
            self.fits = trial.must_run or self._as_declared()
        except RUN_ERRORS as error:
            self.error, self.fits = error, False
        self.owners = owners(given, self.eager)
        self.how = ""
        self.jumps: dict[str, int] = {}
        """Of each output behind a jump, the most elements that a right run has on its other side."""
        self.usual: dict[str, float] = {}
        """Of each output of floats behind a jump, what eager is off by in the middle."""
        self._runs = self._steps = 0

    def seeded(self) -> AbstractContextManager[None]:
        """Around runs; seeding takes longer than a small region, and says nothing to one that draws nothing."""
        return seeded(self.trial.seed + APART) if self.of.random else torch.no_grad()

    @property
    def nbytes(self) -> int:
        """About what it takes to keep this."""
        tensors = [value for value in (*self.inputs, *self.eager) if isinstance(value, Tensor)]
        return 2 * sum(storage(tensor).nbytes for tensor in tensors) + 8 * sum(
            value.numel() for value in self.eager if isinstance(value, Tensor)
        )

    def _as_declared(self) -> bool:
        space, region = SizeSpace(dict(self.trial.sizes)), self.of.region
        for arg, value in zip(region.outputs, self.eager, strict=True):
            kind = region.types[arg.name] if isinstance(arg, Ref) else None
            if isinstance(kind, TensorType) and [int(space(d)) for d in kind.shape] != list(value.shape):
                return False
        return True

    @cached_property
    def moves_on(self) -> list[bool]:
        """Of each output whether eager itself gives another at the next call, of random numbers enough to tell."""
        with seeded(self.trial.seed + APART):
            first, later = (self.of.eager([twin(value) for value in self.inputs]) for _ in range(2))
        return [
            isinstance(one, Tensor) and one.numel() >= 64 and not same_bits(one, other)
            for one, other in zip(first, later, strict=True)
        ]

    def leaves(self, outputs: Sequence[Any]) -> Mapping[str, Leaf]:
        """What each output should be, given the random numbers that a run itself drew and shows."""
        spreads = self._spreads
        if self.of.pinned is None:
            return spreads.leaves[0]
        eager, exact, _ = self._right(outputs)
        mine = Spreads({0: eager}, None if exact is None else {0: exact}).leaves[0]
        return {name: replace(leaf, spread=spreads.known.get(name)) for name, leaf in mine.items()}

    @cached_property
    def _spreads(self) -> Spreads:
        """Learnt from eager, with the random numbers that it drew."""
        eager, exact, self.how = self._right(self.eager)
        spreads = Spreads({0: eager}, None if exact is None else {0: exact})
        for name in self._fragile(eager):
            leaf = spreads.leaves[0][name]
            self.jumps[name] = 0
            if leaf.exact is not None and leaf.spread is not None:  # learnt anew, without what is on the other side
                self.usual[name] = usual_error(eager[name], leaf.exact)
                leaf.spread.forget()
                leaf.spread.learn(self._count(name, eager[name], leaf.exact), leaf.right)
            elif leaf.exact is not None:
                self._count(name, eager[name], leaf.exact)
        for reordered in MOVED:
            self._learn(spreads, reordered)
        return spreads

    def _right(self, outputs: Sequence[Any]) -> tuple[Results, Results | None, str]:
        given = self.of.given_numbers(self.inputs, outputs)
        with self.seeded():
            if self.of.pinned is None:
                return (self.of.named(self.eager), *self.of.exact(given))
            eager = self.of.named(evaluate(self.of.judged, [twin(value) for value in given]))
            return (eager, *self.of.exact(given))

    def _fragile(self, results: Results) -> Iterator[str]:
        for i, name in enumerate(self.of.names):
            if self.of.nature(i).fragile and isinstance(results.get(name), Tensor) and results[name].numel():
                yield name

    def _learn(self, spreads: Spreads, reordered: bool) -> None:
        given = self.of.given_numbers(self.inputs, self.eager)
        with self.seeded():
            found = self.of.moved(given, 1000 * self.trial.seed + self._runs, reordered)
        self._runs += 1
        for name in self._fragile(found):
            found[name] = self._count(name, found[name], spreads.leaves[0][name].right.values)
        spreads.learn(0, found)

    def _count(self, name: str, right: Tensor, exact: Tensor) -> Tensor:
        """A right result without those elements that are on the other side of a jump, which are counted."""
        there = elsewhere(right, exact, self.usual.get(name, 0.0))
        self.jumps[name] = max(self.jumps[name], int(there.sum()))
        return torch.where(there, exact.to(right.dtype), right)

    def judge(self, name: str, got: Tensor, leaf: Leaf, wider: float) -> JudgedLeaf:
        """Say whether floats are what they should be.

        Where that is in doubt eager runs some more, which all that is judged later gains by.
        """
        while True:
            found = judge_floats(name, got, leaf, wider, any_infinite=self.trial.specials == INFINITE)
            if not found.doubtful or not self._learn_more():
                return found

    def _learn_more(self) -> bool:
        if self._steps == len(MORE) or self.of.doubt_s <= 0:
            return False
        begin = perf_counter()
        for number in range(MORE[self._steps]):
            self._learn(self._spreads, bool(number % 2))
        self._steps += 1
        self.of.doubt_s -= perf_counter() - begin
        return True


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Have torch draw from this seed; after, its generators are as they were."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices), torch.no_grad():
        torch.manual_seed(seed)
        yield
