"""Running eager otherwise, with nothing wrong: on values moved by their own rounding, and in another order of summation.

A mode around a run of a program. Inputs, weights and buffers are moved where an operator reads them, by half a unit in the last
place of the precision in which it reads them: a weight that autocast casts is moved as what it was cast to, so that an
operator of low precision widens what depends on it, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from fuseplan.capture.dynamo.numerics import Numerics
from fuseplan.capture.trace.flex_call import let_through
from fuseplan.judge.memory import is_float
from fuseplan.judge.reordered import REORDERED
from fuseplan.judge.rounding import Noise

aten = torch.ops.aten
_TENSOR_CORES = 2.0**-10
"""What TF32 keeps of a float32 that a matrix product reads."""


class MovedRun(TorchDispatchMode):
    """Moves what is read of `given`, by draws from `seed`; if `reordered`, adds up in another order, and has other functions.

    `random` says afterwards whether anything drew random numbers. The generators of torch itself are not touched.
    """

    def __init__(self, given: Iterable[Any], seed: int, *, reordered: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.noise = Noise(seed)
        self.reordered = reordered
        self.random = False
        numerics = Numerics.here()
        self._tf32 = numerics.matmul_precision != "highest" or numerics.cudnn_tf32
        self._given: dict[int, StorageWeakRef] = {}
        self._all_stays: dict[int, dict[tuple[Any, ...], bool]] = {}
        """Whether all of a tensor stays as it is, by its memory and where it lies there."""
        for value in given:
            self.know(value)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if any(issubclass(kind, FakeTensor) for kind in types):  # flex_attention looks at what its functions would give
            return func(*args, **kwargs)
        if self.random or not _nature(func).seeded:
            return self._dispatched(func, args, kwargs)
        before = _generators(func, args, kwargs)
        result = self._dispatched(func, args, kwargs)
        after = _generators(func, args, kwargs)  # with a share of 0 nothing is drawn
        drawn = not before or any(not torch.equal(*pair) for pair in zip(before, after, strict=True))
        self.random = self.random or drawn
        return result

    def _dispatched(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        nature = _nature(func)
        for i in nature.written:
            for arg in _flat(args[i : i + 1]):
                if isinstance(arg, Tensor):  # not all writes are counted: those of operators of a library, for one
                    self._all_stays.pop(arg.untyped_storage()._cdata, None)
        if nature.copies:
            result = func(*args, **kwargs)
            floats = [arg for arg in _flat(args) if is_float(arg)]
            if floats and all(self._is_given(arg) for arg in floats):
                self.know(result)
            return result
        if nature.is_view:
            return func(*args, **kwargs)
        if nature.decomposes:  # in inference mode nobody has taken it apart before
            with self:
                return func.decompose(*args, **kwargs)
        if not any(self._moves(arg) for arg in _flat(args)):
            return self._run(func, args, kwargs)
        coarsely = self._tf32 and func in _PRODUCTS and _of_tensor_cores(args)
        args = tuple(arg if i in nature.written else self._moved(arg, coarsely) for i, arg in enumerate(args))
        return self._run(func, args, kwargs)

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self.reordered:
            return func(*args, **kwargs)
        other = REORDERED.get(func)
        result = func(*args, **kwargs) if other is None else other(func, args, kwargs)
        nature = _nature(func)
        if not nature.approximate:
            return result
        if not nature.written:
            return tree_map_only(Tensor, self._in_the_last_place, result)
        for one in (arg for i in nature.written for arg in _flat(args[i : i + 1])):
            one.copy_(self._in_the_last_place(one))
        return result

    def _in_the_last_place(self, value: Tensor) -> Tensor:
        """What another library may give."""
        if value.dtype not in (torch.float32, torch.float64):
            return value
        return torch.where(_finite(value), self.noise(value, torch.finfo(value.dtype).eps), value)

    def _moved(self, arg: Any, coarsely: bool) -> Any:
        if isinstance(arg, (list, tuple)):
            return type(arg)(self._moved(item, coarsely) for item in arg)
        if not self._moves(arg):
            return arg
        eps = torch.finfo(arg.dtype).eps
        stays = self._stays(arg)
        if stays is True:
            return arg
        moved = self.noise(arg, max(eps, _TENSOR_CORES) if coarsely else eps)
        return moved if stays is False else torch.where(stays, arg, moved)

    def _stays(self, arg: Tensor) -> Tensor | bool:
        """Which elements are not moved. A weight is read by the forward and by the backward: that it all is, is found out once."""
        known, place = self._all_stays.setdefault(arg.untyped_storage()._cdata, {}), _place(arg)
        if place in known:
            return known[place]
        large = ~_finite(arg)
        if bool(large.any()):
            return _whole(arg) | large
        known[place] = bool(_whole(arg))
        return known[place]

    def _moves(self, arg: Any) -> bool:
        return is_float(arg) and arg.dtype.itemsize > 1 and self._is_given(arg)

    def _is_given(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self._given

    def know(self, value: Any) -> None:
        """Count a tensor among what was given."""
        if isinstance(value, Tensor):
            storage = value.untyped_storage()
            # nobody else comes to lie there while that is held; its memory can go
            self._given[storage._cdata] = StorageWeakRef(storage)


let_through(MovedRun, lambda mode, value: mode._moved(value, coarsely=False))
_COPIES = {
    aten._to_copy.default, aten.clone.default, aten.contiguous.default, aten.lift_fresh_copy.default, aten.copy_.default,
    aten.cat.default, aten.stack.default, aten.embedding.default, aten.index.Tensor, aten.index_select.default,
    aten.gather.default, aten.repeat.default, aten.roll.default, aten.flip.default, aten.constant_pad_nd.default,
    aten.index_put_.default, aten.index_put.default, aten.index_copy_.default, aten.index_copy.default,
    aten.slice_scatter.default, aten.select_scatter.default, aten._reshape_copy.default, aten._unsafe_view.default,
}  # fmt: skip
"""What gives the same values again, at other places or in another precision perhaps."""
_PRODUCTS = {
    aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default, aten.convolution.default,
    aten.convolution_backward.default,
}  # fmt: skip


_APPROXIMATE = frozenset("tanh sigmoid erf erfc exp exp2 expm1 log log2 log10 log1p sin cos tan rsqrt pow".split())
"""What no two libraries round alike: in the last place, which is a lot of `1 + tanh(x)` where that is nearly nothing. In place and for lists,
too: how far an optimizer has come is a power of what is nearly one.
"""


def _is_approximate(func: Any) -> bool:
    """Whether an operator is such a function, of a tensor or of a list of them, in place or not.

    >>> [_is_approximate(one) for one in (aten.exp_.default, aten._foreach_pow.ScalarAndTensor, aten._foreach_mul.List)]
    [True, True, False]
    """
    name = func._schema.name.removeprefix("aten::").removeprefix("_foreach_")
    return func.namespace == "aten" and name.removesuffix("_") in _APPROXIMATE


def _generators(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """The states of torch's generators that an operator may draw from; none where it may draw from any other."""
    tensors = [arg for arg in _flat(args) if isinstance(arg, Tensor)]
    if func.namespace != "aten" or {"generator", "device"} & kwargs.keys():
        return []
    devices = {tensor.device for tensor in tensors}
    if not all(device.type in ("cuda", "cpu") for device in devices):
        return []
    return [torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state() for device in devices]


