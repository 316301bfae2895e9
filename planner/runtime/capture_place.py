"""Where a program is captured in CUDA graphs, and which of its calls cannot run there: PyTorch's trees are of one thread each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch
from torch._inductor.cudagraph_trees import CUDAGraphTreeManager, get_manager
from torch.multiprocessing.reductions import StorageWeakRef

from fuseplan.executors.flat import Boxed
from fuseplan.runtime.graph_memory import ProgramGraphs
from fuseplan.runtime.graph_pool import Room
from fuseplan.runtime.held import held_outputs
from fuseplan.stats import count

OFTEN = 100
"""After so many calls that had to run plain for an output that is held, whoever asks is told."""
LEARNING = 4
"""So many first calls run plain, and show what callers hold, but for the very first: it compiles, and compilers keep what they were
given there, for long. Those of a program that gives nothing large run plain too, so that one that takes what another gives is
captured when that one is."""
SETTLING = LEARNING + 4
"""So many calls run otherwise than those that follow: large inputs may lie at two places in turn, over each of which a program is
captured, and the first call over each records nothing yet."""
_LAST: WeakKeyDictionary[CUDAGraphTreeManager, Any] = WeakKeyDictionary()
"""The stream on which graphs of these trees were sent last."""
_PLACES: WeakKeyDictionary[CUDAGraphTreeManager, WeakValueDictionary[Any, Copies]] = WeakKeyDictionary()
"""What callers hold of each function that these trees have captured."""
_KEEPING: WeakKeyDictionary[CUDAGraphTreeManager, WeakValueDictionary[int, Copies]] = WeakKeyDictionary()
"""Of each, those that keep what was made in a step that is not over yet: none of programs that nobody trains, however many there are."""


@dataclass(eq=False)
class Copies:
    """Which outputs of one captured function its caller gets in memory of their own: those that it holds across steps."""

    large: tuple[int, ...] = ()
    """Outputs that may be copied, once it is known that callers hold them."""
    remarks: list[str] = field(default_factory=list)
    gradients: bool = False
    trains: bool = False
    """It is part of a step with a backward."""
    held: tuple[int, ...] = ()
    """Those of `large` that a caller was seen to hold."""
    added: set[int] = field(default_factory=set)
    """Those of `held` that are gradients which add up: while the first is held, those after it are let go."""
    learning: int = field(default_factory=lambda: LEARNING)
    """So many calls to come run plain, to see which of `large` are held."""
    last: dict[int, StorageWeakRef] = field(default_factory=dict)
    """What was given last in memory of its own; of what adds up, the first."""
    watched: dict[int, StorageWeakRef] = field(default_factory=dict)
    """What the last plain call gave, which is looked at when the next one comes; and copies of what may add up."""
    is_compiling: bool = True
    """No call was seen yet."""
    originals: list[Any] = field(default_factory=list)
    """What the last call has made, as long as its step lasts."""
    functions: set[Any] = field(default_factory=set)
    """Those of the trees' functions that are known to be captured of it."""
    lasts: Any = None
    """The reference to something of that step that nobody else has: once it is gone, the step is over."""

    def watch(self, outputs: Sequence[Any]) -> None:
        """Take note of what a plain call gives, to see when the next one comes what is held of it.

        So no function is captured on copies of what another one gives, which later come from that one's graph.
        """
        chosen = () if self.is_compiling else self.large
        self.watched = {i: StorageWeakRef(outputs[i].untyped_storage()) for i in chosen}
        self.is_compiling = False
        self.learning -= 1

    def give(self, outputs: list[Any], lasts: Any = None) -> None:
        """Replace what a caller holds by copies, which no later call writes to.

        A graph that is captured while something is let go writes over it at each call. A caller that has let go of all within
        a step may hold that longer within another: so no graph sees an original go before the step is over.
        """
        if self.trains and not self.gradients:
            self.originals, self.lasts = [outputs[i].detach() for i in self.large], lasts
        if not self.held:
            return
        chosen = [i for i in self.held if not self._is_added(i)]
        try:
            copies = copies_of([outputs[i] for i in chosen])
        except torch.OutOfMemoryError:  # then the next call runs plain, if they are held
            return
        for i, copy in zip(chosen, copies, strict=True):
            outputs[i] = copy
            refs = self.watched if self._is_older_held(i) else self.last
            refs[i] = StorageWeakRef(copy.untyped_storage())

    def let_go(self, begins: bool) -> None:
        """Let go of what was made in a step that is over: another one begins, or no backward will come."""
        if self.originals and (begins or (self.lasts is not None and self.lasts.expired())):
            self.originals, self.lasts = [], None

    def _is_added(self, output: int) -> bool:
        return output in self.added and self._is_older_held(output)

    def _is_older_held(self, output: int) -> bool:
        last = self.last.get(output)
        return last is not None and not last.expired()

    def learn(self) -> None:
        """See what is held now of what the last plain call gave, as the next step comes."""
        for output, ref in self.watched.items():
            is_older_held = self._is_older_held(output)
            if not ref.expired():
                self.hold(output, adds_up=not is_older_held)
                self.last[output] = ref
            elif is_older_held and self.gradients:
                self.added.add(output)
        self.watched = {}

    def hold(self, output: int, adds_up: bool = False) -> None:
        """Know of an output that it is held: it is copied from now on."""
        if not adds_up:
            self.added.discard(output)
        if output in self.large and output not in self.held:
            if not self.gradients:
                self.remarks.append(
                    f"output {output} is copied out of its CUDA graph: a caller held it when the next call came"
                )
            elif not self.held:
                self.remarks.append(
                    "gradients are copied out of their CUDA graph: they were held when the next call came, as where"
                    " zero_grad() comes after it"
                )
            self.held += (output,)


