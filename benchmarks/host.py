"""Inductor as the host: where the time of each model goes under it, written as is preferred; what carve-outs cost that change
nothing: one matmul that goes to ATen all the same, and one pointwise op that Inductor runs by itself. With --carve, instead, what
those gain that are looked for by the profile, beside what they were predicted to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.harness import LAUNCHES, Rows, measure_models, model_options, print_lines

PLAIN = "inductor"
CARVED = ("matmul carved out", "pointwise op carved out")


def measure(arguments: list[str]) -> Rows:
    """All chosen models, each in a process of its own."""
    given = model_options("host", __doc__)
    given.add_argument("--launch", action="append", choices=LAUNCHES, help="of the races; both, unless one is given")
    given.add_argument("--no-races", action="store_true", help="only where the time goes")
    given.add_argument("--carve", action="store_true", help="race those that should gain something")
    chosen = given.parse_args(arguments)
    launches = chosen.launch or (["plain"] if chosen.device == "cpu" else list(LAUNCHES))
    rows = Rows("host", arguments, lambda found: {"models": dict(found)}, keep=chosen.append)
    races = [] if chosen.no_races else launches
    return measure_models(rows, chosen, "one_host", print_rows, launches=races, carve=chosen.carve)


def print_rows(rows: Mapping[str, Any]) -> None:
    """One line a program."""
    headings = (
        "model",
        "device ms",
        "left",
        "unattributed",
        "profiled in s",
        *(f"{name}, time / memory" for name in CARVED),
        "carved, × (predicted)",
    )
    print_lines("where a step's time goes, and what a carve-out costs", headings, _lines(rows))


def _lines(rows: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    for name, row in rows.items():
        for program in row.get("programs", []):
            profile = program.get("profile")
            if profile is None:
                yield name, program.get("failed", "-")
                continue
            whole = profile["device_us"] or 1.0
            yield (
                name, f"{whole / 1e3:.3f}", f"{100 * profile['gap_us'] / whole:.1f}%",
                f"{100 * profile['unattributed_us'] / whole:.1f}%", f"{program['seconds']:.1f}",
                *("; ".join(_costs(program.get("races", {}), carved)) or "-" for carved in CARVED),
                "\n".join(_gains(program.get("races", {}))) or "-",
            )  # fmt: skip
        if "failed" in row:
            yield name, row["failed"]


def _costs(races: Mapping[str, Any], carved: str) -> Iterator[str]:
    for launch, race in races.items():
        cost = race.get("costs", {}).get(carved)
        if cost is not None:
            memory = "-" if cost["memory"] is None else f"{cost['memory']:.3f}"
            yield f"{launch} {cost['time']['ratio']:.3f} / {memory}"


def _gains(races: Mapping[str, Any]) -> Iterator[str]:
    for launch, race in races.items():
        for name, gain in race.get("gains", {}).items():
            yield f"{launch} {1 / gain['time']['ratio']:.3f} ({1 / gain['predicted']:.3f}): {name}"
