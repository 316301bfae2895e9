"""Checkpoints with a policy of their own: what it says of each op is a part of the program, and of its trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import fuseplan
from fuseplan.backend import Program, programs_of
from fuseplan.capture.trace.format import Trace
from fuseplan.capture.trace.key import key_of, native
from fuseplan.capture.trace.load import load_trace
from fuseplan.errors import GraphError
from fuseplan.explain import compiled_by

aten = torch.ops.aten
MATMULS = (aten.mm.default, aten.addmm.default)
KEPT, AGAIN = CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_RECOMPUTE


class Layers(nn.Module):
    """Two matmuls and what lies between, in a checkpoint with these contexts; in another one, too, if it is nested."""

    def __init__(self, contexts: Any = None, *, nested: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.into, self.out = nn.Linear(4, 8), nn.Linear(8, 4)
        self.own: dict[str, Any] = {} if contexts is None else {"context_fn": contexts}
        self.nested = nested

    def block(self, x: Tensor) -> Tensor:
        return self.out(self.into(x).sin().exp()).cos()  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        if self.nested:
            return checkpoint(self.within, x * 2, use_reentrant=False)  # type: ignore[no-any-return]
        return self.within(x)

    def within(self, x: Tensor) -> Tensor:
        return checkpoint(self.block, x, use_reentrant=False, **self.own)  # type: ignore[no-any-return]


def listed(*ops: Any) -> Callable[[], Any]:
    return partial(create_selective_checkpoint_contexts, list(ops))


def every_second_matmul() -> Any:
    """As people write it who train: by how many there were."""
    met = Counter[bool]()

    def policy(context: Any, op: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        if op not in MATMULS:
            return AGAIN
        met[context.is_recompute] += 1
        return KEPT if met[context.is_recompute] % 2 else AGAIN

    return create_selective_checkpoint_contexts(policy)


def sines(_: Any, op: Any, *__: Any, **___: Any) -> bool:
    return bool(op is aten.sin.default)


def refusing(*_: Any, **__: Any) -> CheckpointPolicy:
    raise RuntimeError("it has never heard of that")


class Own(TorchDispatchMode):
    """No context of torch's."""


def inputs() -> Tensor:
    torch.manual_seed(1)
    return torch.randn(3, 4, requires_grad=True)


def compiled(model: Callable[..., Any], run: Callable[[Any], Any] | None = None, **options: Any) -> Program:
    torch._dynamo.reset()
    call = torch.compile(model, backend="fuseplan", options={"plan": "aten", **options})
    (lambda call: call(inputs()).sum().backward())(call) if run is None else run(call)
    (program,) = programs_of(compiled_by(call))
    return program


def traced(model: nn.Module) -> Trace:
    torch._dynamo.reset()
    (trace,) = fuseplan.traces_of(model, inputs())
    return trace


def answers(trace: Trace) -> Any:
    found = [node for node in trace.fields["nodes"] if node["op"] == "block"]
    while "policy" not in found[0]:
        found = [node for node in found[0]["nodes"] if node["op"] == "block"]
    return found[0]["policy"]


@pytest.mark.parametrize("nested", [False, True])
def test_what_a_policy_says_is_a_part_of_the_program(nested: bool) -> None:
    """However it says so."""

    def key(contexts: Any) -> str:
        program = compiled(Layers(contexts, nested=nested))
        assert program.key is not None, program.unkeyable
        return program.key

    same = key(listed(aten.sin.default)), key(partial(create_selective_checkpoint_contexts, sines))
    others = key(None), key(listed(*MATMULS)), key(every_second_matmul), same[0]
    assert same[0] == same[1]
    assert len(set(others)) == len(others)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("contexts", [listed(aten.sin.default), every_second_matmul], ids=["listed", "counting"])
