"""What a run of tuning is going to do, and in which order: the programs that could gain the most come first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from fuseplan.capture.dynamo.numerics import Numerics
from fuseplan.capture.trace.edit import identity
from fuseplan.capture.trace.format import Trace
from fuseplan.capture.trace.key import retarget
from fuseplan.durations import spelled
from fuseplan.errors import OptionError
from fuseplan.graph.words import counted
from fuseplan.models import Machine, Roofline
from fuseplan.objective import TIME, Objective
from fuseplan.tuning.effort import PREDICTED_S, USUAL_SHARE, Effort
from fuseplan.tuning.queue.devices import DeviceKind, Elsewhere, kinds, shifts
from fuseplan.tuning.queue.possible_gain import Gain, expected_gains, guessed_gain
from fuseplan.tuning.queue.shards import ChosenShard
from fuseplan.tuning.queue.sources import Sources
from fuseplan.tuning.traces import EITHER, box_of, check_device, device_of, launches_on, query_of
from fuseplan.tuning_db import Box, Environment, Hit, Miss, Query, Store, StoredPlan
from fuseplan.tuning_db.environment import memory_of
from fuseplan.tuning_db.notify import notify
from fuseplan.tuning_db.resume import is_last_word, measured, usual_seconds

MOST_LOOKED_AT = 2000
"""Calls of all programs together that are looked into, at about a millisecond each; the order of the rest is guessed."""


@dataclass(frozen=True, eq=False)
class Item:
    """One program under one launch, or under either, on one kind of device."""

    trace: Trace
    launch: str
    kind: DeviceKind
    gain: Gain
    seconds: float
    """About how long it will take on one device; nothing where its plan is known."""
    known: StoredPlan | None = None
    """The plan that an earlier run has found."""
    measurements: int = 0
    """What earlier runs on this program have measured, and this one need not."""
    objective: Objective = TIME
    """What its plan is to be chosen by."""

    @property
    def key(self) -> str:
        """The program's key: of one that was retargeted, as far as it is known."""
        return self.trace.key if self.known is None else self.known.program

    @property
    def name(self) -> str:
        """What a person calls it."""
        return self.trace.name or self.key[:12]

    @property
    def sizes(self) -> Box:
        """The sizes that its plan is for."""
        return box_of(self.trace)

    @property
    def worth_us(self) -> float:
        """The time that all its calls together may gain."""
        return self.gain.us * self.trace.times

    @property
    def why(self) -> str:
        """Why it stands where it does."""
        if self.known is not None:
            return f"known: {self.known.standing} since {self.known.changed_at[:10]}"
        calls = counted(self.trace.times, "call")
        if self.gain.source == "guessed":
            return f"{calls} of {counted(len(self.trace.fields['nodes']), 'operation')}"
        return (
            f"{calls} × {self.gain.us:,.1f} µs to gain: {self.gain.default_us:,.1f} µs {self.gain.source},"
            f" {self.gain.least_us:,.1f} at best"
        )


@dataclass(frozen=True)
class Agenda:
    """The items in their order, and where they come from."""

    items: tuple[Item, ...]
    as_given: tuple[Item, ...]
    """The same in the order in which their traces were given."""
    read: int
    """Files and rows that were read."""
    effort: str
    left_out: int = 0
    """Programs that `top` leaves out."""
    chosen: ChosenShard | None = None
    """The shard that this is, where it is not all that was found."""

    @property
    def programs(self) -> int:
        """How many distinct programs there are, at the sizes that plans are for."""
        return len(set(map(_place, self.items))) + self.left_out

    @property
    def devices(self) -> tuple[str, ...]:
        """All that work, in the order in which they were named."""
        return tuple(dict.fromkeys(device for item in self.items for device in item.kind.devices))

    @property
    def seconds(self) -> float:
        """About how long it will take."""
        return seconds_of(self.items)

    def __str__(self) -> str:
        about = f", about {spelled(self.seconds)}" if self.seconds else ""
        return f"{self.read:,} read, {self.programs:,} distinct, {len(self.items):,} to look at{about}"


def seconds_of(items: Iterable[Item]) -> float:
    """About how long these take, each kind of device after the other or beside it."""
    each: dict[DeviceKind, float] = {}
    for item in items:
        each[item.kind] = each.get(item.kind, 0.0) + item.seconds / len(item.kind.devices)
    return sum(max(each[kind] for kind in kinds_at_once) for kinds_at_once in shifts(each))


