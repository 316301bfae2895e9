"""Two outcomes of one case: the same to any caller, or the first thing that differs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from opinfo.inputs import WIDER
from opinfo.outcome import Outcome

EAGER_ERRORS = 2.0  # a result may be this many times as far from the truth as eager's is
ULPS = 4.0


@dataclass(frozen=True)
class Difference:
    """What differs: a word to count by, and the particulars."""

    kind: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"


@dataclass(frozen=True)
class Rules:
    """`reference` gives the outcome in higher precision, or None where there is none (random or integer programs)."""

    reference: Callable[[], Outcome | None]
    values: bool = True  # False for the empty family, whose values mean nothing


def difference(got: Outcome, eager: Outcome, rules: Rules) -> Difference | None:
    """The first difference that a caller could notice, or None."""
    if got.error is not None:
        return Difference("raises", got.error)
    if len(got.outputs) != len(eager.outputs):
        return Difference("outputs", f"{len(got.outputs)} outputs, eager has {len(eager.outputs)}")
    return (
        _in_list("output", got.outputs, eager.outputs, rules, lambda outcome: outcome.outputs)
        or _in_aliases(got, eager)
        or _in_list("input", got.inputs, eager.inputs, rules, lambda outcome: outcome.inputs)
        or _in_list("gradient", got.grads, eager.grads, rules, lambda outcome: outcome.grads)
    )


def same_bits(got: Outcome, eager: Outcome) -> bool:
    """Whether every value of the two runs is equal to the bit (NaN equals NaN)."""
    return difference(got, eager, Rules(lambda: None)) is None


def _in_aliases(got: Outcome, eager: Outcome) -> Difference | None:
    if got.aliases == eager.aliases:
        return None
    return Difference("aliasing", f"(is input, shows input, shows output) = {got.aliases}, eager {eager.aliases}")


def _in_list(
    name: str, got: list[Any], eager: list[Any], rules: Rules, part: Callable[[Outcome], list[Any]]
) -> Difference | None:
    for i, (mine, theirs) in enumerate(zip(got, eager, strict=True)):
        if not (isinstance(mine, torch.Tensor) and isinstance(theirs, torch.Tensor)):
            found = _in_object(mine, theirs, rules)
        else:
            found = _in_layout(mine, theirs) or _in_values(mine, theirs, rules, partial(_truth, rules, part, i))
        if found is not None:
            return Difference(f"{name} {found.kind}", f"[{i}] {found.detail}")
    return None


def _truth(rules: Rules, part: Callable[[Outcome], list[Any]], index: int) -> torch.Tensor | None:
    reference = rules.reference()
    if reference is None or reference.error is not None:
        return None
    values = part(reference)
    return values[index] if index < len(values) else None


def _in_object(got: Any, eager: Any, rules: Rules) -> Difference | None:
    same = type(got) is type(eager) and (got == eager or (got != got and eager != eager) or not rules.values)
    return None if same else Difference("value", f"{got!r}, eager {eager!r}")


def _in_layout(got: torch.Tensor, eager: torch.Tensor) -> Difference | None:
    for name, mine, theirs in (
        ("type", type(got), type(eager)),
        ("dtype", got.dtype, eager.dtype),
        ("device", got.device, eager.device),
        ("layout", got.layout, eager.layout),
        ("shape", tuple(got.shape), tuple(eager.shape)),
        ("requires_grad", got.requires_grad, eager.requires_grad),
    ):
        if mine != theirs:
            return Difference(name, f"{mine}, eager {theirs}")
    if eager.layout == torch.strided and got.stride() != eager.stride():
        return Difference("strides", f"{got.stride()}, eager {eager.stride()} for shape {tuple(eager.shape)}")
    return None


def _in_values(
    got: torch.Tensor, eager: torch.Tensor, rules: Rules, truth: Callable[[], torch.Tensor | None]
) -> Difference | None:
    if not rules.values:
        return None
    mine, theirs = _plain(got), _plain(eager)
    if torch.equal(mine, theirs) or _equal_with_nan(mine, theirs):
        return None
    exact = truth() if eager.dtype in WIDER else None
    if exact is None or exact.shape != eager.shape:
        return Difference("values", _worst(mine, theirs, "no reference: must be equal"))
    return _beyond_eager(mine, theirs, _plain(exact), eager.dtype)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Values as a dense tensor without history."""
    tensor = tensor.detach()
    if tensor.is_quantized:
        return tensor.dequantize()
    tensor = tensor if tensor.layout == torch.strided else tensor.to_dense()
    return tensor.to(torch.complex64) if tensor.dtype == torch.complex32 else tensor  # it cannot be compared


def _equal_with_nan(got: torch.Tensor, eager: torch.Tensor) -> bool:
    return bool(((got == eager) | ((got != got) & (eager != eager))).all())


def _beyond_eager(got: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype) -> Difference | None:
    """No further from the truth than twice eager's worst error, and a few ulp; where eager is not finite, the same."""
    wide = WIDER[dtype]
    mine, theirs, exact = got.to(wide), eager.to(wide), exact.to(wide)
    finite = torch.isfinite(theirs) & torch.isfinite(exact)
    settled = (mine == theirs) | ((mine != mine) & (theirs != theirs)) | (mine == exact)
    worst = (theirs - exact).abs()[finite].amax().item() if finite.any() else 0.0
    allowed = EAGER_ERRORS * worst + ULPS * torch.finfo(dtype).eps * exact.abs()
    good = settled | (finite & ((mine - exact).abs() <= allowed))
    return None if good.all() else Difference("values", _worst(got, eager, f"eager's own error is {worst:.3g}"))


def _worst(got: torch.Tensor, eager: torch.Tensor, remark: str) -> str:
    differs = ~((got == eager) | ((got != got) & (eager != eager)))
    where = tuple(differs.nonzero()[0].tolist())
    return f"{int(differs.sum())} of {differs.numel()}, at {where} {got[where].item()}, eager {eager[where].item()}; {remark}"
