"""Jobs on whole programs: what they become, whether a plan is right for them, and which plan is the fastest."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from fuseplan.backend import fuseplan_backend, programs_of
from fuseplan.capture.attention import attention_calls
from fuseplan.capture.trace import Loaded, Trace, load_trace
from fuseplan.executors import GAPS
from fuseplan.explain import compiled_by
from fuseplan.measure.agreement import DRAWS, Layout, Leaf, disagreement, expected, with_draw
from fuseplan.measure.clocks import clock_for
from fuseplan.measure.failures import COMPILE, RUN, check_device, failure, line
from fuseplan.measure.jobs import AttentionFound, Capture, Found, Outcome, Prepare, RacePlans, Row, Side, VetPlan
from fuseplan.measure.memory import Peak, holds_much
from fuseplan.measure.worker.regions import enter, run_race
from fuseplan.plan import SegmentedPlan, WholePlan
from fuseplan.runtime import Program
from fuseplan.stats import stats

if TYPE_CHECKING:
    from fuseplan.measure.worker.bench import Bench

SEEDS = (0, 1)
"""Of the inputs that take turns."""
ROUNDS = 2
"""Calls on each of them: what a CUDA graph replays shows at the third call at the earliest."""
_OTHER_NUMBERS = 7919
NO_ROOM = Outcome("refused", "it takes too much of the device's memory to be kept")
"""What comes of preparing where there is no room."""
_FAILED = "regions failed at run time"


@dataclass(eq=False)
class _Case:
    """A trace that was loaded, and what it should compute, by seed of the inputs, where somebody has asked."""

    loaded: Loaded
    leaves: dict[int, dict[str, Leaf]]
    course: _Course | None = None


@dataclass(eq=False)
class _Course:
    """What a race needs beside its sides, and the sides that were prepared for it, by name and plan."""

    inputs: list[list[Tensor]]
    tangents: dict[int, Tensor]
    counters: list[tuple[list[Tensor], list[Tensor]]]
    """For each set of inputs the whole numbers that a step writes to, and what was there before."""
    prepared: dict[Side, Callable[..., Any]]

    def calls(self, compiled: Callable[..., Any], loaded: Loaded) -> list[Callable[[], None]]:
        return [
            _Step(compiled, args, self.tangents, counters, loaded)
            for args, counters in zip(self.inputs, self.counters, strict=True)
        ]


class Programs:
    """Loads traces, and keeps the last one: the next job is about the same program."""

    def __init__(self, device: torch.device, bring: Callable[[str], None]) -> None:
        """`bring` sees to it that the operators are there which a trace, as text, names."""
        self.device, self._bring = device, bring
        self._text = ""
        self._case: _Case | None = None

    def case(self, text: str) -> _Case:
        """The program that a trace spells."""
        if self._case is None or text != self._text:
            self.forget()
            self._bring(text)
            self._case, self._text = _Case(load_trace(Trace.from_json(text), self.device), {}), text
        return self._case

    def course(self, text: str) -> _Course:
        """What a race of the program's sides needs."""
        case = self.case(text)
        if case.course is None:
            case.course = _course(case.loaded)
        return case.course

    def forget(self) -> None:
        """Keep nothing."""
        if self._case is not None and self._case.course is not None:
            torch._dynamo.reset()
        self._case, self._text = None, ""


def compile_side(side: Side, loaded: Loaded) -> Callable[..., Any]:
    """The program as a side runs it. Each has a module of its own over the same parameters, since torch.compile keeps
    what it compiles by the code of `forward`, and gives up after eight.
    """
    assert isinstance(loaded.module, GraphModule)
    module = GraphModule(loaded.module, copy.deepcopy(loaded.module.graph))
    if side.plan is not None:
        return _under_fuseplan(module, plan=side.plan)
    if side.mode is not None:
        return torch.compile(module, mode=None if side.mode == "default" else side.mode)
    return module


