"""The arithmetic of anchors, from the shapes of their operands."""

from __future__ import annotations

from collections.abc import Mapping

from fuseplan.graph import Arg, Dim, Op, Ref, TensorType, Type
from fuseplan.models import kinds
from fuseplan.models.sizes import SizeValues
from fuseplan.models.work import AnchorWork

ALIGNMENT = 8
"""Elements of 16 bits: tensor cores read rows that are no multiple of this one by one."""

_CAUSAL_AT = {"sdpa": 4, "sdpa_backward": 5, "_scaled_dot_product_flash_attention": 4,
              "_scaled_dot_product_efficient_attention": 6, "_scaled_dot_product_cudnn_attention": 6,
              "_scaled_dot_product_flash_attention_for_cpu": 4}  # fmt: skip
"""Where an attention says that it is causal."""
_MASK_AT = {"sdpa": 3, "sdpa_backward": 4, "_scaled_dot_product_efficient_attention": 3,
            "_scaled_dot_product_cudnn_attention": 3}  # fmt: skip
_SIGHT_AT = {"sdpa_in_sight": 3, "sdpa_in_sight_backward": 4}
"""Where an attention says how far each query sees: before its own place, behind it, and the lengths of documents."""
_TAPS = {"depthwise": 1, "depthwise_input": 1, "depthwise_weight": 2}
"""Where a convolution channel by channel, or a gradient of it, says how large its kernel is: by the weights, or by a number."""
_BACKWARD = 2.5
"""Five products of matrices instead of two."""
_RECOMPUTING = 3.5
"""Ours compute the forward once more."""


def anchor_work(op: Op, name: str, types: Mapping[str, Type], sizes: SizeValues, moved: int) -> AnchorWork:
    """The work of one anchor; of one that we cannot look into, only the bytes."""
    result = next((value.type for value in op.outputs if isinstance(value.type, TensorType)), None)
    if result is None:
        return AnchorWork("other", "", 0, moved)
    if name in kinds.MATMULS:
        return _matmul(op, name, result, types, sizes, moved)
    if name in ("convolution", "convolution_backward"):
        kind = _convolution_kind(op, name, types, sizes)
        return AnchorWork(kind, result.dtype, _convolution(op, name, result, types, sizes), moved)
    if name in _TAPS:
        return AnchorWork("convolution", result.dtype, _by_channel(op, name, result, types, sizes), moved)
    if name == "few_rows":
        rows = _tensor(op.args[0], types)
        products = 0 if rows is None else sizes.numel(rows.shape) * sizes(result.shape[-1])
        return AnchorWork("matmul", rows.dtype if rows is not None else result.dtype, 2 * products, moved)
    if "attention" in name or name.startswith("sdpa"):
        return _attention(op, name, result, types, sizes, moved)
    return AnchorWork("other", result.dtype, 0, moved)


def _matmul(
    op: Op, name: str, result: TensorType, types: Mapping[str, Type], sizes: SizeValues, moved: int
) -> AnchorWork:
    first = 1 if name in kinds.SECOND_FIRST else 0
    operands = [kind for arg in op.args[first : first + 2] if (kind := _tensor(arg, types)) is not None]
    inner = sizes(operands[0].shape[-1]) if operands and operands[0].shape else 1
    batches = sizes(operands[0].shape[0]) if name == "addbmm" and operands else 1
    flops = 2 * sizes.numel(result.shape) * inner * batches
    half = result.dtype in ("float16", "bfloat16")
    unaligned = half and any(_row(kind, sizes) % ALIGNMENT for kind in (*operands, result) if len(kind.shape) >= 2)
    return AnchorWork(
        "unaligned" if unaligned else "matmul", operands[0].dtype if operands else result.dtype, flops, moved
    )


def _row(kind: TensorType, sizes: SizeValues) -> int:
    """How far apart the rows (or columns) of a matrix lie."""
    across: Dim = kind.stride[-2] if kind.stride[-1] == 1 else kind.stride[-1]
    return sizes(across)


