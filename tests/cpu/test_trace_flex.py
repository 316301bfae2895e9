"""Programs that call flex_attention by themselves: written down with their functions and masks, run again, judged and tuned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.exc import BackendCompilerFailed
from torch.fx import GraphModule
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from fuseplan.capture.trace import write
from fuseplan.capture.trace.format import Trace
from fuseplan.capture.trace.key import key_of
from fuseplan.capture.trace.load import load_trace
from fuseplan.capture.trace.write import write_trace
from fuseplan.errors import GraphError
from fuseplan.judge.expect import expect
from fuseplan.tune import tune
from fuseplan.tuning.queue.possible_gain import guessed_gain
from fuseplan.tuning.traces import traces_of

LENGTH = 256
DOCUMENTS = torch.arange(LENGTH) // 100
SLOPES = torch.tensor([0.5, 0.25])


def causal(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return q >= k


def in_documents(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return (DOCUMENTS[q] == DOCUMENTS[k]) & (q >= k)


def alibi(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return score + SLOPES[h] * (k - q)


MASKS = {
    function: create_block_mask(function, None, None, LENGTH, LENGTH, "cpu") for function in (causal, in_documents)
}


def sloping(q: Tensor, k: Tensor, v: Tensor) -> Any:
    return flex_attention(q, k, v, score_mod=alibi, block_mask=MASKS[causal])


def by_documents(q: Tensor, k: Tensor, v: Tensor) -> Any:
    return flex_attention(q * 2, k, v, block_mask=MASKS[in_documents], scale=0.2)


def plain(q: Tensor, k: Tensor, v: Tensor) -> Any:
    return flex_attention(q, k, v.relu())


PROGRAMS: dict[str, Callable[..., Any]] = {"score": sloping, "documents": by_documents, "plain": plain}


def trace_of(name: str) -> Trace:
    torch._dynamo.reset()
    with torch.no_grad():  # on a CPU torch has no backward of it
        (trace,) = traces_of(PROGRAMS[name], *(torch.randn(1, 2, LENGTH, 16) for _ in range(3)), name=name)
    return Trace.from_json(trace.to_json())


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_trace_is_the_program_again(name: str) -> None:
    trace = trace_of(name)
    assert key_of(trace.fields) == trace.key
    loaded, again = load_trace(trace), list[str]()

    def backend(gm: GraphModule, inputs: Sequence[Any]) -> Any:
        again.append(write_trace(gm, inputs).key)
        return gm.forward

    torch._dynamo.reset()
    with loaded.modes():
        torch.compile(loaded.module, backend=backend)(*loaded.inputs(0))
    assert again == [trace.key]


def test_it_computes_what_the_program_does() -> None:
    loaded = load_trace(trace_of("documents"))
    heads = [one for one in loaded.inputs(0) if one.is_floating_point()]
    with torch.no_grad():
        torch.testing.assert_close(loaded.run(seed=0)["output 0"], by_documents(*heads))


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in ("score", "documents") else pytest.mark.exhaustive) for name in PROGRAMS],
)
def test_what_torch_makes_of_it_is_judged(name: str) -> None:
    loaded = load_trace(trace_of(name))
    torch._dynamo.reset()
    found = loaded.run(torch.compile(loaded.module), seed=1)
    expected = expect(loaded)
    assert expected.how == "beside a run in float64"
    assert expected.judge(found, 1).problem is None
    assert expected.judge({**found, "output 0": found["output 0"] * 1.001}, 1).problem is not None


def test_what_a_mask_leaves_is_the_same_under_all_seeds() -> None:
    trace = trace_of("documents")
    exact = [one["values"]["values"] for one in trace.fields["inputs"] if one["values"]["spread"] == "exact"]
    assert DOCUMENTS.tolist() in exact
    assert MASKS[in_documents].kv_num_blocks.flatten().tolist() in exact
    first, second = (load_trace(trace).inputs(seed) for seed in (0, 1))
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other) is not one.is_floating_point()


def test_a_mask_that_is_too_large_for_a_trace_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "MASK_ELEMENTS", 100)
    with pytest.raises(BackendCompilerFailed, match="is part of a mask, and too large for a trace"):
        trace_of("documents")


def test_a_trace_cannot_have_other_functions_called() -> None:
    trace = trace_of("score")
    (call,) = [node for node in trace.fields["nodes"] if node.get("target", "").endswith("flex_attention")]
    call["args"][3] = {"function": "torch.nn.functional.relu"}
    with pytest.raises(GraphError, match="with functions that are no blocks of its own"):
        load_trace(trace)


def test_it_is_tuned_as_a_whole(tmp_path: Any) -> None:
    trace = trace_of("documents")
    assert guessed_gain(trace)
    (tuned,) = tune([trace], effort="none", device="cpu", db=tmp_path / "tuned.db")
    assert tuned.status == "failed"
    assert "no graph of it can be cut" in tuned.detail