def _under_fuseplan(module: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    compiled: Any = torch.compile(module, backend=fuseplan_backend, options=options)
    return compiled  # type: ignore[no-any-return]


def capture(job: Capture, bench: Bench) -> Outcome:
    """The ATen graphs of a program under a segmented plan, and its attention calls."""
    bench.at("capture", "capturing")
    loaded = bench.programs.case(job.trace).loaded
    attention: list[AttentionFound] = []

    def look(gm: GraphModule, example_inputs: Sequence[Any], **given: Any) -> Callable[..., Any]:
        calls = attention_calls(gm)
        attention.extend(AttentionFound(call.number, call.proven, call.variants) for call in calls)
        return fuseplan_backend(gm, example_inputs, **given)

    begin = perf_counter()
    options: dict[str, Any] = {
        "plan": SegmentedPlan(saving=job.saving, anchors=job.anchors),
        "attention": job.attention,
    }
    compiled: Any = torch.compile(compile_side(Side("eager"), loaded), backend=look, options=options)
    loaded.run(compiled)
    traced_s = round(perf_counter() - begin, 6)
    programs = _programs(compiled)
    torch._dynamo.reset()
    if len(programs) != 1:
        return Outcome("refused", f"the trace becomes {len(programs)} programs, not one")
    (program,) = programs
    opaque = [why for record in program.graphs for why in record.graph.opaque]
    if opaque:
        return Outcome(found=Found(program.key, (), tuple(attention), line(opaque[0]), traced_s))
    graphs = tuple((record.role, record.graph) for record in program.graphs)
    return Outcome(found=Found(program.key, graphs, tuple(attention), traced_s=traced_s))


def _programs(compiled: Any) -> list[Program]:
    wrapper = compiled_by(compiled)
    return [] if wrapper is None else programs_of(wrapper)


def vet(job: VetPlan, bench: Bench) -> Outcome:
    """Run the program under a plan several times, and compare each with what it should give."""
    bench.at(job.side.name, "loading")
    case = bench.programs.case(job.trace)
    trial = _Trial(job.side, case, {seed: _leaves(case, seed, bench) for seed in SEEDS}, bench)
    bench.clear()  # of what told the leaves: it is not the side's, and others may need it
    try:
        trial.run()
    except Exception as error:  # noqa: BLE001 -- the boundary where failures of others' code become data
        check_device(error)
        trial.fail(*failure(error, trial.stage))
    finally:
        torch._dynamo.reset()
    return Outcome(trial.row.status, trial.row.detail, rows=(trial.row,))


class _Trial:
    """One side tried on one program; `row` is what is known of it so far."""

    def __init__(self, side: Side, case: _Case, leaves: dict[int, dict[str, Leaf]], bench: Bench) -> None:
        self.side, self.case, self.leaves, self.bench = side, case, leaves, bench
        self.row, self.stage = Row(side.name), COMPILE

    def fail(self, status: str, detail: str) -> None:
        self.row = replace(self.row, status=status, detail=detail)

    def run(self) -> None:
        """All calls, or as many as go well."""
        self.bench.at(self.side.name, "compiling")
        begin, peak, failed_before = perf_counter(), Peak(self.bench.device), stats().get(_FAILED, 0)
        compiled = compile_side(self.side, self.case.loaded)
        for number, seed in enumerate(SEEDS * ROUNDS):
            if number == len(SEEDS * ROUNDS) - 1:
                peak.settle()
            found = self.case.loaded.run(compiled, seed)
            problem = disagreement(found, self.leaves[seed], _layout(self.side))
            if number == 0:
                self.stage = RUN
                self.row = replace(self.row, compile_s=round(perf_counter() - begin, 6))
                self.bench.at(self.side.name, "checking")
                stood_in = _stand_in(self.side, compiled)
                if stood_in is not None:
                    return self.fail(*stood_in)
            if problem is not None:
                return self.fail("wrong", line(f"{problem} (call {number + 1})"))
            if stats().get(_FAILED, 0) > failed_before:
                return self.fail(RUN, f"a region failed at call {number + 1}, and ATen stood in for it")
        self.row = replace(self.row, peak_bytes=peak.bytes())
        return None


def _layout(side: Side) -> Layout:
    """How the outputs of a side may lie. Where all of a program goes to torch.compile's own Inductor, that is its matter."""
    if side.mode is not None or (isinstance(side.plan, WholePlan) and side.plan.executor == "inductor"):
        return "any"
    parts = side.plan.parts if isinstance(side.plan, SegmentedPlan) else ()
    return "gaps" if any(region.variant == GAPS for part in parts for region in part.segmentation.regions) else "eager"


def _as_planned(row: Row, side: Side, compiled: Any, failed_before: int) -> Row:
    """The row of a side that runs, unless something else runs in its place."""
    if stats().get(_FAILED, 0) > failed_before:
        return replace(row, status=RUN, detail="a region failed, and ATen stood in for it")
    status, detail = _stand_in(side, compiled) or ("ok", "")
    return replace(row, status=status, detail=detail)


def _stand_in(side: Side, compiled: Any) -> tuple[str, str] | None:
    """What runs instead of what the plan says: its time would be another plan's. A greedy plan names no regions."""
    for program in _programs(compiled) if side.plan is not None else []:
        if program.remarks:
            return "refused", line(program.remarks[0])
        if isinstance(program.plan, SegmentedPlan) and program.plan.parts:
            fallen = [region for record in program.graphs for region in record.regions if region.fallback]
            for region in fallen:
                return COMPILE, line(f"the region at op {region.ops[0]} under {region.executor}: {region.fallback}")
    return None


def _leaves(case: _Case, seed: int, bench: Bench) -> dict[str, Leaf]:
    """What the program should give for the inputs of one seed."""
    if seed not in case.leaves:
        loaded = case.loaded

        def under(numbers: int) -> dict[str, Any]:
            def with_other_numbers(*args: Any) -> Any:
                torch.manual_seed(numbers)
                return loaded.module(*args)

            return loaded.run(with_other_numbers, seed)

        leaves = expected(loaded.run(seed=seed), _in_double(loaded, seed, bench), under(_OTHER_NUMBERS))
        random = any(leaf.sizes is not None for leaf in leaves.values())
        for draw in range(1, DRAWS if random else 1):
            leaves = with_draw(leaves, under(_OTHER_NUMBERS + draw))
        case.leaves[seed] = leaves
    return case.leaves[seed]


def _in_double(loaded: Loaded, seed: int, bench: Bench) -> dict[str, Any] | None:
    """The same in double precision; None where an operator has none, or there is no memory for it."""
    try:
        return load_trace(loaded.trace.in_double(), bench.device).run(seed=seed)
    except (RuntimeError, TypeError, ValueError, MemoryError) as error:
        check_device(error)
        return None


def race_sides(job: RacePlans, bench: Bench) -> Outcome:
    """Time the program end to end: outputs, and gradients where it has them."""
    bench.at(job.incumbent, "loading")
    case, course = bench.programs.case(job.trace), bench.programs.course(job.trace)
    loaded, clock = case.loaded, clock_for(bench.device.type, steps=True)
    rows: dict[str, Row] = {}
    try:
        with loaded.modes():  # once for all: entering them takes longer than a small program
            for side in job.sides:
                prepared = course.prepared.get(side)
                bench.at(side.name, "compiling" if prepared is None else "running")
                if prepared is None:
                    bench.clear()  # of the side before: memory that is let go meanwhile would be this one's gain
                compiled = compile_side(side, loaded) if prepared is None else prepared
                failed_before = stats().get(_FAILED, 0)
                row = enter(clock, Row(side.name), course.calls(compiled, loaded), bench.device)
                if prepared is not None:  # of its first calls, vetting has told
                    row = replace(row, compile_s=None, peak_bytes=None)
                rows[side.name] = row if row.status != "ok" else _as_planned(row, side, compiled, failed_before)
            return run_race(clock, rows, job.incumbent, job.rule, bench, job.rivals)
    finally:
        clock.lanes.clear()
        case.course = None
        torch._dynamo.reset()


def prepare(job: Prepare, bench: Bench) -> Outcome:
    """Compile a side and run it, so that its race need not wait. Where that takes much of the device's memory, it has to."""
    bench.at(job.side.name, "loading")
    case, course = bench.programs.case(job.trace), bench.programs.course(job.trace)
    bench.clear()
    if holds_much(bench.device):
        return NO_ROOM
    failed_before = stats().get(_FAILED, 0)
    bench.at(job.side.name, "compiling")
    compiled: Any = compile_side(job.side, case.loaded)
    with case.loaded.modes():
        for call in course.calls(compiled, case.loaded):
            call()
    del call
    if stats().get(_FAILED, 0) > failed_before:
        return Outcome(RUN, "a region failed, and ATen stood in for it")
    course.prepared[job.side] = compiled
    bench.clear()
    if holds_much(bench.device):
        del course.prepared[job.side], compiled
        bench.clear()
        return NO_ROOM
    return Outcome()


def _course(loaded: Loaded) -> _Course:
    inputs = [loaded.inputs(seed) for seed in SEEDS]
    owned = {i: one._version for i, one in loaded.tensors.owned.items() if _counts(one)}
    given = {i: one._version for i, one in enumerate(inputs[0]) if _counts(one)}
    tangents = _tangents(loaded, inputs[0])
    numbers = [i for i, version in owned.items() if loaded.tensors.owned[i]._version != version]
    places = [i for i, version in given.items() if inputs[0][i]._version != version]
    loaded.tensors.make_anew(numbers)
    if places:
        inputs[0] = loaded.inputs(SEEDS[0])
    written = [[*(loaded.tensors.owned[i] for i in numbers), *(args[i] for i in places)] for args in inputs]
    return _Course(inputs, tangents, [(found, [one.clone() for one in found]) for found in written], {})


def _counts(one: Any) -> bool:
    """Whether it may say where something is written or read next: whole numbers."""
    return isinstance(one, Tensor) and not (one.is_floating_point() or one.is_complex())


def _tangents(loaded: Loaded, args: Sequence[Tensor]) -> dict[int, Tensor]:
    """What backward starts from, by the number of the output."""
    outputs = loaded.step(args=args)
    wanted = [i for i, out in enumerate(outputs) if isinstance(out, Tensor) and out.requires_grad]
    return {i: loaded.tensors.tangent(n, outputs[i]) for n, i in enumerate(wanted)}


class _Step:
    """One step on one set of inputs, with as little around the program as can be; it leaves nothing behind.

    Outputs and gradients are dropped at its end: a CUDA graph whose outputs are held is not replayed. Counters are put back:
    the place in a cache that a program writes to next would soon lie beyond its end.
    """

    def __init__(
        self, call: Callable[..., Any], args: Sequence[Tensor], tangents: dict[int, Tensor],
        counters: tuple[list[Tensor], list[Tensor]], loaded: Loaded,
    ) -> None:  # fmt: skip
        self.call, self.args, self.counters = call, args, counters
        self.numbers, self.tangents = list(tangents), list(tangents.values())
        self.leaves = [leaf for _, leaf in loaded.tensors.leaves(list(args))] if tangents else []
        self.autocast = bool(loaded.trace.fields["modes"]["autocast"])

    def __call__(self) -> None:
        if self.autocast:
            torch.clear_autocast_cache()  # what leaving autocast does after each step of a program
        outputs = self.call(*self.args)
        if self.numbers:
            torch.autograd.backward([outputs[i] for i in self.numbers], self.tangents)
            for leaf in self.leaves:
                leaf.grad = None
        if self.counters[0]:
            torch._foreach_copy_(*self.counters)
