"""Regions of a single ATen call, made from a real call: what it read and what it gave."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from fuseplan.capture.dynamo.symbols import Symbols
from fuseplan.capture.fx.from_fx import describe
from fuseplan.graph import Alias, Arg, Enum, Graph, Op, Ref, Value


@dataclass(frozen=True)
class Call:
    """One call of an ATen operator, with copies of what it read."""

    target: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors among its arguments."""
        return [x for x in tree_leaves((self.args, self.kwargs)) if isinstance(x, Tensor)]

    def with_tensors(self, change: Callable[[int, Tensor], Tensor]) -> Call:
        """The call with each tensor, by its position among the tensors, replaced."""
        count = iter(range(len(self.tensors)))
        args, kwargs = tree_map(
            lambda x: change(next(count), x) if isinstance(x, Tensor) else x, (self.args, self.kwargs)
        )
        return Call(self.target, args, kwargs)


class Recorder(TorchDispatchMode):
    """Keeps the calls of one operator that are made under it."""

    def __init__(self, target: str) -> None:
        super().__init__()
        self.target = target
        self.calls: list[Call] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if str(func) == self.target:
            kept = tree_map(lambda x: copied(x) if isinstance(x, Tensor) else x, (tuple(args), kwargs or {}))
            self.calls.append(Call(func, *kept))
        return func(*args, **(kwargs or {}))


def copied(x: Tensor) -> Tensor:
    """A copy in memory of its own, with the same strides."""
    span = 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True)) if x.numel() else 0
    return x.detach().as_strided((span,), (1,), x.storage_offset()).clone().as_strided(x.shape, x.stride())


def layouts(call: Call, names: Iterable[str]) -> Iterator[tuple[str, Call]]:
    """The call with its tensors contiguous, transposed in memory, or the first one expanded."""
    for name in names:
        changed = call.with_tensors(_LAYOUTS[name])
        if name == "contiguous" or any(
            a.stride() != b.stride() for a, b in zip(call.tensors, changed.tensors, strict=True)
        ):
            yield name, changed


def _transposed(position: int, x: Tensor) -> Tensor:
    return x.transpose(-1, -2).contiguous().transpose(-1, -2) if x.dim() >= 2 else x


def _expanded(position: int, x: Tensor) -> Tensor:
    return x[:1].expand(x.shape) if position == 0 and x.dim() and len(x) > 1 else x


_LAYOUTS: dict[str, Callable[[int, Tensor], Tensor]] = {
    "contiguous": lambda _, x: x.contiguous(),
    "transposed": _transposed,
    "expanded": _expanded,
}


def region_of_call(call: Call) -> Graph:
    """The call as a region. What it gives as a view is read by one more op, since a region gives no views."""
    symbols = Symbols()
    inputs = {id(x): Value(f"x{i}", describe(x, symbols)) for i, x in enumerate(call.tensors)}
    results = call.target(*call.args, **call.kwargs)
    results = list(results) if isinstance(results, (list, tuple)) else [results]
    outputs = tuple(Value(f"y{i}", describe(r, symbols)) for i, r in enumerate(results))
    shared = [(i, x) for i, r in enumerate(results) for x in call.tensors if isinstance(r, Tensor) and _share(r, x)]
    random = torch.Tag.nondeterministic_seeded in call.target.tags
    ops = [
        Op(
            str(call.target),
            tuple(_arg(a, inputs) for a in call.args),
            tuple((k, _arg(v, inputs)) for k, v in sorted(call.kwargs.items())),
            outputs,
            tuple(Alias(i, inputs[id(x)].name) for i, x in shared),
            tuple(inputs[id(x)].name for x in _written(call)),
            random,
        )
    ]
    given: list[Ref] = []
    views = {i for i, _ in shared}
    for i, result in enumerate(results):
        if isinstance(result, Tensor) and result.numel() and not ops[0].mutates:
            given.append(_read(ops, symbols, outputs[i].name, result) if i in views else Ref(outputs[i].name))
    region = Graph(tuple(inputs[id(x)] for x in call.tensors), tuple(ops), tuple(given))
    region.validate()
    return region


def _read(ops: list[Op], symbols: Symbols, name: str, view: Tensor) -> Ref:
    reader = torch.ops.aten.logical_not.default if view.dtype is torch.bool else torch.ops.aten.neg.default
    ops.append(Op(str(reader), (Ref(name),), (), (Value(f"{name}_read", describe(reader(view), symbols)),)))
    return Ref(f"{name}_read")


def _written(call: Call) -> list[Tensor]:
    written = [a.alias_info is not None and a.alias_info.is_write for a in call.target._schema.arguments]
    return [x for x, is_write in zip(call.args, written, strict=False) if is_write]


def _share(a: Tensor, b: Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() != 0


def _arg(arg: Any, inputs: dict[int, Value]) -> Arg:
    if isinstance(arg, Tensor):
        return Ref(inputs[id(arg)].name)
    if isinstance(arg, (list, tuple)):
        return tuple(_arg(a, inputs) for a in arg)
    for kind, cls in (("dtype", torch.dtype), ("layout", torch.layout), ("memory_format", torch.memory_format)):
        if isinstance(arg, cls):
            return Enum(kind, str(arg).removeprefix("torch."))
    return Enum("device", str(arg)) if isinstance(arg, torch.device) else arg
