"""Attention by the proofs of its masks: unmodified models take the causal kernel, and a plan says which call runs how."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.exc import BackendCompilerFailed
from torch.fx import GraphModule

import fuseplan
from agreement import assert_as_accurate, assert_same, in_double
from fuseplan.backend import programs_of
from fuseplan.errors import OptionError, PlanError
from fuseplan.explain import compiled_by
from fuseplan.graph import Graph
from fuseplan.options import Options
from fuseplan.plan import Plan, Rewrite
from fuseplan.rewrites.apply import rewritten
from fuseplan.rewrites.attention.calls import AttentionCall, attention_calls
from running import train
from zoo import TRANSFORMERS, static_and_dynamic

DECODERS = ("gpt2", "llama", "qwen2", "mistral")
CAUSAL = ("gpt2", "llama", "qwen2")
FLASH = "aten._scaled_dot_product_flash_attention_for_cpu.default"
BUILDS_MASKS = {
    "aten.cumsum.default",
    "aten.le.Tensor",
    "aten.index.Tensor",
    "aten.bitwise_and.Tensor",
    "aten.ne.Scalar",
}


def compiled(program: Any, plan: str | Plan = "aten", attention: str = "proven", **options: Any) -> Any:
    return torch.compile(program, backend="fuseplan", options={"plan": plan, "attention": attention}, **options)


def graphs_of(program: Any) -> dict[str, Graph]:
    """The ATen graphs of all that was compiled for `program`, by role."""
    wrapper = compiled_by(program)
    assert wrapper is not None
    return {record.role: record.graph for each in programs_of(wrapper) for record in each.graphs}


def targets(graph: Graph) -> Counter[str]:
    return Counter(op.target for op in graph.ops)


def _cases(names: tuple[str, ...]) -> list[Any]:
    """Inductor takes ten seconds or more for a model, and host eager runs what under aten is traced as well: test_models has some of
    those, and the rest is left to `pytest -m exhaustive`, as are all but two models under aten.
    """
    return [
        pytest.param(name, plan, id=f"{name}-{plan}", marks=[pytest.mark.exhaustive] * rare)
        for name in names
        for plan in ("aten", "eager", "inductor")
        for rare in [plan != "aten" or name not in {"gpt2", "bert"}]
    ]


# whole models


@pytest.mark.parametrize(("name", "plan"), _cases((*DECODERS, "bert")))
def test_models_without_their_masks_agree_with_eager(name: str, plan: str) -> None:
    model, inputs = TRANSFORMERS[name].build()
    model.eval()
    with torch.no_grad():
        reference, eager = dict(in_double(model)(**in_double(inputs))), dict(model(**inputs))
        actual = dict(compiled(model, plan)(**inputs))
    assert_as_accurate(actual, eager, reference)


@pytest.mark.parametrize(("name", "plan"), _cases((*DECODERS, "bert")))
def test_training_without_masks_agrees_with_eager(name: str, plan: str) -> None:
    model, inputs = TRANSFORMERS[name].build()
    model.train()
    twin, exact = copy.deepcopy(model), in_double(model)
    runs = (
        train(model, compiled(model, plan), inputs),
        train(twin, twin, inputs),
        train(exact, exact, in_double(inputs)),
    )
    assert_as_accurate(*map(asdict, runs))


@pytest.mark.parametrize(("name", "dynamic"), static_and_dynamic(CAUSAL, ()))
def test_one_causal_call_a_layer_and_nothing_left_of_the_mask(name: str, dynamic: bool | None) -> None:
    model, inputs = TRANSFORMERS[name].build()
    program = compiled(model.eval(), dynamic=dynamic)
    with torch.no_grad():
        program(input_ids=inputs["input_ids"])
    graph = graphs_of(program)["inference"]
    found = [op for op in graph.ops if op.target == FLASH]
    assert len(found) == 2
    assert all(op.args[4] is True for op in found), "is_causal is not given"
    assert not BUILDS_MASKS & set(targets(graph))


def test_the_backward_is_the_causal_kernels_own() -> None:
    model, inputs = TRANSFORMERS["llama"].build()
    program = compiled(model.train())
    program(**inputs).loss.backward()
    graphs = graphs_of(program)
    assert targets(graphs["forward"])[FLASH] == 2
    backward = [op for op in graphs["backward"].ops if "flash_attention_for_cpu_backward" in op.target]
    assert [op.args[7] for op in backward] == [True, True], "is_causal is not given"


def test_one_compiled_program_is_right_at_other_sizes_and_says_what_is_proven() -> None:
    model, _ = TRANSFORMERS["llama"].build()
    program = compiled(model.eval(), dynamic=True)
    for length in (11, 5, 2, 17):
        ids = torch.arange(3, 3 + 2 * length).reshape(2, length)
        with torch.no_grad():
            assert_as_accurate(
                program(input_ids=ids).logits, model(input_ids=ids).logits, in_double(model)(input_ids=ids).logits
            )
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    told = "attention call 1: mask proven causal for every size; variant auto+causal"
    assert told in fuseplan.explain(program, graphs=False)


def test_a_window_keeps_its_mask() -> None:
    model, inputs = TRANSFORMERS["mistral"].build()
    program = compiled(model.eval())
    with torch.no_grad():
        program(**inputs)
    assert "aten.bitwise_and.Tensor" in targets(graphs_of(program)["inference"])
    assert "nothing proven of its mask, since it is neither causal" in fuseplan.explain(program, graphs=False)


@pytest.mark.parametrize("attention", ["as-is", "proven"])
@pytest.mark.parametrize("padded", [True, False], ids=["padded", "whole"])
def test_bert_keeps_one_attention_a_layer(attention: str, padded: bool) -> None:
    model, inputs = TRANSFORMERS["bert"].build()
    given = inputs if padded else {"input_ids": inputs["input_ids"]}
    program = compiled(model.eval(), attention=attention)
    with torch.no_grad():
        program(**given)
    found = targets(graphs_of(program)["inference"])
    assert found[FLASH] + found["fuseplan.sdpa.default"] == 2
    assert not {"aten._softmax.default", "aten.bmm.default", "aten._safe_softmax.default"} & set(found)


def test_as_is_looks_at_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def looked(*_: Any) -> Any:
        raise AssertionError("attention was looked at")

    monkeypatch.setattr("fuseplan.rewrites.attention.kind.attention_calls", looked)
    model, inputs = TRANSFORMERS["gpt2"].build()
    with torch.no_grad():
        compiled(model.eval(), "eager", attention="as-is")(**inputs)


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(OptionError, match="as-is or proven, not 'always'"):
        Options.parse({"attention": "always"})


# single calls


def attend(q: Tensor, k: Tensor, v: Tensor, **rest: Any) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, **rest)


def masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
    return attend(q, k, v, attn_mask=mask)


def heads(queries: int = 6, keys: int = 6, *, groups: int = 4, grad: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(3)
    q, k, v = torch.randn(2, 4, queries, 8), torch.randn(2, groups, keys, 8), torch.randn(2, groups, keys, 8)
    return tuple(each.requires_grad_(grad) for each in (q, k, v))  # type: ignore[return-value]


def looked_at(
    program: Callable[..., Any], *arguments: Any, **options: Any
) -> tuple[tuple[AttentionCall, ...], GraphModule]:
    """The attention calls of a program, and its Dynamo graph."""
    found: list[Any] = []

    def backend(gm: GraphModule, _: Any) -> Callable[..., Any]:
        found.append((attention_calls(gm), gm))
        count = len(gm.graph.output_node().args[0])  # type: ignore[arg-type]
        return lambda *_: [torch.zeros(())] * count  # what is looked at need not run

    torch.compile(program, backend=backend, **options)(*arguments)
    return found[0][0], found[0][1]


def run(program: Callable[..., Tensor], arguments: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
    out = program(*arguments)
    return out, torch.autograd.grad(out, arguments, torch.linspace(0.5, 1.5, out.numel()).reshape(out.shape))


VARIANTS = ("auto", "auto+causal", "flash", "flash+causal", "math", "math+causal")


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("executor", ["segmented", "eager", pytest.param("inductor", marks=pytest.mark.exhaustive)])
def test_each_variant_gives_what_eager_gives(executor: str, variant: str) -> None:
    anchors = (Rewrite("attention", 0, variant),)
    plan = Plan("aten", anchors) if executor == "segmented" else Plan(executor, anchors)
    arguments = heads(grad=True)
    exact = tuple(each.detach().double().requires_grad_() for each in arguments)
    program = torch.compile(masked, backend="fuseplan", options={"plan": plan})
    assert_as_accurate(run(program, arguments), run(masked, arguments), run(masked, exact))


def test_queries_and_keys_of_different_number_are_causal_from_the_top() -> None:
    for queries, keys in ((3, 7), (7, 3)):
        torch._dynamo.reset()
        arguments = heads(queries, keys)
        program = compiled(masked)
        assert_same(program(*arguments), masked(*arguments), bitwise=False)
        assert "variant auto+causal" in fuseplan.explain(program, graphs=False)


def test_fewer_groups_of_keys_than_heads() -> None:
    def grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q, k, v, attn_mask=torch.ones(6, 6, dtype=torch.bool).tril(), enable_gqa=True)

    arguments = heads(groups=2)
    program = compiled(grouped)
    assert_same(program(*arguments), grouped(*arguments), bitwise=False)
    assert "variant auto+causal" in fuseplan.explain(program, graphs=False)


def test_legal_variants_follow_the_proof_and_the_machine() -> None:
    (call,), _ = looked_at(masked, *heads())
    assert call.variants == (*VARIANTS, "split")
    assert call.refusal("auto+unmasked") == "its mask is not proven all: its mask is proven causal"
    assert call.refusal("cudnn") is not None
    assert call.refusal("fast") == "there is no attention variant 'fast'"


def test_an_illegal_choice_is_a_plan_error_with_the_reason() -> None:
    def program(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return attend(q, k, v, attn_mask=mask)

    _, gm = looked_at(program, *heads(), torch.ones(6, 6, dtype=torch.bool))
    with pytest.raises(PlanError, match=r"attention call 0 cannot be auto\+causal: .* it depends on l_mask_"):
        rewritten(gm, (Rewrite("attention", 0, "auto+causal"),))
    with pytest.raises(PlanError, match="speaks of attention call 1; the program has 1"):
        rewritten(gm, (Rewrite("attention", 1, "auto"),))
    plan = Plan("eager", (Rewrite("attention", 0, "auto+causal"),))
    with pytest.raises(BackendCompilerFailed, match=r"cannot be auto\+causal"):
        torch.compile(program, backend="fuseplan", options={"plan": plan})(*heads(), torch.ones(6, 6, dtype=torch.bool))


def refused(program: Callable[..., Any], *arguments: Any) -> str:
    calls, _ = looked_at(program, *arguments)
    assert calls[0].proof.verdict is None, calls
    assert not any(word in variant for variant in calls[0].variants for word in ("causal", "unmasked"))
    return calls[0].proof.reason


def test_what_forbids_to_drop_a_mask() -> None:
    causal = torch.ones(6, 6, dtype=torch.bool).tril()
    bias = torch.zeros(6, 6, requires_grad=True)
    with torch.no_grad():
        learned = refused(lambda q, k, v: attend(q, k, v, attn_mask=bias + 0), *heads())
    assert "bias" in learned
    more_batches = refused(lambda q, k, v: attend(q[:1], k[:1], v[:1], attn_mask=torch.zeros(2, 1, 6, 6)), *heads())
    assert "more batches" in more_batches
    (call,), _ = looked_at(lambda q, k, v: attend(q[:1], k[:1], v[:1], attn_mask=torch.zeros(2, 1, 6, 6)), *heads())
    assert call.refusal("auto+heads") == "its mask may be larger than the scores"
    one_row = refused(lambda q, k, v: attend(q, k, v, attn_mask=torch.ones(1, 6, dtype=torch.bool).tril()), *heads())
    assert "rows and columns" in one_row
    given = refused(lambda q, k, v: attend(q, k, v, attn_mask=causal), *heads())
    assert "depends on" in given


def test_a_mask_that_changes_after_the_call_is_left_alone() -> None:
    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = torch.ones(6, 6, dtype=torch.bool).tril()
        first = attend(q, k, v, attn_mask=mask)
        mask.fill_(True)
        return attend(first, k, v, attn_mask=mask)

    calls, _ = looked_at(program, *heads())
    assert [call.proof.verdict for call in calls] == [None, "all"]
    assert_same(compiled(program)(*heads()), program(*heads()), bitwise=False)


def test_a_write_of_data_through_a_view_is_seen() -> None:
    def program(q: Tensor, k: Tensor, v: Tensor, row: Tensor) -> Tensor:
        mask = torch.ones(6, 6, dtype=torch.bool).tril()
        mask[2:][0].copy_(row)
        return attend(q, k, v, attn_mask=mask)

    row = torch.tensor([True, False, True, False, True, False])
    assert "l_row_" in refused(program, *heads(), row)
    assert_same(compiled(program)(*heads(), row), program(*heads(), row), bitwise=False)


def test_what_else_reads_the_mask_still_gets_it() -> None:
    def program(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        mask = torch.ones(6, 6, dtype=torch.bool).tril()
        rows = mask.sum(-1)
        mask |= torch.eye(6, dtype=torch.bool)
        return attend(q, k, v, attn_mask=mask), mask.float() + rows

    assert_same(compiled(program)(*heads()), program(*heads()), bitwise=False)


def test_the_rewritten_graph_is_a_copy_that_keeps_what_is_known_of_its_values() -> None:
    _, gm = looked_at(masked, *heads())
    before = gm.print_readable(print_output=False)
    edited = rewritten(gm, (Rewrite("attention", 0, "flash+causal"),)).gm
    assert gm.print_readable(print_output=False) == before
    assert "attention_flash(" in edited.code
    assert "tril" not in edited.code
    assert all("example_value" in node.meta for node in edited.graph.nodes if node.op == "call_function")
    assert_same(edited(*heads()), gm(*heads()), bitwise=False)


def test_dropout_draws_the_numbers_that_eager_draws() -> None:
    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = torch.ones(6, 6, dtype=torch.bool).tril()
        return attend(q, k, v, attn_mask=mask, dropout_p=0.3)

    torch.manual_seed(5)
    eager = program(*heads())
    torch.manual_seed(5)
    actual = compiled(program)(*heads())
    assert_same(actual, eager, bitwise=False)
