"""Random numbers, autocast, grad modes, hooks and checkpointing act in a compiled program as they do in eager."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from agreement import assert_same
from observing import SEED, check
from plans import PLANS, SEGMENTED, compile_under


def _sample(*shape: int, grad: bool = False) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(*shape, generator=generator).requires_grad_(grad)


def _learned() -> tuple[Tensor]:
    return (_sample(6, 8, grad=True),)


# --- random numbers -------------------------------------------------------------------------------------------------


def _noisy(x: Tensor) -> Tensor:
    y = F.dropout(x, 0.4) + torch.rand_like(x)
    return F.dropout(y * torch.randn(8), 0.2) + torch.bernoulli(torch.full_like(x, 0.5))


def test_every_random_operation_draws_what_eager_draws() -> None:
    check(_noisy, _learned, SEGMENTED)


def test_the_generator_stands_where_eager_leaves_it() -> None:
    compiled = compile_under(SEGMENTED, _noisy)
    torch.manual_seed(SEED)
    _noisy(*_learned())
    after_eager = torch.rand(4)
    torch.manual_seed(SEED)
    compiled(*_learned())
    assert_same(torch.rand(4), after_eager)


@pytest.mark.parametrize("plan", PLANS)
def test_dropout_respects_the_seed(plan: str) -> None:
    compiled = compile_under(plan, lambda x: F.dropout(x, 0.5))
    x = torch.ones(64)

    def drawn(seed: int) -> Tensor:
        torch.manual_seed(seed)
        result: Tensor = compiled(x)
        return result

    first, other, again = drawn(1), drawn(2), drawn(1)
    assert_same(again, first)
    assert not torch.equal(other, first)
    assert not torch.equal(compiled(x), again), "two calls without a seed between them draw the same numbers"


@pytest.mark.parametrize("plan", PLANS)
def test_the_backward_of_dropout_uses_the_mask_of_its_forward(plan: str) -> None:
    compiled = compile_under(plan, lambda x: F.dropout(x * 2, 0.5))
    x = torch.ones(64, requires_grad=True)
    result = compiled(x)
    result.sum().backward()
    assert 0 < int((result == 0).sum()) < 64
    assert_same(x.grad, result.detach())  # d/dx is 2 · mask · 1/(1-p): for x = 1 the very result


# --- precision ------------------------------------------------------------------------------------------------------


def _block(x: Tensor, weight: Tensor) -> Tensor:
    return F.layer_norm(F.gelu(x @ weight), (8,)).softmax(-1) + x


def _block_that_enters_autocast(x: Tensor, weight: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = x @ weight
    with torch.autocast("cpu", enabled=False):
        return inside.float() @ weight + x


def _operands() -> tuple[Tensor, Tensor]:
    return _sample(6, 8, grad=True), _sample(8, 8, grad=True)


def test_autocast_around_a_program() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        check(_block, _operands, SEGMENTED)


def test_autocast_inside_a_program() -> None:
    check(_block_that_enters_autocast, _operands, SEGMENTED)


@pytest.mark.parametrize("plan", PLANS)
def test_leaving_autocast_changes_the_program(plan: str) -> None:
    compiled = compile_under(plan, lambda x, weight: x @ weight)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert compiled(*_operands()).dtype == torch.bfloat16
    assert compiled(*_operands()).dtype == torch.float32


# --- grad modes -----------------------------------------------------------------------------------------------------

MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "grad": nullcontext,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
}


@pytest.mark.parametrize("plan", PLANS)
def test_grad_modes_take_turns(plan: str) -> None:
    """One compiled function under every mode in turn, and back: each call has what eager's result has."""

    def program(x: Tensor, weight: Tensor) -> Tensor:
        return (x @ weight).relu()

    compiled = compile_under(plan, program)
    for mode in (*MODES, *MODES):
        with MODES[mode]():
            eager, actual = program(*_operands()), compiled(*_operands())
        assert (actual.requires_grad, actual.is_inference()) == (eager.requires_grad, eager.is_inference()), mode
        torch.testing.assert_close(actual, eager)


def _partly_without_grad(x: Tensor, weight: Tensor) -> Tensor:
    with torch.no_grad():
        scale = (x @ weight).abs().mean()
    return x @ weight / scale


@pytest.mark.parametrize("plan", [SEGMENTED, "eager"])
def test_no_grad_inside_a_program(plan: str) -> None:
    check(_partly_without_grad, _operands, plan)


@pytest.mark.parametrize("plan", [SEGMENTED, "eager"])
def test_a_program_with_frozen_and_learned_operands(plan: str) -> None:
    check(_block, lambda: (_sample(6, 8), _sample(8, 8, grad=True)), plan)
    check(_block, lambda: (_sample(6, 8, grad=True), _sample(8, 8)), plan)


def test_double_backward_is_refused_in_pytorchs_own_words() -> None:
    x = _sample(4, grad=True)
    (gradient,) = torch.autograd.grad(compile_under(SEGMENTED, lambda x: x.sin().sum())(x), x, create_graph=True)
    with pytest.raises(
        RuntimeError, match=r"torch\.compile with aot_autograd does not currently support double backward"
    ):
        gradient.sum().backward()


