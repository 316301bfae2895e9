"""docs/results.md and the table of README.md are generated from benchmarks/results/, so that no figure is copied by hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from checks import gaps, whole_models
from checks.project import ROOT
from checks.tables import (
    BEGIN,
    between,
    file_of,
    head,
    line,
    ms,
    of_other_kinds,
    on_machine,
    percent,
    ratio,
    results_of,
)
from checks.whole_models import LAUNCHES

README = ROOT / "README.md"
STAGES = {
    "defaults": "defaults", "anchors": "+ anchor variants", "segmented": "+ segmentation", "nvfuser": "+ nvFuser"
}  # fmt: skip
KERNELS = 6
"""Of two plans, how many kernels are shown in which they differ the most."""
Rows = Mapping[str, Any]


def pages() -> dict[Path, str]:
    """Each file, and what belongs in it."""
    return {
        README: between(README, "\n".join(whole_models.brief([file_of("models"), *of_other_kinds("models").values()]))),
        ROOT / "docs" / "results.md": "\n\n".join(_page()) + "\n",
    }


def _page() -> Iterator[str]:
    yield "# What was measured"
    yield BEGIN
    models = file_of("models")
    machine = models["environment"]
    packages = machine["packages"]
    yield (
        f"On an {machine['gpu'].split(',')[0]} with torch {packages['torch']}, transformers {packages['transformers']} and"
        f" Python {machine['python']}, unless it says otherwise. Every table is made from a file of"
        " [benchmarks/results](../benchmarks/results), which holds the environment, the commit of each row, and more than is"
        " shown here. Milliseconds are medians; ratios come from blocks of calls that ran beside each other."
    )
    yield from whole_models.parts(models, file_of("drawn"), of_other_kinds("models"), file_of("first_models"))
    yield from gaps.parts(results_of("host"), file_of("ways"), file_of("depthwise"), file_of("few_rows"))
    others = ", but for rows that name another"
    yield from on_machine(_ablation(), file_of("ablation"))
    yield from on_machine(_cases(), file_of("choices"))
    yield from on_machine(_spent(), file_of("tuning"))
    yield from on_machine(_second(), file_of("second"))
    yield from on_machine(_startup(), file_of("startup"), others)
    yield from on_machine(_instant(), file_of("startup"), others)
    yield from on_machine(_reloading(), file_of("reloading"), others)
    yield from on_machine(_guarded(), file_of("guard"))
    yield "## The search itself"
    yield (
        "Exploration compared on replayed timings, with `scripts/bench search`, and the time to plan graphs of up to 10,000 ops"
        " on one core of a CPU, with `scripts/bench planning`. Anew and again are seconds under other costs, as after each round"
        " of measuring: by a solver of its own, and by one that has solved it before, which keeps what it knows of islands of up"
        " to 96 ops:"
    )
    yield "![Regret against measurements spent](../benchmarks/results/search.svg)"
    yield "![Seconds against size](../benchmarks/results/planning.svg)"
    yield from on_machine(_planning(), file_of("planning", "json"))


def _stages(models: Rows) -> Iterator[str]:
    yield from head(["model", "launch", *STAGES.values(), "noise", "whole / cut", "interval", "beyond noise"])
    for name, row in models.items():
        for launch, one in row.get("launches", {}).items():
            stages, pair = one.get("stages", {}), one.get("segmented over whole", {})
            yield line([
                name, LAUNCHES[launch], *(ms(stages.get(stage, {}).get("wall_us")) for stage in STAGES),
                percent(one.get("noise")), ratio(pair.get("ratio"), 3),
                f"{pair['low']:.3f} to {pair['high']:.3f}" if pair else "-",
                {None: "-", True: "yes", False: "no"}[pair.get("beyond noise")],
            ])  # fmt: skip


def _kernels(name: str, row: Rows) -> Iterator[str]:
    for launch, one in row.get("launches", {}).items():
        pair = one.get("segmented over whole", {})
        if "classes" not in pair:
            continue
        classes = ", ".join(f"{kind} {what['difference_us']:+.0f}" for kind, what in pair["classes"].items())
        device = pair["device_us"]
        yield f"**{name}, {LAUNCHES[launch]}**: {device['segmented']:,.0f} cut, {device['whole']:,.0f} whole; {classes}."
        table = list(head(["kernel", "cut, µs", "whole, µs", "difference", "launches"]))
        for kernel in pair["kernels"][:KERNELS]:
            launches = " / ".join(f"{n:.0f}" for n in kernel["launches"])
            us = [f"{kernel[key]:,.1f}" for key in ("segmented_us", "whole_us")]
            table.append(line([f"`{kernel['kernel'][:60]}`", *us, f"{kernel['difference_us']:+,.1f}", launches]))
        yield "\n".join(table)


def _ablation() -> Iterator[str]:
    yield "## What each stage of tuning adds"
    ablation = results_of("ablation")
    yield (
        "The best plan of each stage, raced once more side by side: `scripts/bench ablation`. The last columns set the best"
        " segmented plan against the best plan of the whole program with the same anchors: above 1 the cut is faster."
    )
    yield "\n".join(_stages(ablation["models"]))
    yield "### Kernel by kernel"
    yield "Where the two differ, in µs a step of the device, and the kernels that differ the most. Below 0 the cut is faster."
    for name, row in ablation["models"].items():
        yield from _kernels(name, row)


def _cases() -> Iterator[str]:
    found = results_of("choices")
    if not found:
        return
    yield "## The four cases that fuseplan began with"
    yield (
        "Every choice of views inside or outside a fusion under every executor, as a whole plan, all side by side, and among"
        " them the plan that tuning picked: `scripts/bench choices`. The interval is of the picked plan's time over that of the"
        " fastest of all others."
    )
    lines = list(head(["case", "plans raced", "picked", "fastest of all others", "µs", "interval", "verdict"]))
    for name, case in found["cases"].items():
        over = case["picked over fastest"]
        us = case["plans"]["picked by tuning"]["wall_us"]
        verdict = "fastest, or tied" if case["fastest or tied"] else "slower"
        interval = f"{over['low']:.3f} to {over['high']:.3f}"
        picked = case["picked"]["winner"]
        cells = [name, str(len(case["plans"])), picked, case["fastest of all others"], f"{us:,.1f}", interval, verdict]
        lines.append(line(cells))
    yield "\n".join(lines)


def _spent() -> Iterator[str]:
    found = results_of("tuning")
    if not found:
        return
    yield "## What tuning takes"
    yield (
        "One program of each model, tuned from an empty database and empty caches: `scripts/bench tuning`. `granted` is what the"
        " effort grants, in seconds; the gain is over the best default of the race."
    )
    columns = ["model", "seconds", "granted", "GPU-seconds", "measured", "won", "×", "noise", "commit"]
    lines = list(head(columns))
    for name, row in found["models"].items():
        if "failed" in row:
            lines.append(_failed(name, row, columns))
            continue
        lines.append(line([
            name, f"{row['wall_s']:.0f}", f"{row['limit_s']:g}", f"{row['device_seconds']:.0f}", str(row["measured"]),
            row["winner"], ratio(row["speedup"]), percent(row["noise"]), row["commit"][:7],
        ]))  # fmt: skip
    yield "\n".join(lines)


def _second() -> Iterator[str]:
    found = results_of("second")
    if not found:
        return
    yield "## A second model with the same layers"
    yield "What the second took beside the first, which had other numbers of the same layers: `scripts/bench second`."
    columns = ["first", "measured, first", "second", "share", "GPU-seconds", "share", "seconds", "share", "commit"]
    lines = list(head(columns))
    for name, row in found["pairs"].items():
        if "failed" in row:
            lines.append(_failed(name, row, columns))
            continue
        first, second, shares = row["first"], row["second"], row["shares"]
        lines.append(line([
            name, str(first["measured"]), str(second["measured"]), percent(shares.get("measured")),
            f"{first['device_seconds']:.0f}", percent(shares.get("device_seconds")), f"{first['wall_s']:.0f}",
            percent(shares.get("wall_s")), row["commit"][:7],
        ]))  # fmt: skip
    yield "\n".join(lines)


def _failed(name: str, row: Rows, columns: Sequence[str]) -> str:
    """The line of a row that has nothing but a reason."""
    return line([name, row["failed"], *["-"] * (len(columns) - 2)])


def _startup() -> Iterator[str]:
    yield "## Start-up"
    yield (
        "Seconds until the first call has returned in a new process, with empty caches and with those of a process before,"
        " without interpreter, imports and the model itself: `scripts/bench startup`."
    )
    lines = list(head(["model", "caches", "torch.compile", "tuned", "ratio", "limit"]))
    for where, found in _start_ups():
        for name, row in found.items():
            for caches, one in row.get("ratios", {}).items():
                seconds = [f"{median(row[side][f'{caches}_s']):.1f}" for side in ("torch.compile", "fuseplan tuned")]
                lines.append(line([name + where, caches, *seconds, ratio(one["ratio"]), f"{one['limit']:g}"]))
    yield "\n".join(lines)


def _start_ups() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The rows of each kind of machine, and how it is told behind a name."""
    yield "", results_of("startup").get("models", {})
    for file in of_other_kinds("startup").values():
        gpu = file["environment"]["gpu"].partition(",")[0]
        yield f" ({gpu})", file["results"]["models"]
    yield " (CPU)", results_of("startup", "json").get("models", {})


