"""From a trace back to a module that torch.compile can capture again: the same graph, other weights and data."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node, Proxy
from torch.fx.experimental.sym_node import DynamicInt
from torch.fx.proxy import GraphAppendingTracer, TraceError

from fuseplan.capture.fx.to_fx import SizeSpace
from fuseplan.capture.gradients import goes_back
from fuseplan.capture.trace.args import device_named, named
from fuseplan.capture.trace.build import GraphBuilder
from fuseplan.capture.trace.format import Trace, check_fields
from fuseplan.capture.trace.libraries import check_brought
from fuseplan.capture.trace.targets import Targets
from fuseplan.capture.trace.tensors import Tensors
from fuseplan.capture.trace.write import modes as present_modes
from fuseplan.errors import GraphError
from fuseplan.graph.expr import symbols_in

Call = Callable[..., Any]

LEAST_SIZE = 2
"""Of sizes that vary: Dynamo compiles anew for 0 and for 1."""
_UNBOUNDED = -(2**62)
"""Of a number that is no tensor's size, what is below this is no bound."""
_DYNAMO = {"scalars": "capture_scalar_outputs", "sizes": "capture_dynamic_output_shape_ops"}
"""Of the modes, those that are settings of Dynamo."""


@dataclass(eq=False)
class Loaded:
    """A program that was rebuilt from its trace, with weights and inputs made up."""

    trace: Trace
    module: nn.Module
    tensors: Tensors
    device: torch.device | None = None
    """Where it was rebuilt, if not where it was recorded."""

    def given(self, trace: Trace) -> Loaded:
        """The same program with the same weights, whose inputs are as another trace of it says."""
        return replace(self, trace=trace, tensors=self.tensors.given(trace.fields))

    def inputs(self, seed: int = 0, sizes: Mapping[str, int] | None = None) -> list[Any]:
        """New arguments of the module, the same for the same seed; `sizes` gives dynamic sizes by their names.

        They are tensors, and integers that are no tensor's size.
        """
        return self.tensors.arguments(seed, sizes or {})

    @contextmanager
    def modes(self) -> Iterator[None]:
        """The grad and autocast modes that the program was captured in.

        Modes that hold already are left alone: what is timed in here should not pay for them.
        """
        modes, now = self.trace.fields["modes"], present_modes()
        dynamo = {name: modes[mode] for mode, name in _DYNAMO.items() if modes[mode] != now[mode]}
        with ExitStack() as stack:
            if modes["default"] != now["default"]:
                stack.callback(torch.set_default_dtype, named(now["default"]))
                torch.set_default_dtype(named(modes["default"]))
            if modes["deterministic"] != now["deterministic"]:
                stack.callback(torch.use_deterministic_algorithms, now["deterministic"])
                torch.use_deterministic_algorithms(modes["deterministic"])
            if dynamo:
                stack.enter_context(torch._dynamo.config.patch(dynamo))
            if modes["inference"] != now["inference"]:
                stack.enter_context(torch.inference_mode(modes["inference"]))
            if modes["grad"] != torch.is_grad_enabled():
                stack.enter_context(torch.set_grad_enabled(modes["grad"]))
            for device in {**now["autocast"], **modes["autocast"]}:
                dtype = modes["autocast"].get(device)
                stack.enter_context(torch.autocast(device, named(dtype) if dtype else None, enabled=dtype is not None))
            yield

    def step(self, call: Call | None = None, args: Sequence[Any] | None = None) -> list[Any]:
        """Run `call` (the module itself, or what was compiled of it) once, and backward where gradients are recorded.

        Backward starts from fixed random numbers, since the gradient of a plain sum through a norm or a softmax is
        zero whatever they do. Gradients of before are dropped first, as a training step does. Returns the outputs.
        """
        args = self.inputs() if args is None else args
        for leaf in (*self.tensors.parameters, *args):
            if isinstance(leaf, Tensor):
                leaf.grad = None
        with self.modes():
            outputs = [_plain(out) for out in (self.module if call is None else call)(*args)]
        wanted = [out for out in outputs if goes_back(out)]
        if wanted:
            torch.autograd.backward(wanted, [self.tensors.tangent(i, out) for i, out in enumerate(wanted)])
        return outputs

    def run(
        self, call: Call | None = None, seed: int = 0, *, within: AbstractContextManager[object] | None = None
    ) -> dict[str, Any]:
        """One step from the same weights, inputs and random numbers each time; all that it gave and wrote, by name.

        Buffers and parameters are put back after it. `within` is around the step, forward and backward, and nothing else.
        """
        args = self.inputs(seed)
        kept = self.tensors.snapshot()
        with torch.random.fork_rng(self.tensors.cuda_devices()):
            torch.manual_seed(seed)
            with within or nullcontext():
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
    check_brought(trace.libraries)
    base = torch.device(device) if device is not None else None
    kinds = {device_named(item["device"], None).type for item in trace.fields["inputs"] if "device" in item}
    if base is not None and base.type not in kinds and kinds:
        trace = trace.on(base.type)
    with torch.inference_mode(False):
        tensors = Tensors(trace.fields, base, seed)
        return Loaded(trace, _build(trace, tensors, base), tensors, base)