def test_double_backward_works_where_eager_runs_the_program() -> None:
    x = _sample(4, grad=True)
    (gradient,) = torch.autograd.grad(compile_under("eager", lambda x: x.sin().sum())(x), x, create_graph=True)
    gradient.sum().backward()
    torch.testing.assert_close(x.grad, -x.detach().sin())


def test_a_retained_graph_can_be_walked_twice() -> None:
    def gradients(program: Any) -> Tensor | None:
        x = _sample(4, grad=True)
        loss = program(x)
        loss.backward(retain_graph=True)
        loss.backward()
        return x.grad

    def program(x: Tensor) -> Tensor:
        return (x.sin() * x).sum()

    assert_same(gradients(compile_under(SEGMENTED, program)), gradients(program))


# --- hooks and checkpointing ----------------------------------------------------------------------------------------


class _Block(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        generator = torch.random.get_rng_state()
        torch.manual_seed(5)
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)
        torch.random.set_rng_state(generator)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        down: Tensor = self.down(F.gelu(self.up(self.norm(x))))
        return x + self.dropout(down)


def _gradients(module: nn.Module) -> dict[str, Tensor | None]:
    return {name: parameter.grad for name, parameter in module.named_parameters()}


@pytest.mark.parametrize("plan", [SEGMENTED, "eager"])
def test_hooks_on_parameters_see_and_change_gradients(plan: str) -> None:
    def run(wrap: Callable[[nn.Module], Any]) -> tuple[list[Tensor], list[str], dict[str, Tensor | None]]:
        module, seen, accumulated = _Block(), [], []
        module.up.weight.register_hook(lambda grad: seen.append(grad.clone()) or grad * 2)
        for name, parameter in module.named_parameters():
            parameter.register_post_accumulate_grad_hook(lambda _, name=name: accumulated.append(name))
        wrap(module)(_sample(4, 8)).sum().backward()
        return seen, sorted(accumulated), _gradients(module)

    assert_same(run(lambda module: compile_under(plan, module)), run(lambda module: module))


@pytest.mark.parametrize("plan", [SEGMENTED, "eager"])
def test_hooks_on_modules_run_at_every_call(plan: str) -> None:
    module, calls = _Block(), []
    module.up.register_forward_hook(lambda *_: calls.append("forward"))
    compiled = compile_under(plan, module)
    expected = module(_sample(4, 8))
    for _ in range(2):
        assert_same(compiled(_sample(4, 8)), expected)
    assert calls == ["forward"] * 3


class _Checkpointed(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.first, self.second = _Block(dropout), _Block(dropout)

    def forward(self, x: Tensor) -> Tensor:
        y = checkpoint(self.first, x, use_reentrant=False)
        result: Tensor = checkpoint(self.second, y, use_reentrant=False)
        return result


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("plan", [SEGMENTED, "eager"])
def test_activation_checkpointing_recomputes_the_same_numbers(plan: str, dropout: float) -> None:
    def run(wrap: Callable[[nn.Module], Any]) -> tuple[Tensor, dict[str, Tensor | None]]:
        module = _Checkpointed(dropout)
        torch.manual_seed(SEED)
        result = wrap(module)(_sample(4, 8))
        result.square().sum().backward()
        return result, _gradients(module)

    assert_same(run(lambda module: compile_under(plan, module)), run(lambda module: module))


class _Averaging(nn.Module):
    """It keeps how large its input was on average."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        self.mean.add_(y.detach().mean(0))
        return y.sin()


@pytest.mark.parametrize("block", [lambda: nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)), _Averaging])
@pytest.mark.parametrize("plan", ["aten", "eager"])
def test_a_checkpointed_block_that_writes_to_a_buffer(plan: str, block: Callable[[], nn.Module]) -> None:
    """Eager writes to it once more as it computes the block again; what is compiled does not."""

    def run(wrap: Callable[[Callable[..., Any]], Any]) -> tuple[Any, ...]:
        torch.manual_seed(SEED)
        module = block()
        call = wrap(lambda x: checkpoint(module, x, use_reentrant=False))
        result = call(_sample(4, 8)).sin()
        after = {name: value.clone() for name, value in module.named_buffers()}
        result.sum().backward()
        return result, _gradients(module), after, dict(module.named_buffers()) if plan == "eager" else None

    assert_same(run(lambda call: compile_under(plan, call)), run(lambda call: call))


# --- training and evaluation ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", [SEGMENTED, "eager"])
def test_switching_between_training_and_evaluation(plan: str) -> None:
    eager = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5))
    module = copy.deepcopy(eager)
    compiled = compile_under(plan, module)
    for training in (True, False, True, False):
        eager.train(training)
        compiled.train(training)
        torch.manual_seed(SEED)
        expected = eager(_sample(2, 3, 6, 6))
        torch.manual_seed(SEED)
        assert_same(compiled(_sample(2, 3, 6, 6)), expected)
    assert_same(dict(module.state_dict()), dict(eager.state_dict()))


@pytest.mark.parametrize("plan", [SEGMENTED, "eager"])
def test_freezing_a_parameter_between_calls(plan: str) -> None:
    module = _Block()
    compiled = compile_under(plan, module)
    compiled(_sample(4, 8)).sum().backward()
    module.zero_grad()
    module.up.weight.requires_grad_(False)
    compiled(_sample(4, 8)).sum().backward()
    assert module.up.weight.grad is None
    assert module.down.weight.grad is not None
