"""The judge of whole programs: exact values, how far eager moves while nothing is wrong, and what is off by more."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule

from fuseplan.capture.trace.format import Trace
from fuseplan.capture.trace.load import Loaded, load_trace
from fuseplan.capture.trace.write import write_trace
from fuseplan.judge import expect as expecting
from fuseplan.judge.compare import Leaf
from fuseplan.judge.expect import Surroundings, expect, leaves_of
from fuseplan.judge.moved import MovedRun
from fuseplan.judge.programs import judge, sizes_of
from fuseplan.judge.spread import FACTOR, MEAN_FACTOR, NaturalSpread

torch.manual_seed(0)
TESTS = Path(__file__).parents[1]


def loaded(program: Callable[..., Any], *args: Tensor) -> Loaded:
    found: list[Trace] = []

    def look(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        found.append(write_trace(gm, example_inputs, "test"))
        return gm.forward

    torch._dynamo.reset()
    torch.compile(program, backend=look)(*args)
    (one,) = found
    return load_trace(one)  # not in there: what is made while Dynamo is at work, it leaves alone


class Small(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(32, 64), nn.LayerNorm(64), nn.Linear(64, 32)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.dropout(F.gelu(self.norm(self.first(x))), self.dropout)).square().mean()


# values that are made up


def wrong(found: Any, leaves: Any, **how: Any) -> str:
    return str(judge({"y": found}, leaves, **how).problem)


def test_what_has_no_elements_agrees() -> None:
    """As what comes of a batch of none does."""
    nothing = torch.empty(0, 8)
    leaves = leaves_of({"y": nothing}, {"y": nothing.double()}, [{"y": nothing}])
    assert wrong(nothing.clone(), leaves) == "None"
    assert "shape" in wrong(torch.empty(0, 7), leaves)


@pytest.fixture
def spread() -> tuple[Tensor, dict[str, Leaf]]:
    """A thousand values that eager, and eager moved, have with an error of a hundred-thousandth in the mean."""
    exact = torch.linspace(1, 2, 1000, dtype=torch.float64)
    eager, *draws = [{"y": (exact + 1e-5 * torch.randn(1000, dtype=torch.float64)).float()} for _ in range(6)]
    return exact, dict(leaves_of(eager, {"y": exact}, draws))


def test_the_spread_of_right_runs_is_the_measure(spread: tuple[Tensor, dict[str, Leaf]]) -> None:
    exact, leaves = spread
    noise = torch.randn(1000, dtype=torch.float64)
    assert wrong((exact + 1e-5 * noise).float(), leaves) == "None"
    assert "(mean)" in wrong((exact + 3e-5 * noise.clamp(-2, 2)).float(), leaves)
    lost = exact.clone()
    lost[7] += 2e-4
    assert "(largest)" in wrong(lost.float(), leaves)
    assert "(scale)" in wrong((exact * (1 + 8e-6)).float(), leaves)
    assert "NaN" in wrong(exact.float().index_fill_(0, torch.tensor([3]), float("nan")), leaves)
    assert "dtype" in wrong(exact, leaves)
    assert "alone" in str(judge({}, leaves).problem)


def test_what_is_allowed_widens_by_a_factor_and_no_further(spread: tuple[Tensor, dict[str, Leaf]]) -> None:
    exact, leaves = spread
    off = (exact + 2.5e-5 * torch.randn(1000, dtype=torch.float64)).float()
    assert wrong(off, leaves) != "None"
    assert wrong(off, leaves, wider=2.0) == "None"
    assert wrong(off, leaves, wider={"y": 2.0}) == "None"
    assert wrong(off, leaves, wider={"another": 2.0}) != "None"


def test_evidence_says_how_far_off_and_what_the_right_runs_were(spread: tuple[Tensor, dict[str, Leaf]]) -> None:
    exact, leaves = spread
    (evidence,) = judge({"y": (exact + 1e-4).float()}, leaves).evidence
    assert evidence.name == "y"
    assert evidence.share > 1
    assert evidence.natural < evidence.allowed < evidence.error


def test_without_any_draw_a_result_is_eagers_but_for_the_last_place() -> None:
    eager = torch.rand(100)
    leaves = leaves_of({"y": eager})
    assert wrong(eager * (1 + 2e-7), leaves) == "None"
    assert "off by" in wrong(eager * (1 + 2e-5), leaves)


def test_small_values_are_not_judged_by_the_error_of_large_ones() -> None:
    exact = torch.cat([torch.full((500,), 1e-3), torch.full((500,), 1e3)]).double()
    draws = [{"y": (exact * (1 + 1e-6 * torch.randn(1000, dtype=torch.float64))).float()} for _ in range(6)]
    leaves = leaves_of(draws[0], {"y": exact}, draws[1:])
    wrong_mask = exact.clone()
    wrong_mask[17] = 0.0
    assert "(largest)" in wrong(wrong_mask.float(), leaves)


def test_a_scalar_of_which_few_draws_are_known_is_allowed_no_more_for_that() -> None:
    """It is in doubt: more draws may say that it is right, and no want of them does."""
    exact = torch.tensor(12.0, dtype=torch.float64)
    draws = [{"y": (exact + error).float()} for error in (1e-4, -2e-4, 5e-5, -1e-4, 3e-5, 1e-4)]
    leaves = leaves_of(draws[0], {"y": exact}, draws[1:])
    assert wrong((exact + 3.9e-4).float(), leaves) == "None"
    found = judge({"y": (exact + 6e-4).float()}, leaves)
    assert found.problem is not None
    assert found.doubtful
    assert not judge({"y": (exact + 6e-3).float()}, leaves).doubtful
    more = leaves_of(draws[0], {"y": exact}, [*draws[1:], {"y": (exact - 3.1e-4).float()}])
    assert wrong((exact + 6e-4).float(), more) == "None"


def test_rounding_in_float32_is_no_more_than_the_draws_have_of_it() -> None:
    exact = torch.linspace(1, 2, 1000, dtype=torch.float64)
    eager, *draws = [{"y": (exact + 2e-6 * torch.randn(1000, dtype=torch.float64)).float()} for _ in range(6)]
    leaves = leaves_of(eager, {"y": exact}, draws)
    (found,) = judge(eager, leaves).evidence
    assert found.allowed == pytest.approx(MEAN_FACTOR * found.natural)
    assert found.measure == "mean"


@pytest.mark.parametrize(
    ("dtype", "count", "off", "factor"),
    [
        pytest.param(torch.float32, 1000, 2e-6, MEAN_FACTOR, id="float32"),
        pytest.param(torch.float32, 999, 2e-6, FACTOR, id="few elements"),
        pytest.param(torch.float32, 1000, 3e-4, FACTOR, id="as far off as TF32"),
        pytest.param(torch.float64, 1000, 1e-14, MEAN_FACTOR, id="float64"),
        pytest.param(torch.bfloat16, 1000, 1e-2, FACTOR, id="bfloat16"),
    ],
)
def test_the_mean_error_says_more_where_all_is_computed_in_float32(
    dtype: torch.dtype, count: int, off: float, factor: float
) -> None:
    """Of the mean of many elements little is luck. What is rounded by fusing otherwise may be off by more."""
    exact = torch.linspace(1, 2, count, dtype=torch.float64)
    eager, *draws = [{"y": (exact + off * torch.randn(count, dtype=torch.float64)).to(dtype)} for _ in range(6)]
    leaf = leaves_of(eager, {"y": exact}, draws)["y"]
    assert leaf.spread is not None
    mean = next(one for one in leaf.spread.measure(eager["y"], leaf.right) if one.measure == "mean")
    assert mean.allowed == pytest.approx(factor * mean.natural)


def test_where_all_draws_of_bfloat16_agree_one_may_still_be_rounded_otherwise() -> None:
    """Nothing more precise runs, and what is read hangs on whole numbers: eager gives the same whatever is moved."""
    eager = {"y": torch.linspace(1, 2, 4096).bfloat16()}
    mine = eager["y"].clone()
    mine[7] *= 1 + torch.finfo(torch.bfloat16).eps
    assert not torch.equal(mine, eager["y"])
    assert wrong(mine, leaves_of(eager, None, [eager] * 4)) == "None"


def test_strides_of_outputs_count_and_those_of_gradients_do_not() -> None:
    x = torch.randn(4, 6)
    turned = x.t().contiguous().t()
    for name, problem in (("output 0", True), ("gradient of x", False)):
        found = judge({name: turned}, leaves_of({name: x}, {name: x.double()}, [{name: x}])).problem
        assert (found is not None and "strides" in found) is problem
    assert judge({"output 0": turned}, leaves_of({"output 0": x}, None, [{"output 0": x}]), "any").problem is None


def test_integers_may_be_wrong_as_often_as_eagers() -> None:
    exact = torch.arange(10_000)
    eager = exact.clone()
    eager[:20] += 1
    mine = exact.clone()
    mine[50:70] += 1
    leaves = leaves_of({"y": eager}, {"y": exact})
    assert wrong(mine, leaves) == "None"
    assert "differs from eager" in wrong(exact + 1, leaves)


def test_what_cancels_out_is_judged_as_the_noise_that_it_is() -> None:
    """A key's bias has no gradient but rounding: eager has none of its digits right, and no other order of sums has."""
    exact = torch.full((128,), 1e-20, dtype=torch.float64)
    noise = torch.linspace(-1e-8, 1e-8, 128)
    leaves = leaves_of({"y": noise}, {"y": exact}, [{"y": -noise}])
    assert wrong(3 * noise, leaves) == "None"
    assert "is off by" in wrong(9 * noise, leaves)
    leaves = leaves_of({"y": noise + 1e-6}, {"y": exact + 1e-6}, [{"y": 1e-6 - noise}])
    assert "is off by" in wrong(9 * noise + 1e-6, leaves)


