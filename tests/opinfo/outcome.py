"""What one run of a case did: outputs, aliasing, the inputs afterwards, gradients; or the error that it raised."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from opinfo.cases import Case, ops
from opinfo.inputs import copied, tensors

SEED = 20260


@dataclass(frozen=True)
class Outcome:
    """Everything about a run that a caller could notice."""

    outputs: list[Any] = field(default_factory=list)
    inputs: list[torch.Tensor] = field(default_factory=list)
    grads: list[torch.Tensor | None] = field(default_factory=list)
    aliases: tuple[tuple[int, int, int], ...] = ()
    random: bool = False
    error: str | None = None


def function(case: Case) -> Callable[..., Any]:
    """The program under test: one call of the op."""
    op = ops()[case.op]
    target = op.inplace_variant if case.variant == "inplace" else op.op

    def call(subject: Any, args: Any, kwargs: Any) -> Any:
        return target(subject, *args, **kwargs)

    def call_on_clone(subject: Any, args: Any, kwargs: Any) -> Any:
        return target(subject.clone(), *args, **kwargs)

    # Autograd forbids changing a leaf in place, and AOTAutograd cannot save an input that the program changes.
    return call_on_clone if case.variant == "inplace" and case.direction == "backward" else call


def attempt(case: Case, sample: Any, call: Callable[..., Any], copy: Callable[[Any], Any] = copied) -> Outcome:
    """Run `call` on a fresh copy of the sample; whatever it raises becomes data."""
    try:
        return _run(case, sample, call, copy)
    except Exception as error:  # noqa: BLE001 -- the boundary: ops, tracers and backends raise what they like
        return Outcome(error=f"{type(error).__name__}: {error}")


def _run(case: Case, sample: Any, call: Callable[..., Any], copy: Callable[[Any], Any]) -> Outcome:
    given = copy((sample.input, list(sample.args), dict(sample.kwargs)))
    leaves = [leaf for leaf in tensors(given) if leaf.requires_grad]
    before = tensors(given)
    torch.manual_seed(SEED)
    state = _random_state(before)
    result = call(*given)
    outputs = pytree.tree_leaves(result)
    aliases = _aliases(outputs, before)
    grads = _gradients(sample, result, leaves) if case.direction == "backward" else []
    return Outcome(outputs, tensors(given), grads, aliases, random=not torch.equal(state, _random_state(before)))


def _gradients(sample: Any, result: Any, leaves: list[torch.Tensor]) -> list[torch.Tensor | None]:
    """Gradients of the outputs that have one, under fixed cotangents that are not all alike."""
    processed = tensors(sample.output_process_fn_grad(result))
    outputs = [out for out in processed if out.requires_grad]
    if not outputs or not leaves:
        raise NoGradientError("no output that requires grad")
    cotangents = [_cotangent(out) for out in outputs]
    return list(torch.autograd.grad(outputs, leaves, cotangents, allow_unused=True))


class NoGradientError(Exception):
    """The op has a derivative, but this sample's outputs don't require one."""


def _cotangent(out: torch.Tensor) -> torch.Tensor:
    ramp = torch.arange(1, out.numel() + 1, dtype=torch.float64, device=out.device)
    values = torch.cos(ramp).reshape(out.shape)
    # float16 and bfloat16 values are exact in every wider dtype, so that the reference gets the same cotangent
    return values.to(torch.bfloat16).to(out.dtype)


def _aliases(outputs: list[Any], inputs: list[torch.Tensor]) -> tuple[tuple[int, int, int], ...]:
    """Per output: which input it is, which input's memory it shows, which earlier output's memory it shows (or -1)."""
    memories = [_memory(leaf) for leaf in inputs]
    shown = [_memory(out) if isinstance(out, torch.Tensor) else None for out in outputs]
    return tuple(
        (_identity(inputs, out), _index(memories, memory), _index(shown[:i], memory))
        for i, (out, memory) in enumerate(zip(outputs, shown, strict=True))
    )


def _memory(tensor: torch.Tensor) -> int | None:
    return tensor.untyped_storage()._cdata if tensor.layout == torch.strided else None


def _identity(inputs: list[torch.Tensor], out: Any) -> int:
    return _first(inputs, lambda leaf: leaf is out)


def _index(memories: list[int | None], memory: int | None) -> int:
    return _first(memories, lambda other: memory is not None and other == memory)


def _first(items: list[Any], test: Callable[[Any], bool]) -> int:
    return next((i for i, item in enumerate(items) if test(item)), -1)


def _random_state(near: list[torch.Tensor]) -> torch.Tensor:
    """The generators' state, CUDA's too where the inputs live there."""
    states = [torch.get_rng_state()]
    if any(leaf.is_cuda for leaf in near):
        states.append(torch.cuda.get_rng_state())
    return torch.cat(states)
