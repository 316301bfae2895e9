"""What a plan of another machine is expected to gain here, and what nobody can tell."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fuseplan.plan import CarveOuts, Plan, Rewrite
from fuseplan.segment import Region, Segmentation
from fuseplan.tuning.expected_gain import expected_gain, offer_line
from fuseplan.tuning_db import Box, Environment
from fuseplan.tuning_db.offers import Offer, offers
from stored import CPU, GELU, HERE, RELU, plan

H100 = replace(HERE, gpu="NVIDIA H100 80GB HBM3", gpu_l2_mib=50, gpu_memory_gib=80)
A100 = replace(HERE, gpu="NVIDIA A100-SXM4-80GB", gpu_sms=108, gpu_l2_mib=40, gpu_memory_gib=80)
CAUSAL = Plan("inductor", (Rewrite("attention", 0, "auto+causal"),))


def offer(there: Environment, here: Environment, best_us: float | None = 117.0) -> Offer:
    stored = plan(plan=CAUSAL, environment=there, wall_us=100.0, best_default="inductor", best_default_us=best_us)
    (found,) = offers([stored], here, Box(), launches={"plain"})
    return found


def test_without_a_model_the_range_is_as_wide_as_the_machines_are_apart() -> None:
    near, far = expected_gain(offer(HERE, H100), H100, ()), expected_gain(offer(HERE, A100), A100, ())
    assert near is not None
    assert far is not None
    assert (round(near.times, 2), round(near.low, 2), round(near.high, 2), near.learned) == (1.17, 0.82, 1.68, False)
    assert far.high / far.low > near.high / near.low, "an A100 is further from an H200 than an H100 is"


@pytest.mark.parametrize(
    ("there", "here"),
    [
        (replace(HERE, torch="2.10.0"), HERE),
        (replace(CPU, cpu="another CPU"), CPU),
        (replace(HERE, gpu="NVIDIA Unheard 1"), replace(HERE, gpu="NVIDIA Unheard 2")),
    ],
)
def test_where_nothing_tells_no_number_is_named(there: Environment, here: Environment) -> None:
    found = offer(there, here)
    assert expected_gain(found, here, ()) is None
    assert "nothing tells what it gains here" in offer_line(found, here, ())


def test_a_plan_without_a_default_beside_it_has_no_gain_to_expect() -> None:
    assert expected_gain(offer(HERE, H100, None), H100, ()) is None


def test_the_line_says_that_it_is_unverified_and_where_it_won() -> None:
    line = offer_line(offer(HERE, H100), H100, ())
    assert line.startswith("unverified on this NVIDIA H100 80GB HBM3: plan ")
    assert "which won on NVIDIA H200, torch 2.11.0, 1.17× as fast as inductor" in line
    assert "no model knows this plan" in line


@pytest.mark.exhaustive
def test_of_a_plan_that_is_cut_a_model_tells_nine_times_of_ten(tmp_path: Path) -> None:
    cut = Segmentation((Region(tuple(range(len(GELU.ops))), "nvfuser"),))
    own = Plan("aten", carve_outs=(CarveOuts("inference", GELU.key, cut),))
    stored = plan(plan=own, environment=HERE, wall_us=100.0, best_default="inductor", best_default_us=117.0)
    (found,) = offers([stored], H100, Box(), launches={"plain"})
    gain = expected_gain(found, H100, [("inference", GELU)], tmp_path)
    assert gain is not None
    assert gain.low < gain.times < gain.high
    of_another_graph = expected_gain(found, H100, [("inference", RELU)], tmp_path)
    assert of_another_graph is not None
    assert not of_another_graph.learned, "the plan is not of that"
    assert gain.learned or gain.high / gain.low > 1.5, "what is unlike anything learnt from is no model's to tell"
