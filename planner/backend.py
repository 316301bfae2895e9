"""The backend behind ``torch.compile(model, backend="fuseplan")``: program -> key -> plan -> replay."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from time import perf_counter
from typing import Any

import torch
from torch.fx import GraphModule

from fuseplan.by_size import BySize, reading_of
from fuseplan.capture.dynamo.forward_known import forward_known, runs_forward
from fuseplan.capture.dynamo.own_sizes import size_reading, with_own_sizes
from fuseplan.capture.dynamo.policies import repeat_answers
from fuseplan.capture.dynamo.program import program_key
from fuseplan.capture.dynamo.ranks import tunes_here
from fuseplan.capture.dynamo.registry import bear_threads
from fuseplan.capture.dynamo.settled import Settled, settled
from fuseplan.errors import FuseplanError, NoRoomError, OptionError
from fuseplan.garbage import no_collection
from fuseplan.guard.production import guarded, unguarded
from fuseplan.log import logger
from fuseplan.lookup import Chosen, Lookup
from fuseplan.options import AT_ONCE, Options
from fuseplan.plan import Plan
from fuseplan.rewrites.base import Draft
from fuseplan.rewrites.kinds import known_kinds, unpromised
from fuseplan.rewrites.sites import Sites
from fuseplan.runtime import CompiledPrograms, Program, replay
from fuseplan.runtime.graph_memory import ProgramGraphs
from fuseplan.runtime.merged import Merging
from fuseplan.runtime.torch_cache import backward_at_once
from fuseplan.stats import count, waited
from fuseplan.tuning_db import places

_Call = Callable[..., Any]
_PROGRAMS = "_fuseplan_programs"
"""Where the object that torch.compile made keeps what was compiled for it; both go together."""
_NESTED = 4
"""So many calls may lie between that object and our backend: a backend of somebody else's may call ours."""


def _asked(options: Mapping[str, Any]) -> None:
    """Torch.compile was asked for ours. Workers take seconds to start, and so does Inductor to be imported: what a program will need that is
    going to be tuned, or compiled, begins now.
    """
    if options.get("plan") is not None:
        return
    with suppress(Exception):  # it is a head start, and whatever is wrong is told when it matters
        _start_workers(options)
    # All of it stays. Were garbage looked for in the midst of it, as by chance, it would be once more behind it.
    with suppress(Exception), no_collection():
        import_module("torch._inductor.compile_fx")


def _start_workers(options: Mapping[str, Any]) -> None:
    """Start those that tune a first program at once, on its GPU."""
    tune, db = options.get("tune"), options.get("db")
    if tune not in AT_ONCE or not torch.cuda.is_initialized() or not tunes_here():
        return
    file = places(os.environ, db).user
    if file is not None and not file.exists():  # else it may well know the program
        from fuseplan.tuning.queue.staying import start_ahead

        start_ahead(f"cuda:{torch.cuda.current_device()}", str(tune))


bear_threads(lambda: fuseplan_backend, _asked)


