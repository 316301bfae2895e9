"""How tests decide that two runs of a program agree: as accurate as eager, and laid out as eager lays out."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_map

# The numbers are the product's; how they are applied is stated a second time here, as a judge of its own.
from fuseplan.judge.spread import FEW

FACTOR, ULPS = 4.0, 8.0


Draw = tuple[Any, Any]
"""What eager gives of some inputs, and the same in higher precision."""


def assert_as_accurate(actual: Any, eager: Any, reference: Any, draws: Sequence[Draw] = ()) -> None:
    """Fail unless `actual` is about as close to `reference`, a run in higher precision, as `eager` is, there or in one of the `draws`:
    of a few inputs eager may be right by luck.

    Trees of tensors are compared leaf by leaf. What is no float must be exactly eager's, and so must shapes and dtypes.
    Of a few numbers eager's error says little, since it may be exact by luck: such a leaf, a loss or a small bias, is
    granted what eager's other leaves are usually off by.
    """
    usual = _usual_error(eager, reference)
    seen = [[_relative_error(want, exact) for _, _, want, exact in _leaves(one, one, right)] for one, right in draws]
    for place, (where, got, want, exact) in enumerate(_leaves(actual, eager, reference)):
        if not isinstance(want, Tensor):
            assert got == want, f"{where}: {got!r} instead of {want!r}"
            continue
        assert (got.dtype, got.shape, got.device) == (want.dtype, want.shape, want.device), where
        if want.dtype.is_floating_point or want.dtype.is_complex:
            granted = max([usual if want.numel() <= FEW else 0.0, *(errors[place] or 0.0 for errors in seen)])
            _assert_close_enough(where, got, want, exact, granted)
        else:
            assert torch.equal(got, want), f"{where}: {got} instead of {want}"


def assert_same(actual: Any, eager: Any, *, bitwise: bool = True) -> None:
    """Fail unless both trees hold equal tensors of the same dtype, shape and strides.

    Not bitwise, they may differ by what `torch.testing` grants to two orders of the same few operations.
    """
    tolerance = {"rtol": 0.0, "atol": 0.0} if bitwise else {}
    for where, got, want, _ in _leaves(actual, eager, eager):
        if not isinstance(want, Tensor):
            assert got == want, f"{where}: {got!r} instead of {want!r}"
            continue
        assert_same_layout(got, want, where)
        assert_close(got, want, **tolerance, equal_nan=True, msg=lambda text, at=where: f"{at}: {text}")


def assert_same_layout(got: Tensor, want: Tensor, where: str = "") -> None:
    """Fail unless dtype, device, shape, gradient status and the strides that matter are the same."""
    assert (got.dtype, got.device, got.shape) == (want.dtype, want.device, want.shape), where
    assert got.requires_grad == want.requires_grad, where
    assert _strides(got) == _strides(want), f"{where}: strides {got.stride()} instead of {want.stride()}"


def in_double(tree: Any) -> Any:
    """A copy of a module, or of a tree of tensors, with its floats in double precision: the reference's operands."""
    if isinstance(tree, nn.Module):
        model = copy.deepcopy(tree).double()
        if hasattr(model, "set_experts_implementation"):
            model.set_experts_implementation("eager")  # grouped matmuls know no double
        return model
    return tree_map(_double, tree)


def _double(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor) or not leaf.is_floating_point():
        return leaf
    return leaf.detach().double().requires_grad_(leaf.requires_grad)


def _leaves(actual: Any, eager: Any, reference: Any) -> Iterator[tuple[str, Any, Any, Any]]:
    (got, got_spec), (want, want_spec), (exact, _) = map(tree_flatten_with_path, (actual, eager, reference))
    assert got_spec == want_spec
    for (path, left), (_, middle), (_, right) in zip(got, want, exact, strict=True):
        yield keystr(path) or "result", left, middle, right


def _strides(tensor: Tensor) -> tuple[int, ...]:
    # The stride of a dimension of size one, or of an empty tensor, addresses nothing.
    if not tensor.numel():
        return ()
    return tuple(stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size != 1)


def _usual_error(eager: Any, reference: Any) -> float:
    """The median, over all float tensors of several elements, of eager's error relative to the largest value."""
    errors = [
        _relative_error(want, exact) for _, _, want, exact in _leaves(eager, eager, reference) if _has_several(want)
    ]
    found = [error for error in errors if error is not None]
    return median(found) if found else 0.0


def _has_several(want: Any) -> bool:
    return isinstance(want, Tensor) and want.numel() > 1


def _relative_error(want: Any, exact: Any) -> float | None:
    """How far a tensor of floats is off, relative to its largest value; None of what has none."""
    if not isinstance(want, Tensor) or not (want.dtype.is_floating_point or want.dtype.is_complex):
        return None
    want, exact = _wide(want), _wide(exact)
    finite = torch.isfinite(want) & torch.isfinite(exact)
    largest = float(exact[finite].abs().max()) if finite.any() else 0.0
    return float((want - exact)[finite].abs().max()) / largest if largest else None


def _assert_close_enough(where: str, got: Tensor, want: Tensor, exact: Tensor, usual: float) -> None:
    unit = torch.finfo(want.dtype).eps
    got, want, exact = (_wide(tensor) for tensor in (got, want, exact))
    finite = torch.isfinite(want) & torch.isfinite(exact)
    special = torch.where(finite, torch.isfinite(got), (got == want) | (got.isnan() & want.isnan()))
    assert bool(special.all()), f"{where}: nan or infinity where eager has none, or the other way round"
    if not finite.any():
        return
    error, allowed = (float((side - exact)[finite].abs().max()) for side in (got, want))
    allowed = FACTOR * allowed + (ULPS * unit + FACTOR * usual) * float(exact[finite].abs().max())
    assert error <= allowed, f"{where}: error {error:.3g} where eager's own error allows {allowed:.3g}"


def _wide(tensor: Tensor) -> Tensor:
    tensor = tensor.detach().cpu()
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)
