"""Thunder's fusion pass with fuseplan's regions: what its own torch.compile executor takes, under plans."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import count
from time import perf_counter
from typing import Any
from weakref import WeakKeyDictionary

import torch
from thunder.core import utils
from thunder.core.compile_data import get_compile_data
from thunder.core.proxies import unvariableify
from thunder.core.rematerialization import rematerialize
from thunder.core.symbol import BoundSymbol, Symbol
from thunder.core.trace import TraceCtx, TraceProvenance, from_trace
from thunder.core.transform_common import dce
from thunder.executors.data_dependent_partition import Node, fuse_bound_symbols
from thunder.executors.passes import update_fusion_call_ctx
from thunder.executors.torchex import ex as torch_executor
from thunder.executors.utils import Region
from thunder.extend import FusionExecutor, ImplInfo

from fuseplan import __version__
from fuseplan.thunder.asked import Answer, ask
from fuseplan.thunder.groups import OpGroup, made_by
from fuseplan.thunder.lone import find_homes
from fuseplan.thunder.region import FusedRegion, torch_call

NAME = "Fuseplan"
"""How a trace shows regions: Fuseplan0, Fuseplan1, …"""


class FusedTrace:
    """What one fusion pass has made of a trace: its ops and regions, and why single ops are where they are."""

    def __init__(self, ops: Sequence[BoundSymbol], why: Mapping[str, str]) -> None:
        self.ops = tuple(ops)
        self.why = dict(why)


class FuseplanExecutor(FusionExecutor):  # type: ignore[misc]
    """Takes what torch can run. What it compiles is compiled by torch.compile with backend fuseplan and these options."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__("fuseplan", version=__version__)
        self._implmap = {op: ImplInfo() for op in torch_executor.implmap}
        self.options = dict(options)
        self.passes: WeakKeyDictionary[Any, list[FusedTrace]] = WeakKeyDictionary()
        """By what Thunder knows of a jitted function: its passes, each of one trace, or of one with its backward."""

    def fusion_pass(self, trace: TraceCtx) -> TraceCtx:
        """Give each op of a trace to a region, or leave it. Thunder calls it."""
        start = perf_counter()
        producers, consumers = utils.producers_and_consumers(trace)

        def asked(ops: Sequence[BoundSymbol]) -> Answer:
            region = Region(producers, consumers, list(ops))
            inputs, outputs = _proxies(region.inputs), _proxies(region.outputs)
            what = f"lone_{ops[0].sym.name}" if len(ops) == 1 else f"region_of_{len(ops)}"
            return ask(torch_call(_program_name(what), ops, inputs, outputs), inputs, self.options)

        homes = find_homes(self._groups(trace), asked)
        found = self._with_regions(trace, homes.groups)
        found.set_provenance(TraceProvenance(f"Fusion (took {int(1000 * (perf_counter() - start))} milliseconds)"))
        if (jitted := get_compile_data()) is not None:
            self.passes.setdefault(jitted, []).append(FusedTrace(found.bound_symbols, homes.why))
        return found

    def _with_regions(self, trace: TraceCtx, groups: Sequence[OpGroup]) -> TraceCtx:
        """The trace with regions. Thunder moves ops between them that are cheap to compute again, but none whose home was measured."""
        found, regions = from_trace(trace), [group.fusible and not group.measured for group in groups]
        found.bound_symbols = self._replaced(trace, [group.ops for group in groups], regions, 0)
        found = dce(rematerialize(found))
        measured = {name for group in groups if group.measured for name in made_by(group.ops)}
        now = [not measured.isdisjoint(made_by([op])) for op in found.bound_symbols]
        found.bound_symbols = self._replaced(found, [(op,) for op in found.bound_symbols], now, sum(regions))
        return update_fusion_call_ctx(found)  # which calls `fuse` for what has become of each region

    def _replaced(
        self, trace: TraceCtx, groups: Sequence[tuple[BoundSymbol, ...]], regions: Sequence[bool], first: int
    ) -> list[BoundSymbol]:
        """The ops of a trace, with a region in the place of each group that is to be one; the `first` is numbered so."""
        producers, consumers = utils.producers_and_consumers(trace)
        found, numbers = list[BoundSymbol](), count(first)
        for ops, fused in zip(groups, regions, strict=True):
            found += [self._fused(Region(producers, consumers, list(ops)), next(numbers), None)] if fused else ops
        return found

    def fuse(self, region: Region, fusion_counter: int) -> BoundSymbol:
        """One op in the place of those of a region, with what runs it. Thunder calls it."""
        name = f"{NAME}{fusion_counter}"
        inputs, outputs = _proxies(region.inputs), _proxies(region.outputs)
        call = torch_call(_program_name(name), region.bound_symbols, inputs, outputs)
        return self._fused(region, fusion_counter, FusedRegion(name, call, self.options))

    def _fused(self, region: Region, number: int, call: FusedRegion | None) -> BoundSymbol:
        name = f"{NAME}{number}"
        symbol = Symbol(name, meta=None, is_fusion=True, executor=self)
        inputs, outputs = _proxies(region.inputs), _proxies(region.outputs)
        return BoundSymbol(symbol, inputs, {}, outputs, region.bound_symbols, _call_ctx={name: call})

    def _groups(self, trace: TraceCtx) -> list[OpGroup]:
        def fusible(node: Node) -> bool:
            return len(node.group_bsyms) > 1 or bool(self.can_fuse(node.group_bsyms[0]))

        found = fuse_bound_symbols(trace, lambda one, other: fusible(one) and fusible(other))
        return [OpGroup(tuple(ops), len(ops) > 1 or bool(self.can_fuse(ops[0]))) for ops in found]


def _proxies(variables: Any) -> list[Any]:
    return [unvariableify(one) for one in variables]


def _program_name(what: str) -> str:
    """What a program is called that is part of what is jitted now, such as `NanoGpt_Fuseplan0`: as a function may be called."""
    jitted = getattr(get_compile_data(), "fn", None)
    of = type(jitted).__name__ if isinstance(jitted, torch.nn.Module) else getattr(jitted, "__name__", "")
    return re.sub(r"\W", "", f"{of}_{what}").lstrip("_0123456789")
