"""Settings `blocks`: a backward that computes the forward again block by block keeps little, and gives the same gradients."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from functorch.compile import make_boxed_compiler, min_cut_rematerialization_partition
from hypothesis import given as given_by
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.decomposition import select_decomp_table
from torch.fx import Graph, GraphModule, Node
from torch.utils.checkpoint import checkpoint

from agreement import assert_as_accurate, in_double
from fuseplan.plan import Plan
from fuseplan.runtime import blocks_again
from fuseplan.runtime.blocks_again import Blocks, _cuts, best_cuts
from plans import compile_under

WIDTH, LAYERS, ROWS = 16, 4, 32
BLOCKS, DEFAULT = Plan("inductor", settings="blocks"), Plan("inductor")


class Stack(nn.Module):
    """Layers around which a stream runs, each wide inside; before them, and after, what is theirs alone."""

    def __init__(self, dropout: float = 0.0, *, checkpoints: bool = False, layers: int = LAYERS) -> None:
        super().__init__()
        self.dropout, self.checkpoints = dropout, checkpoints
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(layers))
        self.ups = nn.ModuleList(nn.Linear(WIDTH, 8 * WIDTH) for _ in range(layers))
        self.downs = nn.ModuleList(nn.Linear(8 * WIDTH, WIDTH) for _ in range(layers))

    def layer(self, number: int, x: Tensor) -> Tensor:
        inside = F.gelu(self.ups[number](self.norms[number](x)))
        return x + F.dropout(self.downs[number](inside), self.dropout, self.training)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        for number in range(len(self.norms)):
            x = checkpoint(self.layer, number, x, use_reentrant=False) if self.checkpoints else self.layer(number, x)
        return x.square().mean(), x


@pytest.fixture
def marked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many blocks each program has got, each traced anew; its code may come from Inductor's cache."""
    found, mark = list[int](), blocks_again.mark_blocks
    monkeypatch.setattr(blocks_again, "mark_blocks", lambda graph: found.append(mark(graph)))
    with torch._functorch.config.patch(enable_autograd_cache=False):
        yield found


def marked_only(program: Any, cut: list[Graph] | None = None, *, marks: bool = True) -> Any:
    """A program whose forward and backward are `cut` as under `blocks`, or as torch cuts them, and run as they are traced: nobody
    compiles them.
    """

    def partition(joint: GraphModule, inputs: Any, **options: Any) -> Any:
        if marks:
            blocks_again.mark_blocks(joint.graph)
        parts = min_cut_rematerialization_partition(joint, inputs, **{**options, "compiler": "inductor"})
        if cut is not None:
            cut.extend(part.graph for part in parts)
        return parts

    as_traced = make_boxed_compiler(lambda gm, inputs: gm.forward)
    backend = aot_autograd(
        fw_compiler=as_traced,
        inference_compiler=as_traced,
        partition_fn=partition,
        decompositions=select_decomp_table(),
        keep_inference_input_mutations=True,
    )
    return torch.compile(program, backend=backend)


def step(call: Any, net: nn.Module, x: Tensor) -> tuple[list[Tensor], int]:
    """Outputs and gradients of one step, and the bytes that the forward has kept beside parameters and input."""
    kept = dict[int, int]()
    known = {one.untyped_storage()._cdata for one in (x, *net.parameters())}

    def pack(value: Tensor) -> Tensor:
        storage = value.untyped_storage()
        if storage._cdata not in known:
            kept[storage._cdata] = storage.nbytes()
        return value

    net.zero_grad()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
        loss, out = call(x)
    size = sum(kept.values())
    loss.backward()
    return [loss.detach(), out.detach(), *(one.grad for one in net.parameters() if one.grad is not None)], size


def given(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(1)).to(dtype)


def test_little_is_kept_and_gradients_are_the_same(marked: list[int]) -> None:
    torch.manual_seed(0)
    net = Stack()
    exact = in_double(net)
    blocks, kept = step(compile_under(BLOCKS, net), net, given())
    torch._dynamo.reset()
    _, usual = step(marked_only(net, marks=False), net, given())
    assert marked[0] >= LAYERS - 1
    assert 3 * kept < usual
    assert_as_accurate(blocks, step(net, net, given())[0], step(exact, exact, given(torch.float64))[0])