def test_a_program_that_is_rebuilt_keeps_the_same(contexts: Any, nested: bool) -> None:
    model = Layers(contexts, nested=nested)
    trace = traced(model)
    name = "aten::sin" if contexts is not every_second_matmul else "aten::addmm"
    assert answers(trace) == {name: ["MUST_SAVE"]}
    assert key_of(trace.fields) == trace.key
    again = Trace.from_json(trace.to_json())
    loaded = load_trace(again)
    first, second = compiled(model), compiled(loaded.module, loaded.step)
    plain = compiled(Layers(nested=nested))
    assert first.key == second.key == trace.key
    graphs = [[(one.role, one.graph.key) for one in program.graphs] for program in (first, second, plain)]
    assert graphs[0] == graphs[1]
    assert graphs[1] != graphs[2]


@pytest.mark.parametrize("plan", ["eager", "aten", "inductor"])
def test_it_trains_as_under_eager(plan: str) -> None:
    loaded = load_trace(traced(Layers(every_second_matmul)))
    torch._dynamo.reset()
    again = loaded.run(torch.compile(loaded.module, backend="fuseplan", options={"plan": plan}))
    torch.testing.assert_close(again, loaded.run())
    found = []
    for under in (lambda model: model, partial(torch.compile, backend="fuseplan", options={"plan": plan})):
        model, x = Layers(every_second_matmul), inputs()
        torch._dynamo.reset()
        under(model)(x).sum().backward()
        found.append([x.grad, *(one.grad for one in model.parameters())])
    torch.testing.assert_close(found[0], found[1])


def test_a_worker_tunes_it_and_its_plan_is_found(tmp_path: Path) -> None:
    model = Layers(every_second_matmul)
    (found,) = fuseplan.tune([traced(model)], effort="none", db=tmp_path / "plans.db")
    assert (found.status, found.detail) == ("unverified", "")
    torch._dynamo.reset()
    call = torch.compile(model, backend="fuseplan", options={"db": str(tmp_path / "plans.db"), "unverified": True})
    call(inputs()).sum().backward()
    (program,) = programs_of(compiled_by(call))
    assert program.key == found.program
    assert program.plan == found.plan


