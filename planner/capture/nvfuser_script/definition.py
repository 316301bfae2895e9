"""The FusionDefinition of a script: its inputs laid out as declared or as given, its ops, its outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fuseplan.capture.nvfuser_script.builder import ProgramBuilder
from fuseplan.capture.nvfuser_script.examples import Spread, usual
from fuseplan.capture.nvfuser_script.shapes import stride_order as in_order
from fuseplan.capture.nvfuser_script.sizes import ChosenSizes
from fuseplan.capture.nvfuser_script.words import Example, NodeValue, Number, whole, wholes
from fuseplan.graph.limits import MAX_RANK


class Definition:
    """What the script says of one fusion, kept as it is said."""

    def __init__(self, given: Sequence[Any] | None, sizes: ChosenSizes) -> None:
        self.builder = ProgramBuilder()
        self.given = given
        self.sizes = sizes
        self.values: list[Spread] = []
        self.on_cpu: list[bool] = []
        self.outputs: list[NodeValue] = []
        self.written: list[tuple[NodeValue, NodeValue]] = []
        self.made_up: list[str] = []
        """What was chosen for want of inputs."""
        self._taken = 0

    # inputs

    def define_tensor(
        self, shape: Any = None, contiguity: Any = None, dtype: Any = torch.float32, is_cpu: bool = False,
        stride_order: Any = None, *, symbolic_sizes: Any = None, sizes: Any = None, contiguous: Any = None,
        strides: Any = None, ndims: Any = None, static_sizes: bool = False,
    ) -> NodeValue:  # fmt: skip
        declared = next((item for item in (shape, symbolic_sizes, sizes, ndims) if item is not None), 0)
        rank = len(declared) if isinstance(declared, (list, tuple)) else whole(declared)
        if not 0 <= rank <= MAX_RANK:
            raise ValueError(f"a tensor of {rank} dimensions")
        dims = wholes(declared) if isinstance(declared, (list, tuple)) else [-1] * rank
        flags = contiguous if contiguity is None else contiguity
        if isinstance(flags, torch.dtype):
            flags, dtype = None, flags  # the number of dimensions, and the dtype
        if isinstance(flags, (list, tuple)) and any(type(flag) is int for flag in flags):
            flags, strides = None, flags  # sizes and strides, given by their places
        order = None if stride_order is None else wholes(stride_order)
        if self.given is None:
            dims = [self.sizes.of(size, len(self.values), dim, len(dims)) for dim, size in enumerate(dims)]
            laid_out = wholes(strides) if strides is not None else _strides(dims, flags, order)
            self.made_up.append(f"{dims}")
            return self._input(dims, laid_out, dtype, is_cpu, usual(dtype))
        example = self._next()
        if not isinstance(example, Example):
            raise ValueError(f"a tensor, for which the script gives {example!r}")
        meta = example.meta
        fits = meta.dim() == len(dims) and all(d in (-1, s) for d, s in zip(dims, meta.shape, strict=True))
        if not fits or meta.dtype != dtype:
            raise ValueError(f"{dtype} {dims}, for which the script gives {meta.dtype} {list(meta.shape)}")
        return self._input(meta.shape, meta.stride(), dtype, is_cpu, example.values)

    def from_pytorch(self, tensor: Any, static_sizes: bool = False) -> NodeValue:
        if not isinstance(tensor, Example):
            raise TypeError("from_pytorch takes a tensor")
        if self.given is not None:
            self._taken += 1
        return self._input(
            tensor.meta.shape, tensor.meta.stride(), tensor.meta.dtype, tensor.on_cpu, tensor.values
        )  # fmt: skip

    def define_scalar(self, value: Any = None, dtype: Any = None) -> Number:
        """Without a value it is an input. What a script gives for it counts: torch would fix it as well."""
        if isinstance(value, torch.dtype):
            value, dtype = None, value
        if value is None:
            value = self._next() if self.given is not None else self._made_up_number(dtype)
        if isinstance(value, Example):
            raise ValueError("a number, for which the script gives a tensor")
        number = value if isinstance(value, Number) else Number.of(value)
        return number if dtype is None else number.cast(dtype)

    define_constant = define_scalar

    def define_vector(self, values: Any = None, dtype: Any = None, *, size: Any = None) -> list[Any]:
        """Of numbers that are there, or so many inputs."""
        given = values if size is None else size
        if isinstance(given, (list, tuple)):
            return list(given)
        if whole(given) > MAX_RANK:
            raise ValueError(f"a vector of {whole(given)} numbers")
        return [self.define_scalar(None, torch.int64) for _ in range(whole(given))]

    def define_null_tensor(self) -> None:
        """Stands where an op is given no tensor."""

    def add_input(self, *_: Any) -> None:
        """The first frontend asked for this; an input is one by being defined."""

    def _input(
        self, shape: Sequence[int], stride: Sequence[int], dtype: Any, is_cpu: bool, values: Spread
    ) -> NodeValue:
        self.values.append(values)
        self.on_cpu.append(is_cpu and not len(shape))
        return self.builder.input(shape, stride, dtype)

    def _next(self) -> Any:
        assert self.given is not None
        self._taken += 1
        if self._taken > len(self.given):
            raise ValueError(f"input {self._taken}, and the script gives {len(self.given)}")
        return self.given[self._taken - 1]

    def _made_up_number(self, dtype: Any) -> Any:
        value = {torch.int64: 2, torch.int32: 2, torch.bool: True}.get(dtype, 0.5)
        self.made_up.append(f"{value}")
        return value

    # outputs

    def add_output(self, output: Any, alias_input: Any = None, stride_order: Any = None) -> None:
        """One that is to be written to an input is no output of its own."""
        if not isinstance(output, NodeValue):
            raise TypeError("an output that is a number, which a program of torch has not")
        if isinstance(alias_input, (list, tuple)):
            alias_input, stride_order = None, alias_input
        if isinstance(alias_input, NodeValue):
            self.written.append((alias_input, output))
            return
        if stride_order is not None:
            output = in_order(self.builder, output, stride_order)
        self.outputs.append(output)

    def finish(self) -> None:
        """Write the last nodes: copies of inputs that leave as outputs, and what is written to inputs, after all reads."""
        nodes = []
        for value in self.outputs:
            copy = value.copied and value.node.op == "placeholder"
            nodes.append((self.builder.method("clone", value) if copy else value).node)
        for target, value in self.written:
            self.builder.method("copy_", target, value)
        if not nodes and not self.written:
            raise ValueError("a fusion without an output")
        self.builder.graph.output(tuple(nodes))
        self.builder.graph.eliminate_dead_code(
            lambda node: node.op in ("placeholder", "output") or node.target == "copy_"
        )

    def spreads(self) -> list[Mapping[str, Any]]:
        """How the values of each input are spread; indices stay in range."""
        found = []
        for i, values in enumerate(self.values):
            most = self.builder.indices.get(i)
            fits = most is not None and values["spread"] == "range" and 0 <= values["low"] <= values["high"] < most
            found.append(values if most is None or fits else {"spread": "range", "low": 0, "high": max(0, most - 1)})
        return found


def _strides(shape: Sequence[int], contiguity: Any, order: Sequence[int] | None) -> list[int]:
    """What was declared, as strides: a gap where it is not contiguous, none where it is repeated."""
    rank = len(shape)
    ranks = list(order) if order is not None else list(reversed(range(rank)))
    flags = contiguity if isinstance(contiguity, (list, tuple)) else [True if contiguity is None else contiguity] * rank
    if sorted(ranks) != list(range(rank)) or len(flags) != rank:
        raise ValueError(f"a contiguity or stride_order that is not for {rank} dimensions")
    strides, step = [0] * rank, 1
    for dim in sorted(range(rank), key=lambda dim: ranks[dim]):
        # contiguity is told from the slowest dimension to the fastest
        flag = flags[rank - 1 - ranks[dim]]
        if flag is None and shape[dim] != 1:
            continue
        step *= 1 if flag or shape[dim] == 1 else 2
        strides[dim] = step
        step *= shape[dim]
    return strides
