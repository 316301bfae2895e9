"""Runs one model of the zoo under a plan, forward and in training, and holds it to what eager does."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from agreement import assert_as_accurate, assert_same, in_double
from fuseplan.plan import Plan
from plans import compile_under
from zoo import Entry

Scope = Callable[[], AbstractContextManager[Any]]
"""Makes the context that the model runs in: an autocast, or none."""

STEPS = 3
CAPTURE_CALLS = 2
"""After which a CUDA graph is replayed: the first call warms up, the second records."""


@dataclass(frozen=True)
class Training:
    """What a few optimizer steps left behind."""

    losses: list[Tensor]
    first_gradients: dict[str, Tensor]
    state: dict[str, Tensor]
    """Parameters and buffers after the last step."""


def train(
    model: nn.Module, call: Callable[..., Any], inputs: dict[str, Tensor], scope: Scope = nullcontext
) -> Training:
    """Take `STEPS` steps with the model's own loss.

    SGD, because Adam turns the rounding noise of a gradient that is zero in theory into a step of full length.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses: list[Tensor] = []
    gradients: dict[str, Tensor] = {}
    for _ in range(STEPS):
        optimizer.zero_grad()
        with scope():
            loss = call(**inputs).loss
        loss.backward()
        losses.append(loss.detach())
        gradients = gradients or {
            name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None
        }
        optimizer.step()
    return Training(losses, gradients, dict(model.state_dict()))


def check_forward(
    entry: Entry, plan: str | Plan, device: str = "cpu", scope: Scope = nullcontext, **options: str
) -> None:
    """Fail unless the model's outputs in eval mode under `plan` are as accurate as eager's."""
    model, inputs = _prepared(entry, device)
    model.eval()
    with torch.no_grad():
        reference = dict(in_double(model)(**in_double(inputs)))
        with scope():
            eager = dict(model(**inputs))
            compiled = compile_under(plan, model, **options)
            for _ in range(CAPTURE_CALLS if options.get("launch") == "cudagraph" else 0):
                compiled(**inputs)
            actual = dict(compiled(**inputs))
    assert_as_accurate(actual, eager, reference)


def check_training(
    entry: Entry, plan: str | Plan, device: str = "cpu", scope: Scope = nullcontext, **options: str
) -> None:
    """Fail unless losses, gradients and weights of a short training under `plan` are as accurate as eager's."""
    model, inputs = _prepared(entry, device)
    model.train()
    twin, exact = copy.deepcopy(model), in_double(model)
    reference = train(exact, exact, in_double(inputs))
    eager = train(twin, twin, inputs, scope)
    actual = train(model, compile_under(plan, model, **options), inputs, scope)
    assert_as_accurate(*map(asdict, (actual, eager, reference)))


def check_dropout(entry: Entry, plan: str, device: str = "cpu") -> None:
    """Fail unless training with dropout is eager's from the same seed: the same random numbers, in the same order.

    Bitwise on a CPU; a GPU may add up in another order each time.
    """
    model, inputs = _prepared(entry, device, dropout=0.1)
    model.train()
    twin = copy.deepcopy(model)
    torch.manual_seed(7)
    eager = train(twin, twin, inputs)
    torch.manual_seed(7)
    actual = train(model, compile_under(plan, model), inputs)
    assert_same(asdict(actual), asdict(eager), bitwise=device == "cpu")


def _prepared(entry: Entry, device: str, dropout: float = 0.0) -> tuple[nn.Module, dict[str, Tensor]]:
    model, inputs = entry.build(dropout=dropout)
    moved: dict[str, Tensor] = tree_map(lambda tensor: tensor.to(device), inputs)
    return model.to(device), moved
