"""Two environments, two databases or two runs side by side: what got faster, slower, or another plan."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from fuseplan.tuning_db.dashboard.ask import Ask, Filters, NotThere, Param
from fuseplan.tuning_db.dashboard.charts import Figure
from fuseplan.tuning_db.dashboard.formats import sizes, times, us
from fuseplan.tuning_db.dashboard.page import Page
from fuseplan.tuning_db.dashboard.pairs import ACROSS, Pair, Side, pairs_of
from fuseplan.tuning_db.dashboard.queries import compare as query
from fuseplan.tuning_db.dashboard.queries.slots import Slot, slots
from fuseplan.tuning_db.dashboard.reader import Reader
from fuseplan.tuning_db.dashboard.table import Cell, Column

KINDS = ("environments", "databases", "runs")
SHOWN = 200
_DRAWN = 3000

COLUMNS: tuple[Column[Pair], ...] = (
    Column("program", "Program", "text", lambda pair: pair.title),
    Column("what", "Of it", "text", lambda pair: pair.what),
    Column("launch", "Launch", "text", lambda pair: pair.launch),
    Column("sizes", "Sizes", "text", lambda pair: sizes(pair.sizes) if pair.sizes else None),
    Column("a_us", "A", "us", lambda pair: pair.a.us if pair.a else None),
    Column("b_us", "B", "us", lambda pair: pair.b.us if pair.b else None),
    Column("ratio", "B over A", "times", lambda pair: pair.ratio),
    Column("band", "Noise", "percent", lambda pair: pair.band if pair.ratio is not None else None),
    Column("verdict", "Verdict", "text", lambda pair: pair.verdict),
    Column("changed", "Plan", "text", lambda pair: None if pair.changed is None else "changed" if pair.changed else "same"),
    Column("a_best_us", "A's best default", "us", lambda pair: pair.a.best_us if pair.a else None),
    Column("b_best_us", "B's best default", "us", lambda pair: pair.b.best_us if pair.b else None),
    Column("key", "Key", "text", lambda pair: pair.program),
)  # fmt: skip


@dataclass(frozen=True)
class Choice:
    """One entry of a list to choose from."""

    key: str
    title: str


@dataclass(frozen=True)
class ComparePage:
    """All that the page shows."""

    kind: str
    choices: tuple[Choice, ...]
    a: Choice | None = None
    b: Choice | None = None
    pairs: tuple[Pair, ...] = ()
    kinds: tuple[str, ...] = KINDS
    across: float = ACROSS
    trouble: str = ""

    columns = COLUMNS

    @property
    def rows(self) -> Sequence[Sequence[Cell]]:
        """All pairs as a table, for a download."""
        return [[column.value(pair) for column in COLUMNS] for pair in self.pairs]

    @property
    def shown(self) -> tuple[Pair, ...]:
        """Those that stand on the page."""
        return self.pairs[:SHOWN]

    def number(self, verdict: str) -> int:
        """How many came out so."""
        return sum(pair.verdict == verdict for pair in self.pairs)

    @property
    def changed(self) -> int:
        """How many have another plan."""
        return sum(pair.changed is True for pair in self.pairs)

    @property
    def both(self) -> tuple[Pair, ...]:
        """Those that were timed on both sides."""
        return tuple(pair for pair in self.pairs if pair.ratio is not None)

    @property
    def geomean(self) -> float | None:
        """How many times as fast B is as A."""
        logs = [math.log(pair.ratio) for pair in self.both if pair.ratio]
        return math.exp(sum(logs) / len(logs)) if logs else None

    @property
    def geomean_default(self) -> float | None:
        """The same of the best defaults: how much of it is the machine and its versions."""
        ratios = [
            pair.a.best_us / pair.b.best_us
            for pair in self.both
            if pair.a and pair.b and pair.a.best_us and pair.b.best_us
        ]
        return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None

    @property
    def figure(self) -> Figure | None:
        """Every pair, by how long it takes."""
        return _figure(self.both) if self.both else None


def load(reader: Reader, ask: Ask) -> ComparePage:
    """Find both sides, or say what to choose from."""
    places = reader.read(query.places)
    listed = reader.read(query.runs)
    kind = ask["kind"] or _first_kind(reader, places, listed)
    choices = {
        "environments": lambda: tuple(Choice(one.key, one.title) for one in _distinct(places)),
        "databases": lambda: tuple(Choice(name, name) for name in reader.others or {reader.name: reader}),
        "runs": lambda: tuple(Choice(one.key, one.title) for one in listed),
    }[kind]()
    a, b = _sides(reader, kind, choices, ask, listed)
    page = ComparePage(kind, choices, a, b)
    if a is None or b is None:
        return page
    before, after = _slots(reader, kind, a.key, ask.filters), _slots(reader, kind, b.key, ask.filters)
    return ComparePage(kind, choices, a, b, pairs_of(before, after))


def _first_kind(reader: Reader, places: Sequence[query.Place], listed: Sequence[query.RunLine]) -> str:
    if len(places) > 1:
        return "environments"
    if len(reader.others) > 1:
        return "databases"
    return "runs" if len(listed) > 1 else "environments"


def _distinct(places: Sequence[query.Place]) -> list[query.Place]:
    """Titles that tell them apart: where two are equal, the beginning of the key stands beside the torch version."""
    titles = [one.title for one in places]
    return [
        replace(one, torch=f"{one.torch} ({one.key[:6]})") if titles.count(one.title) > 1 else one for one in places
    ]


def _sides(
    reader: Reader, kind: str, choices: Sequence[Choice], ask: Ask, listed: Sequence[query.RunLine]
) -> tuple[Choice | None, Choice | None]:
    """What is asked for, else the two latest that have something in common: the older is A."""
    known = {choice.key: choice for choice in choices}
    given = [ask["a"], ask["b"]]
    for key in given:
        if key and key not in known:
            found = reader.read(partial(query.runs, key=key)) if kind == "runs" else []
            if not found:
                raise NotThere(f"there is no such side of {kind} to compare")
            known[key] = Choice(key, found[0].title)
    if all(given):
        return known[given[0]], known[given[1]]
    first, second = _guess(kind, choices, reader, listed)
    return known.get(given[0], first), known.get(given[1], second)


def _guess(
    kind: str, choices: Sequence[Choice], reader: Reader, listed: Sequence[query.RunLine]
) -> tuple[Choice | None, Choice | None]:
    if kind == "runs":
        latest: dict[str, query.RunLine] = {}
        for run in listed:  # the latest first
            if run.state == "finished" and run.program in latest:
                return Choice(run.key, run.title), Choice(latest[run.program].key, latest[run.program].title)
            if run.state == "finished":
                latest[run.program] = run
        return None, None
    if len(choices) < 2:
        return None, None
    if kind == "databases":
        return choices[0], choices[1]
    return choices[1], choices[0]


def _slots(reader: Reader, kind: str, key: str, filters: Filters) -> dict[tuple[str, ...], Side]:
    """What stands on one side, by what makes two comparable."""
    if kind == "runs":
        return _of_run(reader, key)
    source = reader.others.get(key, reader) if kind == "databases" else reader
    found = source.remembered(("slots", filters), lambda connection: slots(connection, filters))
    digests = source.remembered("plan digests", query.plan_digests)
    own = [slot for slot in found if kind == "databases" or slot.environment == key]
    return {(*_identity(slot, kind), "the plan"): _side(slot, digests) for slot in own if slot.plan_us or slot.best_us}


def _identity(slot: Slot, kind: str) -> tuple[str, ...]:
    place = slot.environment if kind == "databases" else ""
    return slot.program, slot.launch, slot.sizes, place


def _side(slot: Slot, digests: Mapping[str, str]) -> Side:
    raced = slot.speedup() is not None
    return Side(
        slot.title, slot.plan_us if raced else None, slot.noise_us, slot.best_us, slot.best, slot.standing,
        digests.get(slot.plan or "") if slot.plan else None,
    )  # fmt: skip


def _of_run(reader: Reader, key: str) -> dict[tuple[str, ...], Side]:
    (line,) = reader.read(partial(query.runs, key=key))
    results = reader.read(lambda connection: query.results(connection, key))
    named = line.name or line.program[:12]
    found: dict[tuple[str, ...], Side] = {}
    for one in results:
        if one.status == "ok" and one.wall_us:
            side = Side(named, one.wall_us, one.noise_us, None, None, "", one.plan)
            found[line.program, one.launch, one.sizes, "", one.what] = side
    return found


def _figure(both: Sequence[Pair]) -> Figure:
    step = max(1, len(both) // _DRAWN)
    chosen = both[::step]
    traces = []
    for verdict, color in (("faster", "var(--good-fill)"), ("same", "var(--same)"), ("slower", "var(--bad-fill)")):
        own = [pair for pair in chosen if pair.verdict == verdict and pair.a is not None]
        if own:
            traces.append({
                "type": "scatter", "mode": "markers", "name": verdict, "marker": {"color": color, "size": 8, "opacity": 0.8},
                "x": [pair.a.us for pair in own if pair.a], "y": [pair.ratio for pair in own],
                "text": [_hover(pair) for pair in own], "hovertemplate": "%{text}<extra></extra>",
            })  # fmt: skip
    layout = {
        "xaxis": {"type": "log", "title": {"text": "a call in A, µs"}, "tickformat": "~s"},
        "yaxis": {"type": "log", "title": {"text": "B over A: up is faster"}, "ticksuffix": "×", "tickformat": ".3~g", "nticks": 6},
        "shapes": [{"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 1, "y1": 1, "line": {"color": "var(--muted)", "dash": "dot", "width": 1}}],
    }  # fmt: skip
    rows = [
        (pair.title, us(pair.a.us if pair.a else None), us(pair.b.us if pair.b else None), times(pair.ratio))
        for pair in both[:50]
    ]
    title = "Every program, B over A" if len({pair.what for pair in both}) == 1 else "Every timing, B over A"
    return Figure("pairs", title, traces, layout, ("program", "A", "B", "B over A"), rows)


def _hover(pair: Pair) -> str:
    name = f"{pair.title[:60]}, {pair.what}".replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return f"{name}<br>{us(pair.a.us if pair.a else None)} → {us(pair.b.us if pair.b else None)}, {times(pair.ratio)}"


PAGE = Page(
    "compare", "Compare", "compare.html", load,
    (Param("kind", f"({'|'.join(KINDS)})?"), Param("a"), Param("b")), nav="Compare",
)  # fmt: skip