def test_what_is_drawn_is_drawn_once(marked: list[int]) -> None:
    torch.manual_seed(0)
    net = Stack(dropout=0.5)
    found = []
    for plan in (BLOCKS, DEFAULT):
        torch._dynamo.reset()
        call = compile_under(plan, net)
        step(call, net, given())
        torch.manual_seed(7)
        found.append(step(call, net, given())[0])
    assert marked[0] > 1
    torch.testing.assert_close(found[0], found[1])  # the outputs too: both have drawn the same


def test_a_program_that_says_itself_what_is_computed_again_keeps_to_that(marked: list[int]) -> None:
    net = Stack(checkpoints=True)
    got, _ = step(marked_only(net), net, given())
    assert marked == [0]
    exact = in_double(net)
    assert_as_accurate(got, step(net, net, given())[0], step(exact, exact, given(torch.float64))[0])


def test_without_gradients_and_where_nothing_is_narrow_all_is_as_before(marked: list[int]) -> None:
    net = Stack()
    with torch.no_grad():
        marked_only(net)(given())
    wide = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(2)))
    x = given()
    marked_only(wide)(x).sum().backward()
    assert marked == [0]


def test_what_the_caller_gets_is_not_computed_again(marked: list[int]) -> None:
    class All(Stack):
        def forward(self, x: Tensor) -> Any:
            streams = []
            for number in range(LAYERS):
                x = self.layer(number, x)
                streams.append(x)
            return x.square().mean(), torch.cat(streams), streams[2]

    net = All()
    exact = in_double(net)

    def gradients(call: Any, net: nn.Module, dtype: torch.dtype) -> list[Any]:
        net.zero_grad()
        loss, all_of_them, third = call(given(dtype))
        (loss + third.sum() + all_of_them.mean()).backward()
        return [loss.detach(), third.detach(), *(one.grad for one in net.parameters())]

    got = gradients(marked_only(net), net, torch.float32)
    assert marked
    assert_as_accurate(got, gradients(net, net, torch.float32), gradients(exact, exact, torch.float64))


def backward_of(net: Stack) -> Graph:
    """What a backward under `blocks` computes, of gradients that are right."""
    cut, exact = list[Graph](), in_double(net)
    got, _ = step(marked_only(net, cut), net, given())
    assert any(node.meta.get("recompute") for node in cut[1].nodes)
    assert_as_accurate(got, step(net, net, given())[0], step(exact, exact, given(torch.float64))[0])
    return cut[1]


def products_behind(backward: Graph, shape: tuple[int, ...], number: int = 0) -> int:
    """How many matrices are multiplied in a backward for one of its results of such a shape."""
    (results,) = backward.output_node().args
    waiting = [[node for node in results if isinstance(node, Node) and node.meta["val"].shape == shape][number]]
    found = set[Node]()
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting.extend(node.all_input_nodes)
    return sum(node.target in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default) for node in found)


class Headed(Stack):
    """Layers below a loss over classes: they read a view of a stream."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, 8 * WIDTH + 1, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        _, x = super().forward(x)
        x = F.normalize(x)
        return F.cross_entropy(self.head(x.view(ROWS, 1, -1))[:, 0], torch.arange(ROWS)), x.detach()


def test_the_last_block_reads_what_was_kept_of_the_one_before() -> None:
    net = Headed()
    assert products_behind(backward_of(net), net.head.weight.shape) == 1


class Ahead(torch.autograd.Function):
    """A loss whose forward takes its gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        out = (x @ weight.t()).tanh()
        slope = 2 * out * (1 - out * out) / out.numel()
        ctx.save_for_backward(slope @ weight, slope.t() @ x)
        return out.square().mean()

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor, ...]:
        return tuple(given[0] * one for one in ctx.saved_tensors)


def test_gradients_that_the_forward_takes_stay_its_own() -> None:
    class Hasty(Headed):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            _, x = Stack.forward(self, x)
            first = Ahead.apply(x, self.head.weight)  # type: ignore[no-untyped-call]
            for number in range(LAYERS):
                x = self.layer(number, x)
            return first + x.square().mean(), x

    net = Hasty()
    assert products_behind(backward_of(net), net.head.weight.shape) == 0


