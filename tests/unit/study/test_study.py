"""The ledger: defaults first, nothing measured twice, refusals told, stored timings added, storages that outlive a run."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from itertools import pairwise, product
from pathlib import Path

import optuna
import pytest

from fuseplan.errors import OptionError, PlanError
from fuseplan.graph import Graph, Op, Ref, TensorType, Value
from fuseplan.segment import Region, Segmentation
from fuseplan.study.ledger import SAMPLERS, Ledger
from fuseplan.study.names import Params, Point, Space, decode, encode, neutral, space_of
from fuseplan.tuning.effort import EFFORTS, Effort

TYPE = TensorType("float32", (4, 4), (4, 1))
DEFAULTS = {"eager": Point("eager"), "inductor": Point("inductor")}


def chain(length: int) -> Graph:
    reads = ["x", *(f"v{i}" for i in range(length))]
    ops = [Op("aten.relu.default", (Ref(reads[i]),), (), (Value(f"v{i}", TYPE),)) for i in range(length)]
    return Graph((Value("x", TYPE),), tuple(ops), (Ref(reads[-1]),))


def space(length: int = 3) -> Space:
    graph = chain(length)
    return space_of({"g": graph}, {"g": [True] * length}, lambda *_: ("inductor",), plans=tuple(DEFAULTS))


SPACE = space()


def ledger(
    source: Iterable[Params] = (), sampler: str = "ours", storage: str | None = None, here: Space = SPACE
) -> Ledger:
    return Ledger(here, "p" * 64, "e" * 32, sampler=sampler, source=lambda: source, storage=storage)


def cut(*regions: tuple[int, ...]) -> Point:
    return Point.of({"g": Segmentation(tuple(Region(ops, "inductor") for ops in regions))})


def spelled(*points: Point) -> list[Params]:
    return [encode(SPACE, point) for point in points]


def cost(point: Point) -> float:
    """A plan is the faster the fewer kernels it has; two defaults stand in between."""
    if point in DEFAULTS.values():
        return {"eager": 4.0, "inductor": 1.5}[point.plan]
    regions = point.cuts[0][1].regions
    return 3.0 - sum(len(region.ops) - 0.9 for region in regions)


def run(book: Ledger, most: int = 1000) -> list[Point]:
    """Measure all that the ledger asks for."""
    asked = []
    while len(asked) < most and (proposal := book.ask()) is not None:
        asked.append(proposal.point)
        book.tell(proposal, cost(proposal.point))
    return asked


def test_defaults_come_first_and_then_the_points_of_the_source_in_order() -> None:
    book = ledger(spelled(cut((0, 1)), cut((0, 1, 2)), cut((1, 2))))
    book.enqueue(DEFAULTS)
    assert run(book) == [*DEFAULTS.values(), cut((0, 1)), cut((0, 1, 2)), cut((1, 2))]
    assert book.best == (cut((0, 1, 2)), pytest.approx(0.9))
    trials = book.study.trials
    assert [trial.user_attrs.get("name") for trial in trials] == ["eager", "inductor", None, None, None]
    assert trials[3].params["g.island0.cut 0-1"] == "join"


def test_the_source_is_asked_again_after_each_value() -> None:
    points = [cut((0, 1)), cut((1, 2)), cut((0, 1, 2))]

    def source() -> list[Params]:
        """As a solver would: what was fast is looked at in full next."""
        return spelled(*points) if book.known(points[0]) is None else spelled(points[2], points[1])

    book = Ledger(SPACE, "p", "e", source=source)
    assert run(book) == [points[0], points[2], points[1]]


def test_a_point_is_not_measured_twice_however_it_is_spelled() -> None:
    alone = neutral(SPACE)
    joined = alone | {"g.island0.cut 0-1": "join"}  # both ops run under ATen, joined or not
    book = ledger([alone, joined])
    assert run(book) == [cut()]
    first, second = book.study.trials
    assert first.value == second.value == 3.0
    assert second.user_attrs["repeated"] is True


def test_a_point_that_is_not_legal_is_told_as_refused() -> None:
    ops = (*chain(2).ops, Op("aten.add.Tensor", (Ref("v0"), Ref("v1")), (), (Value("y", TYPE),)))
    graph = Graph((Value("x", TYPE),), ops, (Ref("y"),))
    here = space_of({"g": graph}, {"g": [True] * 3}, lambda *_: ("inductor",))
    around = neutral(here) | {"g.island0.cut 0-2": "join", "g.island0.run 0 aten.relu.default": "inductor"}
    book = ledger([around, neutral(here)], here=here)
    assert [point.cuts for point in run(book)] == [(("g", Segmentation()),)]
    refused = book.study.trials[0]
    assert refused.state == optuna.trial.TrialState.FAIL
    assert "would wait for itself" in refused.user_attrs["detail"]


def test_a_failure_is_told_with_its_status_and_is_no_best_plan() -> None:
    book = ledger(spelled(cut((0, 1)), cut((1, 2))))
    proposal = book.ask()
    assert proposal is not None
    book.tell(proposal, None, "timeout", {"detail": "10 s"})
    assert book.best is None
    assert run(book) == [cut((1, 2))]
    assert book.study.trials[0].user_attrs == {"status": "timeout", "detail": "10 s"}


def test_a_study_is_rebuilt_from_stored_timings() -> None:
    book = ledger(spelled(cut((0, 1)), cut((1, 2))))
    book.add(cut((0, 1)), 1.25, facts={"moves": "merge-up op 1"})
    book.add(Point("eager"), None, "out-of-memory")
    book.enqueue(DEFAULTS)
    assert book.best == (cut((0, 1)), 1.25)
    assert run(book) == [Point("inductor"), cut((1, 2))]
    assert book.study.trials[0].user_attrs == {"status": "ok", "stored": True, "moves": "merge-up op 1"}
    with pytest.raises(PlanError):
        book.add(cut((0, 2)), 1.0)


@pytest.mark.parametrize("kind", ["sqlite", "journal"])
def test_a_storage_lets_a_later_run_go_on(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "study"
    storage = f"sqlite:///{file}" if kind == "sqlite" else f"journal:{file}"
    source = spelled(cut((0, 1)), cut((1, 2)), cut((0, 1, 2)))
    book = ledger(source, storage=storage)
    book.enqueue(DEFAULTS)
    assert run(book, most=3) == [*DEFAULTS.values(), cut((0, 1))]
    assert book.ask() is not None  # and then the run is killed

    later = ledger(source, storage=storage)
    later.enqueue(DEFAULTS)
    assert later.best == (Point("inductor"), 1.5)
    assert run(later) == [cut((1, 2)), cut((0, 1, 2))]
    assert len(later.study.trials) == 6


def test_what_was_interrupted_or_killed_is_asked_for_again_by_a_later_run(tmp_path: Path) -> None:
    storage = f"journal:{tmp_path / 'study'}"
    book = ledger(storage=storage)
    book.enqueue(DEFAULTS)
    proposal = book.ask()
    assert proposal is not None
    book.tell(proposal, None, "interrupted")
    assert book.ask() is not None  # and then the run is killed
    assert book.ask() is None

    later = ledger(spelled(cut((0, 1))), storage=storage)
    later.enqueue(DEFAULTS)
    assert run(later) == [*DEFAULTS.values(), cut((0, 1))]


def test_another_space_is_another_study_in_the_same_storage(tmp_path: Path) -> None:
    storage = f"journal:{tmp_path / 'study'}"
    run(ledger(spelled(cut((0, 1))), storage=storage))
    wider = ledger(storage=storage, here=space(4))
    assert wider.best is None
    assert len(optuna.get_all_study_names(wider.study._storage)) == 2


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_the_samplers_of_optuna_take_the_place_of_ours(sampler: str) -> None:
    first, second = (ledger(sampler=sampler) for _ in range(2))
    for book in (first, second):
        book.enqueue(DEFAULTS)
    asked = run(first)
    assert asked[:2] == list(DEFAULTS.values())
    assert len(set(asked)) == len(asked)
    assert asked == run(second)
    assert set(asked) == every_point()  # all 13 points are found before the sampler is given up


def every_point() -> set[Point]:
    words = SPACE.parameters.values()
    return {decode(SPACE, dict(zip(SPACE.parameters, one, strict=True))) for one in product(*words)}


def test_optuna_keeps_quiet_and_keeps_the_level_that_the_program_set(capfd: pytest.CaptureFixture[str]) -> None:
    before = optuna.logging.get_verbosity()
    run(ledger(spelled(cut((0, 1)))))
    assert optuna.logging.get_verbosity() == before == optuna.logging.INFO
    assert capfd.readouterr() == ("", "")


def test_optuna_keeps_its_level_also_where_several_threads_search() -> None:
    ready = threading.Barrier(4)

    def search() -> None:
        ready.wait()
        for _ in range(5):
            run(ledger(spelled(cut((0, 1)))))

    threads = [threading.Thread(target=search) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert optuna.logging.get_verbosity() == optuna.logging.INFO


def test_what_cannot_be_used_is_one_line_without_secrets(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=f"'grid'; known are {', '.join(SAMPLERS)}"):
        ledger(sampler="grid")
    for storage in (
        "nonsense",
        f"sqlite:///{tmp_path}/no/folder/x.db",
        "mystery://me:secret@host/db",
        f"journal:{tmp_path}",
    ):
        with pytest.raises(OptionError, match="storage of the study cannot be used: ") as caught:
            ledger(storage=storage)
        assert "secret" not in str(caught.value)
        assert "\n" not in str(caught.value)


def test_efforts_grow_with_their_words() -> None:
    assert [effort.name for effort in EFFORTS] == ["none", "instant", "quick", "full"]
    for less, more in pairwise(EFFORTS):
        assert less.wall_s <= more.wall_s
        assert less.device_s < more.device_s
        assert less.plans <= more.plans
        assert len(less.prices) <= len(more.prices) or not more.cuts
    assert Effort.named("full").wall_s <= 8 * 60
    assert Effort.named("quick").wall_s <= 2 * 60
    with pytest.raises(OptionError, match="known are none, instant, quick, full"):
        Effort.named("fast")
    assert all(math.isfinite(effort.wall_s) and effort.device_s <= effort.wall_s for effort in EFFORTS)
