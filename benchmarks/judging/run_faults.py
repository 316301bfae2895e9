"""Faults of a run as a whole: state that is stale or lost, gradients, aliases and layouts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from benchmarks.judging.planting import Results, Run, RunFault, shared


def run_faults() -> Iterator[RunFault]:
    """All of them."""
    yield RunFault("stale buffer at the second call", _stale_buffers)
    yield RunFault("buffer not updated", lambda run: _written(run, lambda after, before: before.clone()))
    yield RunFault("buffer updated twice", lambda run: _written(run, lambda after, before: after + (after - before)))
    yield RunFault("one buffer forgotten", lambda run: _written(run, lambda after, before: before.clone(), most=1))
    yield RunFault("input not written", _unwritten_inputs)
    yield RunFault("stale input at the second call", lambda run: dict(run.first) if run.number % 2 else None)
    yield RunFault("same random numbers at the second call", _same_numbers)
    yield RunFault("one gradient scaled by 1.01", lambda run: _gradient(run, lambda grad: grad * 1.01))
    yield RunFault("one gradient accumulated twice", lambda run: _gradient(run, lambda grad: grad + grad))
    yield RunFault("one gradient of zeros", lambda run: _gradient(run, torch.zeros_like))
    yield RunFault("one gradient of the other sign", lambda run: _gradient(run, torch.neg))
    yield RunFault("last row of a gradient left out", lambda run: _gradient(run, _without_last_row))
    yield RunFault("one gradient missing", _missing)
    yield RunFault("two gradients swapped", _swapped)
    yield RunFault("gradient over the batch without its mean", lambda run: _gradients(run, lambda grad: grad * 2))
    yield RunFault("alias lost", _unshared)
    yield RunFault("stride lost", _contiguous)
    yield RunFault("other type of an output", _other_dtype)
    yield RunFault("output with one more dimension", lambda run: _output(run, lambda out: out.unsqueeze(0)))
    yield RunFault("outputs swapped", _swapped_outputs)


def _floats(run: Run, start: str) -> list[str]:
    return [
        name for name, value in run.results.items()
        if name.startswith(start) and isinstance(value, Tensor) and value.is_floating_point()
    ]  # fmt: skip


def _stale_buffers(run: Run) -> Results | None:
    stale = {name: value for name, value in run.first.items() if name.startswith("buffer") and name.endswith("after")}
    return {**run.results, **stale} if run.number and stale else None


def _written(run: Run, change: Callable[[Tensor, Tensor], Tensor], most: int | None = None) -> Results | None:
    """The results with the buffers changed that the program wrote to."""
    before = {f"{name} after": tensor.detach() for name, tensor in run.loaded.tensors.attributes()}
    names = [
        name for name, value in run.results.items() if name in before and not torch.equal(value, before[name])
    ][-1 if most else 0 :]  # fmt: skip
    return {**run.results, **{name: change(run.results[name], before[name]) for name in names}} if names else None


def _inputs(run: Run) -> dict[str, Tensor]:
    """The arguments as they were, by the names under which results have them."""
    tensors, args = run.loaded.tensors, run.loaded.inputs(run.seed)
    given = zip(tensors.argument_numbers, args, strict=True)
    return {f"{tensors.name(i)} after": arg.detach() for i, arg in given if isinstance(arg, Tensor)}


def _unwritten_inputs(run: Run) -> Results | None:
    before = _inputs(run)
    names = [name for name, value in before.items() if not torch.equal(run.results[name], value)]
    return {**run.results, **{name: before[name] for name in names}} if names else None


def _same_numbers(run: Run) -> Results | None:
    def call(*args: Any) -> Any:
        torch.manual_seed(0)
        return run.loaded.module(*args)

    return run.again(call) if run.seed else None


def _gradient(run: Run, change: Callable[[Tensor], Tensor]) -> Results | None:
    """The results with the middle one of the gradients changed."""
    names = _floats(run, "gradient")
    if not names:
        return None
    name = names[len(names) // 2]
    return {**run.results, name: change(run.results[name])}


def _gradients(run: Run, change: Callable[[Tensor], Tensor]) -> Results | None:
    names = _floats(run, "gradient")
    return {**run.results, **{name: change(run.results[name]) for name in names}} if names else None


def _without_last_row(gradient: Tensor) -> Tensor:
    found = gradient.clone()
    if found.dim():
        found[-1] = 0
    return found


def _missing(run: Run) -> Results | None:
    names = _floats(run, "gradient")
    return {name: value for name, value in run.results.items() if name != names[0]} if names else None


def _swapped(run: Run) -> Results | None:
    return _exchanged(run, _floats(run, "gradient"))


def _swapped_outputs(run: Run) -> Results | None:
    return _exchanged(run, _floats(run, "output"))


def _exchanged(run: Run, names: list[str]) -> Results | None:
    """The first two of the same shape take each other's place."""
    for i, one in enumerate(names):
        for other in names[i + 1 :]:
            if run.results[one].shape == run.results[other].shape:
                return {**run.results, one: run.results[other], other: run.results[one]}
    return None


def _unshared(run: Run) -> Results | None:
    names = {name for pair in shared(run.results) for name in pair if name.startswith("output")}
    return {
        name: _copied(value) if name in names else value for name, value in run.results.items()
    } if names else None  # fmt: skip


def _copied(value: Tensor) -> Tensor:
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype).copy_(value)


def _contiguous(run: Run) -> Results | None:
    names = [name for name in _floats(run, "output") if not run.results[name].is_contiguous()]
    return {**run.results, **{name: run.results[name].contiguous() for name in names}} if names else None


def _other_dtype(run: Run) -> Results | None:
    return _output(run, lambda out: out.to(torch.bfloat16 if out.dtype == torch.float32 else torch.float32))


def _output(run: Run, change: Callable[[Tensor], Tensor]) -> Results | None:
    names = _floats(run, "output")
    return {**run.results, names[-1]: change(run.results[names[-1]])} if names else None