def test_what_is_random_may_vary_as_much_as_eager_does() -> None:
    """The gradient of what dropout leaves a few chances: in two runs it may be as large by chance."""
    gradient, rare = torch.tensor([0.0617]), torch.tensor([0.0424])
    sizes = sizes_of(torch.tensor([0.0600]))
    assert "random" in wrong(rare, {"y": Leaf(gradient, sizes=sizes)})
    leaves = {"y": Leaf(gradient, sizes=(*sizes, 0.071, 0.049, 0.055))}
    assert wrong(rare, leaves) == "None"
    assert "random" in wrong(2 * gradient, leaves)
    assert "random" in wrong(gradient / 4, leaves)
    assert "random" in wrong(gradient * float("nan"), leaves)


def test_a_counter_is_eagers() -> None:
    leaves = leaves_of({"y": torch.tensor(3)}, {"y": torch.tensor(3)})
    assert "differs from eager" in wrong(torch.tensor(2), leaves)


def test_outputs_lie_in_the_memory_of_the_inputs_that_eagers_lie_in() -> None:
    x = torch.randn(4, 6)
    shared, apart = {"output 0": x.t(), "input_0 after": x}, {"output 0": x.t().clone(), "input_0 after": x}
    assert judge(shared, leaves_of(shared, None, [shared])).problem is None
    assert "memory of its own" in str(judge({**apart}, leaves_of(shared, None, [shared]), "any").problem)
    assert "shares memory with input_0" in str(judge(shared, leaves_of(apart, None, [apart]), "any").problem)


