"""The tuning database as the rest of fuseplan sees it: look-ups that never raise, and writes that are not lost."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from fuseplan.errors import StoreError
from fuseplan.graph import Graph
from fuseplan.plan import Plan
from fuseplan.tuning_db import clock, schema
from fuseplan.tuning_db.columns import MAX_TRACE, Row
from fuseplan.tuning_db.environment import Environment
from fuseplan.tuning_db.layered import LOOKUP_S, Layered
from fuseplan.tuning_db.layers import Places, places
from fuseplan.tuning_db.lookup import UnparsedPlan, boxes, candidates, choose, knows, no_plan
from fuseplan.tuning_db.measured import add_counts, default_timings, drift_of, measured_among, measurements, put_drift
from fuseplan.tuning_db.programs import (
    graph_row,
    graphs_of,
    names_of,
    plans_like,
    plans_of_program,
    program_row,
    programs_like,
    readable,
    region_row,
    trace_row,
    traces_where,
)
from fuseplan.tuning_db.records import (
    DefaultTiming,
    Drift,
    Hit,
    Measurement,
    Miss,
    Query,
    Run,
    Stale,
    StoredPlan,
    trace_key,
)
from fuseplan.tuning_db.sizes import STATIC, Box
from fuseplan.tuning_db.tables import RowWriter, Table
from fuseplan.tuning_db.waiting import Place, Planned, planned, traced

_T = TypeVar("_T")
_Rows = list[tuple[Table, Row]]

_MEMO_SIZE = 4096


class Store(Layered):
    """Plans and measurements of this user, and those shipped to them.

    >>> store = Store(Places(user=None))
    >>> here = Environment("cpu", "2.13.0", cpu="a CPU")
    >>> print(store.find_plan(Query("ab" * 32, here)))
    no plan is stored for program abababababab
    """

    def __init__(self, where: Places, *, salvage_s: float = 1.0, reading: bool = False) -> None:
        """`salvage_s` bounds how long a damaged file may hold up whoever meets it first; the rest stays set aside.

        Who is only `reading` leaves it as it is, and trouble with the user's own file is a StoreError for them, not nothing
        found.
        """
        super().__init__(where, salvage_s, reading)
        self._memo: dict[tuple[object, ...], tuple[list[object], Any]] = {}
        self._runs: dict[str, Run] = {}
        self._counts: Counter[str] = Counter()
        self._persisted: Counter[str] = Counter()

    @staticmethod
    def open(environ: Mapping[str, str], db: str | Path | None = None, *, salvage_s: float = 1.0) -> Store:
        """The store of a user with these environment variables; `db` names another file than theirs."""
        return Store(places(environ, db), salvage_s=salvage_s)

    @staticmethod
    def reading(environ: Mapping[str, str], db: str | Path | None = None) -> Store:
        """The same for whoever only reads it, which makes and mends nothing: as any reader of SQLite's it does no more than
        take back a write that was cut short. A file that is named must be there.

        >>> Store.reading({"HOME": "/home/ada"}, "/no/such.db")
        Traceback (most recent call last):
        ...
        fuseplan.tuning_db.files.Absent: there is no file /no/such.db
        """
        return Store(places(environ, db), reading=True).required(there=db is not None)

    # look-ups: they never raise

    def find_plan(self, query: Query) -> Hit | Stale | Miss:
        """The plan to run for a program here, or why there is none."""
        answer = self._remembered(query.memo_key, lambda: self._find_plan(query))
        self.count(f"plan misses: {answer.reason}" if isinstance(answer, Miss) else f"plan {_kind(answer)}")
        return answer

    def unknown(self, program: str) -> Miss | None:
        """Why there is nothing to look up of this program, whatever the machine; None where `find_plan` is to tell."""

        def ask() -> tuple[Miss | None, bool]:
            found, trouble = self._gather(lambda connection: knows(connection, program))
            if any(map(any, found)):
                return None, trouble is None
            return trouble or no_plan(program), trouble is None

        return self._remembered(("unknown", program), ask)

    def boxes(self, query: Query) -> list[Box]:
        """The boxes of sizes for which `find_plan` would hit, were the sizes of the question within them."""
        try:
            found, _ = self._candidates(query)
            return boxes(query, found)
        except Exception:  # noqa: BLE001  # as in find_plan
            return []

    def find_measurements(self, region: str, environment: Environment) -> tuple[Measurement, ...] | Miss:
        """Measurements of a region, by key, that hold here; failures are among them."""
        found, trouble = self._gather(lambda connection: measurements(connection, region, environment))
        rows = {row.digest: row.record for layer in found for row in layer}
        if not rows:
            return trouble or Miss("no such region", f"nothing is measured here of region {region[:12]}")
        return tuple(sorted(rows.values(), key=lambda record: record.measured_at))

    def measured_among(self, regions: Collection[str]) -> frozenset[str]:
        """Regions among these, by key, of which anything was measured anywhere: `find_measurements` tells what."""
        return frozenset(
            key for layer in self._gather(lambda connection: measured_among(connection, regions))[0] for key in layer
        )

    def find_default_timings(self, program: str, environment: Environment) -> tuple[DefaultTiming, ...] | Miss:
        """How fast a program was here under the plans that nobody tuned."""
        found, trouble = self._gather(lambda connection: default_timings(connection, program, environment))
        rows = {row.digest: row.record for layer in found for row in layer}
        if not rows:
            return trouble or Miss("no such program", f"no default is timed here for program {program[:12]}")
        return tuple(sorted(rows.values(), key=lambda record: record.measured_at))

    def find_drift(self, plan: str) -> list[Drift]:
        """What guards saw of a plan, by key, in production, in the order of time."""
        found = self._gather(lambda connection: drift_of(connection, plan))[0]
        return sorted((one for layer in found for one in layer), key=lambda one: one.measured_at)

    def find_trace(self, program: str, sizes: Box = STATIC) -> str | None:
        """The trace of a program for plans of these sizes, as JSON; None where no layer holds one that is whole."""
        key = trace_key(program, sizes.text)
        found = self._gather(lambda connection: traces_where(connection, "trace.key = ?", key))[0]
        return next((text for layer in reversed(found) for _, text in layer), None)

    def traces(self, program: str) -> list[str]:
        """All traces of a program, by key: one for each box of sizes that it was tuned for."""
        highest: dict[str, str] = {}
        where = "trace.program_id = (SELECT id FROM program WHERE key = ?)"
        for layer in self._gather(lambda connection: traces_where(connection, where, program), within_s=60.0)[0]:
            highest.update(layer)
        return [highest[key] for key in sorted(highest)]

    def traced(self) -> list[tuple[str, list[Planned]]]:
        """All traces, in the order in which they came, and in which environments each has a plan that counts, for which objective."""
        done: dict[Place, list[Planned]] = {}
        for layer in self._gather(planned, within_s=60.0)[0]:
            for place, where in layer:
                done.setdefault(place, []).append(where)
        found = []
        for place in dict.fromkeys(place for layer in self._gather(traced, within_s=60.0)[0] for place in layer):
            try:
                text = self.find_trace(place[0], Box.parse(place[1]))
            except StoreError:  # a row with sizes that nobody can have written
                continue
            if text is not None:
                found.append((text, done.get(place, [])))
        return found

    # writes: each is on the disk when it returns True, and in this process alone when it returns False

    def add_plan(self, stored: StoredPlan) -> bool:
        """Store a plan with its evidence; it replaces what was known of the same plan in the same place."""
        return self._put([*self._around(stored.environment, stored.program, stored.run), (schema.PLAN, stored.row())])

    def add_measurements(self, region: Graph, found: Iterable[Measurement]) -> bool:
        """Store what came of running one region."""
        rows: _Rows = [(schema.REGION, region_row(region))]
        for one in found:
            if one.region != region.key:
                raise StoreError(f"a measurement of region {one.region[:12]} came with region {region.key[:12]}")
            rows += [*self._around(one.environment, None, one.run), (schema.MEASUREMENT, one.row())]
        return self._put(rows)

    def add_measurement(self, region: Graph, measurement: Measurement) -> bool:
        """Store one measurement, at once."""
        return self.add_measurements(region, [measurement])

    def add_default_timing(self, timing: DefaultTiming) -> bool:
        """Store how fast a default was."""
        around = self._around(timing.environment, timing.program, timing.run)
        return self._put([*around, (schema.DEFAULT_TIMING, timing.row())])

    def add_verdict(self, stored: StoredPlan, timings: Iterable[DefaultTiming]) -> bool:
        """Store a plan and the defaults that it raced against: a crash leaves all of it, or nothing to measure twice."""
        rows = self._around(stored.environment, stored.program, stored.run)
        for timing in timings:
            rows += [
                *self._around(timing.environment, timing.program, timing.run),
                (schema.DEFAULT_TIMING, timing.row()),
            ]
        return self._put([*rows, (schema.PLAN, stored.row())])

    def add_drift(self, seen: Drift) -> bool:
        """Store how fast a plan was beside the default in production."""
        rows = [*self._around(seen.environment, seen.program, None), (schema.DRIFT, seen.row())]
        return self._write(lambda connection: put_drift(connection, rows, seen.plan))

    def add_program(
        self,
        key: str,
        name: str | None = None,
        graphs: Mapping[str, Graph] | None = None,
        *,
        trace: str | None = None,
        sizes: Box = STATIC,
        calls: int = 0,
    ) -> bool:
        """Store a program: a name for people, its ATen graphs by role, and the trace of it that was seen with `sizes`.

        A trace is what it takes to run the program again: to verify a plan that was made elsewhere, or to tune it anew.
        One that is too long for the database is left out. `calls` says how often the program was called while it was
        recorded; of what was told of one trace the largest number stays.
        """
        rows: _Rows = [(schema.PROGRAM, program_row(key, name))]
        if trace is not None and len(trace) <= MAX_TRACE:
            rows.append((schema.TRACE, trace_row(key, sizes.text, trace, calls)))
        for role, graph in (graphs or {}).items():
            rows.append((schema.GRAPH, graph_row(graph)))
            rows.append((schema.PROGRAM_GRAPH, {"program": key, "graph": graph.key, "role": role}))
        return self._put(rows)

    def add_regions(self, graph: Graph, regions: Sequence[tuple[Graph, int]]) -> bool:
        """Store which regions a graph was cut into, and how often each stands in it."""
        rows: _Rows = [(schema.GRAPH, graph_row(graph))]
        for region, times in regions:
            rows.append((schema.REGION, region_row(region)))
            rows.append((schema.GRAPH_REGION, {"graph": graph.key, "region": region.key, "times": times}))
        return self._put(rows)

    def add_run(self, run: Run) -> bool:
        """Store a run of tuning, or its later state: ``replace(run, state="finished", changed_at=now())``."""
        self._runs[run.key] = run
        return self._put([*self._around(run.environment, run.program, None), (schema.RUN, run.row())])

    def quarantine(self, key: str, why: str) -> bool:
        """Mark a plan, by key, as one that failed here: it is not used again until it is tuned anew."""
        return self.change_plan(key, status="quarantined", detail=why[:4000])

    def pin(self, key: str, word: str | None) -> bool:
        """Note a person's word on a plan: pinned, disabled, or None to take it back."""
        return self.change_plan(key, word=word)

    def change_plan(self, key: str, **changes: str | None) -> bool:
        """Change the standing of a plan, in whichever layer it is: the changed one goes into the user's."""
        found = self.plans(key)
        if len(found) != 1:
            what = "no plan" if not found else f"{len(found)} plans"
            raise StoreError(f"{what} with a key that begins with {key!r}: see fuseplan db info")
        # A word is no news of a plan: taken back, what was raced since must run again, as it did before; and it is of the same run.
        is_word = set(changes) == {"word"}
        after, run = (clock.just_after, found[0].run) if is_word else (clock.after, None)
        changed = replace(found[0], changed_at=after(found[0].changed_at), run=run, **changes)  # type: ignore[arg-type]
        return self.add_plan(changed)

    def fill_in(self, key: str, plan: Plan) -> bool:
        """Write a plan of this key as `plan`, which has the same key and more digests; say whether that is on the disk."""
        found = next((one for one in self.plans(key) if one.key == key and plan.identity == one.plan.identity), None)
        if found is None:
            return False
        return self.add_plan(replace(found, plan=plan, changed_at=clock.just_after(found.changed_at)))

    def plans(self, prefix: str = "") -> list[StoredPlan]:
        """All plans whose key begins with `prefix`, each as the highest layer has it."""
        return self._highest(lambda connection: plans_like(connection, prefix))

    def plans_of(self, program: str) -> list[StoredPlan]:
        """All plans of a program, by key, wherever they are for."""
        return self._highest(lambda connection: plans_of_program(connection, program))

    def graphs(self, program: str) -> list[tuple[str, Graph]]:
        """The ATen graphs of a program with their roles, in the order in which they were stored; damaged ones are left out."""
        found: dict[tuple[str, str], str] = {}
        for layer in self._gather(lambda connection: graphs_of(connection, program), within_s=60.0)[0]:
            found.update({(role, key): text for role, key, text in layer})
        graphs = ((role, readable(text)) for (role, _), text in found.items())
        return [(role, graph) for role, graph in graphs if graph is not None]

    def programs(self, prefix: str) -> set[str]:
        """The keys that begin so of all programs, with and without a name or a plan."""
        found = self._gather(lambda connection: programs_like(connection, prefix), within_s=60.0)[0]
        return {key for layer in found for key in layer}

    def program_names(self) -> dict[str, str]:
        """The name of each program that has one, by key."""
        names: dict[str, str] = {}
        for layer in self._gather(names_of, within_s=60.0)[0]:
            names.update(layer)
        return names

    # counters

    def count(self, event: str, by: int = 1) -> None:
        """Add to the counter of an event."""
        with self._lock:
            self._counts[event] += by

    def counts(self) -> dict[str, int]:
        """How often each thing happened in this process: hits, misses by reason, what others counted here."""
        with self._lock:
            return dict(sorted(self._counts.items()))

    def persist_counts(self, counts: Mapping[str, int] | None = None) -> bool:
        """Add what was counted since the last time to the counters in the file, for the dashboard.

        `counts` are those to keep where others than this store's own are meant.
        """
        with self._lock:
            now = Counter(self._counts if counts is None else counts)
            new, self._persisted = now - self._persisted, now
        rows = [(clock.now()[:10], event, count) for event, count in new.items()]
        return self._write(lambda connection: add_counts(connection, rows)) if rows else True

    # inside

    def _highest(self, ask: Callable[[sqlite3.Connection], list[StoredPlan]]) -> list[StoredPlan]:
        highest = {one.key: one for layer in self._gather(ask, within_s=60.0)[0] for one in layer}
        return sorted(highest.values(), key=lambda stored: stored.key)

    def _remembered(self, key: tuple[object, ...], ask: Callable[[], tuple[_T, bool]]) -> _T:
        """What was answered last, until a file changes. `ask` returns an answer, and whether it is to be kept."""
        known = self._memo.get(key)
        tokens = [database.token() for _, database in self._layers()]
        if known is not None and known[0] == tokens:
            remembered: _T = known[1]
            return remembered
        answer, lasting = ask()
        if len(self._memo) >= _MEMO_SIZE:
            self._memo.clear()
        if lasting:
            self._memo[key] = (tokens, answer)
        return answer

    def _find_plan(self, query: Query) -> tuple[Hit | Stale | Miss, bool]:
        """The answer, and whether it holds until a file changes."""
        try:
            found, trouble = self._candidates(query)
            choice = choose(query, found)
        except Exception as error:  # noqa: BLE001  # whatever a file holds, a program that looks up its plan runs on
            self._raise_for_readers(error)
            return Miss("database unusable", f"{type(error).__name__}: {error}"), False
        if isinstance(choice, Miss) and choice.reason == "no such program" and trouble is not None:
            return trouble, False
        return choice, trouble is None

    def _candidates(self, query: Query) -> tuple[list[UnparsedPlan], Miss | None]:
        """Candidates of all layers for a program, and the trouble with one of them, if any."""
        found: list[UnparsedPlan] = []
        trouble = None
        for rank, (name, database) in enumerate(self._layers()):
            answer = self._ask(database, partial(candidates, query=query, layer=name, rank=rank), LOOKUP_S)
            if isinstance(answer, Miss):
                trouble = answer
            else:
                found += answer
        return found, trouble

    def _put(self, rows: _Rows) -> bool:
        def put(connection: sqlite3.Connection) -> None:
            writer = RowWriter(connection)
            for table, row in rows:
                writer.put(table, row)

        return self._write(put)

    def _around(self, environment: Environment, program: str | None, run: str | None) -> _Rows:
        """The rows that a row refers to: any layer may be the first to hear of them."""
        rows: _Rows = [(schema.ENVIRONMENT, environment.row())]
        if program is not None:
            rows.append((schema.PROGRAM, program_row(program, None)))
        if run in self._runs:
            known = self._runs[run]
            rows += [*self._around(known.environment, known.program, None), (schema.RUN, known.row())]
        return rows


def _kind(answer: Hit | Stale) -> str:
    return "stale hits" if isinstance(answer, Stale) else "hits"
