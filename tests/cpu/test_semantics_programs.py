"""Whatever Dynamo does with a Python program, it does with fuseplan behind it: breaks, guards, recompiles, errors."""

from __future__ import annotations

import copy
import io
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.library import custom_op
from torch.utils._pytree import register_dataclass, tree_map

import fuseplan
from agreement import assert_same
from fuseplan.errors import OptionError
from observing import check
from plans import PLANS, SEGMENTED, compile_under
from zoo import TRANSFORMERS

BOTH = pytest.mark.parametrize("plan", [SEGMENTED, "eager"])


def _sample(*shape: int, grad: bool = False) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3)).requires_grad_(grad)


def _learned() -> tuple[Tensor]:
    return (_sample(4, 8, grad=True),)


def _graphs() -> int:
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


# --- Python around tensors ------------------------------------------------------------------------------------------


def _breaks_in_the_middle(x: Tensor) -> Tensor:
    y = x.sin()
    torch._dynamo.graph_break()
    return y * y.sum().item()


def _branches_on_a_value(x: Tensor) -> Tensor:
    return x.exp() if x.sum() > 0 else x * 2


@BOTH
def test_a_graph_break_splits_the_program_and_nothing_else(plan: str) -> None:
    check(_breaks_in_the_middle, _learned, plan)
    assert _graphs() > 1


@BOTH
def test_a_branch_on_a_value_takes_the_branch_that_eager_takes(plan: str) -> None:
    for sign in (1.0, -1.0):
        check(_branches_on_a_value, lambda sign=sign: (_sample(4).abs() * sign,), plan)


@BOTH
def test_guards_tell_python_arguments_apart(plan: str) -> None:
    def program(x: Tensor, power: int, scale: float, flip: bool, *, add: Tensor | None = None) -> Tensor:
        y = x**power * scale
        y = -y if flip else y
        return y if add is None else y + add

    compiled = compile_under(plan, program)
    x = _sample(4)
    for power in (2, 3, 4):
        for scale, flip in ((0.5, False), (1.5, True), (2.5, True)):
            assert_same(compiled(x, power, scale, flip), program(x, power, scale, flip))
    assert_same(compiled(x, 2, 0.5, flip=True, add=x), program(x, 2, 0.5, flip=True, add=x))


@BOTH
def test_guards_tell_dtypes_and_layouts_apart(plan: str) -> None:
    def program(x: Tensor) -> Tensor:
        return (x * 2).sum(0)

    compiled = compile_under(plan, program)
    for x in (_sample(4, 4), _sample(4, 4).double(), _sample(4, 4).t(), torch.arange(16).reshape(4, 4), _sample(4, 4)):
        assert_same(compiled(x), program(x))


SCALE = 2.0