# programs


def test_eager_and_torch_compile_are_right() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        program = loaded(Small().to(dtype), torch.randn(16, 32, dtype=dtype))
        expectation = expect(program)
        assert expectation.how == "beside a run in float64"
        for call in (None, torch.compile(program.module)):
            for seed in (0, 1):
                judged = expectation.judge(program.run(call, seed), seed, "any")
                assert judged.problem is None
                assert len(judged.evidence) == 1 + 6 + 1  # the loss, the gradients, and the input as it is afterwards


def test_gradients_of_a_mean_over_many_rows_are_right_as_a_loop_adds_them_up() -> None:
    class Pooled(Small):
        def forward(self, x: Tensor) -> Tensor:
            return (x + self.last(F.gelu(self.norm(self.first(x))))).mean(1)

    program = loaded(Pooled(), torch.randn(8, 96, 32))
    expectation = expect(program)
    compiled = torch.compile(program.module)
    for seed in (0, 1):
        assert expectation.judge(program.run(compiled, seed), seed, "any").problem is None


def test_a_gradient_of_very_many_rows_that_is_scaled_a_little_is_wrong() -> None:
    """No compiler adds up more than some thousands in one loop."""

    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.zeros(4))

        def forward(self, x: Tensor) -> Tensor:
            return (x + self.bias).mean(0)

    program = loaded(Mean(), torch.randn(200_000, 4))
    expectation, found = expect(program), program.run()
    name = next(name for name in found if name.startswith("gradient"))
    assert expectation.judge({**found, name: found[name] * 1.0005}, 0).problem is not None
    assert expectation.judge(program.run(torch.compile(program.module)), 0, "any").problem is None


