"""Faults of what is computed: masks, products, tiles, numbers, functions and precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.judging.planting import OpCall, OpFault, first, floats, with_first

PRODUCTS = ("mm", "bmm", "addmm", "baddbmm")
POINTWISE = ("mul", "add", "gelu", "silu", "relu", "tanh", "sigmoid", "exp", "native_layer_norm", "_softmax")
FLASH = "_scaled_dot_product_flash_attention_for_cpu"
_aten = torch.ops.aten


def arithmetic_faults() -> Iterator[OpFault]:
    """All of them."""
    yield from _of_masks()
    yield from _of_products()
    yield from _of_tiles()
    yield from _of_numbers()
    yield from _of_functions()
    yield from _of_precision()


# what a call is like


def _many(call: OpCall) -> bool:
    return floats(call) and call.args[0].numel() >= 16


def _operands(call: OpCall) -> tuple[Tensor, Tensor]:
    a, b = call.args[-2:]
    return a, b


def _with_operands(call: OpCall, a: Tensor, b: Tensor) -> Any:
    return call.given((*call.args[:-2], a, b))


def _inner(least: int) -> Callable[[OpCall], bool]:
    return lambda call: floats(call) and _operands(call)[0].shape[-1] >= least


# masks


def _mask_name(call: OpCall) -> str:
    return {"where": "condition", "masked_fill": "mask", FLASH: "attn_mask"}[call.name]


def _has_mask(call: OpCall) -> bool:
    mask = call.argument(_mask_name(call))
    return isinstance(mask, Tensor) and mask.dim() > 0 and mask.shape[-1] > 1


def _mask_off(call: OpCall) -> Any:
    name = _mask_name(call)
    return call.instead(**{name: call.argument(name).roll(1, -1)})


def _shifted(call: OpCall) -> Any:
    if call.name in ("tril", "triu"):
        return call.instead(diagonal=call.argument("diagonal") + 1)
    return call.given((call.args[0] + 1, *call.args[1:]))


def _compares(call: OpCall) -> bool:
    one = call.args[0]
    return isinstance(one, Tensor) and one.dim() > 0 and (call.name in ("tril", "triu") or not one.is_floating_point())


def _of_masks() -> Iterator[OpFault]:
    yield OpFault("mask off by one", ("where", "masked_fill", FLASH), _mask_off, _has_mask)
    yield OpFault("causal mask shifted", ("tril", "triu", "le", "lt", "ge", "gt"), _shifted, _compares)
    yield OpFault(
        "mask left out", ("masked_fill", FLASH),
        lambda call: first(call).copy_(call.args[0]) if call.name == "masked_fill" else call.instead(attn_mask=None),
        _has_mask,
    )  # fmt: skip
    yield OpFault(
        "causal where nothing is hidden", (FLASH,), lambda call: call.instead(is_causal=True, attn_mask=None),
        lambda call: not call.argument("is_causal"),
    )  # fmt: skip


# products


def _last_tile_of_sum(call: OpCall) -> Any:
    a, b = _operands(call)
    short = a.shape[-1] - max(1, a.shape[-1] // 8)
    return _with_operands(call, a[..., :short], b[..., :short, :])


def _square(call: OpCall) -> bool:
    b = _operands(call)[1]
    return b.shape[-1] == b.shape[-2]


def _transposed_result(call: OpCall) -> Tensor:
    found = first(call)
    return found.mT.contiguous()


def _swaps(call: OpCall) -> bool:
    a, b = _operands(call)
    return a.shape[-2] == b.shape[-1] and a.shape[-2] > 1


def _no_bias(call: OpCall) -> Any:
    if call.name == "addmm":
        return _aten.mm(*_operands(call))
    return call.instead(bias=None)


def _has_bias(call: OpCall) -> bool:
    return call.name == "addmm" or call.argument("bias") is not None


def _of_products() -> Iterator[OpFault]:
    yield OpFault("last tile of the inner dimension left out", PRODUCTS, _last_tile_of_sum, _inner(8))
    yield OpFault(
        "square weight transposed", PRODUCTS, lambda call: _with_operands(call, _operands(call)[0], _operands(call)[1].mT),
        _square,
    )  # fmt: skip
    yield OpFault("queries and keys swapped", ("bmm",), _transposed_result, _swaps)
    yield OpFault(
        "queries and keys swapped in a kept attention", (FLASH,),
        lambda call: call.given((call.args[1], call.args[0], *call.args[2:])),
        lambda call: call.args[0].shape == call.args[1].shape,
    )  # fmt: skip
    yield OpFault("bias left out", ("addmm", "convolution"), _no_bias, _has_bias)


# tiles and rows


def _without_last_tile(found: Tensor) -> Tensor:
    flat = found.contiguous().clone()
    flat.view(-1)[-max(1, flat.numel() // 16) :] = 0
    return flat


def _edited(index: Any, value: Callable[[Tensor], Any]) -> Callable[[OpCall], Any]:
    """The first result, with the part that the index names replaced."""

    def change(call: OpCall) -> Any:
        def edit(found: Tensor) -> Tensor:
            edited = found.clone()
            edited[index] = value(found)
            return edited

        return with_first(call, edit)

    return change


def _one_doubled(found: Tensor) -> Tensor:
    edited = found.contiguous().clone()
    edited.view(-1)[int(edited.abs().argmax())] *= 2
    return edited


def _rows(call: OpCall) -> bool:
    place = 1 if call.name in ("embedding", "index_select") else 0
    return isinstance(call.args[place], Tensor) and call.args[place].dim() > 0 and first(call).shape[0] > 1


def _of_tiles() -> Iterator[OpFault]:
    yield OpFault("last tile left out", POINTWISE, lambda call: with_first(call, _without_last_tile), _many)
    yield OpFault(
        "last row of a product left out", PRODUCTS, _edited((..., -1, slice(None)), lambda found: 0), _inner(2)
    )
    yield OpFault(
        "wrong row of a batch", ("addmm", "bmm", "embedding", "index_select", "convolution"),
        _edited(-1, lambda found: found[0]), _rows,
    )  # fmt: skip
    yield OpFault("one element doubled", PRODUCTS, lambda call: with_first(call, _one_doubled), _inner(2))
    yield OpFault("last row of a convolution left out", ("convolution",), _edited((..., -1, slice(None)), lambda _: 0))
    yield OpFault(
        "padded with ones", ("constant_pad_nd",), lambda call: call.given((*call.args[:2], 1.0)),
        lambda call: max(call.args[1]) > 0,
    )  # fmt: skip


# numbers that stand in the program


def _number(one: Any) -> bool:
    return (isinstance(one, (int, float)) and not isinstance(one, bool)) or (isinstance(one, Tensor) and one.dim() == 0)


def _scaled(call: OpCall) -> bool:
    if call.name == FLASH:
        return True
    return _many(call) and len(call.args) > 1 and _number(call.args[1]) and abs(call.args[1]) != 1


def _unscaled(call: OpCall) -> Any:
    if call.name == FLASH:
        return call.instead(scale=1.0)
    return first(call).copy_(call.args[0])


_EPS = {"native_layer_norm": "eps", "native_batch_norm": "eps", "native_group_norm": "eps", "add": "other"}
_EPS |= {"add_": "other", "clamp_min": "min"}


def _small(call: OpCall) -> bool:
    value = call.argument(_EPS[call.name])
    return floats(call) and isinstance(value, float) and 0 < value <= 1e-3


def _ten_eps(call: OpCall) -> Any:
    name = _EPS[call.name]
    return call.instead(**{name: 10 * call.argument(name)})


def _bounded(call: OpCall) -> bool:
    name = "max_val" if call.name == "hardtanh" else "max"
    return floats(call) and call.argument(name) is not None


def _other_bound(call: OpCall) -> Any:
    name = "max_val" if call.name == "hardtanh" else "max"
    return call.instead(**{name: call.argument(name) * 1.1})


def _of_numbers() -> Iterator[OpFault]:
    yield OpFault("scale dropped", ("mul", "div", FLASH), _unscaled, _scaled)
    yield OpFault("eps ten times as large", tuple(_EPS), _ten_eps, _small)
    yield OpFault(
        "clamp left out", ("clamp", "hardtanh", "clamp_min"), lambda call: first(call).copy_(call.args[0]), floats
    )
    yield OpFault("bound of a clamp off", ("clamp", "hardtanh"), _other_bound, _bounded)
    yield OpFault(
        "another momentum", ("native_batch_norm",), lambda call: call.instead(momentum=2 * call.argument("momentum"))
    )
    yield OpFault(
        "another weight of a moving average",
        ("lerp_",),
        lambda call: call.instead(weight=call.argument("weight") * 1.1),
    )
    yield OpFault(
        "alpha dropped", ("add", "add_", "sub"), lambda call: call.instead(alpha=1),
        lambda call: call.argument("alpha") not in (None, 1),
    )  # fmt: skip


# one function for another


def _as(function: Callable[[Tensor], Tensor]) -> Callable[[OpCall], Any]:
    return lambda call: function(call.args[0]).to(first(call).dtype)


def _tanh_gelu(call: OpCall) -> Any:
    return call.instead(approximate="tanh")


def _of_functions() -> Iterator[OpFault]:
    plain: Callable[[OpCall], bool] = lambda call: call.argument("approximate") == "none"  # noqa: E731
    squared: Callable[[OpCall], bool] = lambda call: floats(call) and call.args[1] == 2  # noqa: E731
    yield OpFault("tanh for erf in a GELU", ("gelu", "gelu_backward"), _tanh_gelu, plain, everywhere=True)
    yield OpFault("tanh for erf in the gradient of a GELU", ("gelu_backward",), _tanh_gelu, plain)
    yield OpFault("sigmoid for erf in a GELU", ("gelu",), _as(lambda x: x * torch.sigmoid(1.702 * x)))
    yield OpFault("relu for silu", ("silu",), _as(torch.relu))
    yield OpFault("relu left out", ("relu",), _as(torch.clone))
    yield OpFault("gradient of relu everywhere", ("threshold_backward",), _as(torch.clone))
    yield OpFault("absolute value for square", ("pow",), _as(torch.abs), squared)
    yield OpFault("sign lost", ("neg",), _as(torch.clone))
    yield OpFault("sine and cosine swapped", ("cos",), _as(torch.sin))
    yield OpFault("power of two for exp", ("exp",), _as(torch.exp2))
    yield OpFault("logarithm of base two", ("log", "log1p"), _as(lambda x: x.log2()), floats)
    yield OpFault("hard for soft sigmoid", ("sigmoid",), _as(F.hardsigmoid))
    yield OpFault("tanh of half", ("tanh",), _as(lambda x: (x / 2).tanh()))


# precision


def _in_bf16(call: OpCall) -> Any:
    """Terms are added sixty-four at a time, and kept in bf16 between."""
    a, b = _operands(call)
    total: Tensor | None = None
    for one, other in zip(a.split(64, -1), b.split(64, -2), strict=True):
        part = torch.matmul(one, other).bfloat16()
        total = part if total is None else total + part
    assert total is not None
    found = total.to(a.dtype)
    return found if call.name in ("mm", "bmm") else (found + call.args[0]).to(a.dtype)


def _ten_bits(x: Tensor) -> Tensor:
    """With as many bits as tensor cores read of a float32."""
    bits = x.float().view(torch.int32)
    return (bits & ~0x1FFF).view(torch.float32).to(x.dtype)


def _through(dtype: torch.dtype) -> Callable[[OpCall], Any]:
    """The op on arguments of another precision, or, where they were of it already, of a lower one in its result."""

    def change(call: OpCall) -> Any:
        return with_first(call, lambda found: found.to(dtype).to(found.dtype))

    return change


def _wider_than(*dtypes: torch.dtype) -> Callable[[OpCall], bool]:
    return lambda call: _many(call) and call.args[0].dtype in dtypes


def _fewer_bits(found: Tensor) -> Tensor:
    return (found.double() * (1 + 2.0**-11)).to(found.dtype)


def _summed_in_bf16(call: OpCall) -> Tensor:
    right = first(call)
    dims = call.args[1] or list(range(call.args[0].dim()))
    flat = call.args[0].movedim(dims, list(range(-len(dims), 0))).flatten(-len(dims))
    total = torch.zeros(flat.shape[:-1], dtype=torch.bfloat16)
    for part in flat.split(64, -1):
        total = total + part.sum(-1).bfloat16()
    found = total / flat.shape[-1] if call.name == "mean" else total
    return found.to(right.dtype).reshape(right.shape)


def _long(call: OpCall) -> bool:
    if not floats(call) or len(call.args) < 2 or not isinstance(call.args[1], (list, tuple)):
        return False
    count = 1
    for dim in call.args[1]:
        count *= call.args[0].shape[dim]
    return count >= 256


def _of_precision() -> Iterator[OpFault]:
    wide = (torch.float32, torch.float64)
    yield OpFault("products added up in bf16", PRODUCTS, _in_bf16, _inner(256))
    yield OpFault("sums added up in bf16", ("sum", "mean"), _summed_in_bf16, _long)
    yield OpFault(
        "operands of a product cut to ten bits", PRODUCTS,
        lambda call: _with_operands(call, *map(_ten_bits, _operands(call))), _wider_than(*wide), everywhere=True,
    )  # fmt: skip
    yield OpFault("result kept in bf16", POINTWISE, _through(torch.bfloat16), _wider_than(*wide, torch.float16))
    yield OpFault(
        "overflow to infinity in fp16", ("pow", "mul", "sum", "square"), _through(torch.float16),
        _wider_than(*wide, torch.bfloat16),
    )  # fmt: skip
    yield OpFault("root of twelve bits", ("rsqrt", "sqrt", "reciprocal"), lambda call: with_first(call, _fewer_bits))
    yield OpFault(
        "running sum in bf16", ("cumsum",), lambda call: call.given((call.args[0].bfloat16(), *call.args[1:])).to(call.args[0].dtype),
        floats,
    )  # fmt: skip