def _place(tensor: Tensor) -> tuple[Any, ...]:
    """Where the elements of a tensor lie in its memory, in whichever order of its dims, and how often that was written to, if that is
    counted.
    """
    dims = tuple(sorted(zip(tensor.stride(), tensor.shape, strict=True)))
    written = None if tensor.is_inference() else tensor._version
    return (tensor.storage_offset(), tensor.dtype, written, dims)


def _whole(tensor: Tensor) -> Tensor:
    """Whether a tensor holds whole numbers throughout, as masks and counts do: nothing was rounded there. Infinities, and the largest
    numbers that stand for them, are left out.

    Beyond the numbers that a dtype has in full (for bfloat16 from 128 on) every float is whole, which says nothing of it. So some
    have to be below that.
    """
    if tensor.is_complex():
        return _whole(tensor.real) & _whole(tensor.imag)
    info, size = torch.finfo(tensor.dtype), tensor.abs()
    told = size < 1 / info.eps
    between = (tensor != tensor.round()) & told
    return ~between.any() & (_TELLING * told.sum() >= _finite(tensor).sum())


_TELLING = 64
"""One in so many elements has to be small enough to say whether it is whole."""


def _finite(tensor: Tensor) -> Tensor:
    """What is no infinity, and does not stand for one: were that moved, it could become one."""
    return tensor.abs() < torch.finfo(tensor.dtype).max / 2


def _flat(args: Sequence[Any]) -> Iterable[Any]:
    for arg in args:
        if isinstance(arg, (list, tuple)):
            yield from arg
        else:
            yield arg


@dataclass(frozen=True)
class _Nature:
    """What is asked of an operator at each call, thousands of them in a run."""

    seeded: bool
    copies: bool
    is_view: bool
    decomposes: bool
    written: frozenset[int]
    """The positions of arguments that it writes to."""
    approximate: bool


@cache
def _nature(func: Any) -> _Nature:
    arguments = func._schema.arguments
    written = frozenset(i for i, arg in enumerate(arguments) if arg.alias_info is not None and arg.alias_info.is_write)
    seeded = torch.Tag.nondeterministic_seeded in func.tags
    return _Nature(seeded, func in _COPIES, func.is_view, func._can_decompose(), written, _is_approximate(func))


def _of_tensor_cores(args: Sequence[Any]) -> bool:
    """Whether a GPU computes this in TF32, where it may."""
    tensors = [arg for arg in args if isinstance(arg, Tensor)]
    return bool(tensors) and tensors[0].is_cuda and tensors[0].dtype is torch.float32
