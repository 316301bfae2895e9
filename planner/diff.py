"""`diff`: what is faster, slower or otherwise run in one set of plans than in another: two plans, environments or databases."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fuseplan.errors import OptionError, PlanError, StoreError
from fuseplan.looking.apart import plans_apart
from fuseplan.looking.kernels import are_alike, kernel_changes, kernel_fields, kernel_lines
from fuseplan.looking.subject import cut_of, graphs_for, opened, rank
from fuseplan.looking.words import describe, device_of, fields_of, share, table, times, us
from fuseplan.noise import RaceTime
from fuseplan.segment.moves import moves_between
from fuseplan.tuning_db import Environment, Places, Store, StoredPlan
from fuseplan.tuning_db.environment import FLAGS, HARDWARE
from fuseplan.tuning_db.pairs import VERDICTS, Pair, PairKey, pairs_of
from fuseplan.tuning_db.profile_evidence import ProfileEvidence
from fuseplan.tuning_db.words import Listed, listed, summary


@dataclass(frozen=True)
class BestDefault:
    """The best default beside a plan, as timed in the race of that."""

    timed: RaceTime
    plan: str | None


@dataclass(frozen=True, repr=False)
class Diff:
    """The pairs, those first that matter most; and for two plans what differs between them."""

    pairs: tuple[Pair[Listed], ...]
    differences: tuple[str, ...] = ()
    """Of two plans: where they were made, and the moves from the first to the second."""
    kernels: bool = False
    """Whether kernels are told of programs that differ by no more than the noise, too."""

    def __str__(self) -> str:
        return "\n".join(self._lines())

    __repr__ = __str__  # what a notebook shows

    def as_dict(self) -> dict[str, Any]:
        """The same as plain data, for JSON."""
        return {"pairs": [_fields(pair) for pair in self.pairs], "differences": list(self.differences)}

    def _lines(self) -> Iterator[str]:
        if not self.pairs:
            yield "neither side has a plan"
            return
        rows = [("program", "launch", "sizes", "first", "second", "times as long", "noise", "verdict", "plan")]
        yield from table([*rows, *map(_row, self.pairs)], right={3, 4, 5, 6})
        yield from self.differences
        yield from _default_lines(self.pairs)
        for pair in self.pairs:
            yield from _kernel_lines(pair, every=self.kernels)
        counts = {word: sum(pair.verdict == word for pair in self.pairs) for word in VERDICTS}
        told = [f"{times} {word}" for word, times in counts.items() if times]
        yield ", ".join([*told, f"{sum(pair.changed is True for pair in self.pairs)} with another plan"])


def diff(first: str | Path, second: str | Path, *, db: str | Path | None = None, kernels: bool = False) -> Diff:
    """Compare two sets of plans: what is faster or slower in the second, beyond noise, and which plans are others.

    A side is a database file; or, of the database `db`, the beginning of a plan's key or of an environment's, as
    `fuseplan db info` shows them; or all that was tuned under one release, such as `torch==2.13.0`, `triton==3.7` or
    `nvfuser==0.2.36`: then programs are compared that one machine has under both, with the kernels that changed. What was not timed in one race may differ by some percent though nothing has changed;
    the noise of a pair allows for that. `kernels` tells also of programs by which kernels they differ that do not beyond the noise.

    >>> diff("here.db", "there.db")
    Traceback (most recent call last):
    ...
    fuseplan.errors.StoreError: 'here.db' is no file, and no plan or environment has a key that begins so
    """
    with opened(db) as store:
        sides = [_side(store, str(text)) for text in (first, second)]
        kinds = {isinstance(side, Listed) for side in sides}
        if len(kinds) > 1:
            raise OptionError("a plan is compared with a plan, and a database or an environment with another")
        one, two = sides
        if isinstance(one, Listed) and isinstance(two, Listed):
            key = PairKey(
                one.stored.program, one.stored.launch, one.stored.sizes.text, objective=str(one.stored.objective)
            )
            return Diff((Pair(key, one, two),), tuple(_between(store, one.stored, two.stored)), kernels)
        assert not isinstance(one, Listed)
        assert not isinstance(two, Listed)
        by_release = any(_release(str(text)) for text in (first, second))
        return Diff(tuple(sorted(_pairs(one, two, by_release), key=_weight)), kernels=kernels)


def _side(store: Store, text: str) -> Listed | list[Listed]:
    if os.path.lexists(text):
        other = Store(Places(Path(text)), reading=True)  # without the layers that any other would have, too
        try:
            return listed(other.required())
        finally:
            other.close()
    every = listed(store)
    if (release := _release(text)) is not None:
        found = [one for one in every if _has(one.stored.environment, *release)]
        if not found:
            raise StoreError(f"no plan was tuned under {text}: fuseplan db info lists the environments that there are")
        return found
    plans = [one for one in every if text and one.stored.key.startswith(text)]
    there = {one.stored.environment for one in every if text and one.stored.environment.key.startswith(text)}
    if len(plans) == 1 and not there:
        return plans[0]
    if len(there) == 1 and not plans:
        return [one for one in every if one.stored.environment in there]
    if not plans and not there:
        raise StoreError(f"{text!r} is no file, and no plan or environment has a key that begins so")
    raise StoreError(
        f"{len(plans) + len(there)} plans and environments have keys that begin with {text!r}: give more of it"
    )


def _release(text: str) -> tuple[str, str] | None:
    """What is released, and its version, of a text such as `torch==2.13.0`.

    >>> _release("torch==2.13.0"), _release("3f2c")
    (('torch', '2.13.0'), None)
    """
    name, is_one, version = text.partition("==")
    return (name.strip().lower(), version.strip()) if is_one and name and version.strip() else None


def _has(place: Environment, name: str, version: str) -> bool:
    """Whether something of this version is there; 2.13 is any 2.13.x, of whichever build."""
    known = {"torch": place.torch, "cuda": place.cuda or ""}
    for executor, told in place.versions:
        known.setdefault(executor, told)
        known |= {word: number for word, _, number in (part.partition(" ") for part in told.split(", ")) if number}
    found = known.get(name, "")
    return found == version or found.startswith((f"{version}+", f"{version}."))


def _pairs(first: Sequence[Listed], second: Sequence[Listed], by_machine: bool) -> list[Pair[Listed]]:
    """Pair the plans that would run: by program, launch, sizes and objective, and by machine where both sides know it."""
    if by_machine:
        return pairs_of(*(_best_of_machines(side) for side in (first, second)))
    shared = {each.stored.environment.key for each in first} & {each.stored.environment.key for each in second}
    return pairs_of(_best(first, shared), _best(second, shared))


def _best_of_machines(plans: Sequence[Listed]) -> dict[PairKey, Listed]:
    """The plan that would run, of each program, launch, box of sizes and machine, as that computes."""

    def place_of(stored: StoredPlan) -> str:
        return "|".join(str(getattr(stored.environment, name)) for name in (*HARDWARE, *FLAGS))

    return _best_by(plans, place_of)


def _best(plans: Sequence[Listed], shared: set[str]) -> dict[PairKey, Listed]:
    """The plan that would run, of each program, launch and box of sizes."""

    def place_of(stored: StoredPlan) -> str:
        place = stored.environment.key if stored.environment.key in shared else device_of(stored.environment)
        return place if shared else ""

    return _best_by(plans, place_of)


def _best_by(plans: Sequence[Listed], place_of: Callable[[StoredPlan], str]) -> dict[PairKey, Listed]:
    found: dict[PairKey, Listed] = {}
    for one in plans:  # the latest first
        stored = one.stored
        if stored.standing in ("quarantined", "disabled"):
            continue
        place = place_of(stored)
        key = PairKey(stored.program, stored.launch, stored.sizes.text, place, objective=str(stored.objective))
        if key not in found or rank(one) < rank(found[key]):
            found[key] = one
    return found


def _weight(pair: Pair[Listed]) -> tuple[int, float, str]:
    ratio = pair.ratio
    return VERDICTS.index(pair.verdict), 0.0 if ratio is None else -abs(ratio - 1), pair.known.program


def default_of(pair: Pair[Listed]) -> Pair[BestDefault]:
    """The best defaults beside the plans of a pair: what a new version does to those who tune nothing."""
    sides = [None if one is None else _best_default(one.stored) for one in (pair.first, pair.second)]
    return Pair(pair.key._replace(what="the best default"), *sides)


def _best_default(stored: StoredPlan) -> BestDefault | None:
    if stored.best_default_us is None or stored.timed.us is None:
        return None
    return BestDefault(replace(stored.timed, us=stored.best_default_us), stored.best_default)


def profiles_of(pair: Pair[Listed]) -> tuple[ProfileEvidence, ProfileEvidence] | None:
    """Where the time of a program goes on either side; None where nobody has looked on both."""
    profiles = [None if one is None else one.stored.evidence.profile for one in (pair.first, pair.second)]
    first, second = profiles
    return None if first is None or second is None else (first, second)


def _default_lines(pairs: Sequence[Pair[Listed]]) -> Iterator[str]:
    """What became of the best defaults, where any differs beyond the noise."""
    rows: list[tuple[str, ...]] = [
        ("under the best default", "launch", "first", "second", "times as long", "noise", "verdict")
    ]
    for pair in pairs:
        one = default_of(pair)
        if one.verdict not in ("slower", "faster"):
            continue
        sides = ["-" if side is None else f"{us(side.timed.us)} {side.plan}" for side in (one.first, one.second)]
        rows.append(
            (pair.known.program, pair.known.stored.slot, *sides, times(one.ratio), share(one.noise), one.verdict)
        )  # fmt: skip
    if len(rows) > 1:
        yield from table(rows, right={4, 5})


def _kernel_lines(pair: Pair[Listed], *, every: bool) -> Iterator[str]:
    """By which kernels a program is slower or faster, where it is, or its default, or where that is asked of `every` one."""
    changed = {pair.verdict, default_of(pair).verdict} & {"slower", "faster"}
    profiles = profiles_of(pair)
    if not (changed or every) or pair.first is None or pair.second is None:
        return
    if profiles is None:
        yield f"{pair.known.program}: nobody has looked on both sides by which kernels: tune --profile does, and --stale"
        return
    first, *rest = kernel_lines(*profiles)
    yield f"{pair.known.program}: {first}"
    yield from rest


def _fields(pair: Pair[Listed]) -> dict[str, Any]:
    """A pair as plain data."""
    sides, default, profiles = {"first": pair.first, "second": pair.second}, default_of(pair), profiles_of(pair)
    return {
        "program": pair.known.program, "verdict": pair.verdict, "ratio": pair.ratio, "noise": pair.noise,
        "changed": pair.changed is True, **{name: one and fields_of(one) for name, one in sides.items()},
        "default": {"verdict": default.verdict, "ratio": default.ratio},
        "apart": [] if pair.first is None or pair.second is None else [
            one.line for one in plans_apart(pair.first.stored, pair.second.stored)
        ],
        "kernels": None if profiles is None or not are_alike(*profiles) else list(map(kernel_fields, kernel_changes(*profiles))),
    }  # fmt: skip


def _row(pair: Pair[Listed]) -> tuple[str, ...]:
    known = pair.known
    sides = ["-" if one is None else us(one.stored.wall_us) for one in (pair.first, pair.second)]
    who = ["none" if one is None else summary(one.stored.plan) for one in (pair.first, pair.second)]
    plan = f"{who[0]} -> {who[1]}" if who[0] != who[1] else f"{who[0]}{', cut anew' if pair.changed else ''}"
    return (
        known.program, known.stored.slot, known.stored.sizes.short or "-", *sides, times(pair.ratio),
        share(pair.noise) if pair.ratio is not None else "-", pair.verdict, plan,
    )  # fmt: skip


def _between(store: Store, first: StoredPlan, second: StoredPlan) -> Iterator[str]:
    """What two plans differ in."""
    if first.program != second.program:
        yield f"they are of two programs: {first.program[:12]} and {second.program[:12]}"
    yield from _places(first.environment, second.environment)
    one, two = describe(first.plan), describe(second.plan)
    yield f"plan: {one}" if one == two else f"plan: {one} -> {two}"
    if first.plan == second.plan:
        yield "the plans are equal"
    elif first.program == second.program:
        yield from (difference.line for difference in plans_apart(first, second))
        yield from _moves(store, first, second)


def _places(first: Environment, second: Environment) -> Iterator[str]:
    executors = first.executors | second.executors
    everything, rest = first.differences(second, executors), first.other_differences(second, executors)
    yield from (f"made with other {difference}" for difference in (*everything, *rest))


def _moves(store: Store, first: StoredPlan, second: StoredPlan) -> Iterator[str]:
    graphs = store.graphs(first.program)
    for role, graph in graphs_for(second.plan, tuple(graphs)):
        start, target = (cut_of(stored.plan, role, graph) for stored in (first, second))
        if start is None or target is None:
            continue
        try:
            moves = moves_between(graph, start, target)
        except PlanError as error:
            yield f"{role}: {error}"
            continue
        yield from (replace(move, role=role).line for move in moves)
        if not moves:
            yield f"{role}: cut alike"
