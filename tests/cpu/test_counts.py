"""Numbers with which a program counts: which these are, that they have no box, and that no CUDA graph is given any."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule

import fuseplan
from agreement import assert_same
from fuseplan.backend import programs_of
from fuseplan.capture.dynamo.counts import Counts
from fuseplan.capture.dynamo.settled import settled
from fuseplan.explain import compiled_by
from fuseplan.runtime.counts_beside import counts_beside
from fuseplan.tuning.traces import EITHER, box_of, launches_of
from fuseplan.tuning_db import Box

Call = Callable[..., Any]
ROWS = torch.arange(28).view(4, 7)
NUMBERS = (3, 5, 8, 13, 2)
"""None of them a size of what is given with them."""


@torch.library.custom_op("fuseplan_tests::pages", mutates_args=())
def pages(x: Tensor, number: int) -> int:
    """A number that an operator works out of another."""
    return number // len(x)


@pages.register_fake
def _(x: Tensor, number: int) -> int:
    return torch.library.get_ctx().new_dynamic_size()  # type: ignore[return-value]


def window(keys: Tensor, at: int) -> tuple[Tensor, int]:
    """A mask as a cache has it that holds the last few keys."""
    first = max(at - 4 + 1, 0)
    columns, rows = torch.arange(4) + first, torch.arange(1) + at
    seen = (columns[None] <= rows[:, None]) & (columns[None] > rows[:, None] - 4)
    return keys.masked_fill(~seen, 0.0), at + 1


def written(x: Tensor, at: int) -> tuple[Tensor, int, int]:
    """In place, in narrow integers, and what is given back twice."""
    y = x.to(torch.int32)
    y.add_(at).mul_(2)
    y -= at
    return y + min(at, 9) * 3 - at // 4 + (at % 3), at, at


def overwritten(x: Tensor, at: int) -> tuple[Tensor, Tensor, Tensor, int]:
    """A name stands for another number, or for a tensor, from then on; the number itself stays."""
    y = at
    y += x.shape[0] * 0 + 2
    z = x.clone()
    z *= y
    return z, x + at, x * y, y


COUNTING: dict[str, tuple[Call, tuple[Any, ...]]] = {
    "only counted": (lambda x, at: (x.cos(), 2 * at + 3, at - 1), (torch.ones(4),)),
    "squared": (lambda x, at: (x.cos(), at * at), (torch.ones(4),)),
    "compared with": (lambda x, at: (x < at, at >= x, torch.eq(x, at)), (ROWS,)),
    "a window": (window, (torch.ones(1, 4),)),
    "written": (written, (ROWS,)),
    "where a row begins": (lambda x, at: torch.arange(at, at + 7) * x, (ROWS,)),
    "an index": (lambda x, at: x[:, torch.arange(1) + at % 7], (ROWS,)),
    "what is overwritten": (overwritten, (ROWS,)),
    "beside a size": (lambda x, at: (x + (at + x.shape[0]), x.shape[0] * 2, at + x.shape[0]), (ROWS,)),
}


def overwritten_by_a_tensor(x: Tensor, at: int) -> tuple[Tensor, Tensor]:
    y: Any = at
    y += x.sum()
    return y, x + at


OTHERWISE: dict[str, Call] = {
    "a size": lambda x, at: x.new_ones(at),
    "how long a row is": lambda x, at: torch.arange(at) * 2,
    "where a part begins": lambda x, at: x.flatten()[at : at + 2],
    "a factor of what is rounded": lambda x, at: x * 0.5 * at,
    "a share": lambda x, at: x / at,
    "a bool is counted on": lambda x, at: (x > 3) + at,
    "one element in few bits": lambda x, at: x.to(torch.int32).sum(dtype=torch.int32) + at,
    "divided by": lambda x, at: (x, 100 // at),
    "given to an operator": lambda x, at: (x.cos(), pages(x, at)),
    "what becomes a tensor": overwritten_by_a_tensor,
    "within vmap": lambda x, at: torch.vmap(lambda row: row + at)(x),
    "within a gradient": lambda x, at: torch.func.grad(lambda w: (w * (x + at)).sum())(x.float()),
    "nested tensors": lambda x, at: torch.nested.nested_tensor_from_jagged(x.flatten(), torch.tensor([0, 3, 28])) + at,
    "within a list": lambda x, at: x.roll([at], [0]),
}


def found_in(call: Call, *args: Any, dynamic: bool | None = None) -> tuple[GraphModule, Sequence[Any]]:
    """The settled program that Dynamo captures where the last argument varies."""
    found: list[tuple[GraphModule, Sequence[Any]]] = []

    def backend(gm: GraphModule, inputs: Sequence[Any]) -> Call:
        found.append((settled(gm, inputs).gm, settled(gm, inputs).example_inputs))
        return gm.forward

    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(call, backend=backend, dynamic=dynamic, fullgraph=True)
        for number in (5, 6):
            compiled(*args, number)
    return found[-1]


@pytest.mark.parametrize("name", COUNTING)
@pytest.mark.parametrize("dynamic", [None, True])
def test_what_counts_is_kept_beside_the_program(name: str, dynamic: bool | None) -> None:
    call, args = COUNTING[name]
    given: list[list[int]] = []

    def backend(gm: GraphModule, inputs: Sequence[Any]) -> Call:
        found = settled(gm, inputs)

        def inner(gm: GraphModule, example_inputs: Sequence[Any]) -> Call:
            assert len(example_inputs) == len(gm.graph.find_nodes(op="placeholder"))

            def run(*args: Any) -> Any:
                given.append([one for one in args if type(one) is int])
                return gm(*args)

            return run

        return found.called(counts_beside(found.gm, found.example_inputs, inner))

    torch._dynamo.reset()
    compiled = torch.compile(call, backend=backend, dynamic=dynamic, fullgraph=True)
    for number in NUMBERS:
        ours, theirs = compiled(*args, number), call(*args, number)
        for one, other in zip(_listed(ours), _listed(theirs), strict=True):
            assert type(one) is type(other)
            if isinstance(one, Tensor):
                assert_same([one], [other])
                assert (one.dtype, one.stride()) == (other.dtype, other.stride())
            else:
                assert one == other
    assert not any(number in given[-1] for number in NUMBERS), "it is given sizes alone"


def _listed(found: Any) -> Sequence[Any]:
    return found if isinstance(found, tuple) else (found,)


@pytest.mark.parametrize("name", OTHERWISE)
def test_other_numbers_stay_what_they_are(name: str) -> None:
    gm, inputs = found_in(OTHERWISE[name], ROWS)
    assert Counts.of(gm) == Counts()
    assert counts_beside(gm, inputs, lambda same, given: (same, given)) == (gm, inputs)  # type: ignore[arg-type, return-value]


def test_of_two_numbers_each_is_for_itself() -> None:
    gm, _ = found_in(lambda x, some, at: (x.new_ones(some), torch.arange(2) + at, at + 1), ROWS, 7, dynamic=True)
    counts = Counts.of(gm)
    assert (len(counts.inputs), len(counts.numbers), len(counts.readers)) == (1, 1, 1)
    gm, _ = found_in(lambda x, some, at: torch.arange(some) + at * some, ROWS, 7, dynamic=True)
    assert len(Counts.of(gm).inputs) == 1
    gm, _ = found_in(lambda x, some, at: (x + some, x.new_ones(some * at)), ROWS, 7, dynamic=True)
    assert Counts.of(gm).inputs == ()


def test_tensors_on_several_devices_take_them_as_they_are() -> None:
    gm, inputs = found_in(lambda x, at: (x + at, torch.arange(2, device="meta") + at), ROWS)
    assert len(Counts.of(gm).readers) == 2
    assert counts_beside(gm, inputs, lambda same, given: (same, given)) == (gm, inputs)  # type: ignore[arg-type, return-value]


def test_numbers_of_layers_that_differ_are_told_apart() -> None:
    class Layers(torch.nn.Module):
        def forward(self, x: Tensor, first: int, second: int) -> tuple[Tensor, int, int]:
            return (x + first) * 3 + second, second + 1, first + 1

    model = Layers()
    compiled = torch.compile(
        model, backend=lambda gm, inputs: counts_beside(gm, inputs, lambda gm, _: gm.forward), dynamic=True
    )
    for first, second in ((4, 4), (5, 9), (6, 6), (2, 11)):
        ours, theirs = compiled(ROWS, first, second), model(ROWS, first, second)
        assert torch.equal(ours[0], theirs[0])
        assert ours[1:] == theirs[1:]


@pytest.mark.parametrize("host", ["inductor", "aten"])
def test_under_a_plan_for_cuda_graphs_results_are_the_same(host: str) -> None:
    """Without a GPU it runs plain, and a remark says so."""
    torch._dynamo.reset()
    compiled = fuseplan.compile(window, plan=f"{host}", launch="cudagraph")
    keys = torch.randn(1, 4)
    for at in (2, 3, 4, 5, 9, 17):
        ours, theirs = compiled(keys, at), window(keys, at)
        assert_same([ours[0]], [theirs[0]])
        assert ours[1] == theirs[1]
    assert {program.plan.launch for program in programs_of(compiled_by(compiled))} == {"cudagraph"}


def test_what_is_cut_is_the_same_program_under_each_launch() -> None:
    """It is cut where it is captured in a worker, who launches it plain."""
    graphs = []
    for launch in ("plain", "cudagraph"):
        torch._dynamo.reset()
        compiled = fuseplan.compile(window, plan="aten", launch=launch)
        for at in (5, 6):
            compiled(torch.ones(1, 4), at)
        graphs.append([record.graph.key for program in programs_of(compiled_by(compiled)) for record in program.graphs])
    assert graphs[0] == graphs[1]
    assert len(graphs[0]) == 2, "one for the first number, and one for all others"


@pytest.mark.parametrize("name", ["what becomes a tensor", "within vmap", "within a gradient"])
def test_other_numbers_stay_right_under_a_plan_for_cuda_graphs(name: str) -> None:
    torch._dynamo.reset()
    call = OTHERWISE[name]
    compiled = fuseplan.compile(call, plan="aten", launch="cudagraph")
    for number in NUMBERS:
        for ours, theirs in zip(_listed(compiled(ROWS, number)), _listed(call(ROWS, number)), strict=True):
            torch.testing.assert_close(ours, theirs)


def test_training_goes_through() -> None:
    def loss(weight: Tensor, x: Tensor, at: int) -> tuple[Tensor, int]:
        return (weight * (x + at)).square().sum(), at + 1

    compiled = torch.compile(
        loss, backend=lambda gm, inputs: counts_beside(gm, inputs, lambda gm, _: gm.forward), dynamic=True
    )
    ours, theirs = torch.ones(4, 7, requires_grad=True), torch.ones(4, 7, requires_grad=True)
    for at in (3, 7):
        compiled(ours, ROWS, at)[0].backward()
        loss(theirs, ROWS, at)[0].backward()
    assert torch.equal(ours.grad, theirs.grad)  # type: ignore[arg-type]


def test_a_plan_is_for_all_that_is_counted() -> None:
    with fuseplan.record(name="window") as recording:
        compiled = torch.compile(window, backend="fuseplan")
        for at in range(5, 9):
            compiled(torch.ones(1, 4), at)
    trace = recording.programs[-1]
    (symbol,) = trace.fields["symbols"]
    assert symbol["counts"] is True
    assert box_of(trace) == Box()
    assert trace.times >= 2
    assert [dict(one.sizes) for one in trace.calls] == [{}]
    assert len(launches_of(EITHER, trace)[0]) == 2
