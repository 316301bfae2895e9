"""Programs without their author's names: equal programs are one entry of torch's cache, others none, and nothing hangs on a name."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_cache
from torch.fx import GraphModule
from torch.nn import functional as F
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

import carving
import fuseplan
from fuseplan.capture.dynamo.renamed import renamed
from fuseplan.capture.trace.load import load_trace
from fuseplan.capture.trace.write import write_trace
from fuseplan.plan import Plan
from fuseplan.tuning.traces import traces_of

Call = Callable[..., Any]
CHEAP, WHOLE = Plan("aten"), Plan("inductor", settings="split-64")


@pytest.fixture(autouse=True)
def caches() -> Iterator[None]:
    """Empty ones of this test's own."""
    with fresh_cache(), torch._functorch.config.patch(enable_autograd_cache=True):
        torch._dynamo.reset()
        yield
    torch._dynamo.reset()


def captured(call: Call, *args: Any, **options: Any) -> tuple[GraphModule, GraphModule]:
    """What Dynamo captures, and what becomes of it."""
    found: list[tuple[GraphModule, GraphModule]] = []

    def look(gm: GraphModule, example_inputs: Sequence[Any]) -> Call:
        found.append((gm, renamed(gm, example_inputs, "key")))
        return gm.forward

    torch._dynamo.reset()
    torch.compile(call, backend=look, **options)(*args)
    (one,) = found
    return one


def cached(call: Call, *args: Any, plan: Plan = CHEAP, trains: bool = False, **options: Any) -> tuple[str, Any]:
    """What torch's cache says where a process starts with a program, and what that gives."""
    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(call, backend="fuseplan", options={"plan": plan}, **options)
    result = compiled(*args)
    if trains:
        result.sum().backward()
    told = counters["aot_autograd"]
    return " ".join(word for word in ("hit", "miss", "saved", "bypass") if told[f"autograd_cache_{word}"]), result


