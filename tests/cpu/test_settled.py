"""Dynamic sizes among a program's inputs: which of several equal ones Dynamo uses hangs on names, and nothing of ours does."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch.fx import GraphModule

import fuseplan
from fuseplan.capture.dynamo.program import program_key
from fuseplan.capture.dynamo.settled import Settled, settled
from fuseplan.capture.trace.load import load_trace
from fuseplan.capture.trace.write import write_trace

NAMES = ["x y z", "keys values more", "a7 b3 c", "second first third", "q w e", "one two three"]


def joining(names: str) -> Callable[..., Any]:
    """One program, whose arguments have these names; that their first sizes are equal shows on the way."""
    x, y, z = names.split()
    scope: dict[str, Any] = {"torch": torch}
    exec(
        f"def call({x}, {y}, {z}):\n"
        f"    both = torch.cat([{x}, {y}], dim=1)\n"
        f"    return both.view({y}.shape[0], -1).sum(1), torch.cat([both, {z}], dim=1) * {z}.shape[1]\n",
        scope,
    )
    call: Callable[..., Any] = scope["call"]
    return call


def arguments(rows: int = 5, grad: bool = False) -> list[Tensor]:
    args = [torch.randn(rows, wide, 4, requires_grad=grad) for wide in (6, 7, 8)]
    for arg in args:
        for dim in (0, 1):
            torch._dynamo.maybe_mark_dynamic(arg, dim)
    return args


def captured(call: Callable[..., Any], args: Sequence[Any]) -> tuple[GraphModule, Settled]:
    found: list[tuple[GraphModule, Settled]] = []

    def backend(gm: GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        found.append((gm, settled(gm, example_inputs)))
        return gm.forward

    torch._dynamo.reset()
    torch.compile(call, backend=backend)(*args)
    return found[0]


def test_the_same_program_has_the_same_key_whatever_its_arguments_are_called() -> None:
    raw, keys = set(), set()
    for names in NAMES:
        gm, found = captured(joining(names), arguments())
        raw.add(program_key(gm, arguments()).key)
        keys.add(program_key(found.gm, found.example_inputs).key)
    assert len(raw) > 1, "Dynamo names sizes otherwise now: is all this still needed?"
    assert len(keys) == 1


def test_each_size_is_there_once_before_the_first_tensor_that_has_it() -> None:
    for names in NAMES:
        gm, found = captured(joining(names), arguments())
        values = [node.meta["example_value"] for node in found.gm.graph.find_nodes(op="placeholder")]
        seen: set[str] = set()
        for value in values:
            if isinstance(value, torch.SymInt):
                assert str(value) not in seen
                seen.add(str(value))
            else:
                assert {str(size) for size in value.shape if isinstance(size, torch.SymInt)} <= seen
        assert len(gm.graph.find_nodes(op="placeholder")) >= len(values)
        again = settled(found.gm, found.example_inputs)
        assert (again.gm, again.order) == (found.gm, None)


@pytest.mark.parametrize("as_ours", [False, True])
def test_autograd_is_told_what_stays_where_it_is(as_ours: bool) -> None:
    """A CUDA graph copies nothing of parameters."""
    linear, static, orders = torch.nn.Linear(4, 4), list[tuple[int, ...]](), list[Any]()

    def call(second: Tensor, first: Tensor) -> Tensor:
        return torch.cat([linear(second), first], dim=1).view(first.shape[0], -1)

    def look(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        metadata: Any = torch._guards.TracingContext.get().fw_metadata
        values = [node.meta["val"] for node in gm.graph.find_nodes(op="placeholder")]
        static.extend(tuple(values[i].shape) for i in metadata.static_input_indices)
        return make_boxed_func(gm.forward)

    def backend(gm: GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        found = settled(gm, example_inputs)
        orders.append(found.order)
        compile = aot_autograd(fw_compiler=look)
        if as_ours:
            return found.called(compile(found.gm, found.example_inputs))
        return compile(gm, example_inputs)  # type: ignore[no-any-return]

    torch._dynamo.reset()
    args = arguments()[:2]
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(call, backend=backend)(*args), call(*args))
    assert orders[0] is not None
    assert static == [(4, 4), (4,)]


@pytest.mark.parametrize("how", ["compiled", "recorded"])
def test_what_the_first_call_was_given_is_let_go_of(how: str) -> None:
    torch._dynamo.reset()
    args = arguments()
    held = [weakref.ref(arg) for arg in args]
    if how == "compiled":
        compiled = fuseplan.compile(joining(NAMES[3]), plan="aten")
        compiled(*args)
    else:
        with fuseplan.record():
            compiled = torch.compile(joining(NAMES[3]), backend="eager")
            compiled(*args)
    del args
    gc.collect()
    assert [one() for one in held] == [None] * 3
    compiled(*arguments())


def test_a_tensor_with_gaps_brings_its_sizes_in_dynamos_order() -> None:
    x = torch.randn(12, 9)[:, ::2]
    torch._dynamo.maybe_mark_dynamic(x, 0)
    torch._dynamo.maybe_mark_dynamic(x, 1)
    torch._dynamo.reset()
    orders: list[Any] = []

    def backend(gm: GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        orders.append(settled(gm, example_inputs).order)
        return gm.forward

    torch.compile(lambda a, n: a * n, backend=backend, dynamic=True)(x, 7)
    assert orders == [None]


def test_what_is_settled_stays_the_very_graph_that_dynamo_gave() -> None:
    gm, found = captured(lambda x: x * 2, [torch.ones(3, 4)])
    assert (found.gm is gm, found.order) == (True, None)


@pytest.mark.parametrize("names", NAMES)
def test_a_trace_is_rebuilt_to_the_same_program(names: str) -> None:
    call = joining(names)

    def backend(gm: GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        traces.append(write_trace(gm, example_inputs))
        return gm.forward

    traces: list[Any] = []
    torch._dynamo.reset()
    torch.compile(call, backend=backend)(*arguments())
    loaded = load_trace(traces[0])
    torch._dynamo.reset()
    loaded.step(torch.compile(loaded.module, backend=backend))
    keys = [trace.key for trace in traces]
    assert len(keys) == 2
    assert keys[0] == keys[1]


@pytest.mark.parametrize("plan", ["eager", "aten", "inductor", "inductor-greedy"])
@pytest.mark.parametrize("names", NAMES[:3])
def test_plans_are_given_what_they_expect(plan: str, names: str) -> None:
    torch._dynamo.reset()
    call = joining(names)
    compiled = fuseplan.compile(call, plan=plan)
    for rows in (5, 9):
        torch.manual_seed(rows)
        mine = arguments(rows, grad=True)
        theirs = [arg.detach().clone().requires_grad_() for arg in mine]
        for args, function in ((mine, compiled), (theirs, call)):
            (function(*args)[0].sum() + function(*args)[1].square().sum()).backward()
        for one, other in zip(mine, theirs, strict=True):
            torch.testing.assert_close(one.grad, other.grad)


@pytest.mark.parametrize("names", NAMES[:3])
def test_calls_are_counted_by_their_own_sizes(names: str) -> None:
    torch._dynamo.reset()
    with fuseplan.record() as recording:
        compiled = torch.compile(joining(names), backend="eager")
        for rows in (5, 5, 7):
            compiled(*arguments(rows))
    (trace,) = recording.programs
    assert [(sorted(each.sizes.values()), each.calls) for each in trace.calls] == [([5, 6, 7, 8], 2), ([6, 7, 7, 8], 1)]


@pytest.mark.parametrize("first", [torch.relu, lambda x: x], ids=["of what was computed", "of an input"])
def test_a_size_that_turns_out_to_be_fixed_is_a_number(first: Callable[[Tensor], Tensor]) -> None:
    """As that of a batch that meets a cache of so many rows: what came before asked for its size, a rebuilt program never does."""
    cache = torch.randn(3, 5)

    def call(x: Tensor) -> Tensor:
        y = first(x)
        y = y.view(*y.shape[:-1], -1, 2).flatten(1)
        return y.sum(1, keepdim=True) * y.shape[0] + cache

    x = torch.randn(3, 4)
    torch._dynamo.maybe_mark_dynamic(x, 0)
    _, found = captured(call, [x])
    assert found.rewritten, "else there is nothing to test"
    assert not [node for node in found.gm.graph.nodes if isinstance(node.meta.get("example_value"), torch.SymInt)]
    assert "size" not in [node.target for node in found.gm.graph.nodes]
    given = [cache if value.shape == cache.shape else x for value in found.example_inputs]
    torch.testing.assert_close(found.gm(*given), (call(x),))
    trace = write_trace(found.gm, found.example_inputs, "test")
    assert trace.key == program_key(found.gm, found.example_inputs).key
    loaded = load_trace(trace)
    _, again = captured(loaded.module, loaded.inputs())
    assert program_key(again.gm, again.example_inputs).key == trace.key


class Counting:
    """As the layers of a cache with windows do: each counts in Python how much it has seen."""

    def __init__(self, rows: int | None = None) -> None:
        self.seen = [0, 0, 0]
        self.fixed = None if rows is None else torch.randn(rows, 4)

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        for layer in range(3):
            self.seen[layer] = x.shape[0]
        if self.fixed is not None:
            y = y + self.fixed
        return y, y.sum(0) * x.shape[0]


@pytest.mark.parametrize("rows", [None, 6], ids=["a size that varies", "one that is fixed"])
@pytest.mark.parametrize("backend", ["eager", "fuseplan"])
def test_numbers_that_a_program_gives_besides_are_there_and_none_of_its_trace(rows: int | None, backend: str) -> None:
    call = Counting(rows)
    x = torch.randn(6, 4)
    torch._dynamo.maybe_mark_dynamic(x, 0)
    gm, found = captured(call, [x])
    (outputs,), (left,) = gm.graph.output_node().args, found.gm.graph.output_node().args
    assert len(found.numbers) == len(outputs) - len(left) == (2 if rows is None else 3)  # type: ignore[arg-type]
    trace = write_trace(found.gm, found.example_inputs, "test")
    loaded = load_trace(trace)
    _, again = captured(loaded.module, loaded.inputs())
    assert program_key(again.gm, again.example_inputs).key == trace.key

    torch._dynamo.reset()
    compiled: Callable[..., Any] = torch.compile(call, backend=backend)
    for size in (6, 6) if rows else (6, 9, 7):
        x = torch.randn(size, 4)
        torch._dynamo.maybe_mark_dynamic(x, 0)
        got = compiled(x)
        assert call.seen == [size] * 3
        torch.testing.assert_close(got, Counting.__call__(call, x))


def test_what_nobody_uses_of_sizes_is_no_part_of_the_program() -> None:
    """A comparison in Python stays in Dynamo's graph, and a program that is rebuilt makes others."""

    def call(x: Tensor, y: Tensor) -> Tensor:
        if x.shape != y.shape:
            raise ValueError("they are as large as each other")
        return x + y

    x, y = torch.randn(5, 4), torch.randn(5, 4)
    for one in (x, y):
        torch._dynamo.maybe_mark_dynamic(one, 0)
    gm, found = captured(call, [x, y])
    called = [node for node in found.gm.graph.nodes if node.op not in ("placeholder", "output")]
    assert len(called) == 1
    assert len(gm.graph.nodes) > len(found.gm.graph.nodes), "else there is nothing to test"
    torch.testing.assert_close(found.gm(*found.example_inputs), (x + y,))