@pytest.mark.parametrize("layer", [nn.Conv2d(4, 8, 3), nn.GroupNorm(2, 4), nn.LayerNorm(9), nn.Linear(9, 3)])
def test_gradients_of_an_empty_batch_are_expected(layer: nn.Module) -> None:
    program = loaded(layer, torch.randn(0, 4, 9, 9))
    assert expect(program).judge(program.run(), 0).problem is None


def test_a_gradient_that_is_scaled_a_little_is_wrong() -> None:
    program = loaded(Small(), torch.randn(16, 32))
    expectation, found = expect(program), program.run()
    name = next(name for name in found if name.startswith("gradient"))
    problem = expectation.judge({**found, name: found[name] * 1.0001}, 0).problem
    assert problem is not None
    assert problem.startswith(name)


def test_a_program_that_nothing_more_precise_runs_is_judged_beside_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    program = loaded(Small().bfloat16(), torch.randn(16, 32, dtype=torch.bfloat16))
    real = expecting.load_trace

    def refuses(*precisions: torch.dtype) -> Callable[..., Any]:
        def load(trace: Any, device: Any = None) -> Loaded:
            if any(str(one).removeprefix("torch.") in trace.to_json() for one in precisions):
                raise RuntimeError("no kernel for this precision\nand more")
            return real(trace, device)

        return load

    monkeypatch.setattr(expecting, "load_trace", refuses(torch.float64))
    single = expect(program)
    assert single.how == "beside a run in float32"
    monkeypatch.setattr(expecting, "load_trace", refuses(torch.float64, torch.float32))
    blind = expect(program)
    assert "float64: RuntimeError: no kernel for this precision; float32" in blind.how
    found = program.run(torch.compile(program.module), 1)
    for expectation in (single, blind):
        assert expectation.judge(found, 1, "any").problem is None
        twice = {name: 2 * value for name, value in found.items()}
        assert expectation.judge(twice, 1, "any").problem is not None


def test_a_program_in_higher_precision_is_gone_once_it_has_run() -> None:
    """It has several times the memory of the program, and further runs need theirs. What was there at one sweep later ones do not see."""
    program = loaded(nn.Sequential(*(nn.Linear(8, 8) for _ in range(6))), torch.randn(4, 8))
    alive: list[int] = []

    def sweep() -> None:
        gc.collect(1)
        alive.append(sum(isinstance(one, nn.Parameter) and one.dtype is torch.float64 for one in gc.get_objects()))

    gc.collect()
    expect(program, where=Surroundings(sweep, lambda: bool(gc.collect()) and None))
    assert len(alive) >= 3
    assert not any(alive)


