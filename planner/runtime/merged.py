"""Weights that a plan reads merged: made once beside the program's own, kept as long as these, and made anew when they change.

What is made lies where it does for good, so that a CUDA graph may read it there, and all programs that read the same merged weights
share them, such as those of prefill and of decoding. At each call four things are compared of each weight that was merged: which tensor
it is, its version, which torch counts up whenever something is written to it, where it lies, and whether what lay there lives on, since
memory that is let go may be given to another. What torch itself does not see, such as a write through `.data`, nobody sees here: `refresh`
is for that.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter
from typing import Any
from weakref import WeakSet, WeakValueDictionary, ref

import torch
from torch import Tensor, nn
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule
from torch.multiprocessing.reductions import StorageWeakRef

from fuseplan.errors import NoRoomError
from fuseplan.host_memory import free_host_memory
from fuseplan.rewrites.siblings import Merger, merged_of, mergers_in
from fuseplan.sizes import spelled_bytes
from fuseplan.stats import count, level
from fuseplan.tuning_db.notify import notify

Callee = Callable[..., Any]
FREE_SHARE = 0.5
"""Without a bound, merged weights take at most this share of what is free on their device when they are made."""
_version, _lies_at = attrgetter("_version"), Tensor.data_ptr
_is_gone: Callable[[int], bool] = torch.Storage._expired  # type: ignore[attr-defined]
_lock = threading.RLock()


class _Seen:
    """What weights were when they were merged."""

    def __init__(self, weights: Sequence[Tensor]) -> None:
        self._state = _state(weights)
        self._storages = [StorageWeakRef(one.untyped_storage()) for one in weights]
        self._places = [one.cdata for one in self._storages]

    def holds(self, weights: Sequence[Tensor]) -> bool:
        """Whether they are that still."""
        return self._state == _state(weights) and not any(map(_is_gone, self._places))


def _state(weights: Sequence[Tensor]) -> list[int]:
    return [*map(_version, weights), *map(_lies_at, weights)]


class MergedWeight:
    """One merged weight, of just these tensors."""

    def __init__(self, merger: Merger, weights: Sequence[Tensor | None]) -> None:
        self.merger = merger
        with _plainly():
            self.tensor = merged_of(merger, weights)
        self.seen = _Seen(_there(weights))

    def bring_up_to_date(self, weights: Sequence[Tensor | None], *, anyway: bool = False) -> bool:
        """Merge anew, in the same place, what has changed, or `anyway`; return whether that was done."""
        if self.seen.holds(_there(weights)) and not anyway:
            return False
        seen = _Seen(_there(weights))
        with _plainly():
            merged_of(self.merger, weights, out=self.tensor)
        self.seen = seen
        return True


_known: WeakValueDictionary[tuple[Any, ...], MergedWeight] = WeakValueDictionary()
"""All that there are, by what they are merged of: they live as long as a program that reads them, and their weights, do."""


class _Instance:
    """The merged weights of one program as one model calls it, whose weights are held weakly."""

    def __init__(self, weights: Sequence[Tensor], gone: Callable[[], None]) -> None:
        self.ids = tuple(map(id, weights))
        self.refs = [ref(one, lambda _: gone()) for one in weights]
        self.kinds = [(one.dtype, one.device, one.shape) for one in weights]
        self.seen: _Seen | None = None
        """Nothing, until all is merged."""
        self.merged: list[MergedWeight] = []
        self.tensors: tuple[Tensor, ...] = ()

    @property
    def is_outdated(self) -> bool:
        """Whether a weight is of another dtype or shape by now, or on another device: then another program is called."""
        weights = [one() for one in self.refs]
        return any(
            one is None or (one.dtype, one.device, one.shape) != kind
            for one, kind in zip(weights, self.kinds, strict=True)
        )


@dataclass(eq=False)
class Merging:
    """What a program may merge, and what of it is merged: for `explain`."""

    bound: int | float | None = None
    """Option `merged_memory`: bytes, or a share of the device's memory."""
    weights: MergedWeights | None = field(default=None, repr=False)

    @property
    def lines(self) -> list[str]:
        """What `explain` says of it."""
        return [] if self.weights is None else [self.weights.line]

    def around(
        self, gm: GraphModule, example_inputs: Sequence[Any], compiled: Callable[[Sequence[Any]], Callee]
    ) -> Callee:
        """What runs a program that was `compiled` with merged weights among its inputs, and is called without."""
        mergers = mergers_in(gm)
        if not mergers:
            return compiled(example_inputs)
        weights = self.weights = MergedWeights(mergers, self.bound)
        called = compiled([*example_inputs, *weights.examples(example_inputs)])

        def call(*args: Any) -> Any:
            return called(*args, *weights.of(args))

        return call


