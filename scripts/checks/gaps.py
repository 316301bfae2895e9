"""The parts of docs/results.md about where a step's time goes under Inductor, and what each way to write or to carve something gains."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from checks.tables import head, line, ms, percent, ratio
from fuseplan.rewrites.kinds import KINDS

Rows = Mapping[str, Any]
CALLS = ("matmul", "attention", "convolution")
"""Kinds of groups whose kernels are libraries', by what their ops are called."""
OTHERS = "all else"
_OPS = {"mm": "matmul", "addmm": "matmul", "bmm": "matmul", "baddbmm": "matmul", "convolution": "convolution", "convolution_backward": "convolution"}  # fmt: skip


def parts(host: Rows, ways: Rows, kernels: Rows, few_rows: Rows) -> Iterator[str]:
    """All sections, from their results, or whole result files."""
    yield "## Where a step's time goes"
    yield (
        "The device's time under Inductor, written as is preferred, and of it what is left: what kernels take beyond the least that their"
        " ops could on this machine. Of matmuls, attention and convolutions, and of all else, how much of the step they take, and which"
        " share of that is the least. Carved is the best plan with carve-outs over the same without, and what was predicted of it:"
        " `scripts/bench host`, with `--carve`."
    )
    yield from _gaps(host.get("models", {}))
    yield "## What each way gains"
    yield (
        "Each way of each kind of rewrite by itself over torch.compile's default, and settings of Inductor over all that is preferred of"
        f" rewrites, each checked first and all raced in one process: `scripts/bench ways`{_on(ways)}. Above 1 it is faster. One whose kind is"
        " gone has not gained 2 % beyond noise on two models, or at two sizes of one."
    )
    yield from _ways(ways.get("results", {}).get("models", {}))
    yield "## Kernels of fuseplan's own"
    yield (
        "Convolutions channel by channel, all layers of a model together as often as it has them, beside the library's kernels and the"
        f" least that they could take: `scripts/bench depthwise`{_on(kernels)}, which has each layer by itself too."
    )
    yield from _kernels(kernels)
    yield (
        "Matmuls of few rows, of layers as large as those of several models: how many times as fast as the library's, in the geometric mean"
        " and at the least; and so where a kernel by itself has to add up the parts of its sums, which else whoever reads them does:"
        f" `scripts/bench few_rows`{_on(few_rows)}, which has each by itself too."
    )
    yield from _few_rows(few_rows)


def _on(file: Rows) -> str:
    """Which GPU a file is from.

    >>> _on({"environment": {"gpu": "NVIDIA H100 80GB HBM3, 580.1"}}), _on({})
    (', on an NVIDIA H100 80GB HBM3', '')
    """
    gpu = file.get("environment", {}).get("gpu")
    return f", on an {gpu.partition(',')[0]}" if gpu else ""


def _gaps(models: Rows) -> Iterator[str]:
    lines = [
        line([
            name, ms(profile["device_us"]), percent(profile["gap_us"] / profile["device_us"]),
            percent(profile["unattributed_us"] / profile["device_us"]),
            *(_share(profile, kind) for kind in (*CALLS, OTHERS)), _carved(program), str(row.get("commit", "-")),
        ])
        for name, row in models.items() for program in row.get("programs", [])
        if (profile := program.get("profile")) and profile["device_us"]
    ]  # fmt: skip
    if not lines:
        yield "Not measured yet."
        return
    columns = ["model", "device ms", "left", "unattributed", *CALLS, OTHERS, "carved (predicted)", "commit"]
    yield "\n".join([*head(columns), *lines])


