"""The ledger of a search: one Optuna study per program and environment, asked for points and told what they took.

The tuning database is the truth and the study is made from it anew, so that it needs no storage of its own; with a
storage that outlives the run, optuna-dashboard shows the search while it goes on.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import optuna
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState, create_trial

from fuseplan.errors import OptionError, PlanError
from fuseplan.study.names import Point, Space, decode, encode
from fuseplan.study.sampler import INTERRUPTED, FuseplanSampler, Source, counts, distributions, spelled

SAMPLERS = ("ours", "tpe", "random")
JOURNAL = "journal:"
PATIENCE = 100
"""After so many points in a row that are known or not legal, a sampler is taken to have nothing new to say."""

Facts = Mapping[str, str | float | int | bool | None]
"""What is written beside a value, for people: moves, noise, peak memory."""

_ONE_LEVEL = threading.RLock()


@dataclass(frozen=True)
class Told:
    """What came of a point: its time in µs, or why it has none."""

    value: float | None
    status: str = "ok"


@dataclass(frozen=True)
class PendingTrial:
    """A point that is to be measured, and the trial that waits for its value."""

    number: int
    point: Point
    name: str = ""
    """What the point was called when it was put in the queue, such as the name of a default."""


class Ledger:
    """One study: `ask` gives points that were not measured yet, `tell` writes down what they took.

    >>> from fuseplan.study.names import Point, Space
    >>> ledger = Ledger(Space({}, {}, ("eager", "inductor")), "program", "here")
    >>> ledger.enqueue({"eager": Point("eager"), "inductor": Point("inductor")})
    >>> while (proposal := ledger.ask()) is not None:
    ...     ledger.tell(proposal, 12.5 if proposal.name == "eager" else 7.0)
    >>> ledger.best
    (Point(plan='inductor', launch='plain', anchors='as-is', cuts=()), 7.0)
    """

    def __init__(
        self,
        space: Space,
        program: str,
        environment: str,
        *,
        sampler: str = "ours",
        source: Source | None = None,
        storage: str | None = None,
        seed: int = 0,
    ) -> None:
        """Open the study of a program in an environment, both by their keys, or go on with it where `storage` has it.

        `source` is where our own sampler gets its points. `storage` is what Optuna takes: the URL of a database; or
        `journal:FILE`, which unlike SQLite stands several writers.
        """
        self.space = space
        self._distributions = distributions(space.parameters)
        self._sampler = _sampler(sampler, space, source or (lambda: ()), seed)
        with _quiet():
            self.study = _open(space, program, environment, storage, self._sampler)
        self._told: dict[Point, Told] = {}
        self._running: dict[int, optuna.Trial] = {}
        for trial in self.study.get_trials(deepcopy=False):
            self._remember(trial)

    def enqueue(self, points: Mapping[str, Point]) -> None:
        """Put named points in front: the defaults, before anything is searched. Those the study has seen stay out."""
        with _quiet():
            seen = {spelled(trial) for trial in self.study.get_trials(deepcopy=False) if counts(trial)}
            for name, point in points.items():
                params = encode(self.space, point)
                if frozenset(params.items()) not in seen:
                    self.study.enqueue_trial(params, user_attrs={"name": name})

    def ask(self) -> PendingTrial | None:
        """The next point that nobody measured yet; None when the sampler has no more.

        Points that are known, or not legal, are told at once.
        """
        with _quiet():
            for _ in range(PATIENCE):
                if not self._has_more():
                    return None
                trial = self.study.ask(self._distributions)
                try:
                    point = decode(self.space, trial.params)
                except PlanError as error:
                    self._write(trial, Told(None, "refused"), {"detail": str(error)})
                    continue
                if point not in self._told:
                    self._running[trial.number] = trial
                    return PendingTrial(trial.number, point, str(trial.user_attrs.get("name", "")))
                self._write(trial, self._told[point], {"repeated": True})
        return None

    def tell(self, proposal: PendingTrial, value: float | None, status: str = "ok", facts: Facts | None = None) -> None:
        """Write down what a point took, in µs; or None, with the status that says why.

        A point that is told `interrupted` may be asked for again by a later run.
        """
        told = Told(value, status)
        if status != INTERRUPTED:
            self._told[proposal.point] = told
        with _quiet():
            self._write(self._running.pop(proposal.number), told, dict(facts or {}))

    def add(self, point: Point, value: float | None, status: str = "ok", facts: Facts | None = None) -> None:
        """Add a point that was measured before, out of the tuning database; PlanError if it is not of this space."""
        params = encode(self.space, point)
        if point in self._told:
            return
        self._told[point] = Told(value, status)
        trial = create_trial(
            state=TrialState.COMPLETE if value is not None else TrialState.FAIL,
            value=value,
            params=params,
            distributions=self._distributions,
            user_attrs={"status": status, "stored": True, **(facts or {})},
        )
        with _quiet():
            self.study.add_trial(trial)

    def known(self, point: Point) -> Told | None:
        """What came of a point, if it was told."""
        return self._told.get(point)

    @property
    def best(self) -> tuple[Point, float] | None:
        """The fastest point so far; of several, the one that was told first."""
        found: tuple[Point, float] | None = None
        for point, told in self._told.items():
            if told.value is not None and (found is None or told.value < found[1]):
                found = point, told.value
        return found

    @property
    def best_cut(self) -> Point | None:
        """The fastest of the points so far that are no plans with a name."""
        times = {point: told.value for point, told in self._told.items() if told.value is not None and point.cuts}
        return min(times, key=lambda point: times[point]) if times else None

    def _has_more(self) -> bool:
        if self.study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
            return True
        return not isinstance(self._sampler, FuseplanSampler) or self._sampler.peek(self.study) is not None

    def _write(self, trial: optuna.Trial, told: Told, facts: Facts) -> None:
        for name, fact in {"status": told.status, **facts}.items():
            trial.set_user_attr(name, fact)
        state = TrialState.COMPLETE if told.value is not None else TrialState.FAIL
        self.study.tell(trial, told.value, state)

    def _remember(self, trial: FrozenTrial) -> None:
        """Take over what an earlier run has written into the storage."""
        status = trial.user_attrs.get("status")
        if not counts(trial) or trial.state == TrialState.WAITING or status in (None, "refused"):
            return
        value = trial.value if trial.state == TrialState.COMPLETE else None
        self._told.setdefault(decode(self.space, trial.params), Told(value, status))


def study_name(program: str, environment: str, space: Space) -> str:
    """What a study is called: by its program and environment, and by its space, since Optuna lets no space change."""
    words = json.dumps(sorted(space.parameters.items())).encode()
    return f"fuseplan {program[:16]} on {environment[:16]} ({hashlib.sha256(words).hexdigest()[:8]})"


def check_sampler(name: str) -> None:
    """OptionError unless there is such a sampler.

    >>> check_sampler("tpe")
    """
    if name not in SAMPLERS:
        raise OptionError(f"there is no sampler {name!r}; known are {', '.join(SAMPLERS)}")


def check_storage(storage: str | None) -> None:
    """OptionError unless studies can be kept there. It is made, if it is not there yet."""
    with _quiet(), _usable():
        if (kept := _storage(storage)) is not None:
            optuna.get_all_study_names(kept)


def _sampler(name: str, space: Space, source: Source, seed: int) -> BaseSampler:
    check_sampler(name)
    if name == "ours":
        return FuseplanSampler(space.parameters, source)
    return TPESampler(seed=seed) if name == "tpe" else RandomSampler(seed=seed)


def _open(space: Space, program: str, environment: str, storage: str | None, sampler: BaseSampler) -> optuna.Study:
    with _usable():
        study = optuna.create_study(
            storage=_storage(storage),
            sampler=sampler,
            study_name=study_name(program, environment, space),
            direction="minimize",
            load_if_exists=True,
        )
        if study.user_attrs.get("program") != program:  # each of these is a write
            study.set_user_attr("program", program)
            study.set_user_attr("environment", environment)
    return study


@contextmanager
def _usable() -> Iterator[None]:
    try:
        yield
    except _storage_errors() as error:
        # The URL stays out of it: there may be a password in it.
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise OptionError(f"the storage of the study cannot be used: {reason}") from None


def _storage_errors() -> tuple[type[Exception], ...]:
    from sqlalchemy.exc import SQLAlchemyError  # 0.1 s that only a broken storage is worth

    return (SQLAlchemyError, optuna.exceptions.OptunaError, ImportError, OSError, ValueError)


def _storage(storage: str | None) -> str | BaseStorage | None:
    if storage is not None and storage.startswith(JOURNAL):
        return JournalStorage(JournalFileBackend(storage.removeprefix(JOURNAL)))
    return storage


@contextmanager
def _quiet() -> Iterator[None]:
    """Optuna reports every trial on stderr; the program that uses us may have a study of its own, and keeps its level.

    One thread at a time, since the level is one for all: each device tunes in a thread of its own.
    """
    with _ONE_LEVEL:
        level = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(max(level, optuna.logging.WARNING))
        try:
            yield
        finally:
            optuna.logging.set_verbosity(level)
