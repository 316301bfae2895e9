"""Which cases there are: op x dtype is a Group (one request to a worker), and a group holds Cases."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import torch

DTYPES = ("float32", "float16", "bfloat16", "int64", "bool", "complex64")


@dataclass(frozen=True)
class Group:
    """All cases of one op in one dtype."""

    op: str
    dtype: str

    @property
    def key(self) -> str:
        return f"{self.op}|{self.dtype}"


@dataclass(frozen=True)
class Case:
    """One sample of one op, run in one direction."""

    op: str
    variant: str  # "function" or "inplace"
    dtype: str
    sample: int
    direction: str  # "forward" or "backward"

    @property
    def key(self) -> str:
        return "|".join(str(part) for part in asdict(self).values())


def order(key: str) -> str:
    """A fixed shuffle: sorting by it picks the same few of many on every machine."""
    return hashlib.sha256(key.encode()).hexdigest()


@cache
def ops() -> dict[str, Any]:
    """op_db by name; the few names that occur twice get a number."""
    from torch.testing._internal import common_methods_invocations as invocations

    setattr(invocations, "wrapper_set_seed", _without_seed)  # noqa: B010 -- it is not ours
    named: dict[str, Any] = {}
    for op in invocations.op_db:
        name = f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name
        unique = next(n for n in itertools.chain([name], (f"{name}#{i}" for i in itertools.count(2))) if n not in named)
        named[unique] = op
    return named


def _without_seed(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What op_db wraps around random ops sets the seed inside the program, where Dynamo gives up; we seed outside."""
    return op(*args, **kwargs)


def groups(device: str, names: list[str] | None, dtypes: list[str]) -> list[Group]:
    """Every op in every dtype that it supports on the device."""
    chosen = ops() if names is None else {name: ops()[name] for name in names}
    return [
        Group(name, dtype)
        for name, op in chosen.items()
        for dtype in dtypes
        if getattr(torch, dtype) in op.supported_dtypes(torch.device(device).type)
    ]


def sample_groups(all_groups: list[Group], per_op: int) -> list[Group]:
    """The fixed sample of groups: `per_op` dtypes of every op."""
    ranked = sorted(all_groups, key=lambda group: (group.op, order(group.key)))
    by_op = itertools.groupby(ranked, key=lambda group: group.op)
    return [group for _, members in by_op for group in itertools.islice(members, per_op)]


def samples(group: Group, device: str, count: int, *, requires_grad: bool) -> list[Any]:
    """The group's first samples, the same ones each time: their values come from a seed of the group's own."""
    torch.manual_seed(int(order(group.key)[:8], 16))
    op = ops()[group.op]
    drawn = op.sample_inputs(device, getattr(torch, group.dtype), requires_grad=requires_grad)
    return list(itertools.islice(drawn, count))


def directions(group: Group, device: str) -> tuple[str, ...]:
    """Forward always; backward where the op has a derivative in this dtype."""
    op = ops()[group.op]
    backward = op.supports_autograd and getattr(torch, group.dtype) in op.supported_backward_dtypes(
        torch.device(device).type
    )
    return ("forward", "backward") if backward else ("forward",)


def expand(group: Group, device: str, count: int) -> Iterator[tuple[Case, Any]]:
    """The group's cases, each with its sample."""
    op = ops()[group.op]
    for direction in directions(group, device):
        for index, sample in enumerate(samples(group, device, count, requires_grad=direction == "backward")):
            yield Case(group.op, "function", group.dtype, index, direction), sample
            if has_inplace(op, sample, direction):
                yield Case(group.op, "inplace", group.dtype, index, direction), sample


def has_inplace(op: Any, sample: Any, direction: str) -> bool:
    """Whether this sample can be run in place: its input is a tensor that has the result's shape."""
    if op.inplace_variant is None or sample.broadcasts_input or not isinstance(sample.input, torch.Tensor):
        return False
    return direction == "forward" or bool(op.supports_inplace_autograd)
