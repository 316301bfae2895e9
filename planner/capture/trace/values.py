"""How the values of an input are spread, and new values spread alike: what a trace holds in place of data.

Kept are a few figures: which values there are if there are very few, else the range of integers and whether they are in
order, the mean and deviation of floats. So indices stay in range, masks stay masks, and variances positive.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from fuseplan.capture.trace.args import named
from fuseplan.errors import GraphError

FEW = 4
"""Distinct values up to which they are written one by one: masks, constants, weights of a fresh norm."""
REPEATED = 4
"""How often each of a few floats has to occur, or a small weight would be written down as it is."""
SAMPLE = 2**16
"""Elements of a float tensor that are looked at. Of integers all are, since one out of range would be an error."""

Values = dict[str, Any]


def observe(tensor: Tensor) -> Values:
    """Describe how the values of an input are spread; of a fake tensor nothing is known."""
    if isinstance(tensor, FakeTensor) or tensor.is_meta or not tensor.numel():
        return {"spread": "unknown"}
    with _disable_current_modes(), torch.no_grad():
        flat = tensor.detach()
        if tensor.is_complex():
            flat = torch.view_as_real(flat.resolve_conj())
        if tensor.is_floating_point() or tensor.is_complex():
            return _few(_sample(flat)) or _normal(_sample(flat).double())
        order = _order(flat)
        found = _few(flat.reshape(-1)) or _range(flat.reshape(-1).long())
        return {**found, **({"order": order} if order else {})}


def exactly(tensor: Tensor) -> Values:
    """The values themselves, of whole numbers.

    >>> exactly(torch.tensor([[3, 1]])), make(exactly(torch.tensor([3, 1])), (2,), torch.int32, torch.device("cpu"), 0)
    ({'spread': 'exact', 'values': [3, 1]}, tensor([3, 1], dtype=torch.int32))
    """
    if isinstance(tensor, FakeTensor) or tensor.is_meta:
        return {"spread": "unknown"}
    with _disable_current_modes(), torch.no_grad():
        return {"spread": "exact", "values": tensor.detach().reshape(-1).tolist()}


def _sample(tensor: Tensor) -> Tensor:
    """A part of the elements, spread over all of the tensor."""
    flat = tensor.reshape(-1)
    # an odd step, or a matrix of 2**n columns would show but one of them
    return flat[:: max(1, tensor.numel() // SAMPLE) | 1]


def _few(flat: Tensor) -> Values | None:
    if flat.dtype.itemsize < 2 and flat.is_floating_point():
        flat = flat.float()  # nothing sorts 8-bit floats
    head = flat[: FEW * 64]
    if head.unique().numel() > FEW:
        return None
    values, counts = flat.unique(return_counts=True)
    plain = not flat.is_floating_point() or bool(((values == 0) | (values.abs() == 1)).all())
    if values.numel() > FEW or (not plain and flat.numel() < REPEATED * values.numel()):
        return None
    numbers = [_written(number) for number in values.tolist()]
    return {"spread": "few", "values": numbers, "counts": counts.tolist()}


def _range(flat: Tensor) -> Values:
    """Negative numbers beside a range of others are marks, as -100 is to a loss; at most `FEW` are kept as such."""
    marks = flat[flat < 0].unique()
    usual = flat[flat >= 0] if marks.numel() <= FEW else flat
    found: Values = {"spread": "range", "low": int(usual.min()), "high": int(usual.max())}
    if usual.numel() < flat.numel():
        found |= {"marks": marks.tolist(), "marked": 1 - usual.numel() / flat.numel()}
    return found


def _order(tensor: Tensor) -> str | None:
    """Whether each row climbs by one, never falls, or never climbs, as positions, offsets and masks of padding do."""
    if tensor.dim() == 0 or tensor.shape[-1] < 2:
        return None
    steps = tensor.long().diff(dim=-1)
    if bool((steps == 1).all()):
        return "counting"
    if not bool(steps.any()):
        return None
    if bool((steps >= 0).all()):
        return "up"
    return "down" if bool((steps <= 0).all()) else None


def _normal(flat: Tensor) -> Values:
    flat = flat[flat.isfinite()]
    if not flat.numel():
        return {"spread": "unknown"}
    spread = {"mean": flat.mean(), "deviation": flat.std(correction=0), "low": flat.min(), "high": flat.max()}
    return {"spread": "normal", **{name: _rounded(float(value)) for name, value in spread.items()}}


def _rounded(number: float) -> float:
    """Two digits: enough for a scale, and no data."""
    return float(f"{number:.1e}") if math.isfinite(number) else 0.0


def _written(number: float) -> Any:
    return number if math.isfinite(number) else {"float": repr(number)}


def _read(number: Any) -> float:
    return float(number["float"]) if isinstance(number, dict) else number


def make(
    values: Values,
    shape: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
    seed: int,
    rounded: str | None = None,
) -> Tensor:
    """Return a dense tensor of new values spread as described; the same for the same seed on the same device.

    `rounded` is the narrower dtype whose numbers alone may occur.

    >>> make({"spread": "range", "low": 3, "high": 5}, (2, 2), torch.int64, torch.device("cpu"), 0).min() >= 3
    tensor(True)
    """
    if device.type == "meta":
        return torch.empty(tuple(shape), dtype=dtype, device=device)
    generator = torch.Generator(device).manual_seed(seed)
    try:
        if dtype.is_complex:
            part = torch.float64 if dtype == torch.complex128 else torch.float32
            pairs = _floats(values, (*shape, 2), part, device, generator)
            return torch.view_as_complex(pairs).to(named(rounded) if rounded else dtype).to(dtype)
        if dtype.is_floating_point:
            narrow = named(rounded) if rounded else dtype
            # always drawn in one precision, so that the same seed gives the same numbers in all
            return _floats(values, shape, torch.float32, device, generator).to(narrow).to(dtype)
        return _integers(values, shape, dtype, device, generator)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        if isinstance(error, torch.OutOfMemoryError) or "memory" in str(error):
            raise
        raise GraphError(f"the values of an input cannot be made: {str(error).splitlines()[0]}") from None


def _floats(
    values: Values, shape: Sequence[int], dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> Tensor:
    if values["spread"] == "few":
        return _chosen(values, shape, device, generator).to(dtype)
    drawn = torch.empty(tuple(shape), dtype=dtype, device=device)
    if values["spread"] == "normal":
        limit = torch.finfo(dtype).max
        drawn.normal_(values["mean"], values["deviation"], generator=generator)
        return drawn.clamp_(max(values["low"], -limit), min(values["high"], limit))
    return drawn.normal_(generator=generator)


def _integers(
    values: Values, shape: Sequence[int], dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> Tensor:
    if values["spread"] == "unknown":
        return torch.zeros(tuple(shape), dtype=dtype, device=device)
    if values["spread"] == "exact":
        return torch.tensor(values["values"], dtype=dtype, device=device).reshape(tuple(shape))
    order = values.get("order")
    if values["spread"] == "few":
        drawn = _chosen(values, shape, device, generator).to(dtype)
    else:
        drawn = _ranged(values, shape, device, generator).to(dtype)
    if order == "counting":
        low = min(values["values"]) if values["spread"] == "few" else values["low"]
        drawn = torch.arange(low, low + shape[-1], device=device).to(dtype).expand(tuple(shape)).contiguous()
    elif order in ("up", "down"):
        drawn = drawn.sort(dim=-1, descending=order == "down").values
    return drawn


def _ranged(values: Values, shape: Sequence[int], device: torch.device, generator: torch.Generator) -> Tensor:
    drawn = torch.randint(values["low"], values["high"] + 1, tuple(shape), device=device, generator=generator)
    if "marks" not in values:
        return drawn
    marks = torch.tensor(values["marks"], device=device)
    chosen = marks[torch.randint(len(marks), tuple(shape), device=device, generator=generator)]
    marked = torch.rand(tuple(shape), device=device, generator=generator) < values["marked"]
    return torch.where(marked, chosen, drawn)


def _chosen(
    values: Mapping[str, Any], shape: Sequence[int], device: torch.device, generator: torch.Generator
) -> Tensor:
    numbers = [_read(number) for number in values["values"]]
    whole = all(isinstance(number, int) for number in numbers)
    table = torch.tensor(numbers, dtype=None if whole else torch.float64, device=device)
    if len(numbers) == 1:
        return table[0].expand(tuple(shape)).contiguous()
    shares = torch.tensor(values["counts"], dtype=torch.float32, device=device)
    bounds = (shares.cumsum(0) / shares.sum())[:-1].contiguous()
    drawn = torch.rand(tuple(shape), device=device, generator=generator)
    return table[torch.bucketize(drawn, bounds, right=True)]
