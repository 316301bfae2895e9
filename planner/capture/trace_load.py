"""From a trace back to a module that torch.compile can capture again: the same graph, other weights and data."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node

from fuseplan.capture.trace_args import decode, device_named, named
from fuseplan.capture.trace_code import write_blocks
from fuseplan.capture.trace_format import Trace, check_fields
from fuseplan.capture.trace_targets import ATTRIBUTES, Targets, method
from fuseplan.capture.trace_tensors import Tensors
from fuseplan.errors import GraphError

Call = Callable[..., Any]


@dataclass(eq=False)
class Loaded:
    """A program that was rebuilt from its trace, with weights and inputs made up."""

    trace: Trace
    module: nn.Module
    tensors: Tensors

    def inputs(self, seed: int = 0, sizes: Mapping[str, int] | None = None) -> list[Tensor]:
        """New arguments of the module, the same for the same seed; `sizes` gives dynamic sizes by their names."""
        return self.tensors.arguments(seed, sizes or {})

    @contextmanager
    def modes(self) -> Iterator[None]:
        """The grad and autocast modes that the program was captured in."""
        modes = self.trace.fields["modes"]
        default, deterministic = torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled()
        captured = {"capture_scalar_outputs": modes["scalars"], "capture_dynamic_output_shape_ops": modes["sizes"]}
        with ExitStack() as stack:
            stack.callback(torch.set_default_dtype, default)
            stack.callback(torch.use_deterministic_algorithms, deterministic)
            torch.set_default_dtype(named(modes["default"]))
            torch.use_deterministic_algorithms(modes["deterministic"])
            stack.enter_context(torch._dynamo.config.patch(captured))
            stack.enter_context(torch.inference_mode() if modes["inference"] else torch.set_grad_enabled(modes["grad"]))
            for device, dtype in modes["autocast"].items():
                stack.enter_context(torch.autocast(device, named(dtype)))
            yield

    def step(self, call: Call | None = None, args: Sequence[Tensor] | None = None) -> list[Any]:
        """Run `call` (the module itself, or what was compiled of it) once, and backward where gradients are recorded.

        Backward starts from fixed random numbers, since the gradient of a plain sum through a norm or a softmax is
        zero whatever they do. Gradients of before are dropped first, as a training step does. Returns the outputs.
        """
        args = self.inputs() if args is None else args
        for leaf in (*self.tensors.parameters, *args):
            leaf.grad = None
        with self.modes():
            outputs = list((self.module if call is None else call)(*args))
        wanted = [out for out in outputs if isinstance(out, Tensor) and out.requires_grad]
        if wanted:
            torch.autograd.backward(wanted, [self.tensors.tangent(i, out) for i, out in enumerate(wanted)])
        return outputs

    def run(self, call: Call | None = None, seed: int = 0) -> dict[str, Any]:
        """One step from the same weights, inputs and random numbers each time; all that it gave and wrote, by name.

        Buffers and parameters are put back after it.
        """
        args = self.inputs(seed)
        kept = self.tensors.snapshot()
        with torch.random.fork_rng(self.tensors.cuda_devices()):
            torch.manual_seed(seed)
            outputs = self.step(call, args)
        results: dict[str, Any] = {f"output {i}": _kept(out) for i, out in enumerate(outputs)}
        for name, leaf in self.tensors.leaves(args):
            if leaf.grad is not None:
                results[f"gradient of {name}"] = leaf.grad
                leaf.grad = None
        results |= {f"{name} after": value for name, value in self.tensors.after(args, kept).items()}
        self.tensors.restore(kept)
        return results


def load_trace(trace: Trace, device: torch.device | str | None = None, seed: int = 0) -> Loaded:
    """Rebuild a program, its weights made up from `seed`, on its own kind of device or on another.

    >>> add = {"op": "function", "target": "operator.add", "args": [1, 2]}
    >>> modes = {"autocast": {}, "grad": False, "inference": False, "default": "float32", "deterministic": False}
    >>> modes |= {"scalars": False, "sizes": False}
    >>> fields = {"torch": "", "modes": modes, "symbols": [], "inputs": [], "nodes": [add], "output": [{"ref": 0}]}
    >>> load_trace(Trace("", "three", fields)).step()
    [3]
    """
    check_fields(trace.fields)
    base = torch.device(device) if device is not None else None
    kinds = {device_named(item["device"], None).type for item in trace.fields["inputs"] if "device" in item}
    if base is not None and base.type not in kinds and kinds:
        trace = trace.on(base.type)
    with torch.inference_mode(False):
        tensors = Tensors(trace.fields, base, seed)
        return Loaded(trace, _build(trace, tensors, base), tensors)


def _build(trace: Trace, tensors: Tensors, base: torch.device | None) -> GraphModule:
    """The module: first all its inputs, touched in their order, so that Dynamo finds them in that order again."""
    fields, targets, graph = trace.fields, Targets(), Graph()
    values: list[Any] = [None] * len(fields["inputs"])
    for i in tensors.argument_numbers:
        values[i] = graph.placeholder(tensors.name(i))
    for i, item in enumerate(fields["inputs"]):
        if i in tensors.owned:
            values[i] = graph.get_attr(tensors.name(i))
        if item["kind"] != "size":
            graph.call_function(getattr, (values[i], "dtype"))
            continue
        source, dim = tensors.source_of_size(i)
        shape = graph.call_function(getattr, (values[source], "shape"))
        values[i] = graph.call_function(operator.getitem, (shape, dim))
    constants: dict[str, Tensor] = {}
    for node in fields["nodes"]:
        values.append(_node(graph, node, values, targets, base, constants))
    graph.output(tuple(decode(fields["output"], values, targets, base)))
    write_blocks(graph)
    module = nn.Module()
    for name, tensor in tensors.attributes():
        setattr(module, name, tensor) if isinstance(tensor, nn.Parameter) else module.register_buffer(name, tensor)
    for name, tensor in constants.items():
        module.register_buffer(name, tensor)
    return GraphModule(module, graph, class_name="Traced")


def _node(
    graph: Graph,
    node: Mapping[str, Any],
    values: Sequence[Any],
    targets: Targets,
    base: torch.device | None,
    constants: dict[str, Tensor],
) -> Node:
    if node["op"] == "constant":
        name = f"constant_{len(constants)}"
        numbers = decode(node["values"], (), targets, base)
        constants[name] = torch.tensor(numbers, dtype=named(node["dtype"])).reshape(node["shape"])
        return graph.get_attr(name)
    args = tuple(decode(node["args"], values, targets, base))
    kwargs = {name: decode(arg, values, targets, base) for name, arg in node.get("kwargs", {}).items()}
    if node["op"] == "method":
        return graph.call_method(method(node["target"]), args, kwargs)
    function = targets.find(node["target"])
    if function is getattr and (len(args) != 2 or args[1] not in ATTRIBUTES):
        raise GraphError("a trace asks for an attribute that it may not see")
    return graph.call_function(function, args, kwargs)


def _kept(output: Any) -> Any:
    return output.detach() if isinstance(output, Tensor) else output