class MergedWeights:
    """The merged weights that one program reads, for each model that calls it."""

    def __init__(self, mergers: Sequence[Merger], bound: int | float | None = None) -> None:
        self.mergers, self.bound = mergers, bound
        places = tuple(dict.fromkeys(place for one in mergers for place in one.places))
        self._picked: Callable[[Sequence[Any]], tuple[Tensor, ...]] = itemgetter(*places)  # siblings are two at least
        number = {place: i for i, place in enumerate(places)}
        self._parts = [[None if place is None else number[place] for place, _ in one.parts] for one in mergers]
        self._instances: dict[tuple[int, ...], _Instance] = {}
        self._has_warned = False
        with _lock:
            _programs.add(self)

    def of(self, args: Sequence[Any]) -> tuple[Tensor, ...]:
        """The merged weights for a call with these arguments."""
        weights = self._picked(args)
        found = self._instances.get(tuple(map(id, weights)))  # equal blocks of one model take turns
        if found is None or found.seen is None or not found.seen.holds(weights):
            return self._looked_up(weights)
        if _is_capturing(weights[0].device):
            _captured.update({id(one): one for one in found.tensors})
        return found.tensors

    def examples(self, inputs: Sequence[Any]) -> Sequence[Tensor]:
        """Merged weights to compile for: of the first model that calls it, or fakes where its weights are."""
        weights = self._picked(inputs)
        if any(isinstance(one, FakeTensor) for one in weights):
            pairs = zip(self.mergers, self._parts, strict=True)
            with torch.no_grad():
                return [merged_of(one, _chosen(weights, parts)) for one, parts in pairs]
        with _lock:
            missing = self._missing_bytes(weights)
            why = self._why_no_room(missing, weights[0].device)
        if why is not None:
            raise NoRoomError(why)
        try:
            found = self._looked_up(weights)
        except torch.OutOfMemoryError as error:
            raise NoRoomError(f"merged weights would take {spelled_bytes(missing)}, which cannot be had") from error
        return [_fixed_in_size(one) for one in found]

    def merge_anew(self, ids: set[int], done: set[MergedWeight]) -> None:
        """Merge all anew that is of some of these tensors, but for what is `done`; what was is added to that."""
        self.drop_outdated()
        for instance in self._instances.copy().values():
            weights = [one() for one in instance.refs]
            if not ids.isdisjoint(instance.ids) and all(one is not None for one in weights):
                for one, parts in zip(instance.merged, self._parts, strict=True):
                    one.bring_up_to_date(_chosen(weights, parts), anyway=one not in done)
                    done.add(one)
                instance.seen = _Seen(_there(weights))

    def drop_outdated(self) -> None:
        """Drop what is of weights that have become others."""
        for ids, instance in self._instances.copy().items():  # a copy: whatever dies meanwhile is dropped
            if instance.is_outdated:
                self._drop(ids)

    @property
    def line(self) -> str:
        """What `explain` says of them."""
        with _lock:
            merged = {one for instance in self._instances.copy().values() for one in instance.merged}
        held = spelled_bytes(sum(one.tensor.nbytes for one in merged))
        matrices = sum(one.tensor.dim() == 2 for one in merged)
        return f"{matrices} merged weights beside the program's own hold {held} of {spelled_bytes(bytes_held())} that all hold"

    def _looked_up(self, weights: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        # What a capture of the caller's records has not run yet. Of tensors of inference mode nobody counts what is written to them.
        if _is_capturing(weights[0].device) or any(map(Tensor.is_inference, weights)):
            return tuple(self._for_one_call(weights))
        with _lock:
            instance, seen = self._instances.get(tuple(map(id, weights))), _Seen(weights)
            changed, is_new = 0, instance is None
            if instance is None:
                for program in list(_programs):
                    program.drop_outdated()
                missing = self._missing_bytes(weights)
                if not self._has_room(missing, weights[0].device):
                    return tuple(self._for_one_call(weights))
                instance = self._new(weights)
                count("weights merged", len(instance.merged))
            for one, parts in zip(instance.merged, self._parts, strict=True):
                changed += one.bring_up_to_date(_chosen(weights, parts))
            if changed:
                count("weights merged anew", changed)
            if changed or is_new:
                _wait(weights[0].device)  # whoever calls it next may do so on another stream
            instance.seen = seen
        return instance.tensors

    def _new(self, weights: tuple[Tensor, ...]) -> _Instance:
        """Merge the weights of a model that has not called it so far, but for what another program has merged of them."""
        own, ids = ref(self), tuple(map(id, weights))

        def gone() -> None:
            if (found := own()) is not None:
                found._drop(ids)

        instance = _Instance(weights, gone)
        for merger, parts in zip(self.mergers, self._parts, strict=True):
            chosen = _chosen(weights, parts)
            key = _key(merger, chosen)
            one = _known.get(key)
            if one is None:
                one = _known[key] = MergedWeight(merger, chosen)
            instance.merged.append(one)
        instance.tensors = tuple(one.tensor for one in instance.merged)
        self._instances[ids] = instance
        return instance

    def _drop(self, ids: tuple[int, ...]) -> None:
        self._instances.pop(ids, None)

    def _for_one_call(self, weights: tuple[Tensor, ...]) -> Iterator[Tensor]:
        with _plainly():
            for merger, parts in zip(self.mergers, self._parts, strict=True):
                yield merged_of(merger, _chosen(weights, parts))

    def _missing_bytes(self, weights: tuple[Tensor, ...]) -> int:
        """How much memory it takes to merge these, beside what is merged of them by now."""
        missing = 0
        for merger, parts in zip(self.mergers, self._parts, strict=True):
            chosen = _chosen(weights, parts)
            if _key(merger, chosen) not in _known:
                missing += sum(one.nbytes for one in _there(chosen))
        return missing

    def _has_room(self, missing: int, device: torch.device) -> bool:
        """Whether there is room; what is merged of other models or blocks stays, and whoever comes later does without."""
        why = self._why_no_room(missing, device)
        if why is None:
            return True
        if not self._has_warned:
            self._has_warned = True
            notify(f"weights are merged anew at each call, which is slow, since several models share a program: {why}")
        count("calls that merged weights for themselves, for lack of room")
        return False

    def _why_no_room(self, missing: int, device: torch.device) -> str | None:
        if not missing:
            return None
        needed = spelled_bytes(missing)
        if self.bound is None:
            free = _free(device)
            if free is None or missing <= free * FREE_SHARE:
                return None
            return (
                f"merged weights would take {needed}, which is more than half of the {spelled_bytes(free)} that is free"
            )
        bound = self.bound if isinstance(self.bound, int) else int(self.bound * _total(device))
        held = bytes_held(device)
        if held + missing <= bound:
            return None
        return f"merged weights would take {needed} beside {spelled_bytes(held)}; merged_memory allows {spelled_bytes(bound)}"


_programs: WeakSet[MergedWeights] = WeakSet()
_captured: dict[int, Tensor] = {}
"""What CUDA graphs of a caller's own read, of which nobody knows how long they are replayed."""


def refresh(model: nn.Module) -> int:
    """Merge anew all that is merged of the weights of a model, and return how many weights that made.

    Under option `weights="fixed"` fuseplan sees by itself what torch counts: in-place changes, `load_state_dict`, `to()`. This is for what it
    cannot see: writes through `.data`, and by kernels that tell torch nothing.

    >>> import torch
    >>> import fuseplan
    >>> model = torch.nn.Linear(2, 2)
    >>> model.weight.data.zero_()
    tensor([[0., 0.],
            [0., 0.]])
    >>> fuseplan.refresh(model)  # nothing is merged of it
    0
    """
    ids = {id(one) for one in (*model.parameters(), *model.buffers())}
    done = set[MergedWeight]()
    with _lock:
        for program in list(_programs):
            program.merge_anew(ids, done)
    for device in {one.tensor.device for one in done}:
        _wait(device)
    count("weights merged anew", len(done))
    return len(done)


def bytes_held(device: torch.device | None = None) -> int:
    """How much memory merged weights take, of one device or of all."""
    found = [one() for one in _known.valuerefs()]  # a list of references is made at once, whoever merges meanwhile
    return sum(one.tensor.nbytes for one in found if one is not None and device in (None, one.tensor.device))


level("bytes held by merged weights", bytes_held)


def _fixed_in_size(tensor: Tensor) -> Tensor:
    """For whoever traces a program: of an input that Dynamo does not know they might take the sizes to vary."""
    context = TracingContext.try_get()
    mode = None if context is None else context.fake_mode
    return tensor if mode is None else mode.from_tensor(tensor, static_shapes=True)


def _chosen(weights: Sequence[Any], parts: Sequence[int | None]) -> list[Any]:
    return [None if part is None else weights[part] for part in parts]


def _there(weights: Sequence[Tensor | None]) -> list[Tensor]:
    return [one for one in weights if one is not None]


def _key(merger: Merger, weights: Sequence[Tensor | None]) -> tuple[Any, ...]:
    """What is merged of what. A tensor that becomes one of another dtype stays the same object."""
    sizes = tuple(size for _, size in merger.parts)
    kinds = tuple(None if one is None else (id(one), one.dtype, one.device, one.shape) for one in weights)
    return merger.dim, sizes, kinds


@contextmanager
def _plainly() -> Iterator[None]:
    """While it lasts, what is computed is a plain tensor, whatever the caller is at."""
    with torch.inference_mode(False), torch.no_grad():
        yield


def _is_capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def _free(device: torch.device) -> int | None:
    """Bytes that are free, those among them that torch holds ready."""
    if device.type != "cuda":
        return free_host_memory()
    free, _ = torch.cuda.mem_get_info(device)
    return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))


def _total(device: torch.device) -> int:
    """Bytes that there are."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
