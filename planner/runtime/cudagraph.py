"""CUDA graphs as a launch over any plan, through PyTorch's own cudagraph trees.

What a caller keeps stays the caller's. The trees would overwrite the outputs of an earlier step. Small outputs, such as a
loss, are copied out of the graph's memory, and so are those larger ones that the caller is seen to hold when the next call
comes (as a loop does that overwrites `logits` only when it has the next): the first calls run plain, and show that. Where
something is still alive that was not copied when a new step begins, this step runs plain instead, and is counted.

So does a call in another thread than that which has captured, whose trees would know nothing of it; one within a capture of
the caller's own; and one behind so many forwards without a backward that each would be captured anew. On another stream a
step waits for what was sent before: the memory of the graphs is one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from weakref import ref

import torch
from torch._dynamo.backends.cudagraphs import find_input_mutations, get_stack_traces
from torch._inductor.compile_fx import cudagraphify
from torch._inductor.cudagraph_trees import CUDAGraphNode, CUDAGraphTreeManager, get_manager
from torch._inductor.cudagraph_utils import get_placeholder_info
from torch._inductor.utils import count_tangents
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.multiprocessing.reductions import StorageWeakRef

from fuseplan.capture.dynamo.compilations import keeps_graph
from fuseplan.capture.dynamo.forward_known import forward_known
from fuseplan.executors.flat import Boxed
from fuseplan.log import logger
from fuseplan.runtime.capturable import inside_on_cpu, obstacle, obstacle_in_code, tensors_of
from fuseplan.runtime.capture_place import CapturePlace, Copies
from fuseplan.runtime.graph_memory import ProgramGraphs
from fuseplan.runtime.graph_pool import Room
from fuseplan.runtime.held import is_held
from fuseplan.runtime.in_place import ReadInPlace
from fuseplan.runtime.made import Made
from fuseplan.runtime.unasked import CapturedBackward, Unasked
from fuseplan.stats import count

SMALL = 64 * 1024
"""Bytes up to which an output is copied, for some microseconds: a loop that overwrites `loss` still holds the last one."""
DEEPEST = 128
"""So many graphs may follow each other within one step. Forwards of which something is held, and no backward comes, never
begin a new one: each would be captured anew, behind all others."""


@dataclass(frozen=True)
class CaptureFacts:
    """What is known of a graph that its code may be captured by: plain data, which is as true in another process."""

    role: str
    refused: str | None = None
    """Why it cannot be captured."""
    on_cpu: str | None = None
    """What it has on the CPU, neither taken nor given: its code can be captured if a compiler left nothing of that there."""
    device: int = 0
    told: Mapping[str, Any] = field(default_factory=dict)
    """What the trees are told of it."""
    small: tuple[int, ...] = ()
    """Positions of small outputs."""
    large: tuple[int, ...] = ()
    """Positions of the other outputs that a caller gets, in memory that is no input's and no other output's; of a backward,
    those of all gradients."""
    made: Mapping[str, int] = field(default_factory=dict)
    """What a forward makes for its backward: where it is among the outputs, by its name in both graphs."""
    saved: int | None = None
    """Where something of that is which nobody else gets."""
    taken: tuple[int, ...] | None = None
    """Where a backward has that among its arguments; None where it has not all of it, or has an order of its own."""
    copied: tuple[int, ...] = ()
    """Positions of inputs that are copied wherever they lie."""

    def compiled(self, code: Any) -> CaptureFacts:
        """The same once Inductor has made `code` of the graph, which tells the rest."""
        why = self.refused or obstacle_in_code(code, self.on_cpu)
        return CaptureFacts(self.role, why) if why else replace(self, on_cpu=None)


class CudaGraphLaunch:
    """Wraps the callables of one program: the backward must know whether its forward could be captured."""

    def __init__(self, remarks: list[str], graphs: ProgramGraphs | None = None) -> None:
        self.remarks = remarks
        self.room = Room(graphs or ProgramGraphs())
        self.refused: str | None = None
        self.device: int | None = None
        self.made = Made()
        self.place = CapturePlace()
        self.unasked = Unasked()

    def wrap(self, role: str, gm: GraphModule, plain: Boxed) -> Boxed:
        """Return `plain` launched through a CUDA graph, or as it is where that cannot be; `refused` says why."""
        return self.wrapping(self.facts(role, gm))(plain)

    def facts(self, role: str, gm: GraphModule, folds: bool = False) -> CaptureFacts:
        """What there is to know of `gm`, for a compiler that does not leave it as it was. The forward's come first.

        One that `folds` may write numbers into kernels that are constants on the CPU here; what it left is known then alone.
        """
        on_cpu = inside_on_cpu(gm) if folds else None
        reason = obstacle(gm, but_cpu=on_cpu is not None) or (self.refused if role == "backward" else None)
        if reason is not None:
            return CaptureFacts(role, reason)
        told = {
            "static_input_idxs": _static_inputs(role, gm),
            "stack_traces": get_stack_traces(gm),
            "is_backward": role == "backward",
            "is_inference": role == "inference",
            "placeholders": get_placeholder_info(gm.graph),
            "mutated_input_idxs": tuple(find_input_mutations(gm.graph)),
        }
        device, copied = _device_index(gm), _copied(gm)
        if role == "backward":
            gradients, taken = _gradients(gm), self.made.taken_by(gm)
            return CaptureFacts(role, None, on_cpu, device, told, large=gradients, taken=taken, copied=copied)
        small, large = _own_outputs(gm)
        made = _made_by(gm)
        saved = _saved_alone(gm, made)
        if saved is None:  # whether a step is over can't be seen: who gets what is saved, too, gets a copy
            large, both = _split(gm, large, made)
            small += both
        return CaptureFacts(role, None, on_cpu, device, told, small, large, made, saved, copied=copied)

    def wrapping(self, facts: CaptureFacts) -> Callable[[Boxed], Boxed]:
        """What wraps the callable of the graph that the facts are of."""
        if facts.role != "backward":
            self.refused = facts.refused
        if facts.refused is not None:
            self.unasked.lends = False
            remark = f"the {facts.role} graph runs without a CUDA graph: {facts.refused}"
            if remark not in self.remarks:  # which it is where a forward was recalled, and its backward could not be
                count("graphs not captured")
                self.remarks.append(remark)
                logger.warning(remark)
            return self._plain_backward if facts.role == "backward" else _as_it_is
        self.device = device = facts.device
        capture: partial[Any] = partial(cudagraphify, device_index=device, **facts.told)
        if facts.role == "backward":
            follows = self.made.follows(facts.taken)
            self.place.gradients = Copies(facts.large, self.remarks, gradients=True, trains=True)
            guard, ours = partial(_guard_backward, place=self.place, follows_capture=follows), self.unasked
            return lambda plain: guard(CapturedBackward(capture, plain, ours, facts.copied), ours.on_copies(plain))
        self.made = made = Made(facts.made)
        outputs = Copies(facts.large, self.remarks, trains=facts.saved is not None)
        self.room.on(device, made)
        self.place = place = CapturePlace(device, self.remarks, outputs, room=self.room)
        self.room.graphs.is_elsewhere = partial(_is_elsewhere, ref(place))  # the place holds these graphs
        return lambda plain: _guard_forward(ReadInPlace(capture, plain, facts.copied), plain, place, facts, made)

    def _plain_backward(self, plain: Boxed) -> Boxed:
        """The backward of a captured forward ends its step, whether captured itself or not."""
        device = self.device
        if device is None:
            return plain
        plain = self.unasked.on_copies(plain)

        def call(args: list[Any]) -> Sequence[Any]:
            if not self.place.is_elsewhere() and (manager := self.place.manager) is not None:
                manager.set_to_running_backward()
            return plain(args)

        return _boxed(call)


def _is_elsewhere(place: ref[CapturePlace]) -> bool:
    found = place()
    return found is not None and found.is_elsewhere()


def _made_by(gm: GraphModule) -> dict[str, int]:
    """What a forward graph makes for its backward."""
    nodes: Any = gm.graph.output_node().args[0]
    metadata = forward_known()
    first = len(nodes) if metadata is None else metadata.num_forward
    given = {_storage(node) for node in gm.graph.find_nodes(op="placeholder")}
    storages = {i: _storage(nodes[i]) for i in range(first, len(nodes))}
    return {nodes[i].name: i for i, storage in storages.items() if storage not in {None, *given}}


def _storage(node: Any) -> StorageWeakRef | None:
    value = node.meta.get("val") if isinstance(node, Node) else None
    return StorageWeakRef(value.untyped_storage()) if isinstance(value, torch.Tensor) else None


def _as_it_is(plain: Boxed) -> Boxed:
    return plain


def _guard_forward(captured: Boxed, plain: Boxed, place: CapturePlace, facts: CaptureFacts, made: Made) -> Boxed:
    def call(args: list[Any]) -> Sequence[Any]:
        if place.is_elsewhere():
            count("calls run plain in another thread, or while their caller captures")
            return plain(args)
        manager = place.manager or get_manager(place.device, create_if_none_exists=False)
        place.learn(manager)
        if place.outputs.learning:
            outputs = plain(args)
            place.outputs.watch(outputs)
            return outputs
        if not place.room.is_there(manager, args):
            count("calls run plain for lack of room for CUDA graphs")
            return plain(args)
        if manager is not None and _would_overwrite(manager):
            place.keep(manager)
            return plain(args)
        if manager is not None and _goes_too_deep(manager):
            count("calls run plain behind forwards without a backward")
            return plain(args)
        outputs = list(place.captured(captured, args))
        made.note(outputs, place.manager)
        return place.given(outputs, place.outputs, facts.small, facts.saved)

    return _boxed(call)


def _own_outputs(gm: GraphModule) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Positions of the outputs that a caller gets in memory of their own, the small ones and the others; not what is saved for
    the backward.
    """
    nodes: Any = gm.graph.output_node().args[0]
    values = [node.meta.get("val") if isinstance(node, Node) else None for node in nodes]
    inputs = gm.graph.find_nodes(op="placeholder")
    users = Counter(map(_storage, {*inputs, *nodes[: _returned(nodes)]}))
    own = {
        i: value
        for i, value in enumerate(values[: _returned(nodes)])
        if isinstance(value, torch.Tensor) and nodes[i] not in inputs
    }
    small = tuple(i for i, value in own.items() if _is_small(value))
    return small, tuple(i for i in own if i not in small and users[_storage(nodes[i])] == 1)