@BOTH
def test_a_changed_global_is_seen(plan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = compile_under(plan, lambda x: x * SCALE)
    assert_same(compiled(torch.ones(3)), torch.full((3,), 2.0))
    monkeypatch.setattr(f"{__name__}.SCALE", 3.0)
    assert_same(compiled(torch.ones(3)), torch.full((3,), 3.0))


@dataclass
class _Pair:
    left: Tensor
    right: Tensor | None


class _Named(NamedTuple):
    mean: Tensor
    count: int


register_dataclass(_Pair)


@BOTH
def test_results_come_back_in_the_containers_that_eager_returns(plan: str) -> None:
    def program(x: Tensor) -> dict[str, Any]:
        y = x.cos()
        return {
            "pair": _Pair(y, None),
            "named": _Named(y.mean(), 3),
            "list": [y, (None, x.shape[0], "text")],
            "flag": True,
        }

    check(program, _learned, plan)
    result = compile_under(plan, program)(*_learned())
    assert isinstance(result["pair"], _Pair)
    assert isinstance(result["named"], _Named)


@BOTH
def test_arguments_come_in_containers(plan: str) -> None:
    def program(batch: dict[str, Any], *rest: Tensor, **named: Tensor) -> Tensor:
        return batch["x"] * batch["scales"][0] + sum(rest) + named["bias"]

    x = _sample(3)
    compiled = compile_under(plan, program)
    batch = {"x": x, "scales": [x, 2]}
    assert_same(compiled(batch, x, x, bias=x), program(batch, x, x, bias=x))


@BOTH
def test_a_compiled_function_may_call_another(plan: str) -> None:
    inner = compile_under(plan, lambda x: x.sin() * 2)
    check(lambda x: inner(x) + inner(x + 1), _learned, plan)


def test_programs_under_different_plans_work_together() -> None:
    first, second = (compile_under(plan, lambda x: (x @ x.t()).relu()) for plan in (SEGMENTED, "eager"))
    x = _sample(4, 4, grad=True)
    assert_same(second(first(x)), first(second(x)))


# --- sizes ----------------------------------------------------------------------------------------------------------

SIZES = [(4, 9), (5, 9), (6, 11), (3, 12), (7, 17), (8, 23), (9, 5)]


def _attend(x: Tensor, weight: Tensor) -> Tensor:
    batch, length, _ = x.shape
    heads = (x @ weight).view(batch, length, 2, 4).transpose(1, 2)
    mask = torch.ones(length, length, dtype=torch.bool).tril()
    mixed = F.scaled_dot_product_attention(heads, heads, heads, attn_mask=mask)
    return mixed.transpose(1, 2).reshape(batch, length, 8).softmax(-1) / length


@pytest.mark.parametrize("grad", [False, True])
@BOTH
def test_new_sizes_are_no_new_programs_once_they_are_known_to_vary(plan: str, grad: bool) -> None:
    """Dynamo makes a size dynamic when it has seen it change; after that no size of batch or sequence compiles again."""
    compiled = compile_under(plan, _attend)
    weight = _sample(8, 8, grad=grad)
    seen = []
    for batch, length in SIZES:
        x = _sample(batch, length, 8)
        eager, actual = _attend(x, weight), compiled(x, weight)
        assert_same(actual, eager)
        if grad:
            (left,), (right,) = (torch.autograd.grad(out.square().sum(), weight) for out in (actual, eager))
            assert_same(left, right)
        seen.append(_graphs())
    assert seen[-1] == seen[2] <= 3, seen


@pytest.mark.parametrize("plan", PLANS)
def test_dynamic_from_the_start_is_one_program(plan: str) -> None:
    def program(x: Tensor) -> Tensor:
        return (x * x.shape[0]).softmax(-1)[1:]

    compiled = compile_under(plan, program, dynamic=True)
    for size in SIZES:
        torch.testing.assert_close(compiled(_sample(*size)), program(_sample(*size)))
    assert _graphs() == 1


@BOTH
def test_a_marked_dimension_is_one_program(plan: str) -> None:
    compiled = compile_under(plan, lambda x: x.relu().sum(0))
    for batch in (4, 6, 8):
        x = _sample(batch, 3)
        torch._dynamo.mark_dynamic(x, 0)
        assert_same(compiled(x), x.relu().sum(0))
    assert _graphs() == 1


def test_a_transformer_takes_new_batches_and_lengths_without_a_new_program() -> None:
    model, _ = TRANSFORMERS["bert"].build()
    compiled = compile_under(SEGMENTED, model, dynamic=True)
    for batch, length in ((2, 9), (3, 12), (5, 17)):
        ids = torch.randint(3, 60, (batch, length))
        loss = compiled(input_ids=ids, labels=ids).loss
        loss.backward()
        assert_same(loss, model(input_ids=ids, labels=ids).loss)
    assert _graphs() == 1


@BOTH
def test_sizes_that_depend_on_values(plan: str) -> None:
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        compiled = compile_under(plan, lambda x: x[x > 0] * 2 + x.argmax().item(), fullgraph=True)
        for seed in range(3):
            x = torch.randn(9, generator=torch.Generator().manual_seed(seed))
            assert_same(compiled(x), x[x > 0] * 2 + x.argmax().item())


# --- operators that are not ATen's ----------------------------------------------------------------------------------


def test_a_conditional_runs_the_branch_that_its_predicate_chooses() -> None:
    def program(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x * 3, (x,))

    compiled = compile_under(SEGMENTED, program, fullgraph=True)
    for x in (torch.ones(4), -torch.ones(4)):
        assert_same(compiled(x), x.sin() if x.sum() > 0 else x * 3)


def test_regions_grow_around_what_chooses_by_a_number() -> None:
    def program(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x * 3, (x.cos() + 1,)) * 2 + 1

    compiled = compile_under("inductor-greedy", program, fullgraph=True)
    for x in (torch.ones(4), -torch.ones(4)):
        assert_same(compiled(x), program(x))


def test_a_loop_runs_until_its_condition_fails() -> None:
    from torch._higher_order_ops.while_loop import while_loop

    def program(count: Tensor, x: Tensor) -> Any:
        return while_loop(lambda count, x: count < 5, lambda count, x: (count + 1, x * 2), (count, x))

    compiled = compile_under(SEGMENTED, program, fullgraph=True)
    assert_same(compiled(torch.tensor(0), torch.ones(3)), (torch.tensor(5), torch.full((3,), 32.0)))


@custom_op("fuseplan_tests::scaled_sine", mutates_args=())
def _scaled_sine(x: Tensor, scale: float) -> Tensor:
    return torch.from_numpy(scale * x.detach().numpy().copy()).sin()


@_scaled_sine.register_fake
def _(x: Tensor, scale: float) -> Tensor:
    return torch.empty_like(x)


def _keep(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
    ctx.scale = inputs[1]
    ctx.save_for_backward(inputs[0])


def _scaled_sine_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    (x,) = ctx.saved_tensors
    return gradient * ctx.scale * (ctx.scale * x).cos(), None


_scaled_sine.register_autograd(_scaled_sine_backward, setup_context=_keep)


@custom_op("fuseplan_tests::count_up", mutates_args=("counter",))
def _count_up(counter: Tensor, by: int) -> None:
    counter.add_(by)


@BOTH
def test_a_users_operator_runs_forward_and_backward(plan: str) -> None:
    check(lambda x: _scaled_sine(x * 2, 0.5) + x, _learned, plan, fullgraph=True)


@BOTH
def test_a_users_operator_may_change_its_arguments(plan: str) -> None:
    def program(counter: Tensor, x: Tensor) -> Tensor:
        _count_up(counter, 3)
        doubled = counter * 2
        _count_up(counter, 4)
        return x + doubled + counter

    check(program, lambda: (torch.zeros(3), _sample(3)), plan, fullgraph=True)


class _Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp(-0.5, 0.5)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * (x.abs() < 2) * 10


@BOTH
def test_a_users_autograd_function_keeps_its_own_backward(plan: str) -> None:
    check(lambda x: _Clipped.apply(x * 2).sin(), _learned, plan)


@BOTH
def test_function_transforms_inside_a_program(plan: str) -> None:
    def loss(weight: Tensor, x: Tensor) -> Tensor:
        return (x @ weight).tanh().square().sum()

    def program(weight: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        per_sample = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weight, x)
        return per_sample, torch.func.jvp(lambda w: loss(w, x), (weight,), (torch.ones_like(weight),))[1]

    check(program, lambda: (_sample(8), _sample(4, 8)), plan)


@BOTH
def test_what_is_kept_whole_is_differentiated_inside_a_program(plan: str) -> None:
    def normed(x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, (8,), weight).sin().sum()

    def attending(q: Tensor, k: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, k).sin().sum()

    def program(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        per_sample = torch.vmap(torch.func.grad(normed), in_dims=(0, None))(x, weight)
        summed = torch.func.grad(lambda w: torch.vmap(normed, in_dims=(0, None))(x, w).sum())(weight)
        return per_sample, summed, torch.func.grad(attending)(x, x * 2), torch.func.grad(normed)(x[0], weight)

    check(program, lambda: (_sample(3, 4, 8), _sample(8)), plan)


class _Tagged(nn.Parameter):
    """A parameter of a class of its own, as libraries use to mark parameters."""


@BOTH
def test_a_parameter_of_a_users_class(plan: str) -> None:
    module = nn.Linear(8, 8)
    module.weight = _Tagged(_sample(8, 8))
    twin = copy.deepcopy(module)
    for run in (compile_under(plan, module), twin):
        run(_sample(4, 8)).sum().backward()
    assert isinstance(module.weight, _Tagged)
    assert_same(module.weight.grad, twin.weight.grad)


# --- errors ---------------------------------------------------------------------------------------------------------


class _OwnError(Exception):
    pass


@BOTH
def test_an_exception_of_the_program_reaches_the_caller(plan: str) -> None:
    def program(x: Tensor, limit: int) -> Tensor:
        y = x * 2
        if limit < 0:
            raise _OwnError(f"limit {limit}")
        return y

    compiled = compile_under(plan, program)
    assert_same(compiled(torch.ones(2), 1), torch.full((2,), 2.0))
    with pytest.raises(_OwnError, match="limit -1"):
        compiled(torch.ones(2), -1)
    assert_same(compiled(torch.ones(2), 1), torch.full((2,), 2.0))


FAILING: dict[str, tuple[Callable[..., Tensor], Tensor, Tensor]] = {
    "index": (lambda i: torch.ones(4, 2)[i] * 2, torch.tensor([1]), torch.tensor([7])),
    "embedding": (lambda i: F.embedding(i, torch.ones(4, 2)), torch.tensor([1]), torch.tensor([7])),
}


@pytest.mark.parametrize(("program", "good", "bad"), list(FAILING.values()), ids=list(FAILING))
@BOTH
def test_an_operator_that_fails_raises_what_eager_raises(
    plan: str, program: Callable[..., Tensor], good: Tensor, bad: Tensor
) -> None:
    compiled = compile_under(plan, program)
    assert_same(compiled(good), program(good))
    with pytest.raises(IndexError) as eager:
        program(bad)
    with pytest.raises(IndexError) as actual:
        compiled(bad)
    assert (actual.type, str(actual.value)) == (eager.type, str(eager.value))
    assert_same(compiled(good), program(good))


def test_a_factorization_that_fails_raises_as_under_aot_eager() -> None:
    """Not as under eager: the AOTAutograd of torch 2.10 itself drops the operator that would raise."""

    def program(x: Tensor) -> Tensor:
        return torch.linalg.cholesky(x) + 1

    def outcome(compiled: Callable[[Tensor], Tensor]) -> Any:
        assert_same(compiled(torch.eye(2)), program(torch.eye(2)))
        try:
            return compiled(-torch.eye(2))
        except torch.linalg.LinAlgError as error:
            return str(error)

    assert_same(outcome(compile_under(SEGMENTED, program)), outcome(torch.compile(program, backend="aot_eager")))


@BOTH
def test_shapes_that_do_not_fit_are_refused_and_the_next_call_works(plan: str) -> None:
    compiled = compile_under(plan, lambda x, y: x @ y)
    with pytest.raises(RuntimeError, match=r"2x3|\[2, 3\]|size mismatch"):
        compiled(torch.ones(2, 3), torch.ones(2, 3))
    assert_same(compiled(torch.ones(2, 3), torch.ones(3, 2)), torch.full((2, 2), 3.0))


@BOTH
def test_an_error_in_a_users_backward_reaches_the_caller(plan: str) -> None:
    x = _sample(3, grad=True)
    y = compile_under(plan, lambda x: x.sin())(x)
    y.register_hook(_raise)
    with pytest.raises(_OwnError):
        y.sum().backward()


def _raise(_: Tensor) -> None:
    raise _OwnError


@pytest.mark.parametrize("options", [{"plam": "aten"}, {"plan": "aten", "speed": 11}])
def test_an_unknown_option_is_refused_with_the_known_ones(options: dict[str, Any]) -> None:
    with pytest.raises(Exception, match=r"has no option '(plam|speed)'; known are .*plan") as caught:
        torch.compile(lambda x: x + 1, backend="fuseplan", options=options)(torch.ones(2))
    assert isinstance(getattr(caught.value, "inner_exception", caught.value), OptionError)


def test_an_unknown_plan_is_refused_with_the_known_ones() -> None:
    with pytest.raises(Exception, match=r"no plan called 'atem'; known are .*aten"):
        compile_under("atem", lambda x: x + 1)(torch.ones(2))


@pytest.mark.parametrize("options", [["tune"], "tune", 3])
def test_options_that_are_no_dictionary(options: Any) -> None:
    with pytest.raises(Exception, match=r'options are a dictionary, such as .*"instant".*, not (list|str|int)'):
        torch.compile(lambda x: x + 1, backend="fuseplan", options=options)(torch.ones(2))


# --- objects and threads --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before", "after"])
@BOTH
def test_a_deep_copy_of_a_compiled_module_is_a_module_of_its_own(plan: str, when: str) -> None:
    compiled = compile_under(plan, nn.Linear(8, 8))
    if when == "after":
        compiled(_sample(4, 8))
    twin = copy.deepcopy(compiled)
    before = compiled(_sample(4, 8))
    assert_same(twin(_sample(4, 8)), before)
    with torch.no_grad():
        twin.weight.zero_()
    assert_same(compiled(_sample(4, 8)), before)
    assert_same(twin(_sample(4, 8)), twin.bias.expand(4, 8).contiguous())


def test_a_compiled_module_that_was_called_goes_into_a_file_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look-up knows this process's environment, which is nobody else's."""
    monkeypatch.setenv("OF_NOBODY_ELSE", "a secret")
    compiled, file = fuseplan.compile(nn.Linear(8, 8), weights="fixed"), io.BytesIO()
    before = compiled(_sample(4, 8))
    torch.save(compiled, file)
    assert b"a secret" not in file.getvalue()
    file.seek(0)
    read = torch.load(file, weights_only=False)
    assert_same(read(_sample(4, 8)), before)
    assert fuseplan.explain(copy.deepcopy(compiled)) == fuseplan.explain(compiled)


def test_several_threads_may_be_the_first_to_use_it() -> None:
    """Each of them registers the backend by its name, since none has been there before."""
    code = """
import threading
import torch

def work(i):
    compiled = torch.compile(lambda x: x.sin() + i, backend="fuseplan", options={"plan": "aten"})
    found[i] = compiled(torch.zeros(1)).item()

found = {}
threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(sorted(found.items()))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == f"{[(i, float(i)) for i in range(6)]}\n", ran.stderr


@BOTH
def test_weights_move_between_compiled_and_plain_modules(plan: str) -> None:
    source, target = nn.Linear(8, 8), nn.Linear(8, 8)
    compiled = compile_under(plan, target)
    compiled(_sample(4, 8))
    prefixed = {f"_orig_mod.{name}": value for name, value in source.state_dict().items()}
    assert list(compiled.state_dict()) == list(prefixed)
    compiled.load_state_dict(prefixed)
    assert_same(compiled(_sample(4, 8)), source(_sample(4, 8)))
    assert_same(tree_map(torch.clone, dict(target.state_dict())), dict(source.state_dict()))


def test_two_threads_compile_at_once() -> None:
    barrier = threading.Barrier(4)
    results: dict[int, Any] = {}

    def work(number: int) -> None:
        def program(x: Tensor) -> Tensor:
            return (x * number).softmax(-1) @ x.t()

        compiled = compile_under(SEGMENTED if number % 2 else "eager", program)
        barrier.wait()
        x = _sample(4, 8, grad=True)
        compiled(x).square().sum().backward()
        again = _sample(4, 8, grad=True)
        program(again).square().sum().backward()
        results[number] = x.grad, again.grad

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [1, 2, 3, 4]
    for actual, eager in results.values():
        assert_same(actual, eager)


def test_two_threads_call_one_compiled_function() -> None:
    compiled = compile_under(SEGMENTED, lambda x: (x @ x.t()).relu() + 1)
    barrier = threading.Barrier(2)
    results: list[Tensor] = []

    def work() -> None:
        barrier.wait()
        results.extend(compiled(_sample(4, 8)) for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = (_sample(4, 8) @ _sample(4, 8).t()).relu() + 1
    assert len(results) == 40
    for result in results:
        assert_same(result, expected)
