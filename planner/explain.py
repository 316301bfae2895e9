"""`explain`: each graph of a program, its key, its plan, and why that plan: of what was compiled here, or is stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from fuseplan.backend import programs_of
from fuseplan.capture.dynamo.numerics import Numerics
from fuseplan.capture.trace.format import Trace
from fuseplan.errors import StoreError
from fuseplan.executors import executors
from fuseplan.graph.words import counted
from fuseplan.looking.explained import Explained, of_subject
from fuseplan.looking.subject import opened, subjects
from fuseplan.looking.words import describe
from fuseplan.plan import LAUNCHES, Plan
from fuseplan.runtime import GraphRecord, Program, RegionRecord
from fuseplan.segment import is_anchor
from fuseplan.tuning.expected_gain import offer_line
from fuseplan.tuning.queue.sources import read_programs
from fuseplan.tuning.queue.stale import places_here
from fuseplan.tuning.untuned import Captures, explain_trace, is_file
from fuseplan.tuning_db import Box, Store
from fuseplan.tuning_db.offers import offers_for
from fuseplan.tuning_db.staleness import PlaceWithDriver

__all__ = ["compiled_by", "describe", "explain", "explained"]


def explain(compiled: Any, *, graphs: bool = True, db: str | Path | None = None) -> str:
    """Return a text about a program: its graph, its plan, why that plan, and what was rejected; print it to read it.

    `compiled` is what ``torch.compile(…, backend="fuseplan")`` or ``fuseplan.compile`` returned, a module that was compiled in place
    (``model.compile(backend="fuseplan")``), or one with such parts: then all is told that was compiled for it so far. It may also be a trace, the path of one, or the beginning of a plan's or a program's key,
    or a program's name: then it is told what the tuning database `db`, else the user's own, knows of it. With
    ``graphs=False`` the operators are left out.

    >>> import torch
    >>> import fuseplan
    >>> double = fuseplan.compile(lambda x: x * 2, plan="aten")
    >>> _ = double(torch.ones(2))
    >>> print(fuseplan.explain(double, graphs=False))  # doctest: +ELLIPSIS
    program 1 of 1: key ...
      plan: host aten, saving min-cut, launch plain
      why: asked for by option
      inference graph ...: 1 op, all under ATen
    """
    if isinstance(compiled, (Trace, str, Path)):
        return "\n\n".join(one.text(graphs) for one in explained(compiled, db=db))
    parts = list(_parts(compiled))
    if not parts:
        return "This was not compiled by torch.compile with backend fuseplan."
    programs = [(part, program) for part, wrapper in parts for program in programs_of(wrapper)]
    if not programs:
        return (
            "Nothing has been compiled by this yet: call it once, then ask again. If it was called, torch itself runs it as it is,"
            " and TORCH_LOGS=graph_breaks says why; or it was compiled before, by another torch.compile, and is explained there."
        )
    texts = []
    for number, (part, program) in enumerate(programs, 1):
        title = f"program {number} of {len(programs)}" + (f", of {part}" if part else "")
        texts.append(_program(program, title, graphs))
    return "\n\n".join(texts)


def explained(what: Trace | str | Path, *, db: str | Path | None = None) -> list[Explained]:
    """What `explain` tells of traces and stored plans, as data: one for each program that is meant.

    >>> import torch
    >>> import fuseplan
    >>> (trace,) = fuseplan.traces_of(lambda x: x.relu() + 1, torch.ones(3))
    >>> (found,) = explained(trace)
    >>> found.plan, [len(graph.ops) for _, graph in found.graphs]
    (Plan(host='inductor', rewrites=(), carve_outs=(), saving='min-cut', settings='default', launch='plain', name=None, padded=()), [2])
    """
    with opened(db) as store:
        here = places_here(store.plans())
        if isinstance(what, str) and not is_file(what):
            return [_offered(store, of_subject(one), here) for one in subjects(store, what, here)]
        with Captures() as captures:
            traces = read_programs(what, store).traces
            return [_offered(store, explain_trace(store, trace, captures), here) for trace in traces]


def _offered(store: Store, one: Explained, here: Sequence[PlaceWithDriver]) -> Explained:
    """The same with what plans of elsewhere are worth on the devices of this machine, computing as its plan does."""
    try:
        file = store.file.path
    except StoreError:  # there is no place for one
        file = None
    folder = None if file is None else file.parent / "models"
    sizes = Box() if one.stored is None else one.stored.sizes
    device = None if one.stored is None else one.stored.environment.device
    numerics = Numerics.here() if one.stored is None else Numerics.of(vars(one.stored.environment))
    own = {place.environment.key for place in here}
    told = [
        offer_line(offer, place.environment, one.graphs, folder)
        for place in here
        if device in (None, place.environment.device) and Numerics.of(vars(place.environment)) == numerics
        for offer in offers_for(store, one.program, place.environment, sizes, LAUNCHES)
        if offer.stored.status == "unverified"
        or offer.stored.environment.key not in own  # else it runs on this machine
    ]
    return replace(one, remarks=(*one.remarks, *told))


def _parts(compiled: Any) -> Iterator[tuple[str, object]]:
    """What torch.compile made for it; for a module that was not compiled as one, for each of its parts that was, with their names."""
    own = compiled_by(compiled)
    if own is not None and _is_ours(own):
        yield "", own
    elif isinstance(compiled, nn.Module):
        for name, part in compiled.named_modules():
            wrapper = compiled_by(part) if part is not compiled else None
            if wrapper is not None and _is_ours(wrapper):
                yield name, wrapper


def _is_ours(wrapper: Any) -> bool:
    """Whether torch.compile was asked for our backend, or for another that has called ours."""
    return bool(programs_of(wrapper)) or str(wrapper.compiler_name).startswith("fuseplan")


def compiled_by(compiled: Any) -> object | None:
    """Return the object that torch.compile made for `compiled`, which a module keeps in its context, a function in its closure. A module
    that was compiled in place has such a function.
    """
    if isinstance(compiled, nn.Module) and "dynamo_ctx" not in vars(compiled):
        compiled = compiled._compiled_call_impl or vars(compiled).get("forward")
    context = getattr(compiled, "dynamo_ctx", None)
    candidates = [context.callback] if context is not None else []
    candidates += [cell.cell_contents for cell in getattr(compiled, "__closure__", None) or () if _filled(cell)]
    for candidate in candidates:
        while hasattr(candidate, "_torchdynamo_orig_backend"):
            candidate = candidate._torchdynamo_orig_backend
            if type(candidate).__name__ == "_TorchCompileWrapper":
                return candidate  # type: ignore[no-any-return]
    return None


def _filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _program(program: Program, title: str, graphs: bool) -> str:
    identity = f"key {program.key}" if program.key else f"no key, since {program.unkeyable}"
    lines = [f"{title}: {identity}", f"  plan: {describe(program.plan)}", f"  why: {program.why}"]
    guard = () if program.guard is None else (program.guard(),)
    padding = () if program.padding is None else (program.padding.line,)
    lines.extend(
        f"  {line}"
        for line in (
            *program.remarks,
            *program.cuda_graphs.lines,
            *program.rewrites,
            *program.merging.lines,
            *padding,
            *guard,
        )
    )
    if program.refuse is not None and program.key:
        lines.append(f"  its race, and what else it could be: fuseplan explain {program.key[:12]}")
    for record in program.graphs:
        lines.extend(f"  {line}" for line in _graph(record, graphs, _REST[program.plan.host]))
        lines.extend(f"    {line}" for line in _left_out(program.plan, record))
    if program.plan.carve_outs and not program.graphs:
        lines.append("  it was found in torch's cache, so there is no graph to show")
    elif program.plan.host != "aten" and not program.graphs:
        lines.append(f"  its Dynamo graph goes to {program.plan.host} as it is, so there is no ATen graph to show")
    return "\n".join(lines)


def _left_out(plan: Plan, record: GraphRecord) -> Iterator[str]:
    """What the executor of a greedy plan does not take, by operator, and why."""
    if plan.greedy is None:
        return
    executor = executors()[plan.greedy]
    reasons: Counter[tuple[str, str]] = Counter()
    for op in record.graph.ops:
        reason = "it is an anchor" if is_anchor(op) else executor.supports(op, record.graph)
        if reason is not None:
            reasons[op.target, reason] += 1
    for (target, reason), times in sorted(reasons.items()):
        yield f"left to ATen: {times} × {target}, since {reason}"


def _region(region: RegionRecord, rest: str) -> str:
    size = counted(len(region.ops), "op")
    if region.fallback is None:
        return f"{size} under {region.executor} ({region.variant})"
    return f"{size} under {rest}, not {region.executor}: {region.fallback}"


_REST = {"aten": "ATen", "inductor": "Inductor", "eager": "eager"}
"""Who runs what no region has, by host."""


def _graph(record: GraphRecord, listing: bool, rest: str) -> Iterator[str]:
    graph = record.graph
    opaque = graph.opaque
    name = f"{record.role} graph, no key" if opaque else f"{record.role} graph {graph.key}"
    inside = sum(len(region.ops) for region in record.regions if region.fallback is None)
    regions = counted(len(record.regions), "region")
    where = f"{inside} in {regions}, the rest under {rest}" if inside else f"all under {rest}"
    yield f"{name}: {counted(len(graph.ops), 'op')}, {where}"
    for why in opaque:
        yield f"  cannot be exported: {why}"
    for text, times in Counter(_region(region, rest) for region in record.regions).items():
        yield f"  region of {text}" if times == 1 else f"  {times} regions of {text}"
    if listing:
        yield from (f"  {line}" for line in str(graph).splitlines())
