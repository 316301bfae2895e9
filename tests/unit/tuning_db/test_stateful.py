"""Two databases that write, merge and exchange in any order hold what two plain dicts hold."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fuseplan.tuning_db import Miss, StoredPlan
from fuseplan.tuning_db.exchange import export, import_file, merge
from fuseplan.tuning_db.files import Database
from fuseplan.tuning_db.schema import PLAN
from fuseplan.tuning_db.upkeep import check
from stored import RELU, store_at
from stored_rows import ENVIRONMENTS, failures, plans

Model = dict[str, tuple[bool, str, bytes, StoredPlan]]
"""By key of a plan: what decides which of two stands, and the plan."""

sides = st.sampled_from((0, 1))


class TwoDatabases(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.paths = (self.folder / "a.db", self.folder / "b.db")
        self.stores = tuple(map(store_at, self.paths))
        self.plans: tuple[Model, Model] = ({}, {})
        self.measured: tuple[set[bytes], set[bytes]] = (set(), set())
        self.exports = 0

    def teardown(self) -> None:
        for path in self.paths:
            assert not path.exists() or check(Database(path)) == []
        shutil.rmtree(self.folder)

    @rule(side=sides, stored=plans)
    def add(self, side: int, stored: StoredPlan) -> None:
        stored = StoredPlan(**{**vars(stored), "run": None})
        assert self.stores[side].add_plan(stored)
        self._learn(side, stored)

    @rule(side=sides, one=failures)
    def measure(self, side: int, one: object) -> None:
        changed = type(one)(**{**vars(one), "run": None, "region": RELU.key})
        assert self.stores[side].add_measurement(RELU, changed)
        self.measured[side].add(repr(changed).encode())

    @rule(side=sides)
    def merge(self, side: int) -> None:
        if self.paths[1 - side].exists():
            assert merge(Database(self.paths[side]), self.paths[1 - side]).complete
            for *_, stored in self.plans[1 - side].values():
                self._learn(side, stored)
            self.measured[side].update(self.measured[1 - side])

    @rule(side=sides)
    def exchange(self, side: int) -> None:
        if self.paths[1 - side].exists():
            self.exports += 1
            rows = self.folder / f"{self.exports}.jsonl"
            export(Database(self.paths[1 - side]), rows)
            assert import_file(Database(self.paths[side]), rows).complete
            for key, (*_, stored) in self.plans[1 - side].items():
                if key not in self.plans[side]:
                    status = "quarantined" if stored.status == "quarantined" else "unverified"
                    self._learn(side, StoredPlan(**{**vars(stored), "status": status, "word": None}))
            self.measured[side].update(self.measured[1 - side])

    @rule(side=sides)
    def reopen(self, side: int) -> None:
        self.stores[side].close()

    @invariant()
    def both_hold_what_they_should(self) -> None:
        for store, known, measured in zip(self.stores, self.plans, self.measured, strict=True):
            assert store.plans() == [known[key][-1] for key in sorted(known)]
            found = set()
            for environment in ENVIRONMENTS:
                answer = store.find_measurements(RELU.key, environment)
                found |= set() if isinstance(answer, Miss) else {repr(one).encode() for one in answer}
            assert found == measured

    def _learn(self, side: int, stored: StoredPlan) -> None:
        raced = stored.status == "quarantined" or stored.wall_us is not None
        rank = (raced, stored.changed_at, PLAN.digest(stored.row()), stored)
        known = self.plans[side].get(stored.key)
        if known is None or rank[:-1] > known[:-1]:
            self.plans[side][stored.key] = rank


TwoDatabases.TestCase.settings = settings(max_examples=12, stateful_step_count=12, deadline=None)
TestTwoDatabases = TwoDatabases.TestCase