def _share(profile: Rows, kind: str) -> str:
    """How much of a step some groups take, and which share of that is the least that they could.

    >>> gaps = [{"what": "mm", "us": 30.0, "least_us": 15.0}, {"what": "mul, sum", "us": 20.0, "least_us": 40.0}]
    >>> [_share({"device_us": 100.0, "gaps": gaps}, kind) for kind in ("matmul", "attention", "all else")]
    ['30.0%, 50%', '-', '20.0%, 100%']
    """
    took, least = defaultdict[str, float](float), defaultdict[str, float](float)
    for gap in profile["gaps"]:
        its = kind_of(gap["what"])
        took[its] += gap["us"]
        least[its] += min(gap["us"], gap["least_us"])
    return f"{took[kind] / profile['device_us']:.1%}, {least[kind] / took[kind]:.0%}" if took[kind] else "-"


def kind_of(what: str) -> str:
    """The kind of a group, by its ops.

    >>> kind_of("2 add, _scaled_dot_product_flash_attention"), kind_of("sum, addmm"), kind_of("mm_like")
    ('attention', 'matmul', 'all else')
    """
    ops = [one.rpartition(" ")[2] for one in what.split(", ")]
    if any("attention" in op for op in ops):
        return "attention"
    return next((_OPS[op] for op in ops if op in _OPS), OTHERS)


def _carved(program: Rows) -> str:
    """Of each launch the best of what was carved out, with what was predicted of it."""
    found = []
    for launch, race in program.get("races", {}).items():
        gains = race.get("gains", {}).values()
        if gains:
            best = min(gains, key=lambda one: float(one["time"]["ratio"]))
            found.append(f"{launch} {1 / best['time']['ratio']:.3f} ({1 / best['predicted']:.3f})")
    return "; ".join(found) or "-"


def _is_there(way: str) -> bool:
    """Whether a way is of a kind that there still is, or of none: settings, and all that is preferred.

    >>> _is_there("depthwise triton"), _is_there("inductor split-64"), _is_there("all that is preferred"), _is_there("gelu tail")
    (True, True, True, False)
    """
    return way.partition(" ")[0] in {*KINDS, "all", "inductor"}


def _kernels(file: Rows) -> Iterator[str]:
    lines = [
        line([
            name, what, f"{row['ours_us']:.0f}", f"{row['library_us']:.0f}", ratio(1 / row["of the library"]),
            ratio(row["times the least"]), str(file.get("commit", "-")),
        ])
        for name, model in file.get("results", {}).items() for what, row in model["together"].items()
    ]  # fmt: skip
    if not lines:
        yield "Not measured yet."
        return
    columns = ["layers of", "what", "ours, µs", "library's, µs", "× as fast", "× the least", "commit"]
    yield "\n".join([*head(columns), *lines])


def _few_rows(file: Rows) -> Iterator[str]:
    """By how many rows.

    >>> ratios = {"ours": 1.5, "ours at least": 1.0, "with sums": 1.25, "with sums at least": 0.5}
    >>> list(_few_rows({"results": {"by rows": {"8": ratios}}, "commit": "12"}))[0].splitlines()[-1]
    '| 8 | 1.50 | 1.00 | 1.25 | 0.50 | 12 |'
    """
    keys = ("ours", "ours at least", "with sums", "with sums at least")
    lines = [
        line([count, *(ratio(row[key]) for key in keys), str(file.get("commit", "-"))])
        for count, row in file.get("results", {}).get("by rows", {}).items()
    ]
    if not lines:
        yield "Not measured yet."
        return
    columns = ["rows", "× as fast", "at least", "× as fast with sums", "at least", "commit"]
    yield "\n".join([*head(columns), *lines])


def _ways(models: Rows) -> Iterator[str]:
    lines = [
        line([
            way if _is_there(way) else f"{way}, gone", name, ratio(1 / gain["ratio"], 3), f"{1 / gain['high']:.3f} to {1 / gain['low']:.3f}",
            percent(program.get("noise")), str(row.get("commit", "-")),
        ])
        for name, row in models.items() for program in row.get("programs", [])
        for way, gain in program.get("gains", {}).items()
    ]  # fmt: skip
    if not lines:
        yield "Not measured yet."
        return
    yield "\n".join([*head(["way", "model", "× as fast", "interval", "noise", "commit"]), *sorted(lines)])
