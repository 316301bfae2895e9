"""Programs in AOTAutograd's cache: with them there, the next process neither traces nor cuts them again.

What is kept of a graph is data: the Graph as JSON, its regions, and the names under which Inductor's cache has their code;
or, of one that Inductor has whole, that name alone. How it is captured in a CUDA graph, if it is, is data just as well.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch._ops import OpOverload, OpOverloadPacket
from torch.fx import GraphModule

from fuseplan import __version__
from fuseplan.capture.dynamo.program import sharing
from fuseplan.capture.dynamo.renamed import static_inputs
from fuseplan.capture.dynamo.symbols import is_symbolic
from fuseplan.capture.fx.targets import NAMESPACES
from fuseplan.executors import executors
from fuseplan.executors.flat import Boxed
from fuseplan.graph import Graph
from fuseplan.plan import Plan
from fuseplan.rewrites.apply import known_to_torchs_cache
from fuseplan.runtime import torch_cache
from fuseplan.runtime.record import Program
from fuseplan.runtime.regions import KeptRegion
from fuseplan.runtime.settings import settings
from fuseplan.runtime.torch_cache import NotToBeKept, OutputCode
from fuseplan.segment import Region, Segmentation

if TYPE_CHECKING:
    from fuseplan.runtime.cudagraph import CaptureFacts

_DECIDES = ("capture", "executors", "graph", "host", "kernels", "rewrites", "runtime", "segment", "plan.py")
"""The parts of fuseplan that have a say in what a program becomes."""

Recall = Callable[["Kept", Sequence[Any]], Boxed]
"""Makes a function of what was kept, for such inputs."""
_recall: ContextVar[Recall | None] = ContextVar("recall", default=None)


class Kept(OutputCode):
    """A compiled graph: a function here, and in torch's cache what that function is made of."""

    def __init__(self, role: str, call: Boxed, why_not: str | None = None, facts: CaptureFacts | None = None) -> None:
        super().__init__()
        self.role = role
        self.call: Boxed | None = call
        self.why_not = why_not
        self.facts = facts
        """What it is captured in a CUDA graph by; None where it is launched as it is."""
        self._boxed_call = True  # AOTAutograd's mark for the list convention

    def __call__(self, inputs: Sequence[Any]) -> Any:
        return self.call(inputs)  # type: ignore[misc, arg-type]

    def prepare_for_serialization(self) -> None:
        """Torch calls it on a copy that it is about to write. What this raises means that it writes nothing."""
        self.call = None
        if self.why_not is not None:
            raise NotToBeKept(self.why_not)

    def post_compile(self, example_inputs: Any, constants: Any, graph_kwargs: Any) -> None:
        """Torch calls it on what it has read. What this raises means that the program is compiled anew."""
        recall = _recall.get()
        if recall is None:
            raise RuntimeError("a program of fuseplan's is loaded by somebody else")
        call = recall(self, example_inputs)
        self.call = torch_cache.not_traced(call) if self.role == "backward" else call

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        """Inductor bundles the kernels of what it compiles itself."""


class KeptCode(Kept):
    """A graph that Inductor has whole: in torch's cache, the name under which Inductor's own has its code."""

    def __init__(self, role: str, call: Boxed, key: str | None, facts: CaptureFacts) -> None:
        super().__init__(role, call, None if key else "Inductor does not keep it", facts)
        self.key = key


class KeptCut(Kept):
    """A graph that a plan has cut: in torch's cache, the Graph and its regions."""

    graph: Graph | str | None = None
    regions: tuple[tuple[Any, ...], ...] = ()

    def of(self, graph: Graph, segmentation: Segmentation, known: dict[Region, KeptRegion]) -> KeptCut:
        """Itself, with what it takes to make `call` again."""
        self.graph = graph
        self.regions = tuple(
            (one.ops, one.executor, one.variant, one.recompute, known[one].fields if one in known else None)
            for one in segmentation.regions
        )
        return self

    def prepare_for_serialization(self) -> None:
        """With the Graph as text."""
        super().prepare_for_serialization()
        if not isinstance(self.graph, Graph):
            raise NotToBeKept("it was kept before")
        self.graph = self.graph.to_json()

    def post_compile(self, example_inputs: Any, constants: Any, graph_kwargs: Any) -> None:
        """Without the Graph then: long text, which whoever keeps the entry has anyway."""
        super().post_compile(example_inputs, constants, graph_kwargs)
        self.graph = None

    def cut(self) -> tuple[Segmentation, dict[Region, KeptRegion]]:
        """The regions as they were, and what is known of them."""
        regions = [Region(*fields) for *fields, _ in self.regions]
        known = {region: KeptRegion(*found) for region, (*_, found) in zip(regions, self.regions, strict=True) if found}
        return Segmentation(tuple(regions)), known


def raising(error: Exception) -> Boxed:
    """What a backward is that could not be compiled: ahead of time for the cache alone, so the error comes when it is called."""

    trace = error.__traceback__

    def call(args: list[Any]) -> Any:
        args.clear()
        raise error.with_traceback(trace)  # else it would remember each call, and what was saved for it

    return call


@contextmanager
def recalled_by(recall: Recall) -> Iterator[None]:
    """While it lasts, `recall` makes functions of what torch finds in its cache."""
    token = _recall.set(recall)
    try:
        yield
    finally:
        _recall.reset(token)


def tag(plan: Plan, gm: GraphModule, example_inputs: Sequence[Any], program: Program) -> str | None:
    """What the key has to hold beside what torch puts into it; None where the program is not to be kept.

    Torch's own key has the Dynamo graph, the inputs, its version and settings, and the machine.
    """
    if program.fuel is not None or program.key is None or not torch_cache.is_on():
        return None
    if any(map(is_symbolic, example_inputs)) or _has_others_operators(gm):
        return None
    # Hooks are applied to what a backward may overwrite, which is nothing here.
    if hasattr(gm, "saved_tensors_hooks_pack_0"):
        return None
    with known_to_torchs_cache(plan):
        if not torch_cache.takes(gm):
            return None
    named = plan.executors
    known = executors()
    if any(name not in known or known[name].available() is not None for name in named):
        return None  # what cannot be had is said again at each start
    # Which inputs share memory the key says, and not whether they overlap there.
    offsets = {i: example_inputs[i].storage_offset() for i in sorted(sharing(example_inputs))}
    decides = [
        __version__,
        source(),
        program.key,
        offsets,
        plan.identity,
        {name: known[name].version() for name in sorted(named)},
        settings(),
        static_inputs(gm) if plan.launch != "plain" else None,
    ]
    return f"fuseplan {hashlib.sha256(json.dumps(decides).encode()).hexdigest()}"


def _has_others_operators(gm: GraphModule) -> bool:
    """Whether operators of other libraries are called, of which no key tells what they do in the backward, or in a capture."""
    graphs = [module.graph for module in gm.modules() if isinstance(module, GraphModule)]
    targets = {node.target for graph in graphs for node in graph.nodes if node.op == "call_function"}
    names = {str(target) for target in targets if isinstance(target, (OpOverload, OpOverloadPacket))}
    return any(name.partition(".")[0] not in NAMESPACES for name in names)


@cache
def source() -> str:
    """A digest of fuseplan's own code, as torch takes one of its: a version number does not tell two checkouts apart."""
    root = Path(__file__).parents[1]
    files = sorted(path for part in _DECIDES for path in (root / part, *(root / part).rglob("*.py")) if path.is_file())
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return digest.hexdigest()
