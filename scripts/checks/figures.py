"""docs/results.md and the table of README.md are generated from benchmarks/results/, so that no figure is copied by hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from checks.project import ROOT
from checks.tables import BEGIN, between, file_of, head, line, results_of

README = ROOT / "README.md"
TORCH = {
    "eager": "eager", "torch.compile": "torch.compile", "reduce-overhead": "reduce-overhead",
    "max-autotune-no-cudagraphs": "max-autotune", "max-autotune": "max-autotune, CUDA graphs",
}  # fmt: skip
TUNED = {"fuseplan": "fuseplan", "fuseplan tuned": "tuned plain", "fuseplan tuned cudagraph": "tuned, CUDA graphs"}
LAUNCHES = {"plain": "plain", "cudagraph": "CUDA graphs"}
ASKED = {"either": "the faster", **LAUNCHES}
STAGES = {
    "defaults": "defaults", "anchors": "+ anchor variants", "segmented": "+ segmentation", "nvfuser": "+ nvFuser"
}  # fmt: skip
KERNELS = 6
"""Of two plans, how many kernels are shown in which they differ the most."""
Rows = Mapping[str, Any]


def pages() -> dict[Path, str]:
    """Each file, and what belongs in it."""
    table = "\n".join(_models(results_of("models"), brief=True))
    return {
        README: between(README, table),
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
        f" Python {machine['python']}, unless it says CPU. Every table is made from a file of"
        " [benchmarks/results](../benchmarks/results), which holds the environment, the commit of each row, and more than is"
        " shown here. Milliseconds are medians; ratios come from blocks of calls that ran beside each other."
    )
    yield "## Whole models"
    yield (
        "bf16, unmodified models of transformers with random weights, all sides of a model interleaved in one process:"
        " `scripts/bench models`. Tuning had effort `quick`, and the tuned sides found their plans in the database. `faster` is"
        " the better tuned side over the best of torch's; then each tuned side over what torch does at the same launch;"
        " and how far torch.compile was from itself."
    )
    found = models["results"]
    yield "\n".join(_models(found))
    summary = found["summary"]
    yield (
        f"Geomean over the best of torch's: {summary['geomean over the best of torch']:.2f} ×. Milliseconds a step; a dash where"
        " a side did not end, or was not asked for."
    )
    yield "![Steps a second of each side, torch.compile = 1](../benchmarks/results/models.svg)"
    yield "What tuning took, which plan won, and how far the two clocks were off for the whole plans that raced:"
    yield "\n".join(_tuning(found["models"]))
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
    yield from _cases()
    yield from _spent()
    yield from _second()
    yield from _startup()
    yield "## The search itself"
    yield (
        "Exploration compared on replayed timings, with `scripts/bench search`, and the time to plan graphs of up to 10,000 ops"
        " on one core of a CPU, with `scripts/bench planning`. Anew and again are seconds under other costs, as after each round"
        " of measuring: by a solver of its own, and by one that has solved it before, which keeps what it knows of islands of up"
        " to 96 ops:"
    )
    yield "![Regret against measurements spent](../benchmarks/results/search.svg)"
    yield "![Seconds against size](../benchmarks/results/planning.svg)"
    yield from _planning()


def _models(found: Rows, brief: bool = False) -> Iterator[str]:
    """A line for each model."""
    sides = {**TORCH, **TUNED}
    more = [] if brief else [*(f"× {name}" for name in LAUNCHES.values()), "noise"]
    yield from head(["model, batch × length", *sides.values(), "faster", *more])
    for name, row in found["models"].items():
        timed = row.get("sides", {})
        walls = [_ms(timed.get(side, {}).get("wall_us")) for side in sides]
        over = [] if brief else [_ratio(row.get("over_default", {}).get(launch)) for launch in LAUNCHES]
        noise = [] if brief else [_percent(row.get("noise"))]
        yield line([name, *walls, f"{_ratio(row.get('speedup'))} ×", *over, *noise])


def _tuning(models: Rows) -> Iterator[str]:
    yield from head(["model", "launch", "seconds", "measured", "won", "clocks off by, median", "P90", "commit"])
    for name, row in models.items():
        for launch, verdicts in row.get("tuning", {}).get("launches", {}).items():
            for one in verdicts:
                off = one["prediction_error"]
                yield line([
                    name, ASKED[launch], f"{one['seconds']:.0f}", str(one["measured"]), one["winner"],
                    _percent(off["median"]), _percent(off["p90"]), one.get("commit", "-")[:7],
                ])  # fmt: skip


def _stages(models: Rows) -> Iterator[str]:
    yield from head(["model", "launch", *STAGES.values(), "noise", "whole / cut", "interval", "beyond noise"])
    for name, row in models.items():
        for launch, one in row.get("launches", {}).items():
            stages, pair = one.get("stages", {}), one.get("segmented over whole", {})
            yield line([
                name, LAUNCHES[launch], *(_ms(stages.get(stage, {}).get("wall_us")) for stage in STAGES),
                _percent(one.get("noise")), _ratio(pair.get("ratio"), 3),
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
        lines.append(line([
            name, f"{row['wall_s']:.0f}", f"{row['limit_s']:g}", f"{row['device_seconds']:.0f}", str(row["measured"]),
            row["winner"], _ratio(row["speedup"]), _percent(row["noise"]), row["commit"][:7],
        ]))  # fmt: skip
    yield "\n".join(lines)


def _second() -> Iterator[str]:
    found = results_of("second")
    if not found:
        return
    yield "## A second model with the same layers"
    yield "What the second took beside the first, which had other numbers of the same layers: `scripts/bench second`."
    lines = list(
        head(["first", "measured, first", "second", "share", "GPU-seconds", "share", "seconds", "share", "commit"])
    )
    for name, row in found["pairs"].items():
        first, second, shares = row["first"], row["second"], row["shares"]
        lines.append(line([
            name, str(first["measured"]), str(second["measured"]), _percent(shares.get("measured")),
            f"{first['device_seconds']:.0f}", _percent(shares.get("device_seconds")), f"{first['wall_s']:.0f}",
            _percent(shares.get("wall_s")), row["commit"][:7],
        ]))  # fmt: skip
    yield "\n".join(lines)


def _startup() -> Iterator[str]:
    yield "## Start-up"
    yield (
        "Seconds until the first call has returned in a new process, with empty caches and with those of a process before,"
        " without interpreter, imports and the model itself: `scripts/bench startup`."
    )
    lines = list(head(["model", "caches", "torch.compile", "tuned", "ratio", "limit"]))
    for where, found in (("", results_of("startup")), (" (CPU)", results_of("startup", "json"))):
        for name, row in (found or {"models": {}})["models"].items():
            for caches, one in row["ratios"].items():
                seconds = [f"{median(row[side][f'{caches}_s']):.1f}" for side in ("torch.compile", "fuseplan tuned")]
                lines.append(line([name + where, caches, *seconds, _ratio(one["ratio"]), f"{one['limit']:g}"]))
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


def _ms(us: float | None) -> str:
    return "-" if us is None else f"{us / 1e3:.2f}"


def _ratio(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
