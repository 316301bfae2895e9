"""Where torch.compile goes wrong: the smallest part of a program on which its own result is no longer eager's.

The program is cut off behind an op, and the part before is judged as any program is. First the earliest end is looked for with
which the fault is there, then the latest beginning; what is left is a few ops, which a person can run and report.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Interpreter, Node

from fuseplan.capture.trace.load import Loaded, load_trace
from fuseplan.capture.trace.write import write_trace
from fuseplan.errors import FuseplanError
from fuseplan.judge.expect import ALONE, SEEDS, Surroundings, expect
from fuseplan.judge.memory import is_float
from fuseplan.judge.output import WIDER, Fault

NO_ANSWER = (
    RuntimeError,
    AssertionError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    FuseplanError,
    MemoryError,
)
"""What trying a part of a program raises where it cannot stand by itself."""


def find_fault(
    loaded: Loaded,
    *,
    compiled: Callable[..., Any] = torch.compile,
    seconds: float = math.inf,
    where: Surroundings = ALONE,
) -> Fault | None:
    """The smallest part of a program that `compiled` gets wrong; None if none was found in so many seconds."""
    assert isinstance(loaded.module, GraphModule)
    search = _Search(loaded, loaded.module, compiled, perf_counter() + seconds, where)
    for ends in search.ends():
        last = _first(ends, partial(search.is_wrong, 0))
        if last is not None:
            first = _first(range(last, -1, -1), partial(search.is_wrong, last=last))
            return search.fault(first or 0, last)
    return None


def _first(places: Sequence[int], bad: Callable[[int], bool]) -> int | None:
    """The last of `places` if it is bad, or the one with which being bad begins; None if the last is not."""
    if not places or not bad(places[-1]):
        return None
    low, high = 0, len(places) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if bad(places[middle]) else (middle + 1, high)
    return places[high]


@dataclass(frozen=True, eq=False)
class _Part:
    """Some ops of a program as a program of its own, and the values that it is given."""

    module: GraphModule
    values: list[Any]


class _Search:
    def __init__(
        self, loaded: Loaded, module: GraphModule, compiled: Callable[..., Any], end: float, where: Surroundings
    ) -> None:
        self.loaded, self.module, self.compiled, self.end, self.where = loaded, module, compiled, end, where
        self.nodes = [node for node in module.graph.nodes if node.op in ("call_function", "call_method")]
        self.values = _values(loaded, module)
        self._known: dict[tuple[int, int], str | None] = {}

    def ends(self) -> Iterator[list[int]]:
        """For each output of the program the ops that lead to it, and give a tensor of floats: a part may end with any."""
        every = set(self.nodes)
        for out in next(iter(self.module.graph.find_nodes(op="output"))).all_input_nodes:
            if out in every:
                wanted = _needed(out, every)
                found = [i for i, node in enumerate(self.nodes) if node in wanted]
                yield [i for i in found if is_float(self.values.get(self.nodes[i].name))]

    def is_wrong(self, first: int, last: int) -> bool:
        """Whether there is anything wrong with these ops."""
        return self.problem(first, last) is not None

    def problem(self, first: int, last: int) -> str | None:
        """What is wrong with the ops from `first` to `last`, as far as the last needs them."""
        if (first, last) not in self._known:
            found = None
            if perf_counter() < self.end:
                try:
                    found = self._judged(first, last)
                except NO_ANSWER as error:
                    self.where.check(error)
            self._known[first, last] = found
        return self._known[first, last]

    def _judged(self, first: int, last: int) -> str | None:
        part = load_trace(self._trace(self._part(first, last)), self.loaded.device)
        expectation = expect(part, where=self.where)
        torch._dynamo.reset()
        call = self.compiled(part.module)
        found = (expectation.judge(part.run(call, seed), seed, "any", wider=WIDER).problem for seed in SEEDS)
        return next((problem for problem in found if problem is not None), None)

    def fault(self, first: int, last: int) -> Fault | None:
        """What is to be told of these ops."""
        problem = self.problem(first, last)
        if problem is None:
            return None
        part = self._part(first, last)
        count = sum(node.op.startswith("call") for node in part.module.graph.nodes)
        return Fault(
            _called(self.nodes[last]), count, problem, script(part.module, part.values), self._trace(part).to_json()
        )

    def _part(self, first: int, last: int) -> _Part:
        end = self.nodes[last]
        inside = set(self.nodes[first : last + 1])
        wanted = _needed(end, inside)
        graph, made, values = Graph(), dict[Node, Node](), list[Any]()
        for node in self.module.graph.nodes:
            if node in wanted:
                made[node] = graph.node_copy(node, lambda arg: made[arg])
            elif any(user in wanted for user in node.users) and node.op != "output":
                if node.op == "get_attr" and not isinstance(self.values[node.name], Tensor):
                    made[node] = graph.node_copy(node)
                    continue
                made[node] = graph.placeholder(node.name)
                values.append(self._given(self.values[node.name]))
        graph.output((made[end],))
        return _Part(GraphModule(self.module, graph), values)

    def _given(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        fresh = value.detach().clone()
        return fresh.requires_grad_(is_float(fresh) and bool(self.loaded.trace.fields["modes"]["grad"]))

    def _trace(self, part: _Part) -> Any:
        found: list[Any] = []

        def look(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
            found.append(write_trace(gm, example_inputs, "a part that torch.compile gets wrong"))
            return gm.forward

        torch._dynamo.reset()
        with self.loaded.modes():
            torch.compile(part.module, backend=look, dynamic=False)(*part.values)
        torch._dynamo.reset()
        if len(found) != 1:
            raise FuseplanError(f"the part becomes {len(found)} programs")
        return found[0]


def _needed(end: Node, inside: set[Node]) -> set[Node]:
    """Those of `inside` on which the end hangs, itself among them."""
    wanted, todo = {end}, [end]
    while todo:
        for node in todo.pop().all_input_nodes:
            if node in inside and node not in wanted:
                wanted.add(node)
                todo.append(node)
    return wanted


def _values(loaded: Loaded, module: GraphModule) -> dict[str, Any]:
    """What each node gives, under eager."""
    found: dict[str, Any] = {}

    class Keeping(Interpreter):
        def run_node(self, n: Node) -> Any:
            value = super().run_node(n)
            found[n.name] = value.detach() if isinstance(value, Tensor) else value
            return value

    plain = GraphModule(module, copy.deepcopy(module.graph))
    kept = loaded.tensors.snapshot()
    with torch.random.fork_rng(loaded.tensors.cuda_devices()), loaded.modes(), torch.no_grad():
        torch.manual_seed(0)
        Keeping(plain).run(*loaded.inputs(0))
    loaded.tensors.restore(kept)
    return found


def _called(node: Node) -> str:
    """What an op is called."""
    return str(node.target) if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))


# a script that shows the fault

_SCRIPT = '''import torch

torch.manual_seed(0)


class Program(torch.nn.Module):
    {code}


inputs = [
{inputs}]


def run(call, inputs):
    """The result, and the gradients of the inputs that have any."""
    given = [x.detach().clone().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x for x in inputs]
    (out,) = call(*given)
    if out.requires_grad:
        torch.manual_seed(1)
        out.backward(torch.randn(out.shape, device=out.device).to(out.dtype))
    grads = [x.grad for x in given if isinstance(x, torch.Tensor) and x.grad is not None]
    return [out.detach(), *grads]


def wide(x):
    return x.detach().double().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) and x.is_floating_point() else x


exact = run(Program(), [wide(x) for x in inputs])
for name, call in [("eager", Program()), ("torch.compile", torch.compile(Program()))]:
    off = [float((got.double() - right.double()).abs().max()) for got, right in zip(run(call, inputs), exact)]
    print(name, "is off by at most", ", ".join(f"{{x:.3g}}" for x in off), "(the result, then gradients)")
'''


def script(module: GraphModule, values: Sequence[Any]) -> str:
    """Python that runs these ops on numbers that are drawn, under eager and under torch.compile, beside double precision."""
    lines = "".join(f"    {_input(value)},\n" for value in values)
    code = module.code.strip().replace("\n", "\n    ")
    return _SCRIPT.format(code=code, inputs=lines)


def _input(value: Any) -> str:
    if not isinstance(value, Tensor):
        return repr(value)
    shape, on = tuple(value.shape), f", device={str(value.device)!r}" if value.device.type != "cpu" else ""
    if is_float(value):
        deviation, mean = (float(found) for found in torch.std_mean(value.detach().double(), correction=0))
        scaled = f"torch.randn({shape}{on}).mul({deviation:.4g}).add({mean:.4g})"
        laid = f".as_strided({shape}, {value.stride()})" if value.is_contiguous() is False and _fits(value) else ""
        grad = ".requires_grad_()" if value.requires_grad else ""
        return f"{scaled}.to({value.dtype}){laid}{grad}"
    if value.dtype is torch.bool:
        return f"torch.rand({shape}{on}) < {float(value.double().mean()) if value.numel() else 0:.3g}"
    low, high = (int(value.min()), int(value.max())) if value.numel() else (0, 0)
    return f"torch.randint({low}, {high + 1}, {shape}{on}).to({value.dtype})"


def _fits(value: Tensor) -> bool:
    """Whether the elements fill their memory, so that others may be laid out alike."""
    return sum((size - 1) * step for size, step in zip(value.shape, value.stride(), strict=True)) + 1 == value.numel()
