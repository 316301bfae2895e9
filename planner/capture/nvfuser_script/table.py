"""All ops of nvFuser that ATen has a counterpart for, by name, and the names of their arguments over the years."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from fuseplan.capture.nvfuser_script.contractions import CONTRACTIONS
from fuseplan.capture.nvfuser_script.pointwise import POINTWISE, Op
from fuseplan.capture.nvfuser_script.shapes import SHAPES

OPS: Mapping[str, Op] = {**POINTWISE, **SHAPES, **CONTRACTIONS}

_ALSO: Mapping[str, Sequence[str]] = {
    "arg": ("x", "fill_value", "value"),
    "input": ("x",),
    "arg1": ("x",),
    "arg2": ("y", "weight"),
    "arg3": ("z",),
    "mat1": ("x",),
    "mat2": ("y",),
    "lhs": ("x",),
    "rhs": ("y",),
    "axes": ("dims", "dim"),
    "axis": ("dims", "dim"),
    "dim": ("dims",),
    "dims": ("dim",),
    "keep_dim": ("keepdim",),
    "output_shape": ("shape",),
    "size": ("shape",),
    "value": ("fill_value",),
    "vector": ("x",),
    "log_sum_exp": ("log_sumexp",),
}
"""Other words for a parameter: which of ours each may mean."""

NO_COUNTERPART = frozenset(
    "logical_right_shift scaled_mm scaled_grouped_mm cutlass_nvfp4_grouped_mm nv_block_quantize"
    " nv_grouped_block_quantize preprocess_grouped_matmul_input_sf".split()
)
"""Ops that nvFuser has and ATen has not, so that nothing but nvFuser could run them."""


def bound(op: Op, builder: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
    """The arguments of a call in the places of the op's parameters; TypeError says what does not fit."""
    signature = inspect.signature(op)
    named = {}
    for name, value in kwargs.items():
        known = name if name in signature.parameters else None
        also = (other for other in _ALSO.get(name, ()) if other in signature.parameters)
        named[known or next(also, name)] = value
    return signature.bind(builder, *args, **named)
