"""The key of a trace, computed from what is written in it, without capturing it again.

So a trace that is moved to another kind of device has the key that the program has there, where this machine may have
no such device at all; and one that another torch wrote has the key that it has under this one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from operator import attrgetter
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, GraphModule

from fuseplan.capture.dynamo.program import Described, program_key
from fuseplan.capture.trace.args import device_named
from fuseplan.capture.trace.build import GraphBuilder
from fuseplan.capture.trace.edit import identity, moved
from fuseplan.capture.trace.format import Trace
from fuseplan.capture.trace.targets import CHECKPOINT, FLEX, OF_NUMBERS, Targets
from fuseplan.errors import GraphError
from fuseplan.graph.limits import short

_OF_CPUS = ("mkldnn", "mkl", "onednn", "mkldnn_prepacked", "quantized")
"""Namespaces of operators that only a CPU has."""


def key_of(fields: Mapping[str, Any]) -> str:
    """The key that the program of a trace has under this torch; a GraphError where that cannot be told.

    >>> add = {"op": "function", "target": "operator.add", "args": [1, 2]}
    >>> modes = {"autocast": {}, "grad": False, "inference": False, "default": "float32", "deterministic": False}
    >>> fields = {"modes": modes, "symbols": [], "inputs": [], "nodes": [add], "output": [{"ref": 0}]}
    >>> key_of(fields) == key_of({**fields, "modes": {**modes, "grad": True}})
    False
    """
    graph = Graph()
    values: list[Any] = [graph.placeholder(f"input_{i}") for i in range(len(fields["inputs"]))]
    for node, item in zip(values, fields["inputs"], strict=True):
        node.meta["example_value"] = _described(item)
    module = _AsCaptured(_DynamoTargets(), None).module(graph, nn.Module(), values, fields)
    found = program_key(module, _sharing(fields["inputs"]), fields["modes"], fields["symbols"])
    if found.key is None:
        raise GraphError(f"it has no key: {found.why}")
    return found.key


def at_home(trace: Trace) -> Trace:
    """The trace with the key that its program has under the torch that runs here, where another one wrote it.

    A GraphError names the first operation that this torch does not have, or says that the trace has to be recorded again.
    """
    sizes = [item["size"] for item in trace.fields["inputs"] if item["kind"] == "size"]
    if len(set(sizes)) < len(sizes):  # nothing that is settled has one twice
        raise GraphError("it lists a size twice, as older fuseplans did: record it again")
    written = trace.fields["torch"]
    if _release(written) == _release(torch.__version__) or trace.key == identity(trace.fields):
        return trace
    try:
        return replace(trace, key=key_of(trace.fields))
    except GraphError as error:
        raise GraphError(f"{error} (it was written under torch {written})") from None


def _release(version: str) -> str:
    return version.split("+")[0]


def retarget(trace: Trace, device: str) -> Trace:
    """Return the program on another kind of device, as that device would have captured it.

    Its key is the one that a native run looks up there; `native` says what may prevent that.

    >>> add = {"op": "function", "target": "operator.add", "args": [1, 2]}
    >>> modes = {"autocast": {"cpu": "bfloat16"}, "grad": False, "inference": False, "default": "float32", "deterministic": False}
    >>> fields = {"torch": "", "modes": modes, "symbols": [], "inputs": [], "nodes": [add], "output": [{"ref": 0}]}
    >>> retarget(Trace("", "", fields), "cuda").fields["modes"]["autocast"]
    {'cuda': 'bfloat16'}
    """
    return native(trace, device)[0]


def native(trace: Trace, device: str) -> tuple[Trace, list[str]]:
    """The trace on another kind of device, with the key that a native run looks up there, and what may prevent that.

    Each of the reasons names an operation, or says why no key can be told; then the trace goes by a digest of its text.
    """
    fields = moved(trace.fields, device)
    if fields == trace.fields:
        return trace, []
    reasons = list(_bound(trace.fields["nodes"], device.split(":")[0]))
    try:
        if at_home(trace).key not in (key_of(trace.fields), identity(trace.fields)):
            raise GraphError("its key cannot be computed from its trace")
        key = key_of(fields)
    except GraphError as error:
        key = identity(fields)
        reasons.append(str(error))
    return replace(trace, key=key, fields=fields), reasons


class _DynamoTargets(Targets):
    """What the calls of a trace were when Dynamo wrote them."""

    def find(self, name: str) -> Any:
        if name == CHECKPOINT:
            return torch.ops.higher_order.tag_activation_checkpoint
        if name == FLEX:
            return torch.ops.higher_order.flex_attention
        if name in OF_NUMBERS:
            import_module("torch._refs")  # which torch leaves to who needs it
            return attrgetter(name.removeprefix("torch."))(torch)
        return super().find(name)


class _AsCaptured(GraphBuilder):
    """Builds what Dynamo captured, to be looked at and not to be run."""

    def _block(self, part: Mapping[str, Any]) -> GraphModule:
        if len(part.get("values", ())) != part["inputs"]:
            raise GraphError("it was written by a fuseplan that did not say what checkpointed blocks are given")
        module = super()._block(part)
        for node, item in zip(module.graph.find_nodes(op="placeholder"), part["values"], strict=True):
            node.meta["example_value"] = _described(item)
        return module


def _described(item: Any) -> Any:
    if not isinstance(item, Mapping):
        return item
    if item["kind"] == "size":
        return Described(f"SymInt {item['size']}")
    kind = "parameter" if item["kind"] == "parameter" else "tensor"
    shape, stride = (",".join(map(str, item[part])) for part in ("shape", "stride"))
    text = f"{kind} torch.{item['dtype']} [{shape}] [{stride}]"
    return Described(text, device_named(item["device"], None), f"{item['grad']:d}{item['leaf']:d}00")


def _sharing(inputs: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Tensors that share storage as the inputs do."""
    groups = {item["storage"]: torch.empty(0) for item in inputs if "storage" in item}
    return [groups.get(item.get("storage", -1)) for item in inputs]


def _bound(nodes: Sequence[Mapping[str, Any]], kind: str) -> Iterator[str]:
    """What is bound to a device: a native run has it there too, or cannot have it at all."""
    for i, node in enumerate(nodes):
        if node["op"] == "block":
            for name in node.get("policy", {}):
                if "scaled_dot_product" in name or "dnn" in name:
                    yield f"call {i} keeps what {short(name)} gives, for which another device calls something else"
            yield from _bound(node["nodes"], kind)
            continue
        target = node.get("target", "a constant")
        namespace = target.split(".")[1] if target.startswith("ops.") else ""
        if kind != "cpu" and (namespace in _OF_CPUS or "mkldnn" in target):
            yield f"call {i} ({target}) exists on a CPU alone"
        words = [*node.get("args", ()), *node.get("kwargs", {}).values()]
        named = next((word for word in words if isinstance(word, str) and word.split(":")[0] in ("cpu", "cuda")), None)
        if named is not None and not target.endswith("_enter_autocast"):
            yield f"call {i} ({target}) names the device {named!r} itself, which a native run may keep"