def _convolution(op: Op, name: str, result: TensorType, types: Mapping[str, Type], sizes: SizeValues) -> int:
    backward = name == "convolution_backward"
    weight = _tensor(op.args[2 if backward else 1], types)
    source = _tensor(op.args[0], types) if backward else result  # what has the shape of the forward's result
    transposed = op.args[7 if backward else 6] is True
    if weight is None or source is None or not weight.shape:
        return 0
    if transposed:
        image = _tensor(op.args[1 if backward else 0], types)
        source = source if image is None else image
    once = 2 * sizes.numel(source.shape) * sizes.numel(weight.shape[1:])
    if not backward:
        return once
    mask = op.args[10] if len(op.args) > 10 else ()
    wanted = sum(part is True for part in mask[:2]) if isinstance(mask, tuple) else 2
    return once * wanted


def _by_channel(op: Op, name: str, result: TensorType, types: Mapping[str, Type], sizes: SizeValues) -> int:
    told = op.args[_TAPS[name]]
    weight, given = _tensor(told, types), result if name == "depthwise" else _tensor(op.args[0], types)
    taps = sizes.numel(weight.shape[2:]) if weight is not None else told**2 if isinstance(told, int) else 0
    return 0 if given is None else 2 * sizes.numel(given.shape) * taps


def _convolution_kind(op: Op, name: str, types: Mapping[str, Type], sizes: SizeValues) -> str:
    """Libraries want the channels last: what lies otherwise they turn around, but for a product of matrices."""
    backward = name == "convolution_backward"
    image = _tensor(op.args[1 if backward else 0], types)
    weight = _tensor(op.args[2 if backward else 1], types)
    if image is None or weight is None or len(image.shape) < 4 or image.stride[1] == 1:
        return "convolution"
    strides = op.args[4 if backward else 3]
    steps = strides if isinstance(strides, tuple) else ()
    one = sizes.numel(weight.shape[2:]) == 1 and all(step == 1 for step in steps)
    return "projection" if one else "turned"


def _attention(
    op: Op, name: str, result: TensorType, types: Mapping[str, Type], sizes: SizeValues, moved: int
) -> AnchorWork:
    backward = name.endswith("backward")
    operands = [_tensor(arg, types) for arg in op.args[1 if backward else 0 :][:3]]
    if len(operands) < 3 or any(kind is None or len(kind.shape) < 2 for kind in operands):
        return AnchorWork("attention", result.dtype, 0, moved)
    query, key, value = (kind for kind in operands if kind is not None)
    rows = sizes.numel(query.shape[:-1]) * _keys_seen(op, name, sizes(key.shape[-2]))
    flops = 2.0 * rows * (sizes(query.shape[-1]) + sizes(value.shape[-1]))
    if _argument(op, _CAUSAL_AT.get(name)) is True:
        flops /= 2
    if backward:
        flops *= _RECOMPUTING if name.startswith("sdpa") else _BACKWARD
    masked = isinstance(_argument(op, _MASK_AT.get(name)), Ref)
    return AnchorWork("masked" if masked else "attention", query.dtype, int(flops), moved)


def _keys_seen(op: Op, name: str, keys: int) -> float:
    """How many keys a query sees, where the rest is skipped: on average of its document, and no more than its window shows."""
    place = _SIGHT_AT.get(name)
    if place is None:
        return keys
    left, right, documents = (_argument(op, place + i) for i in range(3))
    lengths = [each for each in documents if isinstance(each, int)] if isinstance(documents, tuple) else []
    own = sum(each * each for each in lengths) / keys if lengths and keys else keys
    ends = (min(end, own) if isinstance(end, int) else own / 2 for end in (left, right))
    return min(own, sum(ends) + 1)


def _argument(op: Op, position: int | None) -> Arg:
    return None if position is None or position >= len(op.args) else op.args[position]


def _tensor(arg: Arg, types: Mapping[str, Type]) -> TensorType | None:
    kind = types.get(arg.name) if isinstance(arg, Ref) else None
    return kind if isinstance(kind, TensorType) else None