class Remembering(Stack):
    """Each layer reads what the last call has left."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(WIDTH, 8 * WIDTH, bias=False).requires_grad_(False)
        self.register_buffer("memory", torch.randn(ROWS, WIDTH))

    def layer(self, number: int, x: Tensor) -> Tensor:
        read = self.into(self.get_buffer("memory") * (number + 1))
        return x + self.downs[number](F.gelu(self.ups[number](self.norms[number](x)) + read))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        loss, x = super().forward(x)
        self.get_buffer("memory").copy_(x.detach())
        return loss, x


def test_what_is_written_to_is_not_read_again(marked: list[int]) -> None:
    net = Remembering()
    exact, usual = in_double(net), copy.deepcopy(net)
    got, _ = step(marked_only(net), net, given())
    assert marked[0] > 1
    assert_as_accurate(got, step(usual, usual, given())[0], step(exact, exact, given(torch.float64))[0])


class Normed(Stack):
    """Whose norms are of the batch, and note what they see."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm1d(WIDTH) for _ in range(LAYERS))


def test_statistics_that_a_forward_notes_are_no_work_for_the_backward(marked: list[int]) -> None:
    net = Normed()
    exact, usual = in_double(net), copy.deepcopy(net)
    got, kept = step(marked_only(net), net, given())
    assert marked[0] >= LAYERS - 1
    assert 3 * kept < step(compile_under(DEFAULT, usual), usual, given())[1]
    usual = copy.deepcopy(exact).float()
    assert_as_accurate(got, step(usual, usual, given())[0], step(exact, exact, given(torch.float64))[0])


class Sorted(Stack):
    """A stream that is one of two results between any two layers."""

    def layer(self, number: int, x: Tensor) -> Tensor:
        return super().layer(number, x).sort(-1)[0]


def test_one_of_several_results_is_kept_between_blocks() -> None:
    net = Sorted()
    assert products_behind(backward_of(net), net.downs[-1].weight.shape, -1) <= 2


class Twice(Stack):
    """One layer asks for an order, and others for the values in that order."""

    def layer(self, number: int, x: Tensor) -> Tensor:
        normed = self.norms[number](x)
        if number == 1:
            normed = normed.gather(-1, self.around.sort(-1)[1])
        if number >= LAYERS // 2:
            normed = normed + self.norms[0](self.around.sort(-1)[0])
        return x + self.downs[number](F.gelu(self.ups[number](normed)))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.around = x.tanh()
        return super().forward(self.around)


def test_calls_that_are_alike_and_give_several_results_are_left_alone(marked: list[int]) -> None:
    net = Twice()
    got, _ = step(marked_only(net), net, given())
    assert marked[0] > 1
    exact = in_double(net)
    assert_as_accurate(got, step(net, net, given())[0], step(exact, exact, given(torch.float64))[0])


def test_a_pass_of_the_callers_own_still_runs(marked: list[int]) -> None:
    seen = list[Graph]()
    with torch._inductor.config.patch(joint_custom_post_pass=seen.append):
        net = Stack()
        step(compile_under(BLOCKS, net), net, given())
    assert len(seen) == len(marked) == 1
    assert Blocks(seen.append).uuid() is None
    assert Blocks().uuid() == Blocks().uuid() is not None


def narrowest_by_looking(between: Sequence[int], inside: Sequence[int], most: int) -> list[int]:
    """Cuts, found by looking at each place of a block."""
    found, begin, end = [], 0, 1
    while end < len(inside):
        if sum(inside[begin : end + 1]) <= most:
            end += 1
            continue
        begin = min(range(begin + 1, end + 1), key=lambda cut: (between[cut - 1], -cut))
        end = begin + 1
        found += [begin] if between[begin - 1] <= most else []
    return found


@given_by(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=40), st.integers(0, 60))
def test_cuts_are_where_it_is_the_narrowest(sizes: list[tuple[int, int]], most: int) -> None:
    between, inside = ([one[i] for one in sizes] for i in range(2))
    held = list(accumulate(inside, initial=0))
    assert list(_cuts(between, held, most)) == narrowest_by_looking(between, inside, most)


def test_blocks_are_as_large_as_pays() -> None:
    narrow = [9] * 9 + [1]
    assert best_cuts(narrow * 12, [8] * 10 * 12) == [10 * number for number in range(1, 12)]
    assert best_cuts(([90] * 9 + [60]) * 12, [8] * 10 * 12) == [
        30,
        60,
        90,
    ]  # what stands between takes more: larger ones
    assert best_cuts([], []) == []
    assert best_cuts(narrow * 12 + [9], [8] * 10 * 12 + [1000]) == [10 * number for number in range(1, 13)]
