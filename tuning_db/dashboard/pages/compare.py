"""Two environments, two databases or two runs side by side: what got faster, slower, or another plan."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from fuseplan.noise import ACROSS, Comparison, RaceTime, compared, relative
from fuseplan.tuning_db.dashboard.ask import Ask, Filters, NotThere, Param
from fuseplan.tuning_db.dashboard.changed_kernels import ChangedKernels, changed_kernels
from fuseplan.tuning_db.dashboard.charts import Figure
from fuseplan.tuning_db.dashboard.formats import launched, sizes, times, us
from fuseplan.tuning_db.dashboard.page import Page
from fuseplan.tuning_db.dashboard.queries import compare as query
from fuseplan.tuning_db.dashboard.queries.slots import slots
from fuseplan.tuning_db.dashboard.reader import Reader
from fuseplan.tuning_db.dashboard.table import Cell, ShownColumn
from fuseplan.tuning_db.pairs import VERDICTS, Pair, PairKey, pairs_of

KINDS = ("environments", "databases", "runs")
SHOWN = 200
_DRAWN = 3000


@dataclass(frozen=True)
class ComparedProgram:
    """What one side knows of a program."""

    title: str
    timed: RaceTime
    best_us: float | None = None
    plan: str | None = None
    """Equal for equal plans."""
    plan_key: str | None = None
    """The key of the plan, whose evidence tells where the time goes."""


@dataclass(frozen=True)
class Line:
    """One pair as the page shows it: `ratio` is how many times as fast B is as A."""

    pair: Pair[ComparedProgram]

    @property
    def title(self) -> str:
        """Its name on B, else on A."""
        return (self.pair.second or self.pair.known).title

    @property
    def a(self) -> ComparedProgram:
        """What stands under A."""
        return self.pair.first or NOTHING

    @property
    def b(self) -> ComparedProgram:
        """What stands under B."""
        return self.pair.second or NOTHING

    @property
    def ratio(self) -> float | None:
        """How many times as fast B is as A."""
        return 1 / self.pair.ratio if self.pair.ratio is not None else None

    @property
    def verdict(self) -> str:
        """The verdict on B, as the page words it."""
        return WORDS.get(self.pair.verdict, self.pair.verdict)

    @property
    def changed(self) -> str | None:
        """Whether it runs under another plan."""
        return {True: "changed", False: "same", None: None}[self.pair.changed]


NOTHING = ComparedProgram("", RaceTime(None))
WORDS = {"only first": "only in A", "only second": "only in B", "unknown": "not raced"}
COLUMNS: tuple[ShownColumn[Line], ...] = (
    ShownColumn("program", "Program", "text", lambda line: line.title),
    ShownColumn("what", "Of it", "text", lambda line: line.pair.key.what),
    ShownColumn("launch", "Launch", "text", lambda line: launched(line.pair.key.launch, line.pair.key.objective)),
    ShownColumn("sizes", "Sizes", "text", lambda line: sizes(line.pair.key.sizes) if line.pair.key.sizes else None),
    ShownColumn("a_us", "A", "us", lambda line: line.a.timed.us),
    ShownColumn("b_us", "B", "us", lambda line: line.b.timed.us),
    ShownColumn("ratio", "B over A", "times", lambda line: line.ratio),
    ShownColumn("band", "Noise", "percent", lambda line: line.pair.noise if line.ratio is not None else None),
    ShownColumn("verdict", "Verdict", "text", lambda line: line.verdict),
    ShownColumn("changed", "Plan", "text", lambda line: line.changed),
    ShownColumn("a_best_us", "A's best default", "us", lambda line: line.a.best_us),
    ShownColumn("b_best_us", "B's best default", "us", lambda line: line.b.best_us),
    ShownColumn("key", "Key", "text", lambda line: line.pair.key.program),
)  # fmt: skip


@dataclass(frozen=True)
class ListEntry:
    """One entry of a list to choose from."""

    key: str
    title: str


@dataclass(frozen=True)
class ComparePage:
    """All that the page shows."""

    kind: str
    choices: tuple[ListEntry, ...]
    a: ListEntry | None = None
    b: ListEntry | None = None
    lines: tuple[Line, ...] = ()
    kinds: tuple[str, ...] = KINDS
    across: float = ACROSS
    trouble: str = ""
    kernels: tuple[ChangedKernels, ...] = ()
    """Of programs that differ, by which kernels."""

    columns = COLUMNS

    @property
    def rows(self) -> Sequence[Sequence[Cell]]:
        """Table of all pairs, for a download."""
        return [[column.value(line) for column in COLUMNS] for line in self.lines]

    @property
    def shown(self) -> tuple[Line, ...]:
        """Lines that stand on the page."""
        return self.lines[:SHOWN]

    def number(self, verdict: str) -> int:
        """How many came out so."""
        return sum(line.verdict == verdict for line in self.lines)

    @property
    def changed(self) -> int:
        """How many have another plan."""
        return sum(line.pair.changed is True for line in self.lines)

    @property
    def both(self) -> tuple[Line, ...]:
        """Lines that were timed on both sides."""
        return tuple(line for line in self.lines if line.ratio is not None)

    @property
    def geomean(self) -> float | None:
        """How many times as fast B is as A."""
        return _geomean([line.ratio for line in self.both if line.ratio])

    @property
    def geomean_default(self) -> float | None:
        """How many times as fast the best defaults are: what of it is the machine and its versions."""
        return _geomean([
            line.a.best_us / line.b.best_us for line in self.both if line.a.best_us and line.b.best_us
        ])  # fmt: skip

    @property
    def verdict(self) -> Comparison:
        """Whether B is faster on the whole."""
        return compared(1.0, self.geomean, ACROSS)

    @property
    def figure(self) -> Figure | None:
        """Every pair, by how long it takes."""
        return _figure(self.both) if self.both else None


def _geomean(ratios: Sequence[float]) -> float | None:
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None


def load(reader: Reader, ask: Ask) -> ComparePage:
    """Find both sides, or say what to choose from."""
    places = reader.read(query.places)
    listed = reader.read(query.runs)
    kind = ask["kind"] or _first_kind(reader, places, listed)
    choices = {
        "environments": lambda: tuple(ListEntry(one.key, one.title) for one in _distinct(places)),
        "databases": lambda: tuple(ListEntry(name, name) for name in reader.others or {reader.name: reader}),
        "runs": lambda: tuple(ListEntry(one.key, one.title) for one in listed),
    }[kind]()
    a, b = _sides(reader, kind, choices, ask, listed)
    page = ComparePage(kind, choices, a, b)
    if a is None or b is None:
        return page
    before, after = _slots(reader, kind, a.key, ask.filters), _slots(reader, kind, b.key, ask.filters)
    lines = lines_of(before, after)
    sources = [reader.others.get(side.key, reader) if kind == "databases" else reader for side in (a, b)]
    changed = changed_kernels(sources[0], sources[1], [_keys_of(one) for one in lines if _differs(one)])
    return ComparePage(kind, choices, a, b, lines, kernels=changed)


def _differs(line: Line) -> bool:
    """Whether it is faster or slower beyond the noise, or its best default is."""
    defaults = compared(line.b.best_us, line.a.best_us, line.pair.noise)
    return not {line.verdict, defaults}.isdisjoint(("slower", "faster"))


def _keys_of(line: Line) -> tuple[str, str | None, str | None]:
    return line.title, line.a.plan_key, line.b.plan_key


def lines_of(a: Mapping[PairKey, ComparedProgram], b: Mapping[PairKey, ComparedProgram]) -> tuple[Line, ...]:
    """Pairs of both sides as lines, the one that differs most first."""
    return tuple(sorted(map(Line, pairs_of(a, b)), key=_order))


def _order(line: Line) -> tuple[int, float, str, str]:
    differs = 0 if line.verdict in ("slower", "faster") else 1 + VERDICTS.index(line.pair.verdict)
    return differs, -abs(math.log(line.ratio)) if line.ratio else 0.0, line.title, line.pair.key.program


def _first_kind(reader: Reader, places: Sequence[query.EnvironmentLine], listed: Sequence[query.RunLine]) -> str:
    if len(places) > 1:
        return "environments"
    if len(reader.others) > 1:
        return "databases"
    return "runs" if len(listed) > 1 else "environments"


def _distinct(places: Sequence[query.EnvironmentLine]) -> list[query.EnvironmentLine]:
    """Titles that tell them apart: where two are equal, the beginning of the key stands beside the torch version."""
    titles = [one.title for one in places]
    return [
        replace(one, torch=f"{one.torch} ({one.key[:6]})") if titles.count(one.title) > 1 else one for one in places
    ]


def _sides(
    reader: Reader, kind: str, choices: Sequence[ListEntry], ask: Ask, listed: Sequence[query.RunLine]
) -> tuple[ListEntry | None, ListEntry | None]:
    """What is asked for, else the two latest that have something in common: the older is A."""
    known = {choice.key: choice for choice in choices}
    given = [ask["a"], ask["b"]]
    for key in given:
        if key and key not in known:
            found = reader.read(partial(query.runs, key=key)) if kind == "runs" else []
            if not found:
                raise NotThere(f"there is no such side of {kind} to compare")
            known[key] = ListEntry(key, found[0].title)
    if all(given):
        return known[given[0]], known[given[1]]
    first, second = _guess(kind, choices, reader, listed)
    return known.get(given[0], first), known.get(given[1], second)


def _guess(
    kind: str, choices: Sequence[ListEntry], reader: Reader, listed: Sequence[query.RunLine]
) -> tuple[ListEntry | None, ListEntry | None]:
    if kind == "runs":
        latest: dict[str, query.RunLine] = {}
        for run in listed:  # the latest first
            if run.state == "finished" and run.program in latest:
                return ListEntry(run.key, run.title), ListEntry(latest[run.program].key, latest[run.program].title)
            if run.state == "finished":
                latest[run.program] = run
        return None, None
    if len(choices) < 2:
        return None, None
    if kind == "databases":
        return choices[0], choices[1]
    return choices[1], choices[0]


def _slots(reader: Reader, kind: str, key: str, filters: Filters) -> dict[PairKey, ComparedProgram]:
    """What stands on one side, by what makes two comparable."""
    if kind == "runs":
        return _of_run(reader, key)
    source = reader.others.get(key, reader) if kind == "databases" else reader
    found = source.remembered(("slots", filters), lambda connection: slots(connection, filters))
    digests = source.remembered("plan digests", query.plan_digests)
    own = [slot for slot in found if kind == "databases" or slot.environment == key]
    return {
        PairKey(slot.program, slot.launch, slot.sizes, slot.environment if kind == "databases" else "", objective=slot.objective):
        ComparedProgram(slot.title, slot.timed, slot.best_us, digests.get(slot.plan or ""), slot.plan)
        for slot in own if slot.plan_us or slot.best_us
    }  # fmt: skip


def _of_run(reader: Reader, key: str) -> dict[PairKey, ComparedProgram]:
    (line,) = reader.read(partial(query.runs, key=key))
    results = reader.read(lambda connection: query.results(connection, key))
    named = line.name or line.program[:12]
    return {
        PairKey(line.program, one.launch, one.sizes, what=one.what, objective=one.objective):
        ComparedProgram(named, RaceTime(one.wall_us, relative(one.noise_us, one.wall_us), (key, one.sizes)), plan=one.plan)
        for one in results if one.status == "ok" and one.wall_us
    }  # fmt: skip


def _figure(both: Sequence[Line]) -> Figure:
    step = max(1, len(both) // _DRAWN)
    chosen = both[::step]
    traces = []
    for verdict, color in (("faster", "var(--good-fill)"), ("same", "var(--same)"), ("slower", "var(--bad-fill)")):
        own = [line for line in chosen if line.verdict == verdict]
        if own:
            traces.append({
                "type": "scatter", "mode": "markers", "name": verdict, "marker": {"color": color, "size": 8, "opacity": 0.8},
                "x": [line.a.timed.us for line in own], "y": [line.ratio for line in own],
                "text": [_hover(line) for line in own], "hovertemplate": "%{text}<extra></extra>",
            })  # fmt: skip
    layout = {
        "xaxis": {"type": "log", "title": {"text": "a call in A, µs"}, "tickformat": "~s"},
        "yaxis": {"type": "log", "title": {"text": "B over A: up is faster"}, "ticksuffix": "×", "tickformat": ".3~g", "nticks": 6},
        "shapes": [{"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 1, "y1": 1, "line": {"color": "var(--muted)", "dash": "dot", "width": 1}}],
    }  # fmt: skip
    rows = [(line.title, us(line.a.timed.us), us(line.b.timed.us), times(line.ratio)) for line in both[:50]]
    title = "Every program, B over A" if len({line.pair.key.what for line in both}) == 1 else "Every timing, B over A"
    return Figure("pairs", title, traces, layout, ("program", "A", "B", "B over A"), rows)


def _hover(line: Line) -> str:
    name = f"{line.title[:60]}, {line.pair.key.what}".replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return f"{name}<br>{us(line.a.timed.us)} → {us(line.b.timed.us)}, {times(line.ratio)}"


PAGE = Page(
    "compare", "Compare", "compare.html", load,
    (Param("kind", f"({'|'.join(KINDS)})?"), Param("a"), Param("b")), nav="Compare",
)  # fmt: skip