class Block(nn.Module):
    """Two inputs of equal shape for each thing that might be mixed up, and what it does to them is not symmetric."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("early", torch.zeros(8))
        self.register_buffer("late", torch.ones(8))

    def forward(self, given: Tensor) -> Tensor:
        assert isinstance(self.early, Tensor)
        assert isinstance(self.late, Tensor)
        hidden = self.first(given).sin()
        self.early.add_(hidden.detach().mean(0))
        self.late.mul_(0.5)
        out, _ = (self.second(hidden) * 3).chunk(2, -1)
        return out


class Same(nn.Module):
    """The same program, by someone else."""

    def __init__(self, factor: float = 3.0) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({"b": nn.Linear(8, 8), "a": nn.Linear(8, 8)})
        self.register_buffer("z", torch.zeros(8))
        self.register_buffer("y", torch.ones(8))
        self.factor = int(factor) if factor == int(factor) else factor

    def forward(self, x: Tensor) -> Tensor:
        assert isinstance(self.z, Tensor)
        assert isinstance(self.y, Tensor)
        wave = self.layers["b"](x).sin()
        mean = wave.detach().mean(0)
        self.z.add_(mean)
        self.y.mul_(0.5)
        scaled = self.layers["a"](wave) * self.factor
        pieces = scaled.chunk(2, -1)
        return pieces[0]


def twice_computed(given: Tensor, weight: Tensor) -> Tensor:
    def inner(one: Tensor) -> Tensor:
        product = one @ weight
        return F.dropout(product, 0.5).sin()

    return checkpoint(inner, given.cos(), use_reentrant=False).sum()


def by_rows(given: Tensor) -> Tensor:
    return torch.vmap(lambda row: row.sin() * row.sum())(given)


def without_gradients(given: Tensor) -> Tensor:
    outside = given * 2
    with torch.no_grad():
        inside = outside.exp()
    return outside * inside


def matrix(*shape: int, grad: bool = True) -> Tensor:
    return torch.randn(shape or (4, 8), requires_grad=grad)


PROGRAMS: dict[str, tuple[Callable[[], Call], Callable[[], tuple[Tensor, ...]]]] = {
    "block": (Block, lambda: (matrix(),)),
    "checkpoint": (lambda: twice_computed, lambda: (matrix(), matrix(8, 8))),
    "vmap": (lambda: by_rows, lambda: (matrix(),)),
    "no_grad": (lambda: without_gradients, lambda: (matrix(),)),
    "encoder": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), lambda: (matrix(2, 4, 8),)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_and_its_trace_are_named_the_same(name: str) -> None:
    make, arguments = PROGRAMS[name]
    traces = []

    def write(gm: GraphModule, example_inputs: Sequence[Any]) -> Call:
        traces.append(write_trace(gm, example_inputs))
        return gm.forward

    call = make()
    torch.compile(call, backend=write)(*arguments())
    loaded = load_trace(traces[0])
    theirs, ours = captured(call, *arguments())
    with loaded.modes():
        rebuilt, again = captured(loaded.module, *loaded.inputs())
    assert [node.name for node in theirs.graph.nodes] != [node.name for node in rebuilt.graph.nodes]
    for one, other in zip(_graphs(ours), _graphs(again), strict=True):
        assert one.code == other.code
        assert [node.name for node in one.graph.nodes] == [node.name for node in other.graph.nodes]
    assert vars(ours)["_fuseplan_program"] == vars(again)["_fuseplan_program"]


def _graphs(gm: GraphModule) -> list[GraphModule]:
    return [module for module in gm.modules() if isinstance(module, GraphModule)]


def test_what_it_is_of_stays_as_it_is() -> None:
    call, (x,) = Block(), PROGRAMS["block"][1]()
    before: list[Any] = []

    def look(gm: GraphModule, example_inputs: Sequence[Any]) -> Call:
        def facts() -> list[Any]:
            return [
                (node.name, node.target, dict(node.meta), vars(node).get("_dynamo_source")) for node in gm.graph.nodes
            ]

        before.extend(facts())
        code = gm.code
        assert renamed(gm, example_inputs, "key") is not gm
        assert facts() == before
        assert gm.code == code
        assert "_fuseplan_program" not in vars(gm)
        return gm.forward

    torch.compile(call, backend=look)(x)
    assert before


@pytest.mark.parametrize("plan", [CHEAP, WHOLE], ids=["aten", "whole"])
def test_who_wrote_a_program_makes_no_difference(plan: Plan) -> None:
    """Gradients go to whom they belong, and buffers are written that are meant."""
    torch.manual_seed(0)
    mine, x = Block(), matrix()
    theirs = Same()
    for source, target in zip((mine.first, mine.second), theirs.layers.values(), strict=True):
        assert isinstance(target, nn.Linear)
        target.load_state_dict(source.state_dict())
    twins = [copy.deepcopy(mine), copy.deepcopy(theirs)]
    said = []
    for net, twin in zip((mine, theirs), twins, strict=True):
        given = x.detach().clone().requires_grad_()
        eagerly = x.detach().clone().requires_grad_()
        answer, out = cached(net, given, plan=plan, trains=True)
        said.append(answer)
        expected = twin(eagerly)
        expected.sum().backward()
        torch.testing.assert_close(out, expected)
        torch.testing.assert_close(given.grad, eagerly.grad)
        for (name, ours), eagers in zip(net.named_parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, eagers.grad, msg=name)
        torch.testing.assert_close(dict(net.named_buffers()), dict(twin.named_buffers()))
    assert said == ["miss saved", "hit"]


def _clamped(x: Tensor) -> Tensor:
    return x.clamp(0, 1) + 1


CHANGES: dict[str, tuple[Call, Call]] = {
    "a constant": (lambda x: x * 2 + 1, lambda x: x * 2 + 3),
    "the type of a constant": (lambda x: x * 2, lambda x: x * 2.0),
    "which of two is meant": (lambda x: x.sin() - x.cos(), lambda x: -(x.sin()) + x.cos()),
    "the order of arguments": (lambda x: torch.sub(x.sin(), x), lambda x: torch.sub(x, x.sin())),
    "an operator": (_clamped, lambda x: x.clamp(0, 1) - 1),
    "what is given out": (lambda x: (x + 1, x + 2), lambda x: (x + 2, x + 1)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_another_program_is_another_one(change: str) -> None:
    one, other = CHANGES[change]
    x = matrix(grad=False)
    for call in (one, other):
        said, found = cached(call, x)
        assert said == "miss saved"
        torch.testing.assert_close(found, call(x))


def test_a_checkpointed_block_that_is_another_is_another_program() -> None:
    def other(given: Tensor, weight: Tensor) -> Tensor:
        return checkpoint(lambda one: F.dropout(one @ weight, 0.5).cos(), given.cos(), use_reentrant=False).sum()

    def same(anything: Tensor, matrix: Tensor) -> Tensor:
        return checkpoint(lambda this: F.dropout(this @ matrix, 0.5).sin(), anything.cos(), use_reentrant=False).sum()

    args = matrix(), matrix(8, 8)
    said = [cached(call, *args, plan=WHOLE, trains=True)[0] for call in (twice_computed, other, same)]
    assert said == ["miss saved", "miss saved", "hit"]


def shifted(x: Tensor, w: Tensor) -> Tensor:
    x.add_(1)
    return x * w


@pytest.mark.parametrize("plan", [CHEAP, WHOLE], ids=["aten", "whole"])
def test_inputs_that_share_storage_go_their_way_as_ever(plan: Plan) -> None:
    whole = torch.zeros(8)
    apart, together = (torch.zeros(8)[:6], torch.zeros(8)[2:]), (whole[:6], whole[2:])
    assert captured(shifted, *apart)[1] is not captured(shifted, *apart)[0]
    gm, found = captured(shifted, *together)
    assert found is gm
    for args in (apart, (torch.zeros(8)[:6], torch.zeros(8)[2:])):
        assert cached(shifted, *args, plan=plan)[1].tolist() == [0.0] * 6
    whole = torch.zeros(8)
    said, result = cached(shifted, whole[:6], whole[2:], plan=plan)
    assert "hit" not in said
    assert result.tolist() == [1.0] * 4 + [0.0] * 2


def nonzero(x: Tensor) -> Tensor:
    return x.nonzero() * 2


def test_programs_with_sizes_that_vary_go_their_way_as_ever() -> None:
    gm, found = captured(lambda x: x * x.shape[0], matrix(grad=False), dynamic=True)
    assert found is gm
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        gm, found = captured(nonzero, torch.ones(4))
        assert found is gm
    call = torch.compile(lambda x: x * x.shape[0], backend="fuseplan", options={"plan": WHOLE}, dynamic=True)
    for rows in (3, 5, 7):
        x = torch.randn(rows, 2)
        torch.testing.assert_close(call(x), x * rows)


def _saves(*_: Any, **__: Any) -> Any:
    return create_selective_checkpoint_contexts([torch.ops.aten.mm.default])


def chosen(x: Tensor, w: Tensor) -> Tensor:
    return checkpoint(lambda one: (one @ w).sin(), x, use_reentrant=False, context_fn=_saves)


def branching(x: Tensor, w: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda one: one.sin(), lambda one: one.cos(), (x,)) @ w


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0] * 2


def with_its_own_backward(x: Tensor, w: Tensor) -> Tensor:
    found: Tensor = Doubled.apply(x @ w)  # type: ignore[no-untyped-call]
    return found


@pytest.mark.parametrize("call", [chosen, branching, with_its_own_backward])
def test_graphs_within_graphs_that_no_trace_holds_go_their_way_as_ever(call: Call) -> None:
    gm, found = captured(call, matrix(), matrix(8, 8))
    assert found is gm


def test_tensors_that_are_more_than_their_numbers_go_their_way_as_ever() -> None:
    gm, found = captured(torch.sin, TwoTensor(matrix(grad=False), matrix(grad=False)))
    assert found is gm


def _switched_off(name: str) -> Any:
    if name == "oneDNN":
        return torch.backends.mkldnn.flags(enabled=False)
    return torch._inductor.config.patch(emulate_precision_casts=True)


@pytest.mark.parametrize("plan", [CHEAP, WHOLE], ids=["aten", "whole"])
@pytest.mark.parametrize("name", ["oneDNN", "Inductor's"])
def test_what_was_compiled_under_other_settings_is_not_found(name: str, plan: Plan) -> None:
    x = matrix(grad=False)
    assert cached(torch.sin, x, plan=plan)[0] == "miss saved"
    with _switched_off(name):
        assert cached(torch.sin, x, plan=plan)[0] == "miss saved"
    assert cached(torch.sin, x, plan=plan)[0] == "hit"


def test_an_input_that_keeps_its_address_is_another_program() -> None:
    moving, staying = matrix(grad=False), matrix(grad=False)
    torch._dynamo.mark_static_address(staying, guard=False)
    said = [cached(torch.sin, x, plan=WHOLE)[0] for x in (moving, staying, moving, staying)]
    assert said == ["miss saved", "miss saved", "hit", "hit"]
    gm, found = captured(torch.sin, staying)
    kinds = [one.graph.find_nodes(op="placeholder")[0].meta["tensor_dict"] for one in (gm, found)]
    assert kinds[0] == kinds[1]
    assert kinds[1]["_dynamo_static_input_type"]


def test_regions_that_were_carved_out_of_a_trace_are_found() -> None:
    net, x = nn.Sequential(nn.Linear(8, 8), nn.GELU()), matrix(grad=False)
    plan = carving.plan_of(carving.trained(net, x), lambda graph: carving.alone(graph, "aten", lambda op: "gelu" in op))
    assert plan.regions
    (trace,) = traces_of(net, x.clone().requires_grad_(), name="block")
    loaded = load_trace(trace)
    torch._dynamo.reset()
    counters.clear()
    loaded.run(torch.compile(loaded.module, backend="fuseplan", options={"plan": plan}))
    assert counters["aot_autograd"]["autograd_cache_saved"] == 1
    torch._dynamo.reset()
    torch.testing.assert_close(carving.step(carving.compiled(net, plan), net, x), carving.step(net, net, x))
    assert counters["aot_autograd"]["autograd_cache_hit"] == 1


def under_one_name(apple: Tensor) -> Tensor:
    core = apple.cos()
    return core + 1


def under_another(pear: Tensor) -> Tensor:
    stalk = pear.cos()
    return stalk + 1


def test_torch_compile_s_own_path_stays_its_own() -> None:
    """Under the default each shares what the other has kept, and names are as they are to torch."""
    x, y = matrix(8, grad=False), matrix(7, grad=False)
    torch.compile(under_one_name)(x)
    default = Plan("inductor")
    assert cached(under_one_name, x, plan=default)[0] == "hit"
    assert cached(under_another, x, plan=default)[0] == "miss saved"
    assert cached(under_another, y, plan=default)[0] == "miss saved"
    torch._dynamo.reset()
    counters.clear()
    torch.compile(under_another)(y)
    assert counters["aot_autograd"]["autograd_cache_hit"] == 1
    assert [cached(call, y, plan=WHOLE)[0] for call in (under_one_name, under_another)] == ["miss saved", "hit"]


def test_where_nodes_come_from_is_still_told() -> None:
    gm, found = captured(Block(), matrix())
    for node, copied in zip(gm.graph.nodes, found.graph.nodes, strict=True):
        assert copied.meta.keys() == node.meta.keys() - {"grapharg"}
        assert all(value is node.meta[word] for word, value in copied.meta.items())
    assert any("chunk" in node.meta.get("stack_trace", "") for node in found.graph.nodes)


def test_an_error_while_it_is_traced_names_the_line_of_the_user() -> None:
    library = torch.library.Library("renamed_by_fuseplan", "FRAGMENT")
    library.define("broken(Tensor x) -> Tensor")
    library.impl("broken", lambda x: x.clone(), "CompositeExplicitAutograd")
    calls = 0

    def fake(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls > 1:  # Dynamo has asked
            raise RuntimeError("it is broken")
        return x.clone()

    torch.library.register_fake("renamed_by_fuseplan::broken", fake, lib=library)

    def mine(my_own_word: Tensor) -> Tensor:
        return torch.ops.renamed_by_fuseplan.broken(my_own_word)  # the line of the user

    with pytest.raises(Exception, match="it is broken") as error:
        torch.compile(mine, backend="fuseplan", options={"plan": WHOLE})(matrix(grad=False))
    assert "the line of the user" in str(error.value)


def test_nothing_is_held_of_what_the_first_call_was_given() -> None:
    compiled = fuseplan.compile(lambda x: x.sin(), plan=WHOLE)
    x = matrix(grad=False)
    compiled(x)
    seen = weakref.ref(x)
    del x
    gc.collect()
    assert seen() is None
