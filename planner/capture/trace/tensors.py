"""The tensors that a loaded trace runs on: made up from what is known of the values, laid out as they were."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental.sym_node import DynamicInt

from fuseplan.capture.fx.to_fx import SizeSpace
from fuseplan.capture.trace.args import device_named, named
from fuseplan.capture.trace.values import make
from fuseplan.errors import GraphError
from fuseplan.graph.expr import symbols_in
from fuseplan.graph.limits import short


class Tensors:
    """Parameters and buffers, which the module owns, and the recipes of its arguments."""

    def __init__(self, fields: Mapping[str, Any], base: torch.device | None, seed: int) -> None:
        self._items: list[Mapping[str, Any]] = fields["inputs"]
        self._hints = {symbol["name"]: symbol["hint"] for symbol in fields["symbols"]}
        self._base, self._seed = base, seed
        self._tangents: dict[int, Tensor] = {}
        self._storage = self._storages()
        sizes = self._sizes({})
        owned = [i for i, item in enumerate(self._items) if self._is_owned(i, item)]
        bases: dict[int, Tensor] = {}
        self.owned: dict[int, Tensor] = {i: self._own(i, sizes, bases) for i in owned}
        self.argument_numbers = [
            i for i, item in enumerate(self._items) if i not in self.owned and self._is_argument(i, item)
        ]

    def given(self, fields: Mapping[str, Any]) -> Tensors:
        """The same parameters and buffers, with the recipes of other arguments."""
        found = copy.copy(self)
        found._items, found._tangents = fields["inputs"], {}
        found._hints = {symbol["name"]: symbol["hint"] for symbol in fields["symbols"]}
        return found

    @property
    def parameters(self) -> list[Tensor]:
        return [tensor for tensor in self.owned.values() if isinstance(tensor, nn.Parameter)]

    def name(self, number: int) -> str:
        """What the module calls its input of that number."""
        return f"{self._items[number]['kind']}_{number}"

    def attributes(self) -> Iterator[tuple[str, Tensor]]:
        for i, tensor in self.owned.items():
            yield self.name(i), tensor

    def arguments(self, seed: int, sizes: Mapping[str, int]) -> list[Any]:
        """What the module takes, anew: tensors, and integers that are no tensor's size."""
        known = self._sizes(sizes)
        bases: dict[int, Tensor] = {}
        with torch.inference_mode(False):
            return [self._argument(i, known, seed, bases) for i in self.argument_numbers]

    def source_of_size(self, number: int) -> tuple[int, int] | None:
        """The input, and its dimension, that a size is read from; None of a number that is no tensor's size."""
        return self.place_of(self._items[number]["size"])

    def place_of(self, size: str) -> tuple[int, int] | None:
        """The first input, and its dimension, that has this size."""
        for i, item in enumerate(self._items):
            if item["kind"] != "size" and size in item["shape"]:
                return i, item["shape"].index(size)
        return None

    def related_sizes(self) -> Iterator[tuple[str, int | tuple[int, int]]]:
        """Sizes that vary as others do that come before them, or as is worked out of others, and where each is: an input's dimension, or
        an input that is a number.
        """
        for number, item in enumerate(self._items):
            if item["kind"] == "size":
                if symbols_in(item["size"]) != (item["size"],) and self.source_of_size(number) is None:
                    yield item["size"], number
                continue
            for dim, size in enumerate(item["shape"]):
                if isinstance(size, str) and (symbols_in(size) != (size,) or self.place_of(size) != (number, dim)):
                    yield size, (number, dim)

    def number_of(self, size: str) -> int | None:
        """The first input that is this size itself."""
        own = (i for i, item in enumerate(self._items) if item["kind"] == "size" and item["size"] == size)
        return next(own, None)

    def leaves(self, args: Sequence[Any]) -> Iterator[tuple[str, Tensor]]:
        """What gradients are collected for."""
        for i, tensor in self.owned.items():
            if tensor.requires_grad:
                yield self.name(i), tensor
        for i, tensor in zip(self.argument_numbers, args, strict=True):
            if isinstance(tensor, Tensor) and tensor.requires_grad:
                yield self.name(i), tensor

    def tangent(self, number: int, output: Tensor) -> Tensor:
        """What backward starts from: one for a loss, else fixed random numbers that weigh as much together."""
        kept = self._tangents.get(number)
        if kept is None or kept.shape != output.shape or kept.dtype != output.dtype or kept.device != output.device:
            kept = torch.ones_like(output, requires_grad=False)
            if output.numel() > 1:
                values = {
                    "spread": "normal",
                    "mean": 0.0,
                    "deviation": output.numel() ** -0.5,
                    "low": -9.0,
                    "high": 9.0,
                }
                kept.copy_(make(values, output.shape, torch.float32, output.device, 7919 + number))
            self._tangents[number] = kept
        return kept

    def snapshot(self) -> dict[int, Any]:
        """The buffers, copied, and which version of each parameter there is."""
        return {i: t._version if isinstance(t, nn.Parameter) else t.detach().clone() for i, t in self.owned.items()}

    def restore(self, kept: Mapping[int, Any]) -> None:
        """Put back the buffers, and make anew the parameters that were written."""
        with torch.no_grad():
            for i, was in kept.items():
                if isinstance(was, Tensor):
                    self.owned[i].copy_(was)
        versions = {i: was for i, was in kept.items() if not isinstance(was, Tensor)}
        self.make_anew([i for i, was in versions.items() if self.owned[i]._version != was])

    def make_anew(self, numbers: Iterable[int]) -> None:
        """Give these parameters and buffers the values with which they began."""
        sizes, bases = self._sizes({}), dict[int, Tensor]()
        with torch.no_grad():
            for i in numbers:
                self.owned[i].copy_(self._laid_out(i, sizes, self._seed, bases))

    def after(self, args: Sequence[Any], kept: Mapping[int, Any]) -> dict[str, Tensor]:
        """All that a program may have written, as it is now; of the parameters, those that it did write."""
        written = [i for i, was in kept.items() if isinstance(was, Tensor) or self.owned[i]._version != was]
        copies = {self.name(i): self.owned[i].detach().clone() for i in written}
        given = zip(self.argument_numbers, args, strict=True)
        return copies | {self.name(i): arg.detach() for i, arg in given if isinstance(arg, Tensor)}

    def cuda_devices(self) -> list[int]:
        found = {t.device.index for t in self.owned.values() if t.is_cuda}
        found |= {device.index for item in self._items if (device := self._device(item)).type == "cuda"}
        return sorted(index or 0 for index in found)

    # how they are made

    def _is_owned(self, number: int, item: Mapping[str, Any]) -> bool:
        kinds = {self._items[i]["kind"] for i in self._storage.get(item.get("storage", -1), ())} or {item["kind"]}
        return bool(kinds & {"parameter", "buffer"}) and item["kind"] != "size"

    def _is_argument(self, number: int, item: Mapping[str, Any]) -> bool:
        return item["kind"] != "size" or self.source_of_size(number) is None

    def _storages(self) -> dict[int, list[int]]:
        groups: dict[int, list[int]] = {}
        for i, item in enumerate(self._items):
            if "storage" in item:
                groups.setdefault(item["storage"], []).append(i)
        return groups

    def _own(self, number: int, sizes: Mapping[str, int], bases: dict[int, Tensor]) -> Tensor:
        item = self._items[number]
        tensor = self._laid_out(number, sizes, self._seed, bases)
        return nn.Parameter(tensor, requires_grad=item["grad"]) if item["kind"] == "parameter" else tensor

    def _argument(self, number: int, sizes: Mapping[str, int], seed: int, bases: dict[int, Tensor]) -> Any:
        item = self._items[number]
        if item["kind"] == "size":
            # an int would be fixed; as the size of a tensor it would be captured with the range that sizes have
            return DynamicInt(self._size(item["size"], sizes))
        tensor = self._laid_out(number, sizes, seed, bases)
        tensor.requires_grad_(item["grad"])
        if not item["leaf"]:
            with torch.enable_grad():
                copied = tensor.clone()
                tensor = copied if copied.stride() == tensor.stride() else tensor.view_as(tensor)
            tensor.retain_grad()
        for dim, size in enumerate(item["shape"]):
            if isinstance(size, str):
                torch._dynamo.maybe_mark_dynamic(tensor, dim)
        return tensor

    def _laid_out(self, number: int, sizes: Mapping[str, int], seed: int, bases: dict[int, Tensor]) -> Tensor:
        """A tensor of this input's values, strides and, where it shares one, storage."""
        item, (shape, stride, offset) = self._items[number], self._layout(number, sizes)

        def values(shape: Sequence[int]) -> Tensor:
            dtype, device = named(item["dtype"]), self._device(item)
            return make(item["values"], shape, dtype, device, 1_000_003 * seed + number, item.get("rounded"))

        once = [1 if step == 0 else size for size, step in zip(shape, stride, strict=True)]
        dense = values(once)
        if "storage" not in item and once == shape and list(dense.stride()) == stride:
            return dense
        base = self._base_of(number, sizes, bases, dense)
        if _overlaps(once, stride):
            base.copy_(values([base.numel()]))
        else:
            base.as_strided(once, stride, offset).copy_(dense)
        return base.as_strided(shape, stride, offset)

    def _base_of(self, number: int, sizes: Mapping[str, int], bases: dict[int, Tensor], like: Tensor) -> Tensor:
        """The memory that this input lies in, as large as all who share it need."""
        group = self._items[number].get("storage", number)
        if group not in bases:
            extents = [_extent(*self._layout(i, sizes)) for i in self._storage.get(group, [number])]
            bases[group] = like.new_zeros(max(extents))
        if bases[group].dtype != like.dtype or bases[group].device != like.device:
            raise GraphError(f"{self.name(number)} shares its storage with a tensor of another dtype or device")
        return bases[group]

    def _layout(self, number: int, sizes: Mapping[str, int]) -> tuple[list[int], list[int], int]:
        item = self._items[number]
        shape, stride = ([self._size(size, sizes) for size in item[part]] for part in ("shape", "stride"))
        return shape, stride, item.get("offset", 0)

    def _device(self, item: Mapping[str, Any]) -> torch.device:
        return device_named(item.get("device", "cpu"), self._base)

    def _sizes(self, chosen: Mapping[str, int]) -> dict[str, int]:
        unknown = set(chosen) - set(self._hints)
        if unknown:
            raise GraphError(f"the trace has no size {short(min(unknown))}; it has {', '.join(self._hints) or 'none'}")
        return {name: chosen.get(name, hint) for name, hint in self._hints.items()}

    def _size(self, size: int | str, sizes: Mapping[str, int]) -> int:
        if isinstance(size, int):
            return size
        if None in (known := {name: sizes.get(name) for name in symbols_in(size)}).values():
            raise GraphError(f"nothing is known of the size {short(size)}")
        return int(SizeSpace(known)(size))


def _extent(shape: list[int], stride: list[int], offset: int) -> int:
    """How many elements of memory a tensor reaches over."""
    reach = sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    return offset + (0 if 0 in shape else 1 + reach)


def _overlaps(shape: list[int], stride: list[int]) -> bool:
    """Whether some element may stand at the place of another, by the sizes from the smallest stride up."""
    reach = 0
    for step, size in sorted((step, size) for step, size in zip(stride, shape, strict=True) if size > 1):
        if step <= reach:
            return True
        reach += step * (size - 1)
    return False
