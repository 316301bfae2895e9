"""From what Dynamo gives a backend to a trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from fuseplan.capture.dynamo.counts import Counts
from fuseplan.capture.dynamo.held import attribute, is_held
from fuseplan.capture.dynamo.numerics import Numerics
from fuseplan.capture.dynamo.policies import answers_of
from fuseplan.capture.dynamo.program import program_key, sharing
from fuseplan.capture.dynamo.settled import settled
from fuseplan.capture.dynamo.symbols import Symbols
from fuseplan.capture.trace.args import Devices, encode
from fuseplan.capture.trace.flex_call import BLOCK_MASK, MASK_BUFFERS
from fuseplan.capture.trace.format import Trace
from fuseplan.capture.trace.libraries import brought
from fuseplan.capture.trace.targets import Targets, method
from fuseplan.capture.trace.values import exactly, observe
from fuseplan.errors import GraphError
from fuseplan.graph.expr import symbols_in

CONSTANT_ELEMENTS = 1024
"""Up to how many elements a constant of the program may have to be written by value."""
MASK_ELEMENTS = 2**16
"""The same of what says which blocks a mask leaves: other numbers would be another mask, or none."""


def write_trace(gm: GraphModule, example_inputs: Sequence[Any], name: str = "") -> Trace:
    """Write down what Dynamo captured, in the grad and autocast modes that hold now.

    A GraphError says what cannot be written: a higher-order operator, a subclass of Tensor, a function of the user's …

    >>> traces = []
    >>> def backend(gm, example_inputs):
    ...     traces.append(write_trace(gm, example_inputs, "triple"))
    ...     return gm.forward
    >>> _ = torch.compile(lambda x: x * 3, backend=backend)(torch.ones(2))
    >>> traces[0].fields["nodes"]
    [{'op': 'function', 'target': 'operator.mul', 'args': [{'ref': 0}, 3]}]
    """
    program = settled(gm, example_inputs)
    gm, example_inputs = program.gm, program.example_inputs
    key = program_key(gm, example_inputs)
    if key.key is None:
        raise GraphError(f"{name or 'the program'} cannot be traced: {key.why}")
    fields = _Writer(gm, example_inputs).fields()
    libraries = brought(node["target"] for node in fields["nodes"] if isinstance(node.get("target"), str))
    return Trace(key.key, name, fields, numerics=vars(Numerics.here()), libraries=libraries)


class _Writer:
    def __init__(self, gm: GraphModule, example_inputs: Sequence[Any]) -> None:
        self.gm = gm
        self.given = list(example_inputs)
        self.symbols = Symbols()
        self.devices = Devices()
        self.targets = Targets()
        self.numbers: dict[Node, int] = {}

    def fields(self) -> dict[str, Any]:
        placeholders = self.gm.graph.find_nodes(op="placeholder")
        if len(placeholders) != len(self.given):
            raise GraphError(f"the program has {len(placeholders)} inputs and was given {len(self.given)}")
        first, masks = sharing(self.given), _of_masks(self.gm)
        inputs = []
        for i, (node, given) in enumerate(zip(placeholders, self.given, strict=True)):
            self.numbers[node] = i
            inputs.append(self._input(node, given, first.get(i), of_mask=node in masks))
        _check_strides(inputs)
        nodes, output = self._calls(self.gm)
        counting = Counts.of(self.gm).names(self.symbols)
        symbols = [
            {"name": one.name, "low": one.low, "high": one.high, "hint": one.hint}
            | ({"counts": True} if one.name in counting else {})
            for one in self.symbols.seen()
        ]
        return {
            "torch": torch.__version__,
            "modes": modes(),
            "symbols": symbols,
            "inputs": inputs,
            "nodes": nodes,
            "output": output,
        }

    def _calls(self, gm: GraphModule) -> tuple[list[Any], list[Any]]:
        """What is called, in order, and what is given out; the placeholders have their numbers."""
        nodes: list[Any] = []
        output: Any = []
        for node in gm.graph.nodes:
            if node.op == "output":
                output = self._arg(node.args[0])
            elif node.op != "placeholder":
                nodes.append(self._node(gm, node))
                self.numbers[node] = len(self.numbers)
        output = output["tuple"] if isinstance(output, dict) and "tuple" in output else output
        return nodes, output if isinstance(output, list) else [output]

    def _input(self, node: Node, given: Any, storage: int | None, *, of_mask: bool) -> dict[str, Any]:
        fake = node.meta.get("example_value")
        if isinstance(fake, torch.SymInt):
            return {"kind": "size", "size": self.symbols.expr(fake)}
        if not isinstance(fake, Tensor) or not isinstance(given, Tensor):
            raise GraphError(f"input {self.numbers[node]} is a {type(fake).__name__}, which a trace cannot hold")
        if fake.is_conj() or fake.is_neg():
            raise GraphError(f"input {self.numbers[node]} is a conjugated or negated view")
        if getattr(node.meta.get("grapharg"), "pass_arg_as_tensor", False):
            raise GraphError(
                f"input {self.numbers[node]} is a float that varies; mark sizes, not everything, as dynamic"
            )
        shared = {} if storage is None else {"storage": storage, "offset": int(given.storage_offset())}
        known = of_mask and not given.is_floating_point() and not given.is_complex()
        if known and given.numel() > MASK_ELEMENTS:
            raise GraphError(f"input {self.numbers[node]} is part of a mask, and too large for a trace")
        described = self._type(fake)
        varies = bool(_varying([*described["shape"], *described["stride"]]))
        return {
            "kind": _kind(given, varies=varies),
            **described,
            "values": (exactly if known else observe)(given),
            **shared,
        }

    def _type(self, fake: Tensor) -> dict[str, Any]:
        return {
            "dtype": str(fake.dtype).removeprefix("torch."),
            "shape": [self.symbols.dim(size) for size in fake.shape],
            "stride": [self.symbols.dim(step) for step in fake.stride()],
            "device": self.devices.name(fake.device),
            "grad": fake.requires_grad,
            "leaf": fake.is_leaf,
        }

    def _node(self, gm: GraphModule, node: Node) -> dict[str, Any]:
        if node.op == "get_attr":
            return self._attribute(gm, node)
        if node.op == "call_function":
            record = {"op": "function", "target": self.targets.name_of(node.target)}
        elif node.op == "call_method":
            record = {"op": "method", "target": method(str(node.target))}
        else:
            raise GraphError(f"{node.op} {node.target} cannot be written down")
        kwargs = {name: self._arg(arg) for name, arg in node.kwargs.items()}
        return {**record, "args": [self._arg(arg) for arg in node.args], **({"kwargs": kwargs} if kwargs else {})}

    def _attribute(self, gm: GraphModule, node: Node) -> dict[str, Any]:
        value = attribute(gm, str(node.target))
        if isinstance(value, GraphModule):
            return self._block(value, node)
        told = f"the program holds a {type(value).__name__}"
        if not isinstance(value, Tensor) or value.is_complex():
            raise GraphError(f"{told} that a trace cannot hold{' since it is complex' * isinstance(value, Tensor)}")
        if is_held(value):  # within a block; the values of weights are in no trace
            raise GraphError(f"{told} that is no constant")
        if value.numel() > CONSTANT_ELEMENTS:
            raise GraphError(f"{told} that is too large for a trace")
        numbers = [self._arg(number) for number in value.detach().reshape(-1).tolist()]
        dtype = str(value.dtype).removeprefix("torch.")
        return {"op": "constant", "dtype": dtype, "shape": list(value.shape), "values": numbers}

    def _block(self, block: GraphModule, node: Node) -> dict[str, Any]:
        """What runs under activation checkpointing, or says what a mask hides, is a graph of its own, with numbers of its own."""
        for user in node.users:
            self.targets.name_of(user.target)  # other higher-order operators are refused by name
        outer, self.numbers = self.numbers, {}
        for placeholder in block.graph.find_nodes(op="placeholder"):
            self.numbers[placeholder] = len(self.numbers)
        count = len(self.numbers)
        nodes, output = self._calls(block)
        self.numbers = outer
        values = [self._block_input(p) for p in block.graph.find_nodes(op="placeholder")]
        alone = {} if isinstance(block.graph.output_node().args[0], (list, tuple)) else {"alone": True}
        answers = answers_of(block)
        policy = {} if answers is None else {"policy": {name: list(every) for name, every in answers.items()}}
        return {"op": "block", "inputs": count, "values": values, "nodes": nodes, "output": output, **alone, **policy}

    def _block_input(self, node: Node) -> Any:
        """What a block is given: it is part of the program's key, though no more is needed to run it."""
        value = node.meta.get("example_value")
        if isinstance(value, torch.SymInt):
            return {"kind": "size", "size": self.symbols.expr(value)}
        if isinstance(value, Tensor):
            kind = "parameter" if isinstance(value, torch.nn.Parameter) else "input"
            return {"kind": kind, **self._type(value)}
        return value if value is None or isinstance(value, (bool, int, float, str)) else type(value).__name__

    def _arg(self, arg: Any) -> Any:
        return encode(arg, self.numbers, self.targets, self.devices)


