"""Runs one model of the zoo under a plan, forward and in training, and holds it to what eager does.

The plan `inductor` is `torch.compile`'s own path: where it is less accurate than eager, it must be exactly so.
"""

from __future__ import annotations

import copy
import warnings
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
RATES = (0.05, 0.01, 1e-3, 1e-4)
"""Learning rates, from one that moves every weight by much to one at which a step hardly shows."""
CALM = 0.02
"""How far from the reference the losses of a calm training may be, as a part of the largest of them."""
CAPTURE_CALLS = 2
"""After which a CUDA graph is replayed: the first call warms up, the second records."""


@dataclass(frozen=True)
class Training:
    """What a few optimizer steps left behind."""

    losses: list[Tensor]
    first_gradients: dict[str, Tensor]
    state: dict[str, Tensor]
    """Parameters and buffers after the last step."""


class TorchCompileDeviates(UserWarning):
    """The result was less accurate than eager's and passed, because it is what plain `torch.compile` gives."""


def train(
    model: nn.Module,
    call: Callable[..., Any],
    inputs: dict[str, Tensor],
    scope: Scope = nullcontext,
    rate: float = RATES[0],
) -> Training:
    """Take `STEPS` steps with the model's own loss.

    SGD, because Adam turns the rounding noise of a gradient that is zero in theory into a step of full length.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
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

    def outputs(call: Callable[..., Any]) -> dict[str, Any]:
        with torch.no_grad(), scope():
            for _ in range(CAPTURE_CALLS if options.get("launch") == "cudagraph" else 0):
                call(**inputs)
            return dict(call(**inputs))

    with torch.no_grad():
        reference = dict(in_double(model)(**in_double(inputs)))
    eager, actual = outputs(model), outputs(compile_under(plan, model, **options))
    plainly = (lambda: outputs(torch.compile(model))) if _is_torch_compile(plan, options) else None
    assert_accurate(actual, eager, reference, plainly)


def check_training(
    entry: Entry, plan: str | Plan, device: str = "cpu", scope: Scope = nullcontext, **options: str
) -> None:
    """Fail unless losses, gradients and weights of a short training under `plan` are as accurate as eager's."""
    model, inputs = _prepared(entry, device)
    model.train()
    rate, eager, reference = calm_training(model, inputs, scope)

    def trained(compile_model: Callable[[nn.Module], Callable[..., Any]]) -> dict[str, Any]:
        twin = copy.deepcopy(model)
        return asdict(train(twin, compile_model(twin), inputs, scope, rate))

    actual = trained(lambda twin: compile_under(plan, twin, **options))
    plainly = (lambda: trained(torch.compile)) if _is_torch_compile(plan, options) else None
    assert_accurate(actual, asdict(eager), asdict(reference), plainly)


def calm_training(
    model: nn.Module, inputs: dict[str, Tensor], scope: Scope = nullcontext
) -> tuple[float, Training, Training]:
    """The largest learning rate at which eager stays near the reference in double, and the two trainings with it.

    In a chaotic training each rounding error grows from step to step until eager's own result means nothing, and
    neither does a comparison with it.
    """
    for rate in RATES:
        twin, exact = copy.deepcopy(model), in_double(model)
        reference = train(exact, exact, in_double(inputs), rate=rate)
        eager = train(twin, twin, inputs, scope, rate)
        if is_calm(eager, reference):
            return rate, eager, reference
    raise AssertionError(f"{type(model).__name__} trains chaotically even at a learning rate of {RATES[-1]}")


def is_calm(eager: Training, reference: Training) -> bool:
    """Whether no later loss is off by much more than the first one, which no step has touched, or than a little."""
    losses = torch.stack([loss.double() for loss in reference.losses])
    errors = (torch.stack([loss.double() for loss in eager.losses]) - losses).abs()
    return bool(errors.max() <= max(float(CALM * losses.abs().max()), 2 * float(errors[0])))


def assert_accurate(actual: Any, eager: Any, reference: Any, plainly: Callable[[], Any] | None = None) -> None:
    """Fail unless `actual` is as accurate as `eager`, or else the very result of `plainly`, which runs torch.compile.

    Bit for bit, if torch.compile repeats itself; where two of its runs differ, as accurate as one of them.
    """
    try:
        assert_as_accurate(actual, eager, reference)
        return
    except AssertionError as error:
        if plainly is None:
            raise
        deviation = str(error)
    torch._dynamo.reset()  # or Dynamo goes on with what it compiled for the same code
    peer = plainly()
    try:
        same = _is_same(actual, peer)
        if not same and _is_same(plainly(), peer):
            assert_same(actual, peer)
        assert_as_accurate(actual, peer, reference)
    except AssertionError as error:
        raise AssertionError(f"{deviation}; plain torch.compile does not do that: {error}") from None
    how = "gives the same bits" if same else "does not repeat itself, and is as far off"
    warnings.warn(f"{deviation}; plain torch.compile {how}", TorchCompileDeviates, stacklevel=3)


def _is_same(left: Any, right: Any) -> bool:
    try:
        assert_same(left, right)
    except AssertionError:
        return False
    return True


def _is_torch_compile(plan: str | Plan, options: dict[str, str]) -> bool:
    """Whether the plan promises to be exactly `torch.compile`: nothing cut, no launch and no attention of ours."""
    return plan in ("inductor", Plan.named("inductor")) and not options


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