def within_autocast(x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return ((x @ x.mT) @ x + (x.exp() @ x.mT) @ x).float()


def in_place(x: Tensor) -> Tensor:
    return x.relu_().exp()


def larger(x: Tensor) -> Tensor:
    return F.interpolate(x[None], scale_factor=2.0, mode="linear")[0]


def some_rows(x: Tensor) -> Tensor:
    return x[torch.nonzero(x[:, 0].detach() > 0)[:, 0]].sin()


def normed(x: Tensor) -> Tensor:
    return F.batch_norm(x, None, None, training=True).sin()


@pytest.mark.parametrize("block", [within_autocast, in_place, larger, some_rows, normed, F.dropout])
@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def test_it_is_asked_of_the_ops_of_which_torch_asks(block: Callable[[Tensor], Tensor]) -> None:
    """Before anything is compiled, and with nothing left behind."""
    asked: list[list[str]] = []

    def contexts() -> Any:
        names: list[str] = []
        asked.append(names)

        def policy(_: Any, op: Any, *__: Any, **___: Any) -> bool:
            names.append(str(op))
            return len(names) % 2 == 0

        return create_selective_checkpoint_contexts(policy)

    def program(x: Tensor) -> Tensor:
        return checkpoint(block, x * 2, use_reentrant=False, context_fn=contexts).sum(0)  # type: ignore[no-any-return]

    torch._dynamo.reset()
    torch.compile(program, backend="aot_eager")(inputs()).sum().backward()
    torchs = [one for one in asked if one]
    asked.clear()
    found = compiled(program)
    assert found.key is not None, found.unkeyable
    assert torchs
    assert all(one == asked[0] for one in torchs)
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")
    (trace,) = fuseplan.traces_of(program, inputs())
    loaded = load_trace(trace)
    assert trace.key == found.key
    again = compiled(loaded.module, loaded.step)
    graphs = [[(one.role, [op.target for op in one.graph.ops]) for one in each.graphs] for each in (found, again)]
    assert graphs[0] == graphs[1]


def attending(x: Tensor) -> Tensor:
    heads = x[None, None]
    return F.scaled_dot_product_attention(heads, heads, heads)[0, 0].sin()


def test_a_kernel_that_is_kept_is_that_of_its_device() -> None:
    """So that nobody is told that a GPU would have the same program."""
    kept = aten._scaled_dot_product_flash_attention_for_cpu.default
    for ops, reasons in (((kept,), 1), ((aten.sin.default,), 0)):
        own = listed(*ops)
        torch._dynamo.reset()
        (trace,) = fuseplan.traces_of(
            lambda x, own=own: checkpoint(attending, x * 2, use_reentrant=False, context_fn=own), inputs()
        )
        told = native(trace, "cuda")[1]
        assert len(told) == reasons, told
        assert all("for which another device calls something else" in one for one in told)


def test_what_asks_sizes_has_the_same_key_each_time() -> None:
    def wide(_: Any, op: Any, *args: Any, **__: Any) -> bool:
        return bool(op is aten.sin.default and args[0].shape[0] > 5)

    model, keys = Layers(partial(create_selective_checkpoint_contexts, wide)), []
    for _ in range(2):
        torch._dynamo.reset()
        x = torch.randn(8, 4, requires_grad=True)
        torch._dynamo.mark_dynamic(x, 0)
        (trace,) = fuseplan.traces_of(model, x)
        keys += [trace.key, key_of(trace.fields)]
    assert len(set(keys)) == 1


def test_what_has_gradients_inside_of_what_has_none_is_asked_as_well() -> None:
    """Nobody knows from outside."""

    def key(*ops: Any) -> Any:
        model = Layers(listed(*ops))

        def program(x: Tensor) -> Tensor:
            with torch.enable_grad():
                return model(x)  # type: ignore[no-any-return]

        with torch.no_grad():
            return compiled(program, lambda call: call(inputs())).key

    assert len({key(), key(aten.sin.default), key(*MATMULS)}) == 3


def test_nobody_but_a_rebuilt_program_says_what_its_policy_says() -> None:
    def contexts() -> Any:
        return every_second_matmul()

    contexts.answers = ["whatever"]  # type: ignore[attr-defined]
    assert answers(traced(Layers(contexts))) == answers(traced(Layers(every_second_matmul)))


@pytest.mark.parametrize(
    ("contexts", "why"),
    [
        (partial(create_selective_checkpoint_contexts, refusing), "it could not be asked: RuntimeError"),
        (lambda: (Own(), Own()), "its contexts are Own"),
    ],
    ids=["a policy that refuses", "contexts of its own"],
)
def test_what_cannot_be_asked_has_no_key_and_says_so(contexts: Any, why: str) -> None:
    with pytest.raises(Exception, match="cannot be traced: its checkpoint has a policy of its own") as told:
        traced(Layers(contexts))
    assert why in str(told.value)
    assert "never heard" not in str(told.value), "it may be a secret"


def test_a_trace_that_asks_for_what_torch_does_not_have_is_refused() -> None:
    trace = traced(Layers(every_second_matmul))
    text = trace.to_json()
    with pytest.raises(GraphError, match=f"torch {torch.__version__.split('+')[0]}.* has no 'MUST_BURN'"):
        load_trace(Trace.from_json(text.replace('"MUST_SAVE"', '"MUST_BURN"')))
    with pytest.raises(GraphError, match="what 'aten::addmm' is told in node"):
        Trace.from_json(text.replace('["MUST_SAVE"]', "[1]"))
    forged = Trace.from_json(text.replace('"aten::addmm":["MUST_SAVE"]', '"aten::addmm MUST_SAVE":[]'))
    assert forged.fields != trace.fields
    assert key_of(forged.fields) != trace.key
