"""From the text of an nvFuser script to traces: a fusion becomes the FX graph of a program, which Dynamo then captures."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule
from torch.fx.node import map_aggregate

from fuseplan.capture.nvfuser_script.builder import ProgramBuilder
from fuseplan.capture.nvfuser_script.calls import Handle
from fuseplan.capture.nvfuser_script.definition import Definition
from fuseplan.capture.nvfuser_script.interpreter import Interpreter, parameters
from fuseplan.capture.nvfuser_script.sizes import ChosenSizes, ResizeError
from fuseplan.capture.nvfuser_script.source import ScriptFusion, fusions, parse, run_on
from fuseplan.capture.nvfuser_script.words import Example, fail
from fuseplan.capture.trace.format import Trace
from fuseplan.capture.trace.write import write_trace
from fuseplan.errors import GraphError

_READINGS = 1000
"""How often a script without inputs is read again, at most once for each size that it leaves open."""


def read_script(text: str, name: str = "") -> Trace:
    """Return the program that an nvFuser script defines; a GraphError names the line of what is not understood.

    The script is parsed and never executed. The program is for CUDA, with the sizes of the inputs that the script makes;
    where it makes none, sizes are chosen, and a warning says which.

    >>> trace = read_script('''
    ... with FusionDefinition() as fd:
    ...     t0 = fd.define_tensor(shape=[4, -1], contiguity=True)
    ...     fd.add_output(fd.ops.relu(t0))
    ... inputs = [torch.randn(4, 16, device="cuda")]
    ... ''', "relu")
    >>> trace.fields["inputs"][0]["shape"], trace.fields["nodes"][0]["target"]
    ([4, 16], 'torch.relu')
    """
    traces = read_scripts(text, name)
    if len(traces) != 1:
        raise GraphError(f"the script defines {len(traces)} fusions, not one")
    return traces[0]


def read_scripts(text: str, name: str = "") -> list[Trace]:
    """Return the programs of all fusions that a script defines, in their order.

    >>> read_scripts("import torch")
    Traceback (most recent call last):
    fuseplan.errors.GraphError: no FusionDefinition in it: nothing that defines a tensor and adds an output
    """
    try:
        tree = parse(text)
        found = fusions(tree)
        if not found:
            raise GraphError("no FusionDefinition in it: nothing that defines a tensor and adds an output")
        numbers = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and type(node.value) is int}
        loaded = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
        names = [name] if len(found) == 1 else [f"{name}-{i}" for i in range(len(found))]
        with _plain_modes():
            pairs = zip(found, names, strict=True)
            return [_trace(one, label, frozenset(numbers), frozenset(loaded)) for one, label in pairs]
    except RecursionError:
        raise GraphError("expressions that are nested too deep") from None


def _trace(fusion: ScriptFusion, name: str, literals: frozenset[int], loaded: frozenset[str]) -> Trace:
    given = _given(fusion)
    sizes = ChosenSizes(literals)
    definition = _defined(fusion, given, sizes, loaded)
    if given is None and sizes.choose():
        definition = _defined(fusion, given, sizes, loaded)
    if definition.made_up:
        chosen = ", ".join(definition.made_up)
        warnings.warn(f"fuseplan: {name or 'the script'} gives no inputs; chosen were {chosen}", stacklevel=4)
    return _captured(definition, name)


def _given(fusion: ScriptFusion) -> list[Any] | None:
    """The inputs that the script makes, one after the other; None where it makes none."""
    expression = run_on(fusion)
    if expression is None:
        return None
    made = Interpreter(fusion.scope).value(expression)
    if not isinstance(made, (list, tuple)):
        fail(expression, "the inputs of a fusion are a list")
    flat: list[Any] = []
    for item in made:
        flat.extend(item) if isinstance(item, (list, tuple)) else flat.append(item)
    for item in flat:
        if not isinstance(item, (Example, bool, int, float, complex)):
            fail(expression, "an input that is neither a tensor nor a number")
    return flat


def _defined(
    fusion: ScriptFusion, given: Sequence[Any] | None, sizes: ChosenSizes, loaded: frozenset[str]
) -> Definition:
    """The fusion, read until no size is learned any more."""
    for _ in range(_READINGS):
        definition = Definition(given, sizes)
        reader = Interpreter(fusion.scope, definition, loaded)
        if fusion.defaults is not None:
            reader.names |= parameters(reader, fusion.defaults, fusion.defaults, (), {})
        reader.names[fusion.handle] = Handle()
        try:
            reader.run(fusion.body)
        except ResizeError:
            continue
        try:
            definition.finish()
        except (TypeError, ValueError, RuntimeError) as error:
            raise GraphError(f"line {fusion.line}: {str(error).splitlines()[0]}") from None
        return definition
    raise GraphError(f"line {fusion.line}: the sizes of it do not fit together; give it inputs")


def _captured(definition: Definition, name: str) -> Trace:
    """What Dynamo makes of the program, so that its key is the one that the program has when it runs."""
    builder, found = definition.builder, list[tuple[GraphModule, list[torch.Tensor]]]()
    used = [i for i, value in enumerate(builder.inputs) if value.node.users]
    _touch(builder, used)

    def backend(gm: GraphModule, example_inputs: list[torch.Tensor]) -> Any:
        found.append((gm, example_inputs))
        return gm.forward

    program = GraphModule({}, builder.graph, class_name="Fusion")
    with builder.mode:
        torch.compile(program, backend=backend, dynamic=False)(*(value.fake for value in builder.inputs))
    if len(found) != 1 or len(found[0][1]) != len(used):
        raise GraphError("the fusion computes nothing from its inputs")
    gm, inputs = found[0]
    trace = write_trace(gm, _onto_cuda(gm, inputs, [definition.on_cpu[i] for i in used]), name)
    spreads = definition.spreads()
    fields = [{**item, "values": spreads[i]} for item, i in zip(trace.fields["inputs"], used, strict=True)]
    return replace(trace, fields={**trace.fields, "inputs": fields})


def _onto_cuda(gm: GraphModule, inputs: Sequence[torch.Tensor], on_cpu: Sequence[bool]) -> list[torch.Tensor]:
    """Name the device that the fusion runs on throughout; returns inputs that lie there."""
    cuda = torch.device("cuda", 0)
    with FakeTensorMode():
        given = [
            torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="cpu" if stays else cuda)
            for t, stays in zip(inputs, on_cpu, strict=True)
        ]
    for node, tensor in zip(gm.graph.find_nodes(op="placeholder"), given, strict=True):
        node.meta["example_value"] = tensor
    for node in gm.graph.nodes:
        node.args, node.kwargs = map_aggregate(
            (node.args, node.kwargs), lambda arg: cuda if isinstance(arg, torch.device) else arg
        )
    return given


def _touch(builder: ProgramBuilder, used: Sequence[int]) -> None:
    """Inputs are read in their order first, or Dynamo would order them by their first use."""
    first = next(node for node in builder.graph.nodes if node.op != "placeholder")
    with builder.graph.inserting_before(first):
        for i in used:
            builder.graph.call_function(getattr, (builder.inputs[i].node, "dtype"))


@contextmanager
def _plain_modes() -> Iterator[None]:
    """A fusion has no gradients, and is what it is whatever its reader's modes are."""
    default = torch.get_default_dtype()
    with torch.inference_mode(False), torch.no_grad(), ExitStack() as stack:
        for device in ("cuda", "cpu"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        stack.callback(torch.set_default_dtype, default)
        torch.set_default_dtype(torch.float32)
        yield
