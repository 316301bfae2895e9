"""How times, shares and tables are written for people."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import zip_longest
from typing import Any

from fuseplan.graph.words import counted
from fuseplan.plan import Plan
from fuseplan.tuning_db.environment import Environment
from fuseplan.tuning_db.words import Listed, summary


def us(value: float | None) -> str:
    """A time, in the unit that fits it.

    >>> us(12.34), us(4567.8), us(2_500_000), us(None)
    ('12.3 µs', '4.57 ms', '2.50 s', '-')
    """
    if value is None:
        return "-"
    if abs(value) < 1000:
        return f"{value:.1f} µs"
    return f"{value / 1e3:,.2f} ms" if abs(value) < 1e6 else f"{value / 1e6:,.2f} s"


def share(value: float | None) -> str:
    """A share, of which small ones matter.

    >>> share(0.0123), share(None)
    ('1.2 %', '-')
    """
    return "-" if value is None else f"{100 * value:.1f} %"


def device_of(place: Environment) -> str:
    """What a person calls the machine."""
    return place.gpu or place.cpu or place.device


def describe(plan: Plan) -> str:
    """Say in a few words what a plan does.

    >>> describe(Plan.named("nvfuser-greedy"))
    'host aten, saving min-cut, launch plain, all that nvfuser takes in maximal fusions'
    """
    padding = f", padded from {plan.padding}" if plan.padded else ""
    if plan.host != "aten":
        return (
            f"whole program under {plan.host}"
            + (f", mode {plan.settings}" if plan.settings != "default" else "")
            + _rewrites(plan)
            + (f", {counted(len(plan.regions), 'region')} carved out" if plan.carve_outs else "")
            + (f", launch {plan.launch}" if plan.launch != "plain" else "")
            + padding
        )
    greedy = f", all that {plan.greedy} takes in maximal fusions" if plan.greedy else ""
    return f"host aten, saving {plan.saving}, launch {plan.launch}{greedy}{_rewrites(plan)}{padding}"


def _rewrites(plan: Plan) -> str:
    """Of each kind how many sites are written in another way, and in which if it is the same for all."""
    told = ""
    for kind in dict.fromkeys(one.kind for one in plan.rewrites):
        ways = [one.way for one in plan.rewrites if one.kind == kind]
        many = counted(len(ways), "attention call" if kind == "attention" else f"{kind} site")
        told += f", {many} {ways[0] if len(set(ways)) == 1 else 'under variants of their own'}"
    return told


def table(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> Iterator[str]:
    """Lines in which the columns stand below each other; those in `right` end together. A cell may have several lines.

    >>> list(table([("a", "1"), ("bcd", "20")], right={1}))
    ['a     1', 'bcd  20']
    >>> list(table([("a\\nb", "1")]))
    ['a  1', 'b']
    """
    rows = [cells for row in rows for cells in zip_longest(*(text.split("\n") for text in row), fillvalue="")]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))] if rows else []
    for row in rows:
        cells = [
            text.rjust(width) if column in right else text.ljust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def fields_of(one: Listed) -> dict[str, Any]:
    """A plan as plain data, without its evidence."""
    stored, place = one.stored, one.stored.environment
    return {
        "key": stored.key, "program": stored.program, "name": one.name, "device": place.gpu or place.cpu,
        "torch": place.torch, "launch": stored.launch, "objective": str(stored.objective), "sizes": stored.sizes.text, "status": stored.status,
        "word": stored.word, "who": summary(stored.plan), "wall_us": stored.wall_us, "device_us": stored.device_us,
        "host_us": stored.host_us, "predicted_us": stored.predicted_us, "noise_us": stored.noise_us,
        "peak_bytes": stored.peak_bytes, "best_default": stored.best_default,
        "best_default_us": stored.best_default_us, "detail": stored.detail, "changed_at": stored.changed_at,
    }  # fmt: skip


def times(value: float | None) -> str:
    """A ratio.

    >>> times(1.2345), times(None)
    ('1.23×', '-')
    """
    return "-" if value is None else f"{value:.2f}×"
