"""Attention that is written out becomes one call: every spelling is found, and computes what it did, forward and backward."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._inductor.utils import run_and_get_code

import fuseplan
from agreement import assert_as_accurate, in_double
from fuseplan.backend import programs_of
from fuseplan.explain import compiled_by
from fuseplan.plan import Plan, Rewrite
from written_attention import SPELLINGS, Sizes
from written_sites import KERNELS, KIND, assert_same_step, compiled, missed_in, qkv, step

# spellings


def _one_in_three(names: Iterable[str]) -> list[Any]:
    """All of them under `pytest -m exhaustive`."""
    return [pytest.param(one, marks=[pytest.mark.exhaustive] * (place % 3 > 0)) for place, one in enumerate(names)]


TRAINED = [
    pytest.param(name, way, marks=[pytest.mark.exhaustive] * (way == "math" and each.fused and place % 3 > 0))
    for place, (name, each) in enumerate(SPELLINGS.items())
    for way in ("math", "auto")
]


@pytest.mark.parametrize(("name", "way"), TRAINED)
def test_each_spelling_is_found_and_trains_the_same(name: str, way: str) -> None:
    spelling = SPELLINGS[name]
    run, backend = compiled(spelling.function, way)
    assert_same_step(spelling.function, run, spelling.inputs())
    assert (len(backend.sites), backend.missed) == (1, [])
    legal = backend.sites[0].refusal(way) is None
    assert legal == (way == "math" or spelling.fused)
    assert (f"attention_{way}" in backend.targets, "softmax" in backend.targets) == (legal, not legal)


@pytest.mark.parametrize("name", SPELLINGS)
def test_in_inference_a_fused_kernel_is_legal_for_each(name: str) -> None:
    spelling = SPELLINGS[name]
    run, backend = compiled(spelling.function, "auto")
    with torch.no_grad():
        inputs = tuple(map(_detached, spelling.inputs(seed=1, dtype=torch.bfloat16)))
        assert_same_step(spelling.function, run, inputs)
    assert [site.refusal("auto") for site in backend.sites] == [None]
    assert not {"softmax", "matmul", "bmm", "baddbmm", "einsum"} & set(backend.targets) or "position" in name


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


_NAMELESS = "a size that is known at run time only has no name"
_UNKNOWN_SCALE = "scores are multiplied by a tensor after some of them were replaced"
MISSED_WITHOUT_SIZES = {
    "fairseq_esm": _NAMELESS,  # its heads are what is left of a batch that has them
    "opt_bmm": _NAMELESS,  # so are these
    "deberta_disentangled_positions": "softmax goes over an axis that queries and keys share",  # and as many are both
    "gpt_j_in_float32": _UNKNOWN_SCALE,  # the scale hangs on the width of a head, which no model leaves open
    "loftr_softmax_over_the_third": _UNKNOWN_SCALE,
}
"""What is not found where nothing is known of any size, and why."""


@pytest.mark.parametrize(
    "name", _one_in_three(name for name in SPELLINGS if name not in ("timm_attention", "swin_shifted_windows"))
)
def test_sizes_may_be_known_at_run_time_only(name: str) -> None:
    spelling = SPELLINGS[name]
    run, backend = compiled(spelling.function, "math", dynamic=True)
    for sizes in (Sizes(b=2, n=8, m=8), Sizes(b=4, n=10, m=10)):
        assert_same_step(spelling.function, run, spelling.inputs(sizes=sizes))
    reason = MISSED_WITHOUT_SIZES.get(name)
    assert [miss.reason for miss in backend.missed] == ([] if reason is None else [reason])
    assert len(backend.sites) == (1 if reason is None else 0)


@settings(max_examples=15, deadline=None)
@given(
    name=st.sampled_from(sorted(SPELLINGS)),
    sizes=st.builds(Sizes, st.integers(1, 3), st.just(3), st.sampled_from((4, 6, 10)), st.sampled_from((5, 7, 12))),
    dtype=st.sampled_from((torch.float32, torch.bfloat16)),
    seed=st.integers(0, 9),
    way=st.sampled_from(KERNELS),
    strided=st.booleans(),
)
def test_random_sizes_types_and_layouts(
    name: str, sizes: Sizes, dtype: torch.dtype, seed: int, way: str, strided: bool
) -> None:
    spelling = SPELLINGS[name]
    if spelling.square:
        sizes = Sizes(sizes.b, sizes.h, sizes.n, sizes.n, sizes.d)
    inputs = spelling.inputs(seed, dtype, sizes)
    if strided:
        inputs = tuple(_laid_out_backwards(each) for each in inputs)
    run, backend = compiled(spelling.function, way)
    assert_same_step(spelling.function, run, inputs)
    assert (len(backend.sites), backend.missed) == (1, [])


def _laid_out_backwards(value: Any) -> Any:
    """The same numbers, the last axis outermost in memory."""
    if not isinstance(value, Tensor) or value.dim() < 2:
        return value
    turned = value.detach().permute(*reversed(range(value.dim()))).contiguous()
    return turned.permute(*reversed(range(value.dim()))).requires_grad_(value.requires_grad)


# masks and what is proven of them


def test_a_causal_mask_is_dropped() -> None:
    run, backend = compiled(SPELLINGS["llama_eager"].function, "flash+causal")
    assert_same_step(SPELLINGS["llama_eager"].function, run, SPELLINGS["llama_eager"].inputs())
    (site,) = backend.sites
    assert (site.proof.verdict, site.refusal("flash+causal")) == ("causal", None)
    assert not {"triu", "full"} & set(backend.targets)


def test_a_mask_that_becomes_causal_later_is_none_before() -> None:
    def twice(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = torch.full((8, 8), -math.inf).triu(2)
        first = (q @ k.mT + mask).softmax(-1) @ v
        mask.masked_fill_(torch.ones(8, 8, dtype=torch.bool).triu(1), -math.inf)
        return (q @ k.mT + mask).softmax(-1) @ first

    run, backend = compiled(twice, "flash+causal")
    inputs = tuple(map(_detached, qkv()))
    assert_same_step(twice, run, inputs)
    assert [site.proof.verdict for site in backend.sites] == [None, "causal"]


def test_a_causal_mask_beside_a_bias_stays() -> None:
    def biased(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        n = q.size(-2)
        scores = q @ k.mT + bias
        return scores.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -math.inf).softmax(-1) @ v

    inputs = (*qkv(), torch.randn(8, 8))
    run, backend = compiled(biased, "auto")
    assert_same_step(biased, run, inputs)
    assert backend.sites[0].proof.verdict is None
    assert backend.sites[0].refusal("auto+causal") is not None


@pytest.mark.parametrize("way", KERNELS)
@pytest.mark.parametrize("low", [-math.inf, -1e9, torch.finfo(torch.float32).min], ids=["inf", "1e9", "min"])
def test_rows_that_a_mask_hides_as_a_whole(low: float, way: str) -> None:
    def masked(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor) -> Tensor:
        return (q @ k.mT / 4).masked_fill(hidden, low).softmax(-1) @ v

    hidden = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(3)) < 0.5
    hidden[0, 0, 2] = hidden[1, 0, 5] = True
    inputs = (*qkv(), hidden)
    run, backend = compiled(masked, way)
    got, want = step(run, inputs), step(masked, inputs)
    assert backend.sites[0].refusal(way) is None
    if low == -math.inf:
        assert torch.equal(got[0].isnan(), want[0].isnan())
        assert got[0].isnan().any()
        torch.testing.assert_close(got[0], want[0], equal_nan=True)
    else:
        assert_same_step(masked, run, inputs)


@pytest.mark.parametrize("low", [-math.inf, torch.finfo(torch.float32).min], ids=["inf", "min"])
def test_rows_that_a_bias_hides_as_a_whole(low: float) -> None:
    def biased(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return (q @ k.mT / 4 + bias).softmax(-1) @ v

    bias = torch.zeros(2, 1, 8, 8)
    bias[0, 0, 2] = bias[1, 0, 5] = low
    with torch.no_grad():
        for way in KERNELS:
            run, backend = compiled(biased, way)
            given = (*qkv(grad=False), bias)
            torch.testing.assert_close(run(*given), biased(*given), equal_nan=True)
            assert backend.sites[0].refusal(way) is None
    _, backend = compiled(biased, "flash")
    run, backend = compiled(biased, "flash")
    run(*qkv(), bias)
    assert "other gradients" in str(backend.sites[0].refusal("flash"))
    if low != -math.inf:
        run, backend = compiled(biased, "math")
        assert_same_step(biased, run, (*qkv(), bias))


def test_a_mask_of_a_wider_type_stays_finite() -> None:
    def masked(q: Tensor, k: Tensor, v: Tensor, kept: Tensor) -> Tensor:
        bias = torch.where(kept, torch.tensor(0.0), torch.finfo(torch.float32).min)
        return ((q @ k.mT).float() + bias).softmax(-1).to(v.dtype) @ v

    kept = torch.ones(8, 8, dtype=torch.bool)
    kept[3] = False
    inputs = (*qkv(grad=False, dtype=torch.bfloat16), kept)
    run, _ = compiled(masked, "flash")
    assert_same_step(masked, run, inputs)
    assert not run(*inputs).isnan().any()


# dropout


@pytest.mark.parametrize("way", KERNELS)
def test_dropout_leaves_out_its_share(way: str) -> None:
    def dropped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.dropout((q @ k.mT).softmax(-1), 0.25, True) @ v

    q, k, _ = qkv(4, 4, 64, 16)
    v = torch.ones(4, 4, 64, 64)
    run, backend = compiled(dropped, way)
    legal = backend.sites[0].refusal(way) is None if (run(q, k, v), backend)[1].sites else False
    got, want = run(torch.zeros_like(q), k, v), dropped(torch.zeros_like(q), k, v)
    assert backend.sites[0].known["dropout_p"] == 0.25
    assert legal == ("softmax" not in backend.targets)
    for moment in (Tensor.mean, Tensor.std):
        assert abs(moment(got) - moment(want)) < 0.05
    assert got.std() > 0.01


def test_dropout_that_does_not_train_is_none() -> None:
    def dropped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.dropout((q @ k.mT).softmax(-1), 0.25, training=False) @ v

    run, backend = compiled(dropped, "flash")
    assert_same_step(dropped, run, qkv())
    assert backend.sites[0].known["dropout_p"] == 0.0


# rules under which a program runs


def test_autocast_around_it_keeps_its_meaning() -> None:
    def written(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return (q @ k.mT * 0.25).softmax(-1) @ v

    for way in KERNELS:
        run, backend = compiled(written, way)
        assert_same_step(written, run, qkv())
        assert len(backend.sites) == 1
        assert run(*qkv()).dtype == torch.bfloat16


def test_autocast_that_changes_in_between() -> None:
    def written(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            scores = q @ k.mT
        return scores.softmax(-1) @ v.to(scores.dtype)

    assert "changes the rules in between" in missed_in(written, *qkv())


def test_gradients_that_are_switched_off_in_between() -> None:
    def written(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with torch.no_grad():
            weights = (q @ k.mT).softmax(-1)
        return weights @ v

    assert "changes the rules in between" in missed_in(written, *qkv())


# plans


@pytest.mark.parametrize("host", ["eager", "aten", "inductor"])
def test_a_plan_rewrites_it_under_each_host(host: str) -> None:
    spelling = SPELLINGS["nano_gpt"]
    inputs = spelling.inputs()
    torch._dynamo.reset()
    run = fuseplan.compile(spelling.function, plan=Plan(host, (Rewrite(KIND, 0, "flash"),)))
    assert_same_step(spelling.function, run, inputs)
    (program,) = programs_of(compiled_by(run))
    assert [(one.kind, one.way) for one in program.plan.rewrites] == [(KIND, "flash")]
    assert "written-out attention 0" in fuseplan.explain(run, graphs=False)


def test_a_bias_of_windows_is_worked_out_once_and_not_for_each_image() -> None:
    """Inductor would work it out anew for each image, since it is only repeated there."""
    spelling = SPELLINGS["swin_shifted_windows"]
    inputs = spelling.inputs(sizes=Sizes(b=4, h=2, n=9))
    run, backend = compiled(spelling.function)
    with torch.no_grad():
        run(*inputs)
    once = backend.targets.index("mask_once")
    assert "add" not in backend.targets[once:]
    assert "expand" in backend.targets[once:]
    codes = []
    for way in (None, "math"):
        torch._dynamo.reset()
        plan = Plan("inductor", () if way is None else (Rewrite(KIND, 0, way),))
        with torch.no_grad():
            found, code = run_and_get_code(
                torch.compile(spelling.function, backend="fuseplan", options={"plan": plan}), *inputs
            )
            assert_as_accurate(found, spelling.function(*inputs), spelling.function(*in_double(inputs)))
        codes.append("".join(code))
    assert ["empty_strided_cpu((1, 4, 2, 9, 9), " in code for code in codes] == [False, True]