def _check_strides(inputs: Sequence[Mapping[str, Any]]) -> None:
    """GraphError where a stride varies, and no size of its input does, with a size that no input has: of a program that is rebuilt it would not."""
    tensors = [(i, item) for i, item in enumerate(inputs) if item["kind"] != "size"]
    known = {name for _, item in tensors for name in _varying(item["shape"])}
    for i, item in tensors:
        if not _varying(item["shape"]) and _varying(item["stride"]) - known:
            raise GraphError(
                f"input {i} is a part of a tensor of which a size varies that the program is not given; copy it first"
            )


def _varying(dims: Sequence[int | str]) -> set[str]:
    return {name for dim in dims if isinstance(dim, str) for name in symbols_in(dim)}


def modes() -> dict[str, Any]:
    """The modes that a program is captured in, as far as they change it."""
    autocast = {
        device: str(torch.get_autocast_dtype(device)).removeprefix("torch.")
        for device in ("cpu", "cuda")
        if torch.is_autocast_enabled(device)
    }
    dynamo = torch._dynamo.config
    return {
        "autocast": autocast,
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "default": str(torch.get_default_dtype()).removeprefix("torch."),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "scalars": dynamo.capture_scalar_outputs,
        "sizes": dynamo.capture_dynamic_output_shape_ops,
    }


def _of_masks(gm: GraphModule) -> set[Node]:
    """The inputs that say what flex_attention leaves out."""
    found: set[Node] = set()
    for node in gm.graph.find_nodes(op="call_function", target=torch.ops.higher_order.flex_attention):
        for place in (BLOCK_MASK, MASK_BUFFERS):
            given = node.args[place] if place < len(node.args) else ()
            found.update(one for one in given if isinstance(one, Node))
    return found


def _kind(given: Tensor, *, varies: bool) -> str:
    """What a module has does not vary in size: what stays and does is an input like others."""
    if isinstance(given, torch.nn.Parameter):
        return "parameter"
    # what Dynamo puts on the buffers of modules: their addresses stay, so that CUDA graphs need not copy them
    static = getattr(given, "_dynamo_static_input_type", None) is not None
    return "buffer" if static and not varies and not given.requires_grad else "input"