def _saved_alone(gm: GraphModule, made: Mapping[str, int]) -> int | None:
    """Where something is that a forward makes for its backward and gives to nobody else."""
    nodes: Any = gm.graph.output_node().args[0]
    given = {_storage(node) for node in nodes[: _returned(nodes)]}
    return next((i for i in made.values() if _storage(nodes[i]) not in given), None)


def _split(gm: GraphModule, outputs: Sequence[int], made: Mapping[str, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Those of the outputs that are not made for the backward as well, and those that are."""
    nodes: Any = gm.graph.output_node().args[0]
    saved = {_storage(nodes[i]) for i in made.values()}
    both = tuple(i for i in outputs if _storage(nodes[i]) in saved)
    return tuple(i for i in outputs if i not in both), both


def _gradients(gm: GraphModule) -> tuple[int, ...]:
    """Positions of what a backward graph gives in memory that is no input's."""
    nodes: Any = gm.graph.output_node().args[0]
    given = {None, *map(_storage, gm.graph.find_nodes(op="placeholder"))}
    return tuple(i for i, node in enumerate(nodes) if _storage(node) not in given)


def _copied(gm: GraphModule) -> tuple[int, ...]:
    """Positions of inputs in whose memory something lies that the graph gives, such as what is saved as it is for the backward:
    the trees would keep that with the graph. Of a graph of sizes that vary, all.
    """
    given = set(map(_storage, gm.graph.output_node().args[0])) - {None}  # type: ignore[arg-type]
    inputs = gm.graph.find_nodes(op="placeholder")
    varies = any(isinstance(one.meta.get("val"), torch.SymInt) for one in inputs)
    return tuple(i for i, node in enumerate(inputs) if varies or _storage(node) in given)


def _returned(outputs: Sequence[Any]) -> int:
    """How many outputs of a forward graph are its caller's; the rest is saved for the backward."""
    metadata = forward_known()
    return len(outputs) if metadata is None else int(metadata.num_forward_returns)


def _is_small(value: torch.Tensor) -> bool:
    """For all sizes; what may grow is not."""
    return statically_known_true(value.numel() * value.element_size() <= SMALL)


def _guard_backward(
    captured: Boxed, plain: Boxed, place: CapturePlace, follows_capture: Callable[[list[Any]], bool]
) -> Boxed:
    """A backward belongs to the step of its forward: it begins none, in which all of that step would be lost.

    One that leaves what was saved runs plain: captured, it would write over that, or let it be written over.
    """

    def call(args: list[Any]) -> Sequence[Any]:
        if place.is_elsewhere():
            count("backward calls run plain")
            return plain(args)
        manager = place.manager or get_manager(place.device, create_if_none_exists=False)
        if place.gradients.learning:
            if manager is not None:
                manager.set_to_running_backward()
            gradients = plain(args)
            place.gradients.watch(gradients)
            return gradients
        if place.outputs.learning:  # of two backwards of one forward, the second learns as well
            return plain(args)
        follows = manager is None or not (keeps_graph() or _would_overwrite(manager) or not follows_capture(args))
        if not follows or not place.room.is_left(manager):
            count("backward calls run plain")
            if manager is not None:
                manager.set_to_running_backward()
            return plain(args)
        return place.given(list(place.captured(captured, args)), place.gradients)

    return _boxed(call)


def _would_overwrite(manager: CUDAGraphTreeManager) -> bool:
    """Whether a new step would begin now, over memory that a caller still holds."""
    node = manager.current_node
    return node is not None and manager.can_start_new_generation() and is_held(node)


def _goes_too_deep(manager: CUDAGraphTreeManager) -> bool:
    """Whether this would be one graph more in a step that has very many, and that cannot end: some of it is held."""
    node = manager.current_node
    if node is None or manager.can_start_new_generation():
        return False
    return _is_deep(node) and is_held(node)


def _is_deep(node: Any) -> bool:
    if isinstance(node, CUDAGraphNode):
        return len(node.path_weakrefs) >= DEEPEST
    before = 0
    while node is not None and before < DEEPEST:
        node, before = node.parent, before + 1
    return before >= DEEPEST


def _device_index(gm: GraphModule) -> int:
    index = next(tensor.device.index for tensor, _ in tensors_of(gm) if tensor.device.type == "cuda")
    return torch.cuda.current_device() if index is None else index


def _static_inputs(role: str, gm: GraphModule) -> Sequence[int]:
    """Inputs that keep their address: parameters and buffers, and what the captured forward saved."""
    if role == "backward":
        return range(count_tangents(gm))
    metadata = forward_known()
    return () if metadata is None else tuple(metadata.static_input_indices)


def _boxed(call: Any) -> Boxed:
    call._boxed_call = True
    return call  # type: ignore[no-any-return]
