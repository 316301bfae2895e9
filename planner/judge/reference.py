"""What a region should compute: the region itself under ATen, and the same region in higher precision.

Works on the Graph: floats become wider, and random values that the region shows become inputs, so that the rest of it
can be judged exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from fuseplan.capture.fx.targets import find_target
from fuseplan.capture.fx.to_fx import constant_tensor
from fuseplan.errors import GraphError
from fuseplan.graph import Arg, Constant, Enum, Graph, Op, Ref, TensorType, Type, Value

_TO_DOUBLE = {
    "bfloat16": "float64",
    "float16": "float64",
    "float32": "float64",
    "float8_e4m3fn": "float64",
    "float8_e5m2": "float64",
    "complex32": "complex128",
    "complex64": "complex128",
}
_TO_FLOAT = {"bfloat16": "float32", "float16": "float32", "float8_e4m3fn": "float32", "float8_e5m2": "float32"}
WIDENINGS = (_TO_DOUBLE, _TO_FLOAT)
"""Precisions to try for the reference, best first: some ATen kernels have no fp64."""

_READS_BITS = ("aten.view.dtype", "prims.view_element_type.default")


def widen(region: Graph, wider: dict[str, str]) -> Graph | None:
    """Return the region with the dtypes that `wider` names replaced; None where that says nothing new or cannot be."""
    if any(op.target in _READS_BITS for op in region.ops):
        return None
    floats = {kind.dtype for kind in region.types.values() if isinstance(kind, TensorType)}
    if not floats & wider.keys():
        return None
    return Graph(
        tuple(_wide_value(v, wider) for v in region.inputs),
        tuple(_wide_op(op, wider) for op in region.ops),
        region.outputs,
        tuple(_wide_constant(c, wider) for c in region.constants),
        region.symbols,
    )


def _wide_constant(constant: Constant, wider: dict[str, str]) -> Constant:
    value = _wide_value(constant.value, wider)
    if value == constant.value:
        return constant
    assert isinstance(value.type, TensorType)
    wide = constant_tensor(constant, "cpu").to(getattr(torch, value.type.dtype)).contiguous()
    return Constant(value, wide.view(torch.uint8).numpy().tobytes().hex())


def _wide_value(value: Value, wider: dict[str, str]) -> Value:
    if isinstance(value.type, TensorType) and value.type.dtype in wider:
        return replace(value, type=replace(value.type, dtype=wider[value.type.dtype]))
    return value


def _wide_op(op: Op, wider: dict[str, str]) -> Op:
    args = tuple(_wide_arg(a, wider) for a in op.args)
    if op.target in ("aten._softmax.default", "aten._log_softmax.default"):
        args = (*args[:2], False)  # half_to_float: there is no half any more
    kwargs = tuple((key, _wide_arg(a, wider)) for key, a in op.kwargs)
    return replace(op, args=args, kwargs=kwargs, outputs=tuple(_wide_value(v, wider) for v in op.outputs))


def _wide_arg(arg: Arg, wider: dict[str, str]) -> Arg:
    if isinstance(arg, Enum) and arg.kind == "dtype":
        return Enum("dtype", wider.get(arg.name, arg.name))
    if isinstance(arg, tuple):
        return tuple(_wide_arg(a, wider) for a in arg)
    return arg


def draws(op: Op) -> bool:
    """Whether the op really draws random numbers; attention and dropout are marked random even where they never do.

    >>> x = Value("x", TensorType("float32", (2,), (1,)))
    >>> draws(Op("aten.native_dropout.default", (Ref("x"), 0.5, False), (), (x, x), random=True))
    False
    """
    if not op.random:
        return False
    name = op.target.rsplit(".", 1)[0]
    if name == "aten.native_dropout":
        return not (op.args[1] == 0 or op.args[2:3] == (False,))
    if "scaled_dot_product" in name or name in _DROPOUT_POSITION:
        return any(type(value) is float and value > 0 for value in _dropout_probabilities(op))
    return True


_DROPOUT_POSITION = {
    "aten._scaled_dot_product_flash_attention": 3,
    "aten._scaled_dot_product_flash_attention_for_cpu": 3,
    "aten._scaled_dot_product_efficient_attention": 5,
    "aten._scaled_dot_product_cudnn_attention": 5,
    "aten._scaled_dot_product_attention_math": 4,
    "aten._scaled_dot_product_fused_attention_overrideable": 4,
    "aten.scaled_dot_product_attention": 4,
    "aten._flash_attention_forward": 7,
}


def _dropout_probabilities(op: Op) -> Iterator[Arg]:
    position = _DROPOUT_POSITION.get(op.target.rsplit(".", 1)[0])
    if position is not None and position < len(op.args):
        yield op.args[position]
    yield from (value for key, value in op.kwargs if key == "dropout_p")


@dataclass(frozen=True)
class Nature:
    """What is known of a value before it is computed, as far as judging it goes."""

    computed: bool = False  # a float that the region computes: two right answers may differ in the last place
    fragile: bool = False  # behind a jump (a comparison, a rounding) of such a float: they may differ wholly, rarely
    random: bool = False
    garbage: bool = False  # memory that nobody has written to
    unsaid: bool = (
        False  # nobody says what comes of NaN: where the largest is among several, or the gradient of a kink there
    )


# Ops that jump, and give a float all the same. All that give ints or booleans from floats jump, too.
_JUMPS = (
    "ceil floor frac trunc round sign sgn heaviside remainder fmod floor_divide hardshrink threshold "
    "threshold_backward hardtanh_backward hardswish_backward hardsigmoid_backward leaky_relu_backward elu_backward "
    "softshrink_backward hardshrink_backward"
).split()
_KINKS = ("hardtanh_backward", "hardswish_backward", "softshrink_backward", "hardshrink_backward", "elu_backward")
"""Of NaN the gradient that eager gives hangs on the precision, and on whether the element is one of eight or one of the rest."""
_EMPTY = ("aten.empty", "aten.empty_like", "aten.empty_strided", "aten.new_empty", "aten.new_empty_strided")
_SEEDS = ("philox_seed", "philox_offset", "rng_state", "unused", "debug_attn_mask")
"""What attention gives beside its result for a backward that drops out the same: nobody writes it where nothing is dropped."""
_EXACT = ("aten.clone", "aten.copy", "aten.lift_fresh_copy")


def natures(region: Graph) -> dict[str, Nature]:
    """Return the nature of each value of the region."""
    known = {value.name: Nature() for value in region.inputs}
    known.update({constant.value.name: Nature() for constant in region.constants})
    for op in region.ops:
        read = [known[name] for name in op.reads]
        computed = any(n.computed for n in read)
        fragile = any(n.fragile for n in read)
        random = draws(op) or any(n.random for n in read)
        name = op.target.rsplit(".", 1)[0]
        moves = op.is_view or name in _EXACT or not op.reads
        garbage = name in _EMPTY or (op.is_view and any(n.garbage for n in read))
        unwritten = _unwritten(op)
        for i, value in enumerate(op.outputs):
            is_float = _is_float(value.type)
            jumps = not is_float or name.removeprefix("aten.") in _JUMPS
            dtype = value.type.dtype if isinstance(value.type, TensorType) else ""
            integer = dtype not in ("", "bool") and not is_float
            from_floats = any(_is_float(region.types[name]) for name in op.reads)
            known[value.name] = Nature(
                computed=computed or (is_float and not moves),
                fragile=fragile or (jumps and computed),
                random=random,
                garbage=garbage or i in unwritten,
                unsaid=any(n.unsaid for n in read) or (integer and from_floats) or name.removeprefix("aten.") in _KINKS,
            )
    return known


def _unwritten(op: Op) -> frozenset[int]:
    """The outputs that hold nothing."""
    if "_attention" not in op.target or len(op.outputs) == 1 or draws(op):
        return frozenset()
    try:
        returns = find_target(op.target)._schema.returns  # type: ignore[attr-defined]
    except (GraphError, AttributeError):
        return frozenset()
    return frozenset(i for i, one in enumerate(returns) if one.name in _SEEDS)


def _is_float(kind: Type) -> bool:
    return isinstance(kind, TensorType) and "float" in kind.dtype


def pin(region: Graph) -> tuple[Graph, tuple[int, ...]] | None:
    """Return the region with the random values that it shows as additional inputs, and which outputs these were.

    None where there are none. Dropout that shows its mask becomes a product with that mask.
    """
    shown = {arg.name: i for i, arg in reversed(list(enumerate(region.outputs))) if isinstance(arg, Ref)}
    pinned: list[Value] = []
    ops: list[Op] = []
    for op in region.ops:
        if draws(op) and all(value.name in shown for value in op.outputs[-1:]) and _can_pin(op):
            pinned.append(op.outputs[-1])
            ops.extend(_given(op))
        else:
            ops.append(op)
    if not pinned:
        return None
    graph = Graph((*region.inputs, *pinned), tuple(ops), region.outputs, region.constants, region.symbols)
    return graph, tuple(shown[value.name] for value in pinned)


def _can_pin(op: Op) -> bool:
    return len(op.outputs) == 1 or (op.target == "aten.native_dropout.default" and op.args[1] != 1)


def _given(op: Op) -> list[Op]:
    """What is left of a random op once its last output is known."""
    if len(op.outputs) == 1:
        return []
    kept, mask = op.outputs
    product = Value(f"{kept.name}__kept", kept.type)
    scale = 1 / (1 - float(op.args[1]))  # type: ignore[arg-type]
    return [
        Op("aten.mul.Tensor", (op.args[0], Ref(mask.name)), (), (product,)),
        Op("aten.mul.Tensor", (Ref(product.name), scale), (), (kept,)),
    ]