def _instant() -> Iterator[str]:
    yield "### Tuned at once"
    yield (
        'Seconds until the first call has returned in a new process with empty caches and an empty database, under `"tune": "instant"`, and'
        " what of that is beyond torch.compile; what that may be, by what is aimed at: 15 s, or torch.compile's warm start and 5 s. Then what"
        " the plan takes that was found, over the best default of its race. Same command."
    )
    lines = list(head(["model", "torch.compile", "instant", "beyond", "aimed at", "faster"]))
    beyond: dict[str, list[float]] = {}
    for where, found in _start_ups():
        for name, row in found.items():
            if "fuseplan instant" not in row:
                continue
            base, own = (median(row[side]["cold_s"]) for side in ("torch.compile", "fuseplan instant"))
            limit, known = row.get("instant", {}).get("limit_s"), _of_each_program(row.get("verdicts", []))
            faster = ratio(sum(default for default, _ in known) / sum(plan for _, plan in known)) if known else "-"
            cells = (f"{base:.1f}", f"{own:.1f}", f"{own - base:.1f}", "-" if limit is None else f"{limit:g}", faster)
            lines.append(line([name + where, *cells]))
            beyond.setdefault(where, []).append(own - base)
    yield "\n".join(lines)
    medians = [f"{median(each):.1f} s{where} of {len(each)}" for where, each in beyond.items()]
    if medians:
        yield f"In the median beyond torch.compile: {', '.join(medians)} models."