def test_a_process_that_says_its_precision_in_torchs_newer_words_is_judged_alike() -> None:
    """Torch refuses to be asked in the older words from then on."""
    code = (
        "import torch; torch.backends.cuda.matmul.fp32_precision = 'tf32'\n"
        "from cpu.test_judge import Small, expect, loaded\n"
        "print(expect(loaded(Small(), torch.randn(16, 32))).how)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=TESTS)
    assert ran.stdout == "beside a run in float64\n"


def test_without_time_fewer_runs_say_how_far_results_move() -> None:
    program = loaded(Small(), torch.randn(16, 32))
    hasty = expect(program, seconds=0.0)
    assert hasty.how == "beside a run in float64, without 2 moved runs for want of time"
    spread = next(iter(hasty.leaves[0].values())).spread
    assert isinstance(spread, NaturalSpread)
    assert len(spread.rms) == 2 + 1
    assert hasty.judge(program.run(), 0).problem is None


def test_what_few_runs_leave_in_doubt_is_decided_by_more() -> None:
    """Eager moved by rounding once more is right; of five runs some numbers are small by luck, so that it seems to be off. Of 37 one in
    thousands still is, so that numbers which are drawn anew in each run would fail this once in a while.
    """
    torch.manual_seed(0)
    program = loaded(Small().bfloat16(), torch.randn(16, 32, dtype=torch.bfloat16))
    seemed, told = 0, list[str]()
    for start in range(3):
        expectation = expect(program, seeds=(2 * start, 2 * start + 1))
        for number in range(10):
            mode = MovedRun(program.tensors.owned.values(), 1_000_000 + number, reordered=number % 2 == 1)
            found = program.run(seed=2 * start, within=mode)
            first = judge(found, expectation.leaves[2 * start], wider=0.75)
            seemed += first.problem is not None
            assert expectation.judge(found, 2 * start, wider=0.75).problem is None
            assert first.doubtful or first.problem is None
        told.append(expectation.how)
    assert seemed
    assert any("more moved runs" in how for how in told)


def test_what_is_plainly_wrong_costs_no_more_runs() -> None:
    program = loaded(Small(), torch.randn(16, 32))
    expectation, found = expect(program), program.run()
    doubled = {name: 2 * value for name, value in found.items()}
    assert expectation.judge(doubled, 0).problem is not None
    assert expectation.judge(found, 0).problem is None
    assert expectation.how == "beside a run in float64"


def test_without_time_little_more_is_run_in_doubt() -> None:
    """And what is in doubt is not right for want of time, nor wrong by the few runs alone that were made before."""
    program = loaded(Small(), torch.randn(16, 32))
    hasty, found = expect(program, seconds=0.0), program.run()
    allowed = {one.name: one.allowed for one in hasty.judge(found, 0).evidence}
    name = "output 0"
    off = {**found, name: found[name] + 4 * allowed[name]}
    judged = hasty.judge(off, 0)
    assert judged.doubtful
    assert judged.problem is not None
    assert f"and {expecting.MORE[0]} more moved runs" in hasty.how
    assert hasty.judge(off, 0).problem is not None
    assert f"and {expecting.MORE[0]} more moved runs" in hasty.how
    patient = expect(program)
    assert patient.judge(off, 0).problem is not None
    assert f"and {sum(expecting.MORE)} more" in patient.how


def test_random_values_are_known_for_it() -> None:
    program = loaded(Small(dropout=0.5), torch.randn(16, 32))
    expectation = expect(program)
    random = [name for name, leaf in expectation.leaves[0].items() if leaf.sizes is not None]
    assert "output 0" in random
    assert expectation.judge(program.run(torch.compile(program.module)), 0, "any").problem is None


def test_random_values_are_compared_where_the_same_numbers_were_drawn() -> None:
    program = loaded(Small(dropout=0.5), torch.randn(16, 32))
    expectation, found = expect(program), program.run()
    assert expectation.judge(found, 0, same_numbers=True).problem is None
    slightly = {name: value * 1.0001 if name.startswith("gradient") else value for name, value in found.items()}
    assert expectation.judge(slightly, 0).problem is None
    assert expectation.judge(slightly, 0, same_numbers=True).problem is not None


def test_judging_leaves_buffers_and_generators_as_they_were() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(8)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(x)

    program = loaded(Counting(), torch.randn(16, 8))
    before, state = {i: t.clone() for i, t in program.tensors.owned.items()}, torch.get_rng_state()
    expectation = expect(program)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(program.tensors.owned[i], was) for i, was in before.items())
    assert any(name.startswith("buffer") for name in expectation.leaves[0])
