"""Graphs of real programs: written down, run from the written form, and keyed before anything is traced."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

import fuseplan
from fuseplan.backend import programs_of
from fuseplan.capture.fx.from_fx import capture_fx
from fuseplan.capture.fx.to_fx import SizeSpace, fake_inputs, to_fx
from fuseplan.errors import GraphError
from fuseplan.executors.flat import flatten
from fuseplan.explain import compiled_by
from fuseplan.graph import Graph, Op, Ref, ScalarType, Symbol, TensorType, Value
from fuseplan.runtime import Program


def programs(function: Callable[..., Any], *args: Any, backward: bool = False, **options: Any) -> list[Program]:
    """What was compiled for one call of `function` under the segmented ATen plan."""
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="fuseplan", options={"plan": "aten"}, **options)
    result = compiled(*args)
    if backward:
        result.sum().backward()
    return programs_of(compiled_by(compiled))


def key(function: Callable[..., Any], *args: Any, **options: Any) -> str:
    (program,) = programs(function, *args, **options)
    assert program.key is not None, program.unkeyable
    return program.key


def block(x: Tensor, w: Tensor, mask: Tensor) -> Tensor:
    """Views, a multi-output op, an index, a constant and numbers that JSON has no word for."""
    a, b = (x @ w).view(4, 2, 8).split(1, dim=1)
    a = F.layer_norm(a, (8,)).minimum(torch.tensor([0.5, -0.0, float("inf"), 1, 1, 1, 1, 1]))
    return torch.where(mask, a * b, float("-inf")).transpose(0, 1).softmax(-1)


def arguments() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(4, 16), torch.randn(16, 16), torch.rand(4, 1, 8) > 0.5


ENDLESS = {
    "tower": "9**9**9",
    "calls": "Pow(9, Pow(9, 9))",
    "exponent": "PowByNatural(s0, 10**6)",
    "powers of powers": "((s0**60)**60)**60",
    "fraction": "2**-(10**9)",
    "division": "s0//0",
    "float": "1.5**(1e308)",
    "signs": "-" * 8000 + "1",
    "sum": "+".join("1" * 4000),
    "parentheses": "(" * 4000 + "s0" + ")" * 4000,
}


@pytest.mark.parametrize("size", ENDLESS.values(), ids=ENDLESS)
def test_a_foreign_size_without_end_is_refused(size: str) -> None:
    with pytest.raises(GraphError, match="a size "):
        SizeSpace({"s0": 8})(size)


def test_powers_of_sizes_are_evaluated() -> None:
    sizes = SizeSpace({"s0": 8})
    assert [sizes(text) for text in ("s0**2", "PowByNatural(s0, 3)", "2**62", "Pow(2, -1)")] == [64, 512, 2**62, 0.5]


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_graph_runs_from_its_written_form(dynamic: bool) -> None:
    args = arguments()
    (program,) = programs(block, *args, dynamic=dynamic)
    (record,) = program.graphs
    graph = Graph.from_json(record.graph.to_json())
    assert graph == record.graph
    gm = to_fx(graph)
    sizes = SizeSpace({symbol.name: symbol.hint for symbol in graph.symbols})
    by_kind = {(tuple(t.shape), str(t.dtype)): t for t in args}
    inputs: list[Any] = []
    for value in graph.inputs:
        if isinstance(value.type, ScalarType):
            inputs.append(sizes(value.type.expr))
        else:
            assert isinstance(value.type, TensorType)
            shape = tuple(map(sizes, value.type.shape))
            inputs.append(by_kind[shape, f"torch.{value.type.dtype}"])
    (actual,) = [out for out in flatten(gm)(inputs) if isinstance(out, Tensor)]
    assert torch.equal(actual, block(*args))


def test_there_and_back_gives_the_same_key() -> None:
    x = torch.randn(4, 8, requires_grad=True)
    (program,) = programs(lambda x: F.gelu(F.layer_norm(x, (8,))).sum(), x, backward=True)
    assert [record.role for record in program.graphs] == ["forward", "backward"]
    for record in program.graphs:
        assert capture_fx(to_fx(record.graph)).graph.key == record.graph.key


def test_composites_stay_whole() -> None:
    def attend(q: Tensor, w: Tensor) -> Tensor:
        return F.rms_norm(F.silu(F.scaled_dot_product_attention(q, q, q)), (8,), w)

    q = torch.randn(2, 4, 8, requires_grad=True)  # fused kernels take four dimensions
    w = torch.ones(8, requires_grad=True)
    (program,) = programs(attend, q, w, backward=True)
    forward, backward = ({op.target for op in record.graph.ops} for record in program.graphs)
    assert {"fuseplan.sdpa.default", "fuseplan.rms_norm.default", "aten.silu.default"} <= forward
    assert {"fuseplan.sdpa_backward.default", "fuseplan.rms_norm_backward.default", "aten.silu_backward.default"} <= (
        backward
    )


def test_equal_programs_have_equal_keys_whatever_their_names() -> None:
    def one(alpha: Tensor, beta: Tensor) -> Tensor:
        gamma = alpha * beta
        return gamma.relu()

    def other(x: Tensor, y: Tensor) -> Tensor:
        return (x * y).relu()

    a, b = torch.randn(3, 4), torch.randn(3, 4)
    assert key(one, a, b) == key(other, a, b)


def test_whatever_changes_the_program_changes_its_key() -> None:
    x = torch.randn(4, 4)
    grown: list[Callable[[], str]] = [
        lambda: key(lambda x: x * 2, x),
        lambda: key(lambda x: x * 2.0, x),
        lambda: key(lambda x: x * 3, x),
        lambda: key(lambda x: x + 2, x),
        lambda: key(lambda x: x * 2, x.double()),
        lambda: key(lambda x: x * 2, torch.randn(4, 5)),
        lambda: key(lambda x: x * 2, x.t()),
        lambda: key(lambda x: x * 2, x.clone().requires_grad_()),
        lambda: key(lambda x: x * torch.tensor([1.0, 2, 3, 4]), x),
        lambda: key(lambda x: x * torch.tensor([1.0, 2, 3, 5]), x),
        lambda: key(lambda x, y: x * 2 + y, x, x.clone()),
        lambda: key(lambda x, y: x * 2 + y, x, x[:]),
        lambda: key(lambda x: x * 2, x, dynamic=True),
    ]
    keys = [make() for make in grown]
    with torch.no_grad():
        keys.append(key(lambda x: x * 2, x))
    with torch.autocast("cpu", torch.bfloat16):
        keys.append(key(lambda x: x * 2, x))
    assert len(set(keys)) == len(keys)


def test_the_key_is_the_same_in_another_process() -> None:
    script = (
        "import torch; from fuseplan.backend import programs_of; from fuseplan.explain import compiled_by\n"
        "f = torch.compile(lambda x: (x * 2).relu().sum(0), backend='fuseplan', options={'plan': 'aten'})\n"
        "f(torch.ones(3, 4)); print(programs_of(compiled_by(f))[0].key)"
    )
    elsewhere = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert key(lambda x: (x * 2).relu().sum(0), torch.ones(3, 4)) == elsewhere.strip()


@torch.library.custom_op("fuseplan_tests::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    """An operator that only this test knows."""
    return x * 2


@twice.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def test_an_unknown_operator_runs_but_is_not_exported() -> None:
    (program,) = programs(lambda x: twice(x) + 1, torch.ones(3))
    graph = program.graphs[0].graph
    with pytest.raises(GraphError, match="twice"):
        graph.to_json()
    with pytest.raises(GraphError, match="twice"):
        to_fx(graph)


def test_a_function_of_the_users_has_no_key_and_says_so() -> None:
    torch._dynamo.allow_in_graph(_mine)
    (program,) = programs(lambda x: _mine(x) + 1, torch.ones(3))
    assert program.key is None
    assert "_mine" in str(program.unkeyable)


def _mine(x: Tensor) -> Tensor:
    return x.sin()


def checkpointed(layer: nn.Module, *saved: Any) -> Callable[[Tensor], Tensor]:
    """A program that is checkpointed, and keeps what these operators give, if there are any."""
    own: dict[str, Any] = {"context_fn": partial(create_selective_checkpoint_contexts, list(saved))} if saved else {}

    def block(x: Tensor) -> Any:
        return checkpoint(lambda y: layer(y).sin().cos().exp(), x, use_reentrant=False, **own)

    return block


def test_hooks_that_pack_what_is_saved_leave_no_key_and_say_so() -> None:
    """Where they are graphs themselves, so that torch compiles them with the program."""
    halved = torch.fx.symbolic_trace(lambda saved: saved.to(torch.bfloat16))
    whole = torch.fx.symbolic_trace(lambda saved: saved.to(torch.float32))
    x = torch.randn(3, 4, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(halved, whole):
        (program,) = programs(lambda x: x.sin().exp(), x)
        with torch.no_grad():
            assert key(lambda x: x.sin().exp(), x), "nothing is saved"
    assert program.unkeyable == "hooks pack what it saves, which no trace holds"
    assert key(lambda x: x.sin().exp(), x)


@pytest.mark.parametrize("plan", ["aten", "eager"])
def test_a_plan_that_is_asked_for_goes_by_the_policy_of_a_checkpoint(plan: str) -> None:
    layer = nn.Linear(4, 4)

    def step(call: Callable[[Tensor], Tensor]) -> tuple[int, Tensor, Tensor]:
        x, kept = torch.linspace(-1, 1, 12).view(3, 4).requires_grad_(), 0

        def pack(tensor: Tensor) -> Tensor:
            nonlocal kept
            kept += tensor.shape == (3, 4) and tensor.data_ptr() != x.data_ptr()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            result = call(x)
        result.sum().backward()
        assert x.grad is not None
        return kept, result.detach(), x.grad

    kept = []
    for saved in ((), (torch.ops.aten.sin.default,), (torch.ops.aten.sin.default, torch.ops.aten.addmm.default)):
        torch._dynamo.reset()
        program = checkpointed(layer, *saved)
        count, *actual = step(fuseplan.compile(program, plan=plan))
        torch.testing.assert_close(actual, list(step(program)[1:]))
        kept.append(count)
    assert plan == "eager" or kept[0] < kept[1]  # eager keeps it where no hook sees it


def test_a_size_that_nobody_saw_is_within_its_bounds() -> None:
    kind = TensorType("float32", ("s0",), (1,), "cpu")
    op = Op("aten.sin.default", (Ref("x"),), (), (Value("y", kind),))
    graph = Graph((Value("x", kind),), (op,), (Ref("y"),), symbols=(Symbol("s0", 2, 5),))
    (given,) = fake_inputs(to_fx(graph))
    assert 2 <= given.shape[0].node.hint <= 5


def test_explain_says_what_ran_and_why() -> None:
    compiled = fuseplan.compile(block, plan="aten")
    assert "call it once" in fuseplan.explain(compiled)
    compiled(*arguments())
    text = fuseplan.explain(compiled)
    assert "why: asked for by option" in text
    assert "aten.native_layer_norm.default" in text
    assert "not compiled" in fuseplan.explain(block)