def _of_each_program(verdicts: Sequence[Mapping[str, Any]]) -> list[tuple[float, float]]:
    """What the best default and the plan take, of each program under the launch that suits it best: one race has both launches."""
    programs: dict[str, list[Mapping[str, Any]]] = {}
    for one in verdicts:
        programs.setdefault(one["program"], []).append(one)
    return [
        (min(one["best_default_us"] for one in each), min(one["wall_us"] for one in each)) for each in programs.values()
    ]


def _reloading() -> Iterator[str]:
    yield "### A plan that comes while a process runs"
    yield (
        "A training loop under `reload`, to whose program a plan comes: milliseconds of its first step, of a usual one before and after,"
        " and of the slowest since the plan was there, while a process beside it compiled that plan, and it changed over; and how far its"
        " losses are from those of a loop that keeps what it has: `scripts/bench reloading`. On a CPU the plan is a slower one, and both"
        " processes share the cores."
    )
    lines = list(head(["model", "first", "before", "after", "slowest since", "changed over after", "losses apart"]))
    for where, found in (("", results_of("reloading")), (" (CPU)", results_of("reloading", "json"))):
        for name, row in found.items():
            steps = [ms(1e6 * row[key]) for key in ("first_s", "step_s", "after_s", "slowest_since_s")]
            lines.append(line([name + where, *steps, f"{row['changed_over_s']:.0f} s", f"{row['losses_apart']:.0e}"]))
    yield "\n".join(lines)


def _guarded() -> Iterator[str]:
    yield "### A guard beside a plan"
    yield (
        'Milliseconds a call under the default, under a stored plan, and under that plan with `"verify": "sampled"`, in blocks that take'
        " turns once the guard has found something; after how many calls it has, and whether the plan was taken back for it:"
        " `scripts/bench guard`."
    )
    lines = list(head(["model", "plan", "default", "plan alone", "guarded", "found after", "then"]))
    for name, plans in results_of("guard").items():
        for plan, row in plans.items():
            times = [ms(row[key]) for key in ("default_us", "plan_us", "guarded_us")]
            then = "taken back" if any("taken back" in said for said in row["then"]) else "stays"
            lines.append(line([name, plan, *times, f"{row['found_after_calls']} calls", then]))
    yield "\n".join(lines)


def _planning() -> Iterator[str]:
    lines = list(head(["graph", "ops", "seconds", "anew", "again", "MiB", "grows as"]))
    for name, found in results_of("planning", "json")["graphs"].items():
        last = found["rows"][-1]
        cells = [
            name,
            f"{last['ops']:,}",
            f"{last['total_s']:.1f}",
            f"{last['anew_s']:.2f}",
            f"{last['again_s']:.2f}",
            f"{last['peak_mib']:.0f}",
        ]
        lines.append(line([*cells, f"n^{found['growth']:.2f}"]))
    yield "\n".join(lines)
