"""Faults of a compiled region: in what it gives, in what it keeps from call to call, and in the memory that it writes to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fuseplan.executors import Compiled

Change = Callable[[list[Any], list[Any], dict[str, Any]], list[Any]]
"""From the right outputs, the inputs, and what is kept from call to call, to the wrong outputs."""


@dataclass(frozen=True)
class RegionFault:
    """One kind of fault."""

    name: str
    change: Change

    def planted(self, compiled: Compiled) -> Compiled:
        """The region with the fault in it."""
        memory: dict[str, Any] = {}

        def faulty(args: list[Any]) -> Sequence[Any]:
            inputs = list(args)
            return self.change(list(compiled(args)), inputs, memory)

        return faulty


def _floats(outputs: Sequence[Any]) -> list[int]:
    return [i for i, one in enumerate(outputs) if isinstance(one, Tensor) and one.is_floating_point() and one.numel()]


def _of_one(change: Callable[[Tensor], Tensor]) -> Change:
    """The middle one of the outputs that are floats, changed."""

    def changed(outputs: list[Any], inputs: list[Any], memory: dict[str, Any]) -> list[Any]:
        places = _floats(outputs)
        if places:
            i = places[len(places) // 2]
            outputs[i] = _lying_as(outputs[i], change(outputs[i].clone()))
        return outputs

    return changed


def _lying_as(right: Tensor, wrong: Tensor) -> Tensor:
    """In memory as the right one lies, so that nothing but the values is wrong."""
    if wrong.shape != right.shape or wrong.dtype != right.dtype:
        return wrong
    return torch.empty_strided(right.shape, right.stride(), dtype=right.dtype).copy_(wrong)


def _last_tile(out: Tensor) -> Tensor:
    flat = out.reshape(-1)
    flat[-max(1, min(16, flat.numel() // 4)) :] = 0
    return flat.view(out.shape)


def _last_row(out: Tensor) -> Tensor:
    if out.dim():
        out[-1] = 0
    return out


def _largest_doubled(out: Tensor) -> Tensor:
    flat = out.reshape(-1)
    flat[int(torch.nan_to_num(flat).abs().argmax())] *= 2
    return flat.view(out.shape)


def _cut(out: Tensor) -> Tensor:
    """To ten bits, as tensor cores do."""
    return out.half().to(out.dtype) if out.dtype in (torch.float32, torch.float64) else out


def _swapped(outputs: list[Any], inputs: list[Any], memory: dict[str, Any]) -> list[Any]:
    places = _floats(outputs)
    for i in places:
        for j in places:
            if i < j and outputs[i].shape == outputs[j].shape and outputs[i].stride() == outputs[j].stride():
                outputs[i], outputs[j] = outputs[j], outputs[i]
                return outputs
    return outputs


def _stale(outputs: list[Any], inputs: list[Any], memory: dict[str, Any]) -> list[Any]:
    if "first" in memory and [_shape(one) for one in memory["first"]] == [_shape(one) for one in outputs]:
        return [one.clone() if isinstance(one, Tensor) else one for one in memory["first"]]
    memory["first"] = [one.clone() if isinstance(one, Tensor) else one for one in outputs]
    return outputs


def _shape(one: Any) -> Any:
    return one.shape if isinstance(one, Tensor) else None


def _one_buffer(outputs: list[Any], inputs: list[Any], memory: dict[str, Any]) -> list[Any]:
    """The first output lies in the same memory at each call."""
    places = _floats(outputs)
    if places:
        out = outputs[places[0]]
        if _shape(memory.get("buffer")) == out.shape:
            memory["buffer"].copy_(out)
        else:
            memory["buffer"] = out.clone()
        outputs[places[0]] = memory["buffer"]
    return outputs


def _input_written(outputs: list[Any], inputs: list[Any], memory: dict[str, Any]) -> list[Any]:
    places = _floats(inputs)
    if places:
        inputs[places[-1]].mul_(1.5)
    return outputs


def _in_an_input(outputs: list[Any], inputs: list[Any], memory: dict[str, Any]) -> list[Any]:
    """An output is put where an input lies."""
    for i in _floats(outputs):
        for j in _floats(inputs):
            out, given = outputs[i], inputs[j]
            if out.shape == given.shape and out.dtype == given.dtype and out.data_ptr() != given.data_ptr():
                outputs[i] = given.copy_(out)
                return outputs
    return outputs


def _two_in_one(outputs: list[Any], inputs: list[Any], memory: dict[str, Any]) -> list[Any]:
    places = _floats(outputs)
    for i in places:
        for j in places:
            if i < j and outputs[i].shape == outputs[j].shape and outputs[i].dtype == outputs[j].dtype:
                outputs[j] = outputs[i]
                return outputs
    return outputs


def _integers(outputs: list[Any], inputs: list[Any], memory: dict[str, Any]) -> list[Any]:
    """One integer or boolean is off."""
    for i, one in enumerate(outputs):
        if isinstance(one, Tensor) and not one.is_floating_point() and not one.is_complex() and one.numel() > 1:
            wrong = one.clone().reshape(-1)
            wrong[wrong.numel() // 2] = ~wrong[wrong.numel() // 2] if one.dtype is torch.bool else wrong[-1] + 1
            outputs[i] = _lying_as(one, wrong.view(one.shape))
            return outputs
    return outputs


def _finite_only(outputs: list[Any], inputs: list[Any], memory: dict[str, Any]) -> list[Any]:
    places = _floats(outputs)
    if places:
        outputs[places[0]] = _lying_as(outputs[places[0]], outputs[places[0]].nan_to_num())
    return outputs


REGION_FAULTS = (
    RegionFault("output scaled by 1.01", _of_one(lambda out: out * 1.01)),
    RegionFault("output of the other sign", _of_one(torch.neg)),
    RegionFault("output of zeros", _of_one(torch.zeros_like)),
    RegionFault("last tile of an output left out", _of_one(_last_tile)),
    RegionFault("last row of an output left out", _of_one(_last_row)),
    RegionFault("largest element doubled", _of_one(_largest_doubled)),
    RegionFault("rows of an output moved by one", _of_one(lambda out: out.roll(1, 0) if out.dim() else out)),
    RegionFault("output kept in ten bits", _of_one(_cut)),
    RegionFault("output kept in bf16", _of_one(lambda out: out.bfloat16().to(out.dtype))),
    RegionFault(
        "small values flushed", _of_one(lambda out: torch.where(out.abs() < 2e-3 * out.abs().nanmean(), 0, out))
    ),
    RegionFault("output of another type", _of_one(torch.Tensor.double)),
    RegionFault("output with one more dimension", _of_one(lambda out: out.unsqueeze(0))),
    RegionFault("outputs of a region swapped", _swapped),
    RegionFault("stale outputs at the second call", _stale),
    RegionFault("one buffer for all calls", _one_buffer),
    RegionFault("input written to", _input_written),
    RegionFault("output in the memory of an input", _in_an_input),
    RegionFault("two outputs in one", _two_in_one),
    RegionFault("one integer off", _integers),
    RegionFault("NaN and infinity replaced", _finite_only),
)
