"""Which integers that a program is given are numbers to it, that it adds and compares, and which pick something: those may have no others.

A mode around a run of the program follows each of them through the operators that read it, and through floats that become integers again.
What it does not know picks something.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fuseplan.capture.trace.load import Loaded
from fuseplan.judge.memory import is_float

_ARITHMETIC = frozenset(
    (
        "_to_copy abs add all amax amin any bitwise_and bitwise_not bitwise_or bitwise_xor cat clamp clamp_max clamp_min clip clone"
        " constant_pad_nd copy cumsum div.Scalar div.Tensor eq fill flip ge gt le logical_and logical_not logical_or logical_xor lt masked_fill"
        " max maximum mean min minimum mul ne neg prod repeat roll rsub sgn sign square stack sub sum to tril triu where"
    ).split()
)
"""What takes any integers, by its name, or with its overload where others of the same name do not."""
_LIKE = frozenset("empty_like full_like new_empty new_full new_ones new_zeros ones_like zeros_like".split())
"""What reads nothing but shapes."""


def whole_numbers(loaded: Loaded, among: Sequence[int]) -> frozenset[int]:
    """Those of some integer inputs of a program, by their number in its trace, that are numbers to it. Runs it once."""
    watched = FollowedIntegers()
    places = {number: place for place, number in enumerate(loaded.tensors.argument_numbers)}

    def call(*args: Any) -> Any:
        watched.begin({number: args[places[number]] for number in among if number in places})
        return loaded.module(*args)

    loaded.run(call, within=watched)
    return frozenset(watched.left)


class FollowedIntegers(TorchDispatchMode):
    """Follows integers through what is made of them. Those that are `left` have picked nothing."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.left: set[int] = set()
        self._memory: dict[int, dict[int, torch.UntypedStorage]] = {}
        """Of each, where integers lie that are made of it. They are kept, so that nothing else comes to lie there."""
        self._as_floats: set[int] = set()
        """Those of which floats are made."""

    def begin(self, given: Mapping[int, Tensor]) -> None:
        """Follow these."""
        self.left = set(given)
        self._memory = {number: dict([_storage(one)]) for number, one in given.items()}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        result = func(*args, **kwargs)
        if self.left and not (func.namespace == "aten" and _name(func) in _LIKE):
            self._follow(func, _tensors((args, kwargs)), _tensors(result))
        return result

    def _follow(self, func: Any, given: Sequence[Tensor], made: Sequence[Tensor]) -> None:
        read = dict(_storage(one) for one in given if _is_integer(one))
        has_floats = any(map(is_float, given))
        for number in list(self.left):
            memory = self._memory[number]
            if memory.keys() & read.keys():
                if not _takes_any(func):
                    self.left.remove(number)
                    continue
                if any(map(is_float, made)):
                    self._as_floats.add(number)
            elif not (has_floats and number in self._as_floats):
                continue
            memory |= dict(_storage(one) for one in made if _is_integer(one))


def _tensors(values: Any) -> list[Tensor]:
    return [one for one in tree_leaves(values) if isinstance(one, Tensor)]


def _storage(tensor: Tensor) -> tuple[int, torch.UntypedStorage]:
    found = tensor.untyped_storage()
    return found._cdata, found


def _is_integer(tensor: Tensor) -> bool:
    return not (tensor.dtype is torch.bool or is_float(tensor))


def _name(func: Any) -> str:
    """The name of an operator, which is that of what it does in place, too."""
    return str(func.overloadpacket.__name__).removesuffix("_")


def _takes_any(func: Any) -> bool:
    """Whether an operator takes any integers: arithmetic, and what only looks at memory in another way."""
    if func.namespace != "aten":
        return False
    if any(one.alias_info is not None and not one.alias_info.is_write for one in func._schema.arguments):
        return True
    return not _ARITHMETIC.isdisjoint((_name(func), f"{_name(func)}.{func._overloadname}"))
