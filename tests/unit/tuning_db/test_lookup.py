"""Which plan a program gets, and what it is told when it gets none."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuseplan.plan import Plan
from fuseplan.tuning_db import Box, Environment, Hit, Miss, Places, Query, Run, Stale, Store, StoredPlan
from fuseplan.tuning_db.environment import needs_of
from fuseplan.tuning_db.evidence import Evidence, Raced
from stored import (
    BOTH,
    CPU,
    GELU,
    HERE,
    INDUCTOR,
    NVFUSER,
    OTHER_PROGRAM,
    PROGRAM,
    RELU,
    having,
    measurement,
    plan,
    question,
    store_at,
)

NEW_NVFUSER = having(HERE, nvfuser="0.2.37")
NEW_TRITON = having(HERE, inductor="2.11.0, triton 3.7")


def answer_to(tmp_path: Path, query: Query, *stored: StoredPlan) -> Hit | Stale | Miss:
    """What a new process would be answered."""
    store = store_at(tmp_path / "tuning.db")
    for one in stored:
        assert store.add_plan(one)
    return store_at(tmp_path / "tuning.db").find_plan(query)


def test_a_hit(tmp_path: Path) -> None:
    assert answer_to(tmp_path, question(), plan()) == Hit(plan(), "user")


@pytest.mark.parametrize(
    ("query", "reason", "detail"),
    [
        (question(program=OTHER_PROGRAM), "no such program", "no plan is stored for program cdcdcdcdcdcd"),
        (question(environment=replace(HERE, torch="2.13.0")), "other environment", "other torch 2.11.0 -> 2.13.0"),
        (
            question(environment=replace(HERE, gpu="NVIDIA A100", gpu_sms=108)),
            "other environment",
            "other GPU NVIDIA H200 -> NVIDIA A100, SM count 132 -> 108",
        ),
        (
            question(environment=replace(HERE, matmul_precision="high")),
            "other environment",
            "other matmul_precision highest -> high",
        ),
        (
            question(environment=NEW_TRITON),
            "other environment",
            "other Inductor 2.11.0, triton 3.6 -> 2.11.0, triton 3.7",
        ),
        (question(launch="cudagraph"), "other launch", "other launch plain -> cudagraph"),
        (question(sizes={"s0": 65}), "outside the tuned sizes", "outside the tuned sizes: s0 = 65 is outside 16..64"),
        (
            question(sizes={}),
            "outside the tuned sizes",
            "outside the tuned sizes: it was tuned for s0 in 16..64, which is no size here",
        ),
    ],
)
def test_a_miss_says_what_differs(tmp_path: Path, query: Query, reason: str, detail: str) -> None:
    sizes = Box.of({"s0": (16, 64)}) if reason == "outside the tuned sizes" else Box()
    assert answer_to(tmp_path, query, plan(sizes=sizes)) == Miss(reason, detail)


@pytest.mark.parametrize("size", [16, 40, 64])
def test_a_box_holds_its_ends(tmp_path: Path, size: int) -> None:
    stored = plan(sizes=Box.of({"s0": (16, 64)}))
    assert answer_to(tmp_path, question(sizes={"s0": size, "s1": 3}), stored) == Hit(stored, "user")


@pytest.mark.parametrize(
    ("stored", "here", "kind"),
    [
        (INDUCTOR, NEW_NVFUSER, Stale),
        (NVFUSER, NEW_NVFUSER, Miss),
        (NVFUSER, NEW_TRITON, Stale),
        (BOTH, NEW_TRITON, Miss),
        (BOTH, NEW_NVFUSER, Miss),
        (Plan.named("eager"), NEW_TRITON, Stale),
        (Plan.named("nvfuser-greedy"), NEW_NVFUSER, Miss),
        (INDUCTOR, replace(HERE, candidates="2"), Stale),
        (INDUCTOR, replace(HERE, protocol="2"), Stale),
        (INDUCTOR, HERE, Hit),
    ],
    ids=str,
)
def test_a_plan_needs_only_what_it_uses(tmp_path: Path, stored: Plan, here: Environment, kind: type) -> None:
    assert type(answer_to(tmp_path, question(environment=here), plan(plan=stored))) is kind


def test_a_stale_plan_says_what_changed(tmp_path: Path) -> None:
    found = answer_to(tmp_path, question(environment=NEW_NVFUSER), plan())
    assert isinstance(found, Stale)
    assert found.detail == "stale: nvFuser 0.2.36 -> 0.2.37"


@pytest.mark.parametrize(
    ("changes", "asked", "expected"),
    [
        ({"status": "default"}, {}, "user"),
        ({"status": "unverified"}, {}, "unverified"),
        ({"status": "unverified"}, {"unverified": True}, "user"),
        ({"status": "unverified", "word": "pinned"}, {}, "user"),
        ({"status": "quarantined", "detail": "wrong result"}, {}, "quarantined"),
        ({"status": "quarantined"}, {"unverified": True}, "quarantined"),
        ({"word": "disabled"}, {}, "disabled"),
    ],
)
def test_the_standing_of_a_plan(
    tmp_path: Path, changes: dict[str, object], asked: dict[str, object], expected: str
) -> None:
    found = answer_to(tmp_path, question(**asked), plan(**changes))
    assert (found.reason if isinstance(found, Miss) else found.layer) == expected


LATER = "2026-11-21T12:00:00.000Z"


@pytest.mark.parametrize(
    ("others", "chosen"),
    [
        ([plan(plan=NVFUSER, changed_at=LATER, wall_us=120.0)], 1),  # the newest race is right, not the fastest
        ([plan(plan=NVFUSER, changed_at=LATER, word="pinned", wall_us=500.0)], 1),
        ([plan(plan=NVFUSER, changed_at=LATER, status="unverified", wall_us=1.0)], 0),
        ([plan(plan=NVFUSER, environment=having(HERE, inductor="old"), changed_at=LATER)], 0),  # stale beside exact
        ([plan(launch="cudagraph", wall_us=40.0)], 1),
        ([plan(launch="cudagraph", wall_us=400.0)], 0),
    ],
)
def test_which_of_several(tmp_path: Path, others: list[StoredPlan], chosen: int) -> None:
    query = question(unverified=True, launch=None)
    assert answer_to(tmp_path, query, plan(), *others) == Hit([plan(), *others][chosen], "user")


RUN, LATER_RUN = "1" * 32, "2" * 32
GRAPH_US = 98.0
"""What the plan under CUDA graphs takes; the plain one takes 100."""


@pytest.mark.parametrize(
    ("first", "second", "noise_us", "chosen"),
    [
        (RUN, RUN, 0.5, "cudagraph"),
        (RUN, RUN, 3.0, "plain"),  # within the noise of the race that both were in
        (RUN, LATER_RUN, 3.0, "cudagraph"),  # times of two races: by the times alone
        (None, None, 3.0, "cudagraph"),
    ],
)
def test_of_two_launches_the_faster_and_plain_within_the_noise_of_one_race(
    tmp_path: Path, first: str | None, second: str | None, noise_us: float, chosen: str
) -> None:
    store = store_at(tmp_path / "tuning.db")
    for run in (RUN, LATER_RUN):
        store.add_run(Run(PROGRAM, HERE, key=run))
    store.add_plan(plan(run=first, noise_us=noise_us))
    store.add_plan(plan("cudagraph", run=second, noise_us=noise_us, wall_us=GRAPH_US, changed_at=LATER))
    assert found_launch(store, None) == chosen
    for launch in ("plain", "cudagraph"):
        assert found_launch(store, launch) == launch


@pytest.mark.parametrize(
    ("first", "second", "both", "graph_us", "pads", "chosen"),
    [
        (RUN, RUN, True, 98.0, True, "cudagraph"),
        (RUN, RUN, True, 150.0, True, "plain"),
        (RUN, LATER_RUN, True, 150.0, True, "cudagraph"),  # times of two races: of sizes of their own
        (RUN, LATER_RUN, False, 150.0, True, "plain"),  # a race of one launch that was asked for by name
        (RUN, LATER_RUN, False, 50.0, True, "cudagraph"),
        (None, None, False, 150.0, True, "plain"),
        (LATER_RUN, None, False, 150.0, True, "plain"),
        (RUN, LATER_RUN, True, 150.0, False, "plain"),
    ],
)
def test_where_a_padded_plan_is_stored_the_newest_race_decides_among_launches_that_were_in_it(
    tmp_path: Path, first: str | None, second: str | None, both: bool, graph_us: float, pads: bool, chosen: str
) -> None:
    store, box = store_at(tmp_path / "tuning.db"), Box.of({"s0": (33, 64)})
    for run in (RUN, LATER_RUN):
        store.add_run(Run(PROGRAM, HERE, key=run))
    store.add_plan(plan(sizes=box, run=first))
    raced = (Raced("inductor"), *((Raced("inductor, plain"),) if both else ()))
    newer = plan(
        "cudagraph", sizes=box, run=second, wall_us=graph_us, changed_at=LATER, evidence=Evidence(raced)
    )  # fmt: skip
    padded = Plan("inductor", launch="cudagraph", padded=box.spans)
    store.add_plan(replace(newer, plan=padded) if pads else newer)
    found = store.find_plan(question(launch=None, sizes={"s0": 40}))
    assert isinstance(found, Hit)
    assert found.plan.launch == chosen
    assert not found.plan.evidence.raced, "nobody who runs a plan reads it"


def test_a_padded_plan_that_won_is_not_gone_with_a_race_of_plain_ones(tmp_path: Path) -> None:
    """Nor comes back where it was in the newest race and lost, and no row of it says so."""
    store, box = store_at(tmp_path / "tuning.db"), Box.of({"s0": (33, 64)})
    for run in (RUN, LATER_RUN):
        store.add_run(Run(PROGRAM, HERE, key=run))
    padded = Plan("inductor", launch="cudagraph", padded=box.spans)
    store.add_plan(plan(plan=padded, sizes=box, run=RUN, wall_us=50.0))
    plain = plan(sizes=box, run=LATER_RUN, changed_at=LATER)
    asked = question(launch=None, sizes={"s0": 40})
    for raced, chosen in (((), "cudagraph"), ((Raced("inductor, padded, cudagraph", status="wrong"),), "plain")):
        store.add_plan(replace(plain, evidence=Evidence(raced)))
        found = store.find_plan(asked)
        assert isinstance(found, Hit)
        assert found.plan.launch == chosen


def test_a_person_s_word_counts_more_than_that_plain_holds_no_memory(tmp_path: Path) -> None:
    store = store_at(tmp_path / "tuning.db")
    store.add_run(Run(PROGRAM, HERE, key=RUN))
    store.add_plan(plan(run=RUN, noise_us=9.0))
    store.add_plan(plan("cudagraph", run=RUN, noise_us=9.0, wall_us=GRAPH_US, word="pinned"))
    assert found_launch(store, None) == "cudagraph"


def found_launch(store: Store, launch: str | None) -> str:
    found = store.find_plan(question(launch=launch))
    assert isinstance(found, Hit)
    return found.plan.launch


def test_of_several_misses_the_nearest_is_told(tmp_path: Path) -> None:
    elsewhere = plan(environment=replace(HERE, torch="2.10.0", gpu="NVIDIA A100"))
    found = answer_to(tmp_path, question(launch="cudagraph"), elsewhere, plan())
    assert found == Miss("other launch", "other launch plain -> cudagraph")


def test_a_higher_layer_hides_the_same_plan_below(tmp_path: Path) -> None:
    shipped, site, user = (tmp_path / name for name in ("shipped.sqlite3", "site.db", "user.db"))
    store_at(shipped).add_plan(plan())
    store_at(site).add_plan(plan(plan=NVFUSER, wall_us=90.0))
    store = Store(Places(user, site, shipped))
    assert store.find_plan(question()) == Hit(plan(plan=NVFUSER, wall_us=90.0), "site")
    store.pin(plan(plan=NVFUSER).key, "disabled")
    assert store.find_plan(question()) == Hit(plan(), "packaged")
    store.quarantine(plan().key[:10], "it crashed")
    assert store.find_plan(question()).reason in ("disabled", "quarantined")  # type: ignore[union-attr]
    store.pin(plan(plan=NVFUSER).key, None)
    found = store.find_plan(question())
    assert isinstance(found, Hit)
    assert (found.layer, found.plan.plan) == ("user", NVFUSER)


def test_measurements_need_only_what_their_executor_is(tmp_path: Path) -> None:
    store = store_at(tmp_path / "tuning.db")
    kinds = [measurement(executor=name) for name in ("aten", "inductor", "nvfuser")]
    store.add_measurements(RELU, kinds)

    def executors(here: Environment) -> list[str]:
        found = store.find_measurements(RELU.key, here)
        return [] if isinstance(found, Miss) else sorted(one.executor for one in found)

    assert store.find_measurements(RELU.key, HERE) == tuple(kinds)
    assert executors(NEW_NVFUSER) == ["aten", "inductor"]
    assert executors(NEW_TRITON) == ["aten", "nvfuser"]
    assert executors(replace(HERE, torch="2.13.0")) == []
    assert executors(replace(HERE, protocol="2")) == []
    assert executors(replace(HERE, candidates="2")) == ["aten", "inductor", "nvfuser"]


def test_of_very_many_regions_the_measured_are_known(tmp_path: Path) -> None:
    shared, user = tmp_path / "shared.db", tmp_path / "tuning.db"
    store_at(shared).add_measurement(GELU, measurement(GELU, environment=CPU))
    store_at(user).add_measurement(RELU, measurement())
    store = Store(Places(user=user, packaged=shared))
    others = {f"{number:064x}" for number in range(50_000)}
    assert store.measured_among({RELU.key, GELU.key, *others}) == {RELU.key, GELU.key}
    assert store.measured_among({RELU.key}) == {RELU.key}
    assert store.measured_among(others) == store.measured_among(()) == frozenset()
    assert store_at(tmp_path / "none.db").measured_among({RELU.key}) == frozenset()


def test_what_a_plan_needs() -> None:
    assert needs_of(BOTH) == {"inductor", "nvfuser"}
    assert needs_of(Plan.named("aten")) == frozenset()
    assert Query(PROGRAM, HERE).memo_key != Query(PROGRAM, NEW_TRITON).memo_key


def test_whether_a_program_is_known_at_all(tmp_path: Path) -> None:
    store = store_at(tmp_path / "tuning.db")
    assert store.unknown(PROGRAM) == store.find_plan(question())
    assert not (tmp_path / "tuning.db").exists()
    store_at(tmp_path / "tuning.db").add_plan(plan(environment=NEW_NVFUSER, word="disabled"))
    assert store.unknown(PROGRAM) is None  # though it was remembered otherwise, and is no hit
    assert str(store.unknown(OTHER_PROGRAM)) == "no plan is stored for program cdcdcdcdcdcd"


def test_a_file_that_cannot_be_read_is_asked_once(tmp_path: Path) -> None:
    (tmp_path / "tuning.db").write_bytes(b"")
    other = sqlite3.connect(tmp_path / "tuning.db")
    other.execute("PRAGMA application_id = 77")
    other.execute("CREATE TABLE mine (x)")
    other.close()
    with pytest.warns(UserWarning, match="is not a tuning database"):
        found = store_at(tmp_path / "tuning.db").unknown(PROGRAM)
    assert found is not None
    assert found.reason == "database unusable"


def test_boxes_are_those_of_plans_that_would_hit(tmp_path: Path) -> None:
    boxes = [Box.of({"s0": (low, low + 9)}) for low in (10, 20, 30, 40)]
    store = store_at(tmp_path / "tuning.db")
    for one in (
        plan(sizes=boxes[0]),
        plan(sizes=boxes[1], word="disabled"),
        plan(sizes=boxes[2], environment=replace(HERE, torch="1.0")),
        plan(sizes=boxes[3], launch="cudagraph"),
        plan(sizes=boxes[0], plan=NVFUSER),
        plan(plan=BOTH, status="quarantined"),
    ):
        store.add_plan(one)
    assert store.boxes(question(sizes={"s0": 99})) == [boxes[0]]
    assert sorted(box.text for box in store.boxes(question(launch=None))) == [boxes[0].text, boxes[3].text]


@given(st.dictionaries(st.integers(0, 12), st.sampled_from([(1, 1), (2, 2), (5, 8)])))
def test_a_box_told_in_short_says_the_same(spans: dict[int, tuple[int, int]]) -> None:
    told: dict[int, tuple[int, int]] = {}
    for word in Box.of({f"s{number}": span for number, span in spans.items()}).short.split():
        which, _, values = word.partition("=")
        low, _, high = values.partition("..")
        for one in which.split(","):
            first, _, last = one.replace("s", "").partition("-")
            told.update(dict.fromkeys(range(int(first), int(last or first) + 1), (int(low), int(high or low))))
    assert told == spans
