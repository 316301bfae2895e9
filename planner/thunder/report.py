"""What became of a jitted function of Thunder's: the region that each op went to, and the program and plan of each region."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from textwrap import indent
from typing import Any

import thunder
from thunder.core.proxies import Proxy
from thunder.core.symbol import BoundSymbol

from fuseplan.errors import OptionError
from fuseplan.explain import explain
from fuseplan.graph.words import counted
from fuseplan.thunder.fusion import FusedTrace, FuseplanExecutor
from fuseplan.thunder.region import FusedRegion

_BESIDE = "fused with its neighbours in the trace"


@dataclass(frozen=True)
class OpPlace:
    """Where one op of a trace went, and why."""

    op: str
    """Its name as the trace has it, such as `linear`."""
    gives: tuple[str, ...]
    """The names of what it gives out, in the trace."""
    region: str | None
    """The region that it is in; None where torch runs it as it is."""
    why: str


def places_of(jitted: Any) -> tuple[OpPlace, ...]:
    """The place of each op that fuseplan's executor may take, in all traces so far."""
    return tuple(place for executor, fused in _passes(jitted) for place in _places(executor, fused))


def explained(jitted: Any, *, graphs: bool = True) -> str:
    """A text about the regions of a jitted function, and about the ops that are in none."""
    texts = [text for executor, fused in _passes(jitted) for text in _texts(executor, fused, graphs)]
    return (
        "\n\n".join(texts) or "Thunder has compiled nothing with fuseplan's executor yet: call it once, then ask again."
    )


def _passes(jitted: Any) -> Iterator[tuple[FuseplanExecutor, FusedTrace]]:
    data = thunder.compile_data(jitted)
    if data is None:
        raise OptionError(f"thunder.jit has not made this {type(jitted).__name__}: ask about what it returned")
    for executor in data.executors_list:
        if isinstance(executor, FuseplanExecutor):
            yield from ((executor, fused) for fused in executor.passes.get(data, ()))


def _places(executor: FuseplanExecutor, fused: FusedTrace) -> Iterator[OpPlace]:
    for op in fused.ops:
        if _region_of(op) is not None:
            yield from (_place(each, fused, op.sym.name, _BESIDE) for each in op.subsymbols)
        elif executor.can_fuse(op):
            yield _place(op, fused, None, "")


def _place(op: BoundSymbol, fused: FusedTrace, region: str | None, why: str) -> OpPlace:
    gives = tuple(out.name for out in op.flat_outs if isinstance(out, Proxy))
    return OpPlace(op.sym.name, gives, region, next((fused.why[name] for name in gives if name in fused.why), why))


def _texts(executor: FuseplanExecutor, fused: FusedTrace, graphs: bool) -> Iterator[str]:
    for op in fused.ops:
        region = _region_of(op)
        if region is None:
            continue
        places = [_place(each, fused, region.name, "") for each in op.subsymbols]
        told = [f"  {place.op} -> {', '.join(place.gives)}: {place.why}" for place in places if place.why]
        yield "\n".join([f"{region.name}: {counted(len(places), 'op')} of the trace", *told, _program(region, graphs)])
    alone = [place for place in _places(executor, fused) if place.region is None]
    if alone:
        yield "\n".join(["in no region:", *(f"  {one.op} -> {', '.join(one.gives)}: {one.why}" for one in alone)])


def _program(region: FusedRegion, graphs: bool) -> str:
    told = explain(region.compiled, graphs=graphs) if region.programs else "it has not been called yet"
    return indent(told, "  ")


def _region_of(op: BoundSymbol) -> FusedRegion | None:
    """What a trace calls there, if that is a region of fuseplan's."""
    found = (op._call_ctx or {}).get(op.sym.name) if op.sym.is_fusion else None
    return found if isinstance(found, FusedRegion) else None
