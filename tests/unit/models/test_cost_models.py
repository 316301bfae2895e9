"""What holds of every cost model, and what each learns from rows."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from fuseplan.models import (
    AnchorWork,
    BestSingleExecutor,
    Cost,
    CostModel,
    Machine,
    Random,
    Roofline,
    Row,
    Work,
)
from fuseplan.models.learned import Learned
from models_rows import made_up_heads

H200 = Machine.guess("NVIDIA H200")
EXECUTORS = ("aten", "inductor", "nvfuser")
Model = Callable[[], CostModel]
MODELS: dict[str, Model] = {
    "roofline": lambda: Roofline(H200),
    "roofline of a CPU": lambda: Roofline(Machine.guess("AMD EPYC")),
    "random": lambda: Random(3),
    "best-single-executor": lambda: BestSingleExecutor(H200),
    "learned": lambda: Learned(made_up_heads()),
}
each_model = pytest.mark.parametrize("model", list(MODELS.values()), ids=list(MODELS))


def works(count: int, seed: int = 0) -> list[Work]:
    """Pointwise regions, reductions and matmuls from tiny to 1 GB."""
    chance = random.Random(seed)
    found = []
    for _ in range(count):
        elements = int(2 ** chance.uniform(8, 28))
        ops = chance.randint(1, 8)
        kernels = chance.choice([1, 1, 2])
        anchors = (AnchorWork("matmul", "bfloat16", elements * 2048, 4 * elements),) if chance.random() < 0.2 else ()
        found.append(
            Work(
                ops=ops,
                views=chance.randint(0, 3),
                inputs=chance.randint(1, 4),
                outputs=chance.randint(1, 3),
                bytes_in=elements * chance.choice([2, 4, 8]),
                bytes_out=elements * 2,
                bytes_between=elements * 4 * (kernels - 1),
                bytes_alone=elements * 6 * ops,
                scattered=elements * 2 * (chance.random() < 0.3),
                kernels=kernels,
                kernels_alone=ops,
                pointwise=elements * ops,
                special=elements * chance.randint(0, 2),
                reduced=elements * chance.randint(0, 2),
                anchors=anchors,
            )
        )
    return found


def measured(work: Work, executor: str, chance: random.Random, noise: float) -> Row:
    """A machine twice as slow to launch as we believe, with three quarters of its bandwidth, and a slow host."""
    fused = executor != "aten"
    moved = (work.bytes_moved if fused else work.bytes_alone) - sum(anchor.bytes for anchor in work.anchors)
    launches = work.kernels if fused else work.kernels_alone
    matmul = sum(anchor.flops / 790e6 for anchor in work.anchors)
    device = 4.0 * launches + max(0, moved) / (0.75 * 4300e3) + matmul / 0.8
    host = 20.0 if fused else 10.0 * work.kernels_alone + 2.0 * work.views
    return Row(work, executor, "default", device * math.exp(chance.gauss(0, noise)), host)


def rows(count: int, noise: float = 0.05, seed: int = 1) -> list[Row]:
    chance = random.Random(seed)
    return [measured(work, EXECUTORS[i % 3], chance, noise) for i, work in enumerate(works(count, seed))]


@each_model
def test_predictions_are_finite_in_order_and_the_same_every_time(model: Model) -> None:
    asked = [(work, executor, "default") for work in works(20) for executor in EXECUTORS]
    first = model()
    found = first.predict(asked)
    assert found == model().predict(asked)
    assert found == [one for question in asked for one in first.predict([question])]
    assert all(isinstance(one, Cost) and 0 < one.device_us < math.inf for one in found)
    assert all(0 <= one.host_us < math.inf and 0 < one.spread < 5 for one in found)
    assert first.predict([]) == []


@each_model
def test_learning_in_parts_is_learning_at_once(model: Model) -> None:
    known, asked = rows(60), [(work, "inductor", "default") for work in works(10, seed=5)]
    at_once, in_parts = model(), model()
    at_once.update(known)
    for start in range(0, 60, 7):
        in_parts.update(known[start : start + 7])
        in_parts.predict(asked)
    assert at_once.predict(asked) == in_parts.predict(asked)


@each_model
def test_rows_without_a_usable_time_teach_nothing(model: Model) -> None:
    learner, untaught = model(), model()
    (work,) = works(1)
    learner.update([Row(work, "inductor", "default", time, 10.0) for time in (0.0, math.inf, math.nan)])
    asked = [(work, "inductor", "default")]
    assert learner.predict(asked)[0].device_us == untaught.predict(asked)[0].device_us


@each_model
def test_a_region_of_views_alone_can_be_asked_for(model: Model) -> None:
    (found,) = model().predict([(Work(views=1, inputs=1, outputs=1), "aten", "default")])
    assert 0 <= found.device_us < math.inf


def errors(model: CostModel, known: list[Row]) -> list[float]:
    predicted = model.predict([(row.work, row.executor, row.variant) for row in known])
    return [abs(math.log(one.device_us / row.device_us)) for one, row in zip(predicted, known, strict=True)]


def test_the_roofline_finds_the_rates_of_a_machine_from_thirty_rows_of_each_executor() -> None:
    model = Roofline(H200)
    model.update(rows(90, noise=0.03))
    unseen = rows(90, noise=0.0, seed=9)
    found = sorted(errors(model, unseen))
    before = sorted(errors(Roofline(H200), unseen))
    assert found[45] < 0.03
    assert found[-5] < 0.12
    assert before[45] > 0.2, "so that there was something to learn"


def test_the_roofline_learns_host_times_too() -> None:
    model = Roofline(H200)
    model.update(rows(90))
    work = Work(
        ops=3, views=2, inputs=2, outputs=1, bytes_in=8, bytes_out=8, bytes_alone=48, kernels=1, kernels_alone=3
    )
    aten, inductor = model.predict([(work, "aten", "default"), (work, "inductor", "default")])
    assert aten.host_us == pytest.approx(34, rel=0.05)
    assert inductor.host_us == pytest.approx(20, rel=0.15)


def test_stumbles_of_the_clock_do_not_spoil_the_fit() -> None:
    known = [row for row in rows(120, noise=0.03) if row.executor == "inductor"]
    known[::10] = [Row(row.work, "inductor", "default", 20 * row.device_us, row.host_us) for row in known[::10]]
    model = Roofline(H200)
    model.update(known)
    unseen = [row for row in rows(120, noise=0.0, seed=9) if row.executor == "inductor"]
    assert sorted(errors(model, unseen))[20] < 0.05


def test_spread_shrinks_where_rows_were_seen_and_stays_where_none_were() -> None:
    model = Roofline(H200)
    copies = [work for work in works(200) if not work.anchors and not work.scattered]
    chance = random.Random(2)
    asked = [
        (copies[0], "inductor", "default"),
        (Work(kernels=1, anchors=(AnchorWork("attention", "bfloat16", 10**11, 10**6),)), "inductor", "default"),
        (copies[0], "nvfuser", "default"),
    ]
    before = [one.spread for one in model.predict(asked)]
    model.update([measured(work, "inductor", chance, 0.03) for work in copies[:60]])
    after = [one.spread for one in model.predict(asked)]
    assert after[0] < before[0] / 2
    assert after[1] > 0.3
    assert after[2] == before[2]


def test_spread_says_how_far_off_predictions_are() -> None:
    model = Roofline(H200)
    model.update(rows(300, noise=0.1))
    known = rows(300, noise=0.1, seed=4)
    predicted = model.predict([(row.work, row.executor, row.variant) for row in known])
    within = sum(
        abs(math.log(one.device_us / row.device_us)) < 1.645 * one.spread
        for one, row in zip(predicted, known, strict=True)
    )
    assert 0.84 < within / 300 < 0.96


def test_variants_are_told_apart_by_their_rows() -> None:
    attention = Work(ops=1, kernels_alone=1, anchors=(AnchorWork("attention", "bfloat16", 10**10, 10**6),))
    asked = [(attention, "aten", variant) for variant in ("default", "cudnn", "flash")]
    model = Roofline(H200)
    _, cudnn, flash = model.predict(asked)
    assert cudnn.device_us < flash.device_us
    model.update(
        [Row(attention, "aten", variant, time, 10.0) for variant, time in (("cudnn", 80.0), ("flash", 40.0))] * 10
    )
    _, cudnn, flash = model.predict(asked)
    assert flash.device_us < cudnn.device_us


def test_cases_that_were_measured_on_an_h200_are_predicted() -> None:
    model = Roofline(H200)
    head = AnchorWork("unaligned", "bfloat16", 2 * 8192 * 768 * 50257, 2 * (8192 * 768 + 768 * 50257 + 8192 * 50257))
    gpt2_head = Work(ops=1, kernels=1, kernels_alone=1, inputs=2, outputs=1, anchors=(head,))
    size = 8192 * 3072
    gelu = Work(
        ops=1, inputs=1, outputs=1, bytes_in=4 * size, bytes_out=4 * size, bytes_alone=8 * size, kernels=1,
        kernels_alone=1, pointwise=size, special=size,
    )  # fmt: skip
    eager, padded, fused = model.predict(
        [(gpt2_head, "aten", "default"), (gpt2_head, "aten", "padded"), (gelu, "inductor", "default")]
    )
    assert eager.device_us == pytest.approx(6676, rel=0.3)
    assert padded.device_us == pytest.approx(875, rel=0.3)
    assert fused.device_us == pytest.approx(50.6, rel=0.3)


def test_a_cpu_is_its_own_host_so_that_calling_is_part_of_its_device_time() -> None:
    model = Roofline(Machine.guess("AMD EPYC"))
    few, many = (Work(ops=ops, kernels=1, kernels_alone=ops, inputs=1, outputs=1, bytes_alone=64) for ops in (1, 5))
    one, five = model.predict([(few, "aten", "default"), (many, "aten", "default")])
    assert (one.host_us, five.host_us) == (0, 0)
    assert five.device_us > one.device_us + 5


def test_the_bytes_of_a_matmul_are_counted_with_the_matmul() -> None:
    product = AnchorWork("matmul", "bfloat16", 2 * 4096**3, 3 * 2 * 4096**2)
    work = Work(
        ops=1, inputs=2, outputs=1, bytes_in=4 * 4096**2, bytes_out=2 * 4096**2, bytes_alone=6 * 4096**2, kernels=1,
        kernels_alone=1, anchors=(product,),
    )  # fmt: skip
    for executor in ("aten", "inductor"):
        (found,) = Roofline(H200).predict([(work, executor, "default")])
        assert found.device_us == pytest.approx(2.0 + 2 * 4096**3 / 790e6)


def test_the_best_single_executor_is_preferred_everywhere() -> None:
    model = BestSingleExecutor(H200)
    assert model.best is None
    model.update([row for row in rows(90) if row.executor != "aten"])
    slow = [Row(row.work, "nvfuser", "default", 3 * row.device_us, row.host_us) for row in rows(30)]
    model.update(slow)
    assert model.best == ("inductor", "default")
    for work in works(20):
        inductor, nvfuser = model.predict([(work, "inductor", "default"), (work, "nvfuser", "default")])
        assert inductor.device_us < nvfuser.device_us


def test_random_depends_on_its_seed_and_on_what_is_asked() -> None:
    asked = [(work, executor, "default") for work in works(5) for executor in EXECUTORS]
    one, other = Random(1).predict(asked), Random(2).predict(asked)
    assert len({prediction.device_us for prediction in one}) == len(asked)
    assert one != other
