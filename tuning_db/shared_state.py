"""What became of the plans that FUSEPLAN_SHARED names, for a person: as it was noted, or after looking for them now."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

from fuseplan.tuning_db.addresses import Address, SharedPlans
from fuseplan.tuning_db.clock import written
from fuseplan.tuning_db.files import Database
from fuseplan.tuning_db.shared import NO_FOLDER, is_database, unusable
from fuseplan.tuning_db.shared_fetch import look
from fuseplan.tuning_db.shared_notes import Fetched, opens

LOOK_S = 10.0
"""Who asks whether they can be had waits so long."""


@dataclass(frozen=True)
class SharedState:
    """Plans of an organisation, as they are on this machine."""

    named: str
    """The address, without what is secret in it, or the file."""
    serves: bool
    """Whether look-ups find something there."""
    problem: str = ""
    """What was wrong when it was looked for last."""
    rows: int | None = None
    fetched_at: str | None = None
    age_s: float | None = None
    """Since then."""
    sha256: str | None = None
    pinned: bool = False
    """Whether the address asks for just that digest."""

    @staticmethod
    def noted(plans: SharedPlans) -> SharedState:
        """What is there, and what was noted of it. Nothing is fetched, and nothing is written."""
        named, made = plans.named, plans.made
        if isinstance(named, Address) and named.wrong is not None:
            return SharedState("the address", False, named.wrong)
        if isinstance(named, Path) and is_database(named):
            with closing(Database(named, readonly=True)) as own:
                problem = unusable(own)
            return SharedState(plans.shown, not problem, problem)
        if made is None:
            return SharedState(plans.shown, False, NO_FOLDER)
        known = Fetched.beside(made)
        problem = known.problem
        if isinstance(named, Path) and not named.is_file():
            problem = "it is not there"
        if not known.fetched_at:
            return SharedState(plans.shown, False, problem)
        with closing(Database(made, readonly=True)) as database:
            serves = opens(database)
        pinned = isinstance(named, Address) and named.pinned == known.digest
        at = written(datetime.fromtimestamp(known.fetched_at, timezone.utc))
        return SharedState(
            plans.shown, serves, problem, known.rows, at, max(0.0, time.time() - known.fetched_at), known.digest, pinned
        )

    @staticmethod
    def looked(plans: SharedPlans) -> SharedState:
        """The same, having looked for it now."""
        asked = isinstance(plans.named, Address) and plans.named.wrong is None
        exported = isinstance(plans.named, Path) and plans.named.is_file() and not is_database(plans.named)
        if plans.made is None or not (asked or exported):
            return SharedState.noted(plans)
        told: list[str] = []
        thread = threading.Thread(
            target=look, args=(plans, plans.made, told, True), name="fuseplan shared", daemon=True
        )
        thread.start()
        thread.join(LOOK_S)
        why = told[0] if told else f"it did not come within {LOOK_S:g} s"
        return replace(SharedState.noted(plans), problem=why)
