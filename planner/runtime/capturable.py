"""What keeps a graph from CUDA graphs: what is in it, and what a compiler has left of that in its code."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch._inductor.utils import get_first_incompatible_cudagraph_node
from torch._ops import HigherOrderOperator
from torch.fx import GraphModule, Node

CONTROL_FLOW = frozenset({"cond", "while_loop", "while_loop_stack_output", "scan", "map_impl"})
"""What asks the GPU for a number, to go on by that."""
ON_CPU = ("empty_strided_cpu((", "cpp_fused")
"""What Inductor's code has where something is made on the CPU, in a part of it too that tells of nothing else."""


def obstacle(gm: GraphModule, but_cpu: bool = False) -> str | None:
    """Why a graph cannot be captured; `but_cpu`, whatever it has on the CPU."""
    devices: dict[torch.device, str] = {}
    for tensor, name in tensors_of(gm):
        devices.setdefault(tensor.device, name)
    foreign = [(device.type, name) for device, name in devices.items() if device.type != "cuda"]
    foreign = [(device, name) for device, name in foreign if not but_cpu or device != "cpu"]
    if foreign:
        device, name = foreign[0]
        return is_on(name, device)
    on_gpu = [device for device in devices if device.type == "cuda"]
    if len(on_gpu) != 1:
        return "it has no tensor on a GPU" if not on_gpu else "it spans several GPUs"
    graphs = [module for module in gm.modules() if isinstance(module, GraphModule)]
    flow = next((node for graph in graphs for node in graph.graph.nodes if _is_control_flow(node)), None)
    node = flow or get_first_incompatible_cudagraph_node(gm)
    return None if node is None else f"{node.name} ({node.target}) cannot be captured"


def is_on(name: str, device: str = "cpu") -> str:
    """That something is on a device that no CUDA graph captures."""
    return f"{name} is on the {device}"


def inside_on_cpu(gm: GraphModule) -> str | None:
    """What a graph has on the CPU, if nothing there is an input or an output: the first that is no constant, else that is used."""
    edge = {*gm.graph.find_nodes(op="placeholder"), *gm.graph.output_node().all_input_nodes}
    names = {name for tensor, name in tensors_of(gm) if tensor.device.type == "cpu"}
    found = [node for node in gm.graph.nodes if node.name in names]
    if edge.intersection(found):
        return None
    constant = set[Node]()
    for node in found:
        if constant.issuperset(node.all_input_nodes):
            constant.add(node)
    kinds: tuple[Iterable[Node], ...] = ((n for n in found if n not in constant), (n for n in found if n.users), found)
    return next((node.name for kind in kinds for node in kind), None)


def tensors_of(gm: GraphModule) -> Iterator[tuple[torch.Tensor, str]]:
    """All tensors of a graph, each with the name of its node."""
    for node in gm.graph.nodes:
        value = node.meta.get("val")
        for tensor in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(tensor, torch.Tensor):
                yield tensor, node.name


def obstacle_in_code(code: Any, on_cpu: str | None) -> str | None:
    """Why what Inductor made of a graph cannot be captured, where that can't be told by the graph; of `on_cpu`, which that has on the
    CPU, nothing may be left. Numbers are written into kernels, and of a constant that is read on the GPU only the original is there.
    """
    if why := getattr(code, "disabled_cudagraphs_reason", None):
        return str(why).partition(" Found from")[0].strip()
    source = getattr(code, "source_code", None) or ""
    if any(word in source for word in ON_CPU):
        return is_on(on_cpu or "a part of it")
    if on_cpu is None:
        return None
    unknown = not source or bool(getattr(code, "frozen_param_names", None))
    left = unknown or "cpu" in getattr(code, "device_types", {"cpu"}) or _reads(source, _on_cpu(code))
    return is_on(on_cpu) if left else None


def _is_control_flow(node: Node) -> bool:
    return isinstance(node.target, HigherOrderOperator) and node.target.name() in CONTROL_FLOW


def _on_cpu(code: Any) -> list[str]:
    constants = getattr(code, "constants", None) or {}
    return [name for name, one in constants.items() if isinstance(one, torch.Tensor) and one.device.type == "cpu"]


def _reads(source: str, names: Iterable[str]) -> bool:
    r"""Whether code has one of these names elsewhere than in a comment, and where it is made known and given a value.

    >>> source = "a = None  # b\n# %lift_fresh_copy(%a)\ndef call(args):\n    kernel(a_cuda0)\n    global a"
    >>> _reads(source, ["a"]), _reads(source, ["a", "a_cuda0"])
    (False, True)
    """
    word = re.compile(rf"\b({'|'.join(map(re.escape, names)) or '(?!)'})\b")
    for line in map(str.strip, source.splitlines()):
        if line.startswith("#") or (found := word.search(line)) is None:
            continue
        if line != f"global {found[1]}" and not line.startswith(f"{found[1]} = "):
            return True
    return False