def agenda_of(
    found: Sources, store: Store, *, effort: str | Effort, launches: Sequence[str], devices: Sequence[str] = (),
    again: bool = False, top: int | None = None, kinds: tuple[str, ...] | None = None, elsewhere: Elsewhere | None = None,
    objective: Objective = TIME,
) -> Agenda:  # fmt: skip
    """What is to be done with the programs that were found, on `devices` or else where each was recorded, here or `elsewhere`; `top`
    keeps so many programs.
    """
    if top is not None and top < 1:
        raise OptionError(f"at least one program is tuned, not {top}")
    spends = Effort.named(effort) if isinstance(effort, str) else effort
    places = _places(found.traces, devices, elsewhere)
    able = {kind: launches_on(kind.environment.device, launches) for kind in places}
    if places and not any(able.values()):
        raise OptionError("CUDA graphs need a GPU: on a CPU the only launch is plain")
    without = sum(len(there) for kind, there in places.items() if not able[kind])
    if without:
        notify(
            f"{counted(without, 'program')} of the CPU {'is' if without == 1 else 'are'} left out: it has no CUDA graphs"
        )
    usual = {kind: usual_s(store, spends, kind.environment) for kind in places}
    items: list[Item] = []
    for kind, there in places.items():
        model = Roofline(Machine.guess(kind.environment.gpu or kind.environment.cpu or ""))
        if elsewhere is not None and kind.environment.gpu_memory_gib is None:
            objective.refuse_share()
        near, chosen_by = _near(there), objective.on(partial(memory_of, kind.environment))
        for trace in there:
            known_as = real_key(trace, store)
            timed = store.find_default_timings(known_as, kind.environment)
            walls = () if isinstance(timed, Miss) else timed
            here = able[kind]
            runs = ["plain" if launch == EITHER else launch for launch in here]  # without a plan
            gains = [guessed_gain(trace)] * len(here)
            if trace.key in near:
                gains = expected_gains(trace, model, runs, walls)
            there_already = measured(store, known_as, kind.environment)
            for launch, gain in zip(here, gains, strict=True):
                known = (
                    None
                    if again
                    else _known(store, query_of(trace, known_as, kind.environment, launch, kinds, chosen_by), spends)
                )
                took = 0.0 if known is not None else usual[kind]
                items.append(Item(trace, launch, kind, gain, took, known, there_already, chosen_by))
    return _ordered(items, found.read, spends.name, top, found.chosen)


def together(parts: Sequence[Agenda], top: int | None = None) -> Agenda:
    """One agenda of several for one effort, each for places of its own; `top` keeps so many programs of all.

    >>> together([Agenda((), (), 2, "instant"), Agenda((), (), 1, "instant")]).read
    3
    """
    items = [item for one in parts for item in one.as_given]
    return _ordered(items, sum(one.read for one in parts), parts[0].effort, top)


def _ordered(
    items: Sequence[Item], read: int, effort: str, top: int | None, chosen: ChosenShard | None = None
) -> Agenda:
    order = sorted(items, key=lambda item: (-item.worth_us, item.trace.key, item.sizes.text, item.launch))
    kept = tuple(_top(order, top))
    kept_all = set(kept)
    as_given = tuple(item for item in items if item in kept_all)
    left_out = len(set(map(_place, items))) - len(set(map(_place, kept)))
    return Agenda(kept, as_given, read, effort, left_out, chosen)


def _near(traces: Iterable[Trace]) -> set[str]:
    """The keys of those that there is time to look into, those first that are called the most."""
    found, looked = set[str](), 0
    for trace in sorted(traces, key=lambda trace: (-trace.times, trace.key)):
        looked += len(trace.fields["nodes"])
        if found and looked > MOST_LOOKED_AT:
            break
        found.add(trace.key)
    return found


def _top(items: Sequence[Item], top: int | None) -> list[Item]:
    """All items of the first `top` programs."""
    chosen = set(list(dict.fromkeys(map(_place, items)))[:top])
    return [item for item in items if _place(item) in chosen]


