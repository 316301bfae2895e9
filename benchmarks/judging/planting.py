"""How a fault gets into a program: one call of an ATen op goes wrong, or something does with the run as a whole.

The program is the eager module of a trace; faults of ops are planted by a mode that sees every ATen call of forward and
backward.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fuseplan.capture.trace.load import Loaded

Results = dict[str, Any]
"""What a run gave and wrote, by name, as `Loaded.run` has it."""


@dataclass(frozen=True)
class OpCall:
    """One call of an ATen op."""

    op: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    memory: dict[Any, Any]
    """What a fault keeps from one call to the next of the same run."""

    @property
    def name(self) -> str:
        """The op without its overload, such as `mm`."""
        return str(self.op.overloadpacket).removeprefix("aten.")

    def right(self) -> Any:
        """What the op gives."""
        return self.op(*self.args, **self.kwargs)

    def given(self, args: Sequence[Any] | None = None, **kwargs: Any) -> Any:
        """What the op gives for other arguments."""
        return self.op(*(self.args if args is None else args), **{**self.kwargs, **kwargs})

    def instead(self, **places: Any) -> Any:
        """What the op gives with other arguments, by the names of its schema."""
        args, kwargs = list(self.args), dict(self.kwargs)
        for i, argument in enumerate(self.op._schema.arguments):
            if argument.name in places:
                if i < len(args):
                    args[i] = places[argument.name]
                else:
                    kwargs[argument.name] = places[argument.name]
        return self.op(*args, **kwargs)

    def argument(self, name: str) -> Any:
        """An argument by its name in the schema, given or not."""
        for i, argument in enumerate(self.op._schema.arguments):
            if argument.name == name:
                return self.args[i] if i < len(self.args) else self.kwargs.get(name, argument.default_value)
        return None


def first(call: OpCall) -> Tensor:
    """The first of the results, on its own."""
    found = call.right()
    one: Tensor = found[0] if isinstance(found, (tuple, list)) else found
    return one.clone()


def with_first(call: OpCall, change: Callable[[Tensor], Tensor]) -> Any:
    """The right results, but for the first, which is changed."""
    found = call.right()
    if isinstance(found, (tuple, list)):
        return (change(found[0]), *found[1:])
    return change(found)


def floats(call: OpCall) -> bool:
    """Whether the first argument is a tensor of floats."""
    return bool(call.args) and isinstance(call.args[0], Tensor) and call.args[0].is_floating_point()


@dataclass(frozen=True)
class OpFault:
    """A fault of ATen ops: at one call of them, the middle one, or at all calls."""

    name: str
    ops: tuple[str, ...]
    change: Callable[[OpCall], Any]
    fits: Callable[[OpCall], bool] = lambda call: True
    everywhere: bool = False


@dataclass(frozen=True)
class Run:
    """One right run of a program that a fault may change, and what else it may need to know."""

    loaded: Loaded
    number: int
    seed: int
    results: Results
    first: Results
    """Of the first call."""
    again: Callable[[Callable[..., Any]], Results]
    """Runs what it is given on the same inputs."""


@dataclass(frozen=True)
class RunFault:
    """A fault of the run as a whole; `change` gives None where there is nothing to change."""

    name: str
    change: Callable[[Run], Results | None]


Fault = OpFault | RunFault


@dataclass
class Planted(TorchDispatchMode):
    """While it lasts, one op goes wrong, from when the program is called."""

    fault: OpFault
    at: int | None
    """The number of the call, of those that fit; None of all of them."""
    active: bool = False
    count: int = 0
    memory: dict[Any, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        call = OpCall(func, args, kwargs or {}, self.memory)
        if not self.active or call.name not in self.fault.ops or not self.fault.fits(call):
            return call.right()
        self.count += 1
        return self.fault.change(call) if self.at is None or self.at == self.count - 1 else call.right()


def under(loaded: Loaded, mode: Planted, seed: int) -> Results:
    """Run a program while a mode sees its forward and backward, and not what makes its inputs."""

    def call(*args: Any) -> Any:
        mode.active = True
        return loaded.module(*args)

    with mode:
        return loaded.run(call, seed)


def faulty(loaded: Loaded, fault: Fault, seeds: Sequence[int], right: Mapping[int, Results]) -> list[Results] | None:
    """Run a program with a fault in it, for each of the seeds; None where it has no place for the fault."""
    if isinstance(fault, OpFault):
        calls = Planted(fault, -1)
        under(loaded, calls, seeds[0])
        if not calls.count:
            return None
        at = None if fault.everywhere else calls.count // 2
        return [under(loaded, Planted(fault, at), seed) for seed in seeds]
    found = []
    for number, seed in enumerate(seeds):

        def again(call: Callable[..., Any], seed: int = seed) -> Results:
            return loaded.run(call, seed)

        changed = fault.change(Run(loaded, number, seed, right[seed], right[seeds[0]], again))
        found.append(right[seed] if changed is None else changed)
    return found


def differ(mine: Results, theirs: Results) -> bool:
    """Whether two runs differ in anything: a bit, a type, a layout, or what shares memory with what."""
    if mine.keys() != theirs.keys() or shared(mine) != shared(theirs):
        return True
    return any(_other(mine[name], theirs[name]) for name in mine)


def effect(mine: Results, exact: Results, right: Results) -> float:
    """The largest difference of two runs in double precision, as a share of the largest value of the tensor that it is in;
    infinite of what is no matter of size. Where all of a tensor is rounding, it is as large as it is in the program's own run.
    """
    if mine.keys() != exact.keys() or shared(mine) != shared(exact):
        return float("inf")
    return max((_distance(mine[name], exact[name], right.get(name)) for name in mine), default=0.0)


def _other(mine: Any, theirs: Any) -> bool:
    if not (isinstance(mine, Tensor) and isinstance(theirs, Tensor)):
        return type(mine) is not type(theirs) or bool(mine != theirs and mine == mine)
    if _looks(mine) != _looks(theirs):
        return True
    return not torch.equal(torch.nan_to_num(mine), torch.nan_to_num(theirs)) or _classes(mine, theirs)


def _looks(one: Tensor) -> tuple[Any, ...]:
    return one.dtype, one.shape, one.stride()


def _classes(mine: Tensor, theirs: Tensor) -> bool:
    """Whether one is NaN or infinite where the other is not, or has the other sign."""
    same = (mine == theirs) | (mine.isnan() & theirs.isnan()) | (mine.isfinite() & theirs.isfinite())
    return not bool(same.all())


def _distance(mine: Any, exact: Any, right: Any) -> float:
    if not _other(mine, exact):
        return 0.0
    if not (isinstance(mine, Tensor) and isinstance(exact, Tensor)) or _looks(mine) != _looks(exact):
        return float("inf")
    if not exact.is_floating_point() or _classes(mine, exact):
        return float("inf")
    size = max(_largest(exact), _largest(right) if isinstance(right, Tensor) else 0.0)
    error = _largest(torch.where(exact.isfinite(), mine - exact, 0.0))
    return error / size if size else float("inf")


def _largest(values: Tensor) -> float:
    return float(torch.where(values.isfinite(), values.abs(), 0).max())


def shared(results: Results) -> list[tuple[str, str]]:
    """The pairs of names that share memory."""
    places: dict[int, list[str]] = {}
    for name, value in results.items():
        if isinstance(value, Tensor) and value.numel():
            places.setdefault(value.untyped_storage().data_ptr(), []).append(name)
    return sorted((names[0], other) for names in places.values() for other in names[1:])