@dataclass
class CapturePlace:
    """Where a program is captured: trees are of one thread, and so is what they know of outputs that are held."""

    device: int = 0
    remarks: list[str] = field(default_factory=list)
    outputs: Copies = field(default_factory=Copies)
    gradients: Copies = field(default_factory=Copies)
    manager: CUDAGraphTreeManager | None = None
    """The trees that have captured it."""
    kept: int = 0
    """Calls that ran plain for an output that was held."""
    room: Room = field(default_factory=lambda: Room(ProgramGraphs()))

    def is_elsewhere(self) -> bool:
        """Whether this call can be no part of the trees: another thread's, or captured by the caller itself."""
        if is_capturing():
            return True
        try:
            here = get_manager(self.device, create_if_none_exists=False)
        except AssertionError:  # older versions of torch know no trees in threads that are not the first
            return True
        return self.manager is not None and here is not self.manager

    def captured(self, captured: Boxed, args: list[Any]) -> Sequence[Any]:
        """Run what is captured, after all that the trees were sent on other streams."""
        if self.manager is not None:
            follow(self.manager, self.device)
            outputs = captured(args)
        else:
            outputs = captured(args)
            self.manager = get_manager(self.device, create_if_none_exists=False)
            if self.manager is not None:
                follow(self.manager, self.device)
        if self.manager is not None:
            self.room.look(self.manager)
        return outputs

    def given(
        self, outputs: list[Any], copies: Copies, small: Sequence[int] = (), saved: int | None = None
    ) -> list[Any]:
        """What a caller gets: what it may hold in memory of its own. What is `saved` for the backward nobody else has."""
        node = None if self.manager is None or not copies.large else self.manager.current_node
        if node is not None and self.manager is not None and node.wrapped_function.id not in copies.functions:
            _of_trees(_PLACES, self.manager)[node.wrapped_function.id] = copies
            copies.functions.add(node.wrapped_function.id)
        for i in small:
            outputs[i] = copied(outputs[i])
        refs = () if node is None or saved is None else node.outputs_weakrefs
        copies.give(outputs, refs[saved] if saved is not None and saved < len(refs) else None)
        if copies.originals and self.manager is not None:
            _of_trees(_KEEPING, self.manager)[id(copies)] = copies
        # The trees give the same tensors at each call, and look for who holds these in Python alone: autograd, which saves them,
        # holds others of the same memory. Of what is saved for the backward, one tells of all.
        for i in (() if copies.gradients else copies.large) if saved is None else (*copies.large, saved):
            outputs[i] = outputs[i].detach()
        return outputs

    def learn(self, manager: CUDAGraphTreeManager | None) -> None:
        """See what the caller holds as the next call comes, and let go of what was made in steps that are over."""
        for one in (self.outputs, self.gradients):
            if one.watched:
                one.learn()
        keeping = _KEEPING.get(manager) if manager is not None and _KEEPING else None
        if keeping and manager is not None:
            begins = manager.can_start_new_generation()
            for copies in list(keeping.values()):
                copies.let_go(begins)
                if not copies.originals:
                    del keeping[id(copies)]

    def keep(self, manager: CUDAGraphTreeManager) -> None:
        """Count a call that runs plain for an output that is held. Who holds large outputs gets copies of them from now on."""
        count("calls run plain to keep an earlier output")
        places = _PLACES.get(manager)
        for function, output in held_outputs(manager.current_node):
            copies = None if places is None else places.get(function)
            if copies is not None:
                copies.hold(output)
        self.kept += 1
        if self.kept == OFTEN:
            self.remarks.append(
                f"{OFTEN} calls ran plain, since something was still held of what an earlier one had made: the launch plain"
                " suits such a program better"
            )