def _place(item: Item) -> tuple[str, Box]:
    """What makes two items one program."""
    return item.trace.key, item.sizes


def _places(
    traces: Iterable[Trace], devices: Sequence[str], elsewhere: Elsewhere | None
) -> Mapping[DeviceKind, list[Trace]]:
    """The traces by where they are tuned: each on every kind of device that is named, else where it was recorded."""
    found: dict[DeviceKind, list[Trace]] = {}
    alike: dict[Numerics, list[Trace]] = {}
    for trace in traces:
        alike.setdefault(Numerics.of(trace.numerics), []).append(trace)
    for numerics, those in alike.items():
        with numerics.applied():
            found |= _places_of(those, devices) if elsewhere is None else _places_there(those, devices, elsewhere)
    return found


def _places_there(traces: Sequence[Trace], types: Sequence[str], elsewhere: Elsewhere) -> dict[DeviceKind, list[Trace]]:
    """Each trace on every kind of device there of the types that are named, or else of that on which it was recorded."""
    kinds, found = elsewhere.kinds(), dict[DeviceKind, list[Trace]]()
    for trace in traces:
        wanted = types or (device_of(trace).partition(":")[0],)
        able = [kind for kind in kinds if kind.environment.device in wanted]
        if not able:
            raise OptionError(f"there is no device of type {' or '.join(wanted)} in the cluster that can work")
        for kind in able:
            found.setdefault(kind, []).append(retarget(trace, kind.there))
    return found


def _places_of(traces: Sequence[Trace], devices: Sequence[str]) -> dict[DeviceKind, list[Trace]]:
    if devices:
        return {kind: [retarget(trace, kind.devices[0]) for trace in traces] for kind in kinds(devices)}
    recorded = {trace.key: device_of(trace) for trace in traces}
    for device in set(recorded.values()):
        _check_recorded(device)
    found: dict[DeviceKind, list[Trace]] = {}
    for kind in kinds(list(dict.fromkeys(recorded.values()))):
        found[kind] = [trace for trace in traces if recorded[trace.key] in kind.devices]
    return found


def _check_recorded(device: str) -> None:
    try:
        check_device(device)
    except OptionError as error:
        raise OptionError(
            f"some of it was recorded on {device}: {error}; name one that is, as in --device cpu"
        ) from None


def usual_s(store: Store, spends: Effort, here: Environment) -> float:
    """About how long a program takes here: as long as those before it, if there were any."""
    if not spends.measures:
        return PREDICTED_S
    took = usual_seconds(store, spends.name, here)
    return USUAL_SHARE[here.device] * spends.wall_s if took is None else took


def usual_told(store: Store, spends: Effort, here: Environment) -> str:
    """The same for a person. Of an effort whose seconds come after those in which torch.compile compiles the program, these are not known."""
    about = f"about {spelled(usual_s(store, spends, here))}"
    is_known = not spends.over_default or usual_seconds(store, spends.name, here) is not None
    return about if is_known else f"{about} beyond what compiling it takes torch"


def _known(store: Store, query: Query, spends: Effort) -> StoredPlan | None:
    answer = store.find_plan(query)
    return answer.plan if isinstance(answer, Hit) and is_last_word(store, answer.plan, spends.harder) else None


def real_key(trace: Trace, store: Store) -> str:
    """The key that a program goes by once it was captured: of an edited trace only an earlier run can tell."""
    if trace.key != identity(trace.fields):
        return trace.key
    for program, name in store.program_names().items():
        if name == trace.name:
            for text in store.traces(program):
                if identity(Trace.from_json(text).fields) == trace.key:
                    return program
    return trace.key


def described(item: Item) -> dict[str, object]:
    """An item as plain data."""
    known = item.known
    return {
        "program": item.key,
        "name": item.trace.name,
        "launch": item.launch,
        "sizes": item.sizes.text,
        "devices": list(item.kind.devices),
        "calls": item.trace.times,
        "gain_us": round(item.gain.us, 3),
        "default_us": round(item.gain.default_us, 3),
        "least_us": round(item.gain.least_us, 3),
        "source": item.gain.source,
        "why": item.why,
        "known": None if known is None else {"plan": known.key, "status": known.standing, "wall_us": known.wall_us},
        "measurements": item.measurements,
        "seconds": round(item.seconds, 1),
    }
