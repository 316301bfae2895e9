"""Calls of a padded plan: their inputs are filled up to the edge of a box, and what the program gives there is cut to their sizes.

Each thread, and each stream of it, has one buffer for each input that is filled up: it lies at the same place at every call, so that a
CUDA graph reads it there, and is clear behind what the last call has left in it. Calls at the edge are copied there, too: over what lies
elsewhere at each call a graph would be recorded anew. Outputs are copied out, so that a caller
holds as much memory as the sizes ask for, laid out as it would be without padding.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from fuseplan.capture.dynamo.at_edge import AtEdge, CutOutput, FilledInput, Spans, at_edge
from fuseplan.capture.dynamo.modes import modes_kept
from fuseplan.runtime.graph_memory import ProgramGraphs
from fuseplan.runtime.padding import PaddingTally, Sizes
from fuseplan.runtime.record import Program
from fuseplan.runtime.unpadded import MOST_SIZES, UnpaddedCalls
from fuseplan.stats import count

Callee = Callable[..., Any]
Compiling = Callable[[GraphModule, Sequence[Any]], Callee]
"""What makes a callable of a program and its inputs."""


def padded(
    spans: Spans,
    gm: GraphModule,
    example_inputs: Sequence[Any],
    program: Program,
    compiled: Compiling,
    default: Compiling | None,
) -> Callee:
    """What runs a program that is `compiled` for the edge of a box of sizes. PlanError where it cannot be filled up to it. Calls that are
    not filled up run under the `default`.
    """
    found = at_edge(gm, example_inputs, spans)
    unpadded = UnpaddedCalls(gm, found.reading, program, default)
    with found.edge.traced(), modes_kept():
        called = compiled(found.edge.gm, found.edge.inputs)
    call = PaddedCalls(found, called, unpadded, program.cuda_graphs)
    program.padding = call.tally
    return call


@dataclass(frozen=True)
class SizedCall:
    """How calls of some sizes are filled up and cut."""

    sizes: Sizes
    shapes: tuple[tuple[int, ...], ...]
    """Of each input that is filled up."""
    outputs: tuple[SizedOutput, ...]
    elements: int
    """Of all inputs that are filled up."""
    ends: Tensor | None
    """The sizes by which something is taken from their ends, if anything is."""


@dataclass(frozen=True)
class SizedOutput:
    """One output of calls of some sizes."""

    place: int | None
    number: Any
    cuts: tuple[tuple[int, int], ...]
    """Its dimensions that are larger at the edge, and how large each is here."""
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    as_at_edge: bool
    """Whether it lies here as it does at the edge."""
    is_view: bool

    def of(self, outputs: Sequence[Any]) -> Any:
        """It, of what the program gives at the edge."""
        if self.place is None:
            return self.number
        tensor = outputs[self.place]
        if self.as_at_edge:
            return tensor
        for dim, size in self.cuts:
            tensor = tensor.narrow(dim, 0, size)
        if self.is_view:
            return tensor
        found = tensor.new_empty_strided(self.shape, self.stride)
        _once(found).copy_(_part(tensor, _once(found).shape))
        return found


class FilledBuffers:
    """Memory for the inputs that are filled up, clear but for what the last call has left in it."""

    def __init__(self, filled: Sequence[FilledInput], device_of: Sequence[Any]) -> None:
        with torch.inference_mode(False), torch.no_grad():
            self.tensors = [_laid_out(one.edge, device_of[one.place].device) for one in filled]
            self._whole = [_once(one) for one in self.tensors]
        self._repeating = [i for i, one in enumerate(self.tensors) if self._whole[i].shape != one.shape]
        self._holds: SizedCall | None = None
        self._parts: dict[Sizes, list[Tensor]] = {}
        """Where the inputs of calls of some sizes lie."""
        self._tails: dict[Sizes, list[Tensor]] = {}
        """What lies between calls of some sizes and the edge. What two calls in turn leave between them would be less to clear, but is of
        as many views as there are pairs of sizes: where these come at random, nearly each call would make its own.
        """

    def fill(self, call: SizedCall, values: list[Tensor]) -> None:
        """Copy what a call is given into them, and clear what lies behind it."""
        before, self._holds = self._holds, None
        if before is None:  # there is nothing in them yet, or a call has failed here
            torch._foreach_zero_(self._whole)
        elif before is not call:
            tails = self._tails.get(call.sizes)
            if tails is None:
                tails = _kept(self._tails, call.sizes, partial(self._behind, call))
            if tails:
                torch._foreach_zero_(tails)
        parts = self._parts.get(call.sizes)
        if parts is None:
            parts = _kept(self._parts, call.sizes, partial(self._parts_of, call))
        for i in self._repeating:
            values[i] = _once(values[i])
        torch._foreach_copy_(parts, values)
        self._holds = call

    def _parts_of(self, call: SizedCall) -> list[Tensor]:
        return [_once(_part(one, shape)) for one, shape in zip(self.tensors, call.shapes, strict=True)]

    def _behind(self, call: SizedCall) -> list[Tensor]:
        return [
            _once(_part(tensor, (*shape[:dim], *tensor.shape[dim:])).narrow(dim, size, tensor.shape[dim] - size))
            for tensor, shape in zip(self.tensors, call.shapes, strict=True)
            for dim, size in enumerate(shape)
            if size < tensor.shape[dim]
        ]


def _kept(known: dict[Any, list[Tensor]], key: Any, made: Callable[[], list[Tensor]]) -> list[Tensor]:
    """Views of buffers, once they are made, of which so many are kept."""
    if len(known) >= MOST_SIZES:
        known.clear()
    with torch.inference_mode(False), torch.no_grad():
        found = known[key] = made()
    return found


class _Here(threading.local):
    """What a thread has of its own: buffers by stream."""

    def __init__(self) -> None:
        self.buffers: dict[int, FilledBuffers] = {}


class PaddedCalls:
    """What is called in the place of a program that runs at the edge of a box of its sizes."""

    def __init__(self, program: AtEdge, called: Callee, unpadded: UnpaddedCalls, graphs: ProgramGraphs) -> None:
        self._program, self._called, self._unpadded, self._graphs = program, called, unpadded, graphs
        self._read = program.reading.read
        self._given = program.given
        self._filled = [(program.given.index(one.place), one.place) for one in program.filled]
        self._device = next((one.edge.device.index for one in program.filled if one.edge.is_cuda), None)
        self._at_edge = {name: high for name, _, high in program.spans}
        self._edge = self._sized(tuple(self._at_edge[name] for name in program.reading.names), self._at_edge)
        self._calls: dict[Sizes, SizedCall | None] = {}
        self._here = _Here()
        self.tally = PaddingTally.kept(program.spans, self._edge.elements, self)

    def __call__(self, *args: Any) -> Any:
        """One call of the program."""
        sizes = self._read(args)
        call = self._calls.get(sizes) or self._meet(sizes)
        if call is None:
            count("calls outside of the box of a padded plan")
            return self._unpadded.run(sizes, args)
        if self._graphs.is_elsewhere() and not self._is_captured():  # there it would run plain, at the edge
            count("calls of a padded plan in another thread than its CUDA graph")
            return self._unpadded.run(sizes, args)
        self.tally.calls[sizes] += 1
        if call.ends is not None:
            args = (*args, call.ends)
        given = [args[place] for place in self._given]
        buffers = self._buffers(args)
        buffers.fill(call, [args[place] for _, place in self._filled])
        for (number, _), tensor in zip(self._filled, buffers.tensors):  # noqa: B905 -- at each call
            given[number] = tensor
        outputs = self._called(*given)
        found: dict[int, Any] = {}
        return [_once_each(one, outputs, found) for one in call.outputs]

    def _meet(self, sizes: Sizes) -> SizedCall | None:
        if sizes in self._calls:  # which are not filled up
            return None
        if len(self._calls) >= MOST_SIZES:
            self._calls.clear()
            self.tally.forget()
        named = self._program.reading.by_name(sizes)
        call: SizedCall | None
        if self._program.why_not(named) is not None:
            call = None
        elif all(high == named[name] for name, _, high in self._program.spans):
            call = self._edge
        else:
            call = self._sized(sizes, named)
            self.tally.elements[sizes] = call.elements
        # within a capture the numbers of its ends are there once that graph runs, and for it alone
        if not (self._program.ends and self._is_captured()):
            self._calls[sizes] = call
        return call

    def _sized(self, sizes: Sizes, named: Mapping[str, int]) -> SizedCall:
        at = self._program.own.at
        shapes = tuple(tuple(at(named, one.shape)) for one in self._program.filled)

        def sized(one: CutOutput) -> SizedOutput:
            number = at(named, (one.number,))[0] if isinstance(one.number, torch.SymInt) else one.number
            shape, stride = (tuple(at(named, dims)) for dims in (one.shape, one.stride))
            cuts = tuple((dim, size) for dim, size in enumerate(shape) if size != one.edge[dim])
            as_at_edge = not cuts and (one.is_view or stride == tuple(at(self._at_edge, one.stride)))
            return SizedOutput(one.place, number, cuts, shape, stride, as_at_edge, one.is_view)

        ends = self._program.ends
        elements = sum(map(prod, shapes)) - len(ends)
        return SizedCall(sizes, shapes, tuple(map(sized, self._program.outputs)), elements, self._ends(named))

    def _ends(self, named: Mapping[str, int]) -> Tensor | None:
        """The sizes as a tensor, where the program is given them as one: it is there when this returns, as other streams read it; within a
        capture it is written number by number, as may be done there.
        """
        if not self._program.ends:
            return None
        edge = self._program.filled[-1].edge
        with torch.inference_mode(False), torch.no_grad():
            if not self._is_captured():
                return torch.tensor([named[name] for name in self._program.ends], dtype=edge.dtype, device=edge.device)
            found = torch.empty(edge.shape, dtype=edge.dtype, device=edge.device)
            for i, name in enumerate(self._program.ends):
                found[i].fill_(named[name])
        return found

    def _is_captured(self) -> bool:
        """Whether this call is part of a CUDA graph that its caller captures."""
        return self._device is not None and torch.cuda.is_current_stream_capturing()

    def _buffers(self, args: Sequence[Any]) -> FilledBuffers:
        """Those of this thread and stream. A CUDA graph that the caller captures would run again over what a later call has left in them:
        there they are new.
        """
        stream = 0
        if self._device is not None:
            if self._is_captured():
                return FilledBuffers(self._program.filled, args)
            stream = torch._C._cuda_getCurrentRawStream(self._device)
        known = self._here.buffers
        found = known.get(stream)
        if found is None:
            found = known[stream] = FilledBuffers(self._program.filled, args)
        return found


def _once_each(one: SizedOutput, outputs: Sequence[Any], found: dict[int, Any]) -> Any:
    """An output, which is the same tensor wherever a program gives it more than once."""
    if one.place is None:
        return one.number
    if one.place not in found:
        found[one.place] = one.of(outputs)
    return found[one.place]


def _laid_out(like: Tensor, device: torch.device) -> Tensor:
    """Memory that lies as a fake tensor does."""
    span = (
        like.storage_offset() + 1 + sum((size - 1) * step for size, step in zip(like.shape, like.stride(), strict=True))
    )
    memory = torch.empty(span, dtype=like.dtype, device=device)
    return memory.as_strided(like.shape, like.stride(), like.storage_offset())


def _part(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """The elements of a tensor that lie within a shape."""
    for dim, size in enumerate(shape):
        if size != tensor.shape[dim]:
            tensor = tensor.narrow(dim, 0, size)
    return tensor


def _once(tensor: Tensor) -> Tensor:
    """A tensor without what it only repeats."""
    for dim, step in enumerate(tensor.stride()):
        if step == 0 and tensor.shape[dim] > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor
