"""Settings `blocks`: a backward that computes the forward again block by block keeps little, and gives the same gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from functorch.compile import make_boxed_compiler, min_cut_rematerialization_partition
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch.fx import Graph, GraphModule
from torch.utils.checkpoint import checkpoint

from agreement import assert_as_accurate, in_double
from fuseplan.plan import Plan
from fuseplan.runtime import blocks_again
from fuseplan.runtime.blocks_again import Blocks, best_cuts
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


def marked_only(program: Any, *, marks: bool = True) -> Any:
    """A program whose forward and backward are cut as under `blocks`, or as torch cuts them, and run as they are traced: nobody compiles
    them.
    """

    def partition(joint: GraphModule, inputs: Any, **options: Any) -> Any:
        if marks:
            blocks_again.mark_blocks(joint.graph)
        return min_cut_rematerialization_partition(joint, inputs, **{**options, "compiler": "inductor"})

    as_traced = make_boxed_compiler(lambda gm, inputs: gm.forward)
    backend = aot_autograd(fw_compiler=as_traced, inference_compiler=as_traced, partition_fn=partition)
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


def test_a_pass_of_the_callers_own_still_runs(marked: list[int]) -> None:
    seen = list[Graph]()
    with torch._inductor.config.patch(joint_custom_post_pass=seen.append):
        net = Stack()
        step(compile_under(BLOCKS, net), net, given())
    assert len(seen) == len(marked) == 1
    assert Blocks(seen.append).uuid() is None
    assert Blocks().uuid() == Blocks().uuid() is not None


def test_blocks_are_as_large_as_pays() -> None:
    narrow = [9] * 9 + [1]
    assert best_cuts(narrow * 12, [8] * 10 * 12) == [10 * number for number in range(1, 12)]
    assert best_cuts(([90] * 9 + [60]) * 12, [8] * 10 * 12) == [
        30,
        60,
        90,
    ]  # what stands between takes more: larger ones
    assert best_cuts([], []) == []
