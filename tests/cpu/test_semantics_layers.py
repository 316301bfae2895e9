"""PyTorch's own layers, forward and backward, in training and in evaluation, give what they give in eager."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agreement import assert_as_accurate, assert_same, in_double
from layer_programs import ATTENTION, FUNCTIONS, sample
from observing import SEED, Arguments, Program, check, table
from plans import EVERY_PLAN, SEGMENTED, compile_under

EACH_PLAN = pytest.mark.parametrize("plan", EVERY_PLAN)
BOTH = pytest.mark.parametrize("plan", [SEGMENTED, "eager"])


# --- functions ------------------------------------------------------------------------------------------------------


@table(FUNCTIONS)
@EACH_PLAN
def test_functions(plan: str, program: Program, arguments: Arguments) -> None:
    check(program, arguments, plan)


@EACH_PLAN
def test_interpolation_is_as_accurate_as_eager(plan: str) -> None:
    """AOTAutograd spells it out in smaller operations whatever the backend, so that the last bits differ."""

    def program(x: Tensor) -> Tensor:
        return F.interpolate(x, scale_factor=2.0, mode="bilinear")

    x = sample(1, 2, 4, 4)
    assert_as_accurate(compile_under(plan, program)(x), program(x), program(in_double(x)))


# --- attention ------------------------------------------------------------------------------------------------------


@table(ATTENTION)
@BOTH
def test_attention(plan: str, program: Program, arguments: Arguments) -> None:
    check(program, arguments, plan)
    torch._dynamo.reset()
    with torch.no_grad():
        check(program, arguments, plan)


# --- modules --------------------------------------------------------------------------------------------------------


def _take_turns(make: Callable[[], nn.Module], arguments: Arguments, plan: str) -> None:
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
        assert_same(results[1], results[0])
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
    return (sample(3, 5, 8, grad=False),)


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
    _take_turns(make, arguments, plan)


@pytest.fixture
def _no_fast_path() -> Iterator[None]:
    """Without grad, eager takes a fused path of its own for attention layers, and Dynamo traces the other one."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(enabled)


@pytest.mark.usefixtures("_no_fast_path")
@pytest.mark.parametrize("dropout", [0.0, 0.2])
@BOTH
def test_multihead_attention(plan: str, dropout: float) -> None:
    _take_turns(lambda: _SelfAttention(dropout=dropout), _sequence, plan)


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
            loss = run(sample(4, 8, grad=False)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    assert_same(losses[3:], losses[:3])
    assert losses[5] < losses[3]
