"""PyTorch's own layers, forward and backward, in training and in evaluation, give what they give in eager."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agreement import assert_as_accurate, assert_same, in_double
from observing import SEED, Arguments, Program, check
from plans import EVERY_PLAN, SEGMENTED, compile_under

EACH_PLAN = pytest.mark.parametrize("plan", EVERY_PLAN)
BOTH = pytest.mark.parametrize("plan", [SEGMENTED, "eager"])


def _sample(*shape: int, seed: int = 3, grad: bool = True) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).requires_grad_(grad)


def _table(cases: dict[str, tuple[Program, Arguments]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("program", "arguments"), list(cases.values()), ids=list(cases))


# --- functions ------------------------------------------------------------------------------------------------------


def _normalized(*affine: tuple[int, ...]) -> Arguments:
    return lambda: (_sample(4, 6, 8), *(_sample(*shape, seed=i) for i, shape in enumerate(affine)))


def _classes() -> tuple[Tensor, Tensor]:
    return _sample(6, 5), torch.tensor([0, 4, 2, -100, 1, 3])


NORMS: dict[str, tuple[Program, Arguments]] = {
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (8,), w, b), _normalized((8,), (8,))),
    "layer_norm_without_weights": (lambda x: F.layer_norm(x, (6, 8)), _normalized()),
    "rms_norm": (lambda x, w: F.rms_norm(x, (8,), w), _normalized((8,))),
    "group_norm": (lambda x, w, b: F.group_norm(x, 3, w, b), _normalized((6,), (6,))),
    "instance_norm": (lambda x: F.instance_norm(x), _normalized()),
    "batch_norm_training": (
        lambda x, w, b, mean, var: F.batch_norm(x, mean, var, w, b, training=True),
        lambda: (*_normalized((6,), (6,))(), torch.zeros(6), torch.ones(6)),
    ),
    "batch_norm_evaluation": (
        lambda x, w, b, mean, var: F.batch_norm(x, mean, var, w, b),
        lambda: (*_normalized((6,), (6,))(), torch.full((6,), 0.5), torch.full((6,), 2.0)),
    ),
}
ACTIVATIONS: dict[str, tuple[Program, Arguments]] = {
    "gelu": (lambda x: F.gelu(x), _normalized()),
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), _normalized()),
    "silu_gate": (lambda x, y: F.silu(x) * y, _normalized((4, 6, 8))),
    "softmax_and_log_softmax": (lambda x: (x.softmax(-1), x.log_softmax(1)), _normalized()),
    "hardswish_and_mish": (lambda x: F.hardswish(x) + F.mish(x), _normalized()),
}
LOSSES: dict[str, tuple[Program, Arguments]] = {
    "cross_entropy": (lambda x, y: F.cross_entropy(x, y), _classes),
    "smoothed_cross_entropy": (lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1, reduction="sum"), _classes),
    "embedding": (
        lambda w, i: F.embedding(i, w, padding_idx=0),
        lambda: (_sample(5, 3), torch.tensor([[0, 4], [4, 1]])),
    ),
    "binary_cross_entropy": (
        lambda x: F.binary_cross_entropy_with_logits(x, torch.ones_like(x)),
        lambda: (_sample(4, 5),),
    ),
    "convolutions": (
        lambda x, w: F.max_pool2d(F.conv2d(x, w, stride=2, padding=1, groups=2), 2),
        lambda: (_sample(2, 4, 9, 9), _sample(6, 2, 3, 3)),
    ),
    "einsum": (lambda x, y: torch.einsum("bij,bkj->bik", x, y), _normalized((4, 5, 8))),
}


@_table({**NORMS, **ACTIVATIONS, **LOSSES})
@EACH_PLAN
def test_functions(plan: str, program: Program, arguments: Arguments) -> None:
    check(program, arguments, plan)


@EACH_PLAN
def test_interpolation_is_as_accurate_as_eager(plan: str) -> None:
    """AOTAutograd spells it out in smaller operations whatever the backend, so that the last bits differ."""

    def program(x: Tensor) -> Tensor:
        return F.interpolate(x, scale_factor=2.0, mode="bilinear")

    x = _sample(1, 2, 4, 4)
    assert_as_accurate(compile_under(plan, program)(x), program(x), program(in_double(x)))


# --- attention ------------------------------------------------------------------------------------------------------


def _attention(**options: Any) -> Program:
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options)


def _heads(kv_heads: int = 4, kv_length: int = 6) -> Arguments:
    kv = (2, kv_heads, kv_length, 8)
    return lambda: (_sample(2, 4, 6, 8), _sample(*kv, seed=1), _sample(*kv, seed=2))


ALLOWED = torch.tensor([[True] * 4 + [False] * 2, [True] * 6]).view(2, 1, 1, 6)
ATTENTION: dict[str, tuple[Program, Arguments]] = {
    "plain": (_attention(), _heads()),
    "causal": (_attention(is_causal=True), _heads()),
    "bool_mask": (_attention(attn_mask=ALLOWED), _heads()),
    "float_mask": (_attention(attn_mask=torch.linspace(-1, 1, 36).view(6, 6)), _heads()),
    "scaled": (_attention(scale=0.3), _heads()),
    "cross": (_attention(), _heads(kv_length=9)),
    "grouped_queries": (_attention(enable_gqa=True, is_causal=True), _heads(kv_heads=2)),
    "dropout": (_attention(dropout_p=0.3), _heads()),
    "dropout_with_mask": (_attention(dropout_p=0.3, attn_mask=ALLOWED), _heads()),
}


def _learned_bias(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


@_table(ATTENTION)
@BOTH
def test_attention(plan: str, program: Program, arguments: Arguments) -> None:
    check(program, arguments, plan)
    torch._dynamo.reset()
    with torch.no_grad():
        check(program, arguments, plan)


@BOTH
def test_attention_with_a_learned_bias(plan: str) -> None:
    check(_learned_bias, lambda: (*_heads()(), _sample(4, 6, 6, seed=4)), plan)


@BOTH
def test_attention_whose_mask_hides_everything(plan: str) -> None:
    hidden = torch.zeros(6, 6, dtype=torch.bool)
    check(_attention(attn_mask=hidden), _heads(), plan)


# --- modules --------------------------------------------------------------------------------------------------------


def _take_turns(make: Callable[[], nn.Module], arguments: Arguments, plan: str, *, bitwise: bool) -> None:
    """Train, evaluate with and without grad, and train again; state must stay eager's throughout."""
    torch.manual_seed(SEED)
    eager = make()
    module = copy.deepcopy(eager)
    compiled = compile_under(plan, module)
    for training, grad in ((True, True), (False, True), (False, False), (True, True)):
        results = []
        for runner, owner in ((eager, eager), (compiled, module)):
            owner.train(training).zero_grad()
            torch.manual_seed(SEED)
            with torch.set_grad_enabled(grad):
                result = runner(*arguments())
            first = result if isinstance(result, Tensor) else result[0]
            if grad:
                first.square().sum().backward()
            results.append((result, {name: value.grad for name, value in owner.named_parameters()}))
        assert_same(results[1], results[0], bitwise=bitwise)
        assert_same(dict(module.state_dict()), dict(eager.state_dict()))


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(9, 8), nn.Linear(8, 9, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.head(self.embedding(ids).relu())
        return logits


class _SelfAttention(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True, **options)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        hidden = torch.zeros(3, 5, dtype=torch.bool)
        hidden[1, 3:] = True
        result: tuple[Tensor, Tensor | None] = self.attention(x, x, x, key_padding_mask=hidden)
        return result


def _sequence() -> tuple[Tensor]:
    return (_sample(3, 5, 8, grad=False),)


MODULES: dict[str, tuple[Callable[[], nn.Module], Arguments]] = {
    "transformer_layer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), _sequence),
    "transformer_layer_without_dropout": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, norm_first=True, activation="gelu"),
        _sequence,
    ),
    "lstm": (lambda: nn.LSTM(8, 6, num_layers=2, bidirectional=True), _sequence),
    "gru": (lambda: nn.GRU(8, 6, batch_first=True), _sequence),
    "batch_norm": (lambda: nn.Sequential(nn.Conv1d(5, 4, 3), nn.BatchNorm1d(4), nn.ReLU()), _sequence),
    "tied_weights": (_Tied, lambda: (torch.tensor([[1, 2, 8], [0, 2, 2]]),)),
}


@pytest.mark.parametrize(("make", "arguments"), list(MODULES.values()), ids=list(MODULES))
@BOTH
def test_modules(plan: str, make: Callable[[], nn.Module], arguments: Arguments) -> None:
    _take_turns(make, arguments, plan, bitwise=True)


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@BOTH
def test_multihead_attention(plan: str, dropout: float) -> None:
    """Not bitwise: without grad, eager takes a fused path of its own, and Dynamo traces the other one."""
    _take_turns(lambda: _SelfAttention(dropout=dropout), _sequence, plan, bitwise=False)


@BOTH
def test_an_optimizer_step_is_seen_by_the_next_call(plan: str) -> None:
    eager = nn.Linear(8, 1)
    module = copy.deepcopy(eager)
    compiled = compile_under(plan, module)
    losses = []
    for run, owner in ((eager, eager), (compiled, module)):
        optimizer = torch.optim.AdamW(owner.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            loss = run(_sample(4, 8, grad=False)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    assert_same(losses[3:], losses[:3])
    assert losses[5] < losses[3]
