"""The parts of docs/results.md about where a step's time goes under Inductor, and what each way to write or to carve something gains."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from checks.tables import head, line, ms, percent, ratio

Rows = Mapping[str, Any]
CALLS = ("matmul", "attention", "convolution")
"""Kinds of groups whose kernels are libraries', by what their ops are called."""
OTHERS = "all else"
_OPS = {"mm": "matmul", "addmm": "matmul", "bmm": "matmul", "baddbmm": "matmul", "convolution": "convolution", "convolution_backward": "convolution"}  # fmt: skip


def parts(host: Rows, ways: Rows) -> Iterator[str]:
    """Both sections, from their result files."""
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
        " rewrites, each checked first and all raced in one process: `scripts/bench ways`. Above 1 it is faster."
    )
    yield from _ways(ways.get("models", {}))


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


def _ways(models: Rows) -> Iterator[str]:
    lines = [
        line([
            way, name, ratio(1 / gain["ratio"], 3), f"{1 / gain['high']:.3f} to {1 / gain['low']:.3f}",
            percent(program.get("noise")), str(row.get("commit", "-")),
        ])
        for name, row in models.items() for program in row.get("programs", [])
        for way, gain in program.get("gains", {}).items()
    ]  # fmt: skip
    if not lines:
        yield "Not measured yet."
        return
    yield "\n".join([*head(["way", "model", "× as fast", "interval", "noise", "commit"]), *sorted(lines)])
