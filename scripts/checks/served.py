"""The tables of docs/serving.md: a mix of requests, and decoding alone, on a GPU, by who computes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from checks.project import ROOT
from checks.tables import between, head, line, on_gpus, percent, ratio

PAGE = ROOT / "docs" / "serving.md"
SIDES = ("eager", "torch.compile", "reduce-overhead", "fuseplan", "fuseplan tuned")
OTHERS = SIDES[:3]
MIX = (
    "model", "side", "tokens/s", "× best other", "", "first p50, ms", "p99", "between p50, ms", "p99", "compiled warming up",
    "later", "MiB", "commit",
)  # fmt: skip
DECODE = (
    "decoding", *SIDES, "tuned, × best other", "noise", "host, × reduce-overhead's", "checked", "commit",
)  # fmt: skip
Row = Mapping[str, Any]


def pages() -> dict[Path, str]:
    """The page, and what belongs in it."""
    return {PAGE: between(PAGE, "\n\n".join(parts(on_gpus("serve"))))}


def parts(files: list[Mapping[str, Any]]) -> Iterator[str]:
    """What is generated of the result files of each kind of GPU."""
    if not files:
        yield "Nothing was measured yet."
    for file in files:
        machine, rows = file["environment"], file["results"]["models"]
        versions = ", ".join(f"{name} {version}" for name, version in machine["packages"].items() if name != "numpy")
        yield f"On an {machine['gpu'].split(',')[0]} with {versions} (`{file['command']}`)."
        for called, value in file["results"].get("geomeans", {}).items():
            yield f"Tuned, over the best other side, geomean of {called}: {value:.3f}×{_left_out(called, rows)}."
        mixes = {name: row for name, row in rows.items() if "batch" not in row}
        if mixes:
            yield "\n".join([*head(MIX), *(cells for name, row in mixes.items() for cells in _mix(name, row))])
        decoded = {name: row for name, row in rows.items() if "batch" in row}
        if decoded:
            yield "Milliseconds a step of decoding:"
            yield "\n".join([*head(DECODE), *(_decode(name, row) for name, row in decoded.items())])
        yield from (
            f"{name}, left out: {'; '.join(row['left_out'])}." for name, row in rows.items() if row.get("left_out")
        )


def _left_out(called: str, rows: Mapping[str, Row]) -> str:
    """Of how many rows a mean is, where that is not all that were measured.

    >>> good, bad = ({"batch": 1, "times": 4, "sides": {"fuseplan tuned": side}} for side in ({}, {"failed": "wrong"}))
    >>> _left_out("decode, cache times 4", {"a": good, "b": bad}), _left_out("decode, cache times 4", {"a": good})
    (' over 1 row of 2, without those that failed', '')
    """
    own = [
        row
        for row in rows.values()
        if called == (f"decode, cache times {row['times']}" if "batch" in row else "tokens a second")
    ]
    good = [row for row in own if "failed" not in row and "failed" not in row.get("sides", {}).get(SIDES[-1], {})]
    told = f" over {len(good)} row{'s' if len(good) > 1 else ''} of {len(own)}, without those that failed"
    return told if len(good) < len(own) else ""


def _mix(name: str, row: Row) -> Iterator[str]:
    """A line for each side.

    >>> row = {"commit": "1234567", "sides": {"eager": {"failed": "error"}}}
    >>> list(_mix("a", row))
    ['| a | eager | failed: error | - | - | - | - | - | - | - | - | - | 1234567 |']
    """
    commit = str(row.get("commit", "-"))[:7]
    if "failed" in row:
        yield line([name, "", f"failed: {row['failed']}", *["-"] * (len(MIX) - 4), commit])
    for side, one in row.get("sides", {}).items():
        if "failed" in one:
            yield line([name, side, f"failed: {one['failed']}", *["-"] * (len(MIX) - 4), commit])
            continue
        gain = row.get("burst", {}).get("gains", {}).get(side, {})
        times = [ratio(one.get(key)) for key in ("first_p50_ms", "first_p99_ms", "between_p50_ms", "between_p99_ms")]
        if side not in OTHERS and (steady := row.get("steady", {}).get("gains", {}).get(side)):
            times[3 if "between_p99_ms" in one else 1] += f", {steady['verdict']}"
        compiled = (one.get(when, {}).get("compilations", "-") for when in ("warm", "after"))
        held = one.get("own_peak_bytes")
        yield line([
            name, side, ratio(one.get("tokens_a_second"), 0), ratio(gain.get("ratio"), 3), gain.get("verdict", "-"),
            *times, *map(str, compiled), "-" if held is None else f"{held / 2**20:,.0f}", commit,
        ])  # fmt: skip


def _decode(name: str, row: Row) -> str:
    """One line: a side that is wrong has failed, whatever its time.

    >>> tuned = {"wall_us": 1e3, "host_step_us": 600.0, "tokens": {"steps": 64, "same": 64}}
    >>> sides = {"eager": {"wall_us": 2e3}, "reduce-overhead": {"failed": "a", "host_step_us": 500.0}, "fuseplan tuned": tuned}
    >>> race = {"noise": 0.01, "gains": {"fuseplan tuned": {"ratio": 2.0, "verdict": "faster"}}}
    >>> _decode("a", {"sides": sides, "race": race, "commit": "12"})
    '| a | 2.00 | - | failed | - | 1.00 | 2.000, faster | 1.0% | 1.20 | 64 of 64 tokens | 12 |'
    """
    commit = str(row.get("commit", "-"))[:7]
    if "failed" in row:
        return line([name, f"failed: {row['failed']}", *["-"] * (len(DECODE) - 3), commit])
    sides, race = row.get("sides", {}), row.get("race", {})
    tuned = sides.get(SIDES[-1], {})
    gain = race.get("gains", {}).get(SIDES[-1])
    told = f"{ratio(gain['ratio'], 3)}, {gain['verdict']}" if gain else "-"
    times = ("failed" if "failed" in one else ratio(_ms(one)) for one in (sides.get(side, {}) for side in SIDES))
    host = [one.get("host_step_us") for one in (tuned, sides.get("reduce-overhead", {}))]
    over = host[0] / host[1] if all(host) else None
    return line([name, *times, told, percent(race.get("noise")), ratio(over), _checked(tuned), commit])


def _ms(side: Row) -> float | None:
    return side["wall_us"] / 1e3 if "wall_us" in side else None


def _checked(side: Row) -> str:
    if "tokens" in side:
        return f"{side['tokens'].get('same', 0)} of {side['tokens'].get('steps', 0)} tokens"
    if "judged" in side and "steps" in side["judged"]:
        return f"{side['judged']['steps'] - side['judged']['wrong']} of {side['judged']['steps']} steps"
    return "-"
