"""What a program writes to while fake tensors with sizes that vary run through it, and whether what it writes hangs on these sizes.

A number that is added to a buffer at each call, or zeros that clear it, are the same with inputs that were filled up. What is computed
from such inputs, or written to as much of a cache as they are long, is not: nobody cuts it to the sizes of the call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import SymBool, SymFloat, SymInt, Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class WatchedWrites(TorchDispatchMode):
    """Notes what a program writes to, and whether it draws random numbers."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.random: str | None = None
        self._written: dict[int, torch.UntypedStorage] = {}
        """Memory that is written to. It is kept, so that nothing else comes to lie there."""
        self._hanging: dict[int, torch.UntypedStorage] = {}
        """Memory of which something hangs on sizes that vary, or on tensors that have such."""

    def writes_to(self, tensor: Tensor) -> bool:
        """Whether anything was written to the memory of a tensor."""
        return tensor.untyped_storage()._cdata in self._written

    def hangs_on_sizes(self, tensor: Tensor) -> bool:
        """Whether anything was written to it that hangs on sizes that vary."""
        place = tensor.untyped_storage()._cdata
        return place in self._written and place in self._hanging

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        given = given_to(func, args, kwargs)
        if torch.Tag.nondeterministic_seeded in func.tags and _draws(given):
            self.random = str(func)
        leaves = tree_leaves((args, kwargs))
        hangs = any(map(self._is_hanging, leaves))
        result = func(*args, **kwargs)
        written = dict(map(_storage, written_by(func, given)))
        self._written |= written
        if hangs:
            views = {_storage(one)[0] for one in leaves if isinstance(one, Tensor)}
            made = dict(_storage(one) for one in tree_leaves(result) if isinstance(one, Tensor))
            # a view of a buffer that is as long as an input is tells so itself, and the buffer is no other for it
            self._hanging |= written | {place: one for place, one in made.items() if place not in views}
        return result

    def _is_hanging(self, value: Any) -> bool:
        if isinstance(value, Tensor):
            sizes = (*value.shape, *value.stride(), value.storage_offset())
            return value.untyped_storage()._cdata in self._hanging or any(isinstance(one, SymInt) for one in sizes)
        return isinstance(value, (SymInt, SymFloat, SymBool))


def given_to(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """What an operator is given, by name, and what it takes where it is given nothing."""
    given = {one.name: one.default_value for one in func._schema.arguments if one.has_default_value()}
    return given | dict(zip((one.name for one in func._schema.arguments), args, strict=False)) | dict(kwargs)


def written_by(func: Any, given: Mapping[str, Any]) -> list[Tensor]:
    """The tensors that an operator writes to."""
    names = {one.name for one in func._schema.arguments if one.alias_info is not None and one.alias_info.is_write}
    if given.get("training") or given.get("train"):  # not all norms of batches say what they write
        names |= {"running_mean", "running_var"}
    return [one for name in names for one in tree_leaves(given.get(name)) if isinstance(one, Tensor)]


def _storage(tensor: Tensor) -> tuple[int, torch.UntypedStorage]:
    found = tensor.untyped_storage()
    return found._cdata, found


def _draws(given: Mapping[str, Any]) -> bool:
    """Whether a random operator draws anything: dropout that leaves nothing out does not."""
    shares = [given[name] for name in ("dropout_p", "p") if isinstance(given.get(name), (int, float))]
    return given.get("train") is not False and (not shares or any(shares))