def fuseplan_backend(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile one Dynamo graph. This is the entry point that torch.compile finds under the name "fuseplan"."""
    begin = perf_counter()
    found, lookup = looked_up(gm, example_inputs, options, mode)
    compiled = _compiled_by_size(lookup, _programs_around()) or _compiled_as_one(lookup, _programs_around())
    lookup.keep_counters()
    waited(begin)
    return found.called(compiled)


def _compiled_by_size(lookup: Lookup, programs: list[Program]) -> _Call | None:
    """A program whose sizes vary, under the default for all sizes, and under plans in their boxes; None where one plan is to do."""
    reading = reading_of(lookup)
    if reading is None:
        return None
    by_size = BySize.of(lookup, reading, partial(_carry_out, lookup=lookup), programs)
    choice = lookup.default(by_size.why_default())
    if lookup.options.tune == "later":
        choice = replace(choice, why=f"{choice.why}; {lookup.wait(promises=False)}")
    program, compiled = _carry_out(choice, lookup.gm, lookup.example_inputs, lookup=lookup)
    programs.append(program)
    count("programs")
    count(f"programs under plan {program.plan.host}")
    if hasattr(compiled, "serialize_compile_artifacts"):  # of what is to be pickled Dynamo wants the very object
        return compiled
    by_size.begin(program, compiled)
    if lookup.waits is not None:
        by_size.new_sizes = lookup.waits.follows(reading.names, by_size.calls)
    lookup.let_go()
    if lookup.options.reload is not None:
        from fuseplan.reload import follow_boxes

        follow_boxes(by_size, lookup.options.reload)
    return by_size.call


def backend_by_size(
    gm: GraphModule, example_inputs: Sequence[Any], *, options: Mapping[str, Any]
) -> Callable[..., Any]:
    """Compile one Dynamo graph under the plan that the options ask for, with sizes of its own, as a process does that runs it by size. What
    is compiled here that process finds in torch's caches.
    """
    found, lookup = looked_up(gm, example_inputs, options)
    own = with_own_sizes(found.gm, lookup.identity.symbols, lookup.sizes)
    with own.traced():
        program, compiled = _carry_out(lookup.choose(), own.gm, own.inputs, lookup=lookup)
    _programs_around().append(program)
    return found.called(compiled)


def _compiled_as_one(lookup: Lookup, programs: list[Program]) -> _Call:
    """A program under one plan."""
    reading = None
    if lookup.options.tune == "later" and lookup.identity.symbols.seen():
        with suppress(Exception):  # a count ends no compilation
            reading = size_reading(lookup.gm, lookup.identity.symbols)  # now: who compiles it may change it
    ahead = _Ahead(lookup)
    lookup.meanwhile = ahead
    choice = lookup.choose()
    verifies = lookup.options.verify != "off"
    default = ahead.default() if verifies and unguarded(lookup, choice) is None else None
    # Of two forwards that both run, a backward that is compiled later would be by what torch knows of the last one.
    with nullcontext() if default is None else backward_at_once():
        try:
            program, compiled = ahead.taken(choice) or _carried_out(choice, lookup)
        except FuseplanError as error:
            if choice.stored is None:
                raise
            choice = lookup.refused(choice.stored, error)
            program, compiled = _carried_out(choice, lookup)
        if verifies:
            compiled = guarded(lookup, choice, program, compiled, default)
    lookup.complain()
    lookup.hold()
    count("programs")
    count(f"programs under plan {program.plan.host}")
    programs.append(program)
    if lookup.options.reload is None:
        lookup.let_go()
    else:
        compiled = _following(compiled, lookup, choice, partial(_forget, programs, program))
    return compiled if lookup.waits is None else lookup.waits.counted(compiled, reading)


def looked_up(
    gm: GraphModule, example_inputs: Sequence[Any], options: Mapping[str, Any] | None, mode: str | None = None
) -> tuple[Settled, Lookup]:
    """One Dynamo graph with settled inputs, and the way from it to its plan."""
    checked = Options.parse(options, mode)
    known_kinds(checked.rewrites)
    _check_promised(checked)
    found = settled(gm, example_inputs)
    identity = program_key(found.gm, found.example_inputs)
    return found, Lookup(
        checked, identity, found.gm, found.example_inputs, os.environ, found.nested
    )  # where the user's own database is


def _check_promised(options: Options) -> None:
    """A plan that is asked for must not rest on a promise that was not given."""
    needed = {one.kind for one in options.plan.rewrites} if options.plan is not None else set()
    resting = sorted(needed & set(unpromised(options.weights)))
    if resting:
        raise OptionError(
            f"a plan with {', '.join(resting)} needs option weights='fixed', which promises that weights stay"
        )


@dataclass(frozen=True, eq=False)
class _Compiled:
    """A program as it was compiled under a plan."""

    plan: Plan
    program: Program
    called: _Call
    forward: Any
    """What is known of its forward."""


class _Ahead:
    """What is compiled of a program while workers find out what is the fastest: what is likely to win, or has won, and which one of them has
    compiled before.
    """

    def __init__(self, lookup: Lookup) -> None:
        self.lookup = lookup
        self._likely: list[_Compiled] = []

    def likely(self, plan: Plan) -> None:
        """Compile what is likely to win, where that is Inductor's alone: of a region that fails the database would not hear."""
        is_there = any(one.plan == plan for one in self._likely)
        if self._may and plan.host == "inductor" and not plan.carve_outs and not is_there:
            key = str(self.lookup.identity.key)
            logger.info("program %s: what is likely to win is compiled already", key[:12])
            with suppress(Exception):
                found = _carry_out(Chosen(plan, ""), self._graph(), self.lookup.example_inputs, lookup=self.lookup)
                self._likely.append(_Compiled(plan, *found, forward_known()))

    @property
    def _may(self) -> bool:
        """Not where sizes vary, for which it would say more than one plan needs."""
        options, symbols = self.lookup.options, self.lookup.identity.symbols
        return options.fuel is None and options.attention == "as-is" and not symbols.seen()

    def _graph(self) -> GraphModule:
        """A graph of its own: what is compiled later is not to see what became of this one."""
        return Draft(self.lookup.gm).finished()

    def default(self) -> Callable[[], _Call]:
        """What compiles the default of the program as it is now, for a guard, unless it was likely to win, and is there."""
        lookup, choice = self.lookup, self.lookup.default("")
        found = next((one for one in self._likely if one.plan == choice.plan), None)
        if found is not None:
            return lambda: found.called
        graphs = ProgramGraphs(lookup.options.cuda_graph_memory)
        program = Program(lookup.identity.key, lookup.identity.why, choice.plan, choice.why, cuda_graphs=graphs)
        return partial(replay, choice.plan, self._graph(), lookup.example_inputs, program)

    def taken(self, choice: Chosen) -> tuple[Program, _Call] | None:
        """What was compiled ahead, if it is what was chosen; nothing else is kept."""
        likely, self._likely = self._likely, []
        may = choice.stored is not None or not choice.plan.rewrites
        found = next((one for one in likely if may and one.plan == choice.plan), None)
        if found is None or (choice.plan.rewrites and _unwanted(choice, self.lookup)[1]):
            return None
        runs_forward(found.forward)
        found.program.why = choice.why
        _hear_of(found.program, choice, self.lookup)
        return found.program, found.called


def _hear_of(program: Program, choice: Chosen, lookup: Lookup) -> None:
    """Have the database told of what becomes of a plan that is stored in it."""
    if choice.stored is not None:
        program.refuse = partial(lookup.quarantine, choice.stored)
        program.fell_back = lookup.write_down


def _following(
    called: Callable[..., Any], lookup: Lookup, choice: Chosen, gone: Callable[[], None]
) -> Callable[..., Any]:
    from fuseplan.reload import followed  # it brings workers, which few programs need

    follower = followed(lookup, choice, gone)
    return called if follower is None else follower.around(called)


def _carried_out(choice: Chosen, lookup: Lookup) -> tuple[Program, _Call]:
    """Carry out a plan; where nobody knows more of the program than torch does, a region stays one that is compiled once for all its calls."""
    options = lookup.options
    is_known = choice.stored is not None or options.plan is not None or options.attention != "as-is"
    regions = None if is_known or choice.plan.host != "inductor" else lookup.nested
    return _carry_out(choice, regions or lookup.gm, lookup.example_inputs, lookup=lookup)


def _carry_out(
    choice: Chosen, gm: GraphModule, example_inputs: Sequence[Any], *, lookup: Lookup
) -> tuple[Program, _Call]:
    """Carry out a plan on the program, or on a copy of it with other sizes."""
    if choice.stored is not None and choice.plan.rewrites:
        choice = _allowed(choice, lookup)
    options, identity, plan, stored = lookup.options, lookup.identity, choice.plan, choice.stored
    if options.attention == "proven" and stored is None:
        plan = Sites.of(gm, ("attention",)).preferring(plan)
    graphs = ProgramGraphs(options.cuda_graph_memory)
    program = Program(
        identity.key, identity.why, plan, choice.why, options.fuel_for_one(), cuda_graphs=graphs,
        merging=Merging(options.merged_memory),
    )  # fmt: skip
    _hear_of(program, choice, lookup)
    if plan.rewrites or plan.carve_outs or plan.host == "aten":
        repeat_answers(gm)
    try:
        compiled = replay(plan, gm, example_inputs, program)
    except NoRoomError as error:
        if stored is None:
            raise
        return _carry_out(lookup.held_back(str(error), choice), gm, example_inputs, lookup=lookup)
    if choice.layer == "user" and program.plan != plan and program.plan.identity == choice.plan.identity:
        lookup.fill_in(choice, program.plan)
    return program, compiled


def _allowed(choice: Chosen, lookup: Lookup) -> Chosen:
    """The stored plan without what is not wanted in this process as it is set now: its graphs are others then, so that one that
    cuts them gives way to the default. The plan in the database stays, since others may want it.
    """
    plan, reasons = _unwanted(choice, lookup)
    if not reasons:
        return choice
    told = "; ".join(reasons)
    if plan.carve_outs:
        return lookup.held_back(f"its regions are those of other graphs: {told}", choice)
    return lookup.held_back(told, choice, plan)


def _unwanted(choice: Chosen, lookup: Lookup) -> tuple[Plan, Sequence[str]]:
    """What is left of a plan in this process as it is set now, and why that is not all of it."""
    return Sites.of(lookup.gm, {one.kind for one in choice.plan.rewrites}).allowed(choice.plan)


def compile(model: Any = None, **options: Any) -> Any:
    """Return `model` compiled by fuseplan: `torch.compile` with backend "fuseplan".

    What torch.compile itself takes (fullgraph, dynamic, mode, disable …) goes there, everything else is an option of
    fuseplan's. Without a model it returns a decorator.

    >>> import torch
    >>> import fuseplan
    >>> double = fuseplan.compile(lambda x: x * 2, plan="aten")
    >>> double(torch.ones(2))
    tensor([2., 2.])
    """
    for_torch = {name: options.pop(name) for name in list(options) if name in _TORCH_ARGUMENTS}
    for_dynamo = {name: options.pop(name) for name in list(options) if name in _DYNAMO_OPTIONS}
    Options.parse(options, for_torch.get("mode"))  # what is wrong with them is better said here than by Dynamo
    options |= for_dynamo
    if options and for_torch.get("mode") is not None:
        options["mode"] = for_torch.pop("mode")  # torch.compile takes a mode or options, never both
    return torch.compile(model, backend="fuseplan", options=options or None, **for_torch)


_TORCH_ARGUMENTS = ("fullgraph", "dynamic", "mode", "disable", "name")
_DYNAMO_OPTIONS = ("guard_filter_fn",)
"""Options that torch.compile keeps for itself."""


def programs_of(wrapper: object) -> list[Program]:
    """Return the programs that were compiled for one call of torch.compile."""
    return list(vars(wrapper).get(_PROGRAMS, ()))


def _programs_around() -> list[Program]:
    """Where those are kept that are compiled for one call of torch.compile."""
    owner, found = _caller(), CompiledPrograms()
    return found if owner is None else vars(owner).setdefault(_PROGRAMS, found)


def _forget(programs: list[Program], program: Program) -> None:
    programs[:] = [one for one in programs if one is not program]


def _caller() -> object | None:
    """The object that torch.compile made for this call, which `explain` looks up: it calls the backend itself, or another one
    that calls ours.
    """
    frame = sys._getframe(3)
    for _ in range(_NESTED):
        owner = frame.f_locals.get("self")
        if type(owner).__name__ == "_TorchCompileWrapper":
            return owner
        if frame.f_back is None:
            break
        frame = frame.f_back
    return None