def _of_trees(known: WeakKeyDictionary[Any, WeakValueDictionary[Any, Copies]], manager: Any) -> Any:
    """What is known of the functions of some trees."""
    found = known.get(manager)
    if found is None:
        found = known[manager] = WeakValueDictionary()
    return found


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """The same in memory of its own, laid out as it is.

    >>> copied(torch.ones(2, 3).mT).stride(), copied(torch.ones(1).expand(4)).stride()
    ((1, 3), (0,))
    """
    if tensor.is_contiguous():
        return tensor.clone()
    sizes, strides = tensor.shape, tensor.stride()
    if any(size > 1 and stride == 0 for size, stride in zip(sizes, strides, strict=True)):
        span = 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
        return tensor.as_strided((span,), (1,)).clone().as_strided(sizes, strides)
    return torch.empty_strided(sizes, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def copies_of(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The same in memory of their own, most of them by one kernel: a step of training has hundreds of gradients.

    >>> [one.stride() for one in copies_of([torch.ones(2, 3).mT, torch.ones(4), torch.ones(1).expand(4)])]
    [(1, 3), (1,), (0,)]
    """
    copies = [torch.empty_like(tensor) for tensor in tensors]
    dense = [i for i, copy in enumerate(copies) if copy.stride() == tensors[i].stride()]
    if dense:
        torch._foreach_copy_([copies[i] for i in dense], [tensors[i] for i in dense])
    for i in set(range(len(copies))).difference(dense):
        copies[i] = copied(tensors[i])
    return copies


def follow(manager: CUDAGraphTreeManager, device: int) -> None:
    """Make the current stream wait for the one on which the trees were used last, if that is another."""
    last = _LAST.get(manager)
    if last is None or last.cuda_stream != _raw_stream(device):
        here = torch.cuda.current_stream(device)
        if last is not None:
            here.wait_stream(last)
        _LAST[manager] = here


def _raw_stream(device: int) -> int:
    return int(torch._C._cuda_getCurrentRawStream(device))


def is_capturing() -> bool:
    """Whether the caller captures a CUDA graph of its own."""
    return torch.cuda.is_current_stream_capturing()