def _build(trace: Trace, tensors: Tensors, base: torch.device | None) -> GraphModule:
    """The module: first all its inputs, touched in their order, so that Dynamo finds them in that order again."""
    fields, graph, module = trace.fields, Graph(), nn.Module()
    values: list[Any] = [None] * len(fields["inputs"])
    for i in tensors.argument_numbers:
        values[i] = graph.placeholder(tensors.name(i))
    for i, item in enumerate(fields["inputs"]):
        if i in tensors.owned:
            values[i] = graph.get_attr(tensors.name(i))
        if item["kind"] != "size":
            graph.call_function(getattr, (values[i], "dtype"))
            continue
        source = tensors.source_of_size(i)
        if source is None:
            graph.call_function(callable, (values[i],))
            continue
        values[i] = _size(graph, values, source)
    _keep_sizes(graph, values, tensors, fields["symbols"])
    for name, tensor in tensors.attributes():
        setattr(module, name, tensor) if isinstance(tensor, nn.Parameter) else module.register_buffer(name, tensor)
    return GraphBuilder(Targets(), base).module(graph, module, values, fields)


def _keep_sizes(graph: Graph, values: Sequence[Any], tensors: Tensors, symbols: Sequence[Mapping[str, Any]]) -> None:
    """Have Dynamo know of sizes what the program's own Python made known: which hang on which, and within what bounds they are."""
    known = _Sizes(graph, values, tensors)
    for size, where in tensors.related_sizes():
        if (expected := known.of(size)) is not None:
            found = values[where] if isinstance(where, int) else _size(graph, values, where)
            graph.call_function(_keep_equal, (expected, found))
    for symbol in symbols:
        place, alone = tensors.place_of(symbol["name"]), tensors.number_of(symbol["name"])
        if symbol["low"] <= (_UNBOUNDED if place is None else LEAST_SIZE) and symbol["high"] is None:
            continue
        if place is not None:
            graph.call_function(_keep_within, (_size(graph, values, place), symbol["low"], symbol["high"]))
        elif alone is not None:
            graph.call_function(_keep_within, (values[alone], symbol["low"], symbol["high"]))


def _size(graph: Graph, values: Sequence[Any], place: tuple[int, int]) -> Node:
    number, dim = place
    return graph.call_function(operator.getitem, (graph.call_function(getattr, (values[number], "shape")), dim))


class _Sizes:
    """What sizes are written as, as nodes of a program that is rebuilt."""

    def __init__(self, graph: Graph, values: Sequence[Any], tensors: Tensors) -> None:
        self._graph, self._values, self._tensors = graph, values, tensors
        self._tracer = GraphAppendingTracer(graph)

    def of(self, text: str) -> Node | None:
        """An expression over sizes and numbers; None where it calls what a node is no argument of, or where nothing has one of these."""
        nodes = {name: self._symbol(name) for name in symbols_in(text)}
        if None in nodes.values():
            return None
        try:
            found = SizeSpace({name: Proxy(node, self._tracer) for name, node in nodes.items() if node is not None})(
                text
            )
        except TraceError:  # the larger of two sizes, say
            return None
        return found.node if isinstance(found, Proxy) else None

    def _symbol(self, name: str) -> Node | None:
        place, alone = self._tensors.place_of(name), self._tensors.number_of(name)
        if place is not None:
            return _size(self._graph, self._values, place)
        found: Node | None = None if alone is None else self._values[alone]
        return found


def _keep_within(size: int, low: int, high: int | None) -> None:
    """Have Dynamo hold a size where the program did: its own Python may have asked for more than its operators do."""
    if size < low or (high is not None and size > high):
        raise GraphError(f"the size {size} is outside of {low} to {'any' if high is None else high}")


def _keep_equal(size: int, other: int) -> None:
    """Have Dynamo take two sizes for one where the program did, in whose Python alone they may have been compared."""
    if size != other:
        raise GraphError(f"the sizes {size} and {other} are to be one")


def _plain(output: Any) -> Any:
    """What was worked out of a number of ours is a number like any other: a compiler gives that, and eager gives ours."""
    return int(output) if isinstance(output, DynamicInt) else output


def _kept(output: Any) -> Any:
    return output.detach() if isinstance(output, Tensor) else output
