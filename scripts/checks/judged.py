"""The tables of docs/judge.md: what the judge calls wrong that is right, and what it lets pass that is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from checks.project import ROOT
from checks.tables import between, file_of, head, line, of_other_kinds, on_machine, place_of

PAGE = ROOT / "docs" / "judge.md"
JUDGES = {"expect": "this rule", "today": "the rule before"}
"""The columns, by what result files call the judges."""
Rows = Mapping[str, Any]


def pages() -> dict[Path, str]:
    """The page, and what belongs in it."""
    return {PAGE: between(PAGE, "\n\n".join(_parts()))}


def _parts() -> Iterator[str]:
    found = file_of("judging", "json")
    if not found:
        yield "Nothing was measured yet: `scripts/bench judging alarms`, `scripts/bench judging misses`."
        return
    machine, results = found["environment"], found["results"]
    yield (
        f"On a CPU ({machine['cpu']}) with torch {machine['packages']['torch']} and transformers"
        f" {machine['packages']['transformers']}; [benchmarks/results/judging.json](../benchmarks/results/judging.json) has"
        " every row."
    )
    if "alarms" in results:
        yield from on_machine(_alarms(results["alarms"]), found)
    yield from _large()
    if "candidates" in results:
        yield from on_machine(_candidates(results["candidates"]), found)
    if "misses" in results:
        yield from on_machine(_misses(results["misses"]), found)
    if "random" in results:
        yield from on_machine(_random(results["random"]["summary"]), found)
    yield from on_machine(_regions(), file_of("judging_regions", "json"))
    yield from on_machine(_opinfo(), file_of("judging_opinfo", "json"))


def _alarms(found: Rows) -> Iterator[str]:
    rows: Rows = {name: row for name, row in found["rows"].items() if "failed" not in row}
    judges = _judges(one for row in rows.values() for one in row["sides"].values())
    yield "### False alarms"
    yield (
        f"{len(rows)} configurations of small models of transformers, each under torch.compile and under host `aten`"
        " (`scripts/bench judging alarms`): how often a result was called wrong, and in each configuration the largest error"
        " as a share of what is allowed. Seconds are of judging alone, in the median, beside the rule before."
    )
    lines = list(
        head(
            [
                "",
                "configurations",
                *(f"called wrong by {JUDGES[judge]}" for judge in judges),
                "largest share, median",
                "highest",
                "mean error beside the draws', highest",
                "seconds, times",
            ]
        )
    )
    for kind in dict.fromkeys(_kind(name) for name in rows):
        chosen = {name: row for name, row in rows.items() if _kind(name) == kind}
        wrong = [str(sum(_wrong(row, judge) for row in chosen.values())) for judge in judges]
        shares = sorted(share for row in chosen.values() if (share := _share(row)) is not None)
        times = sorted(ratio for row in chosen.values() if (ratio := _times(row)) is not None)
        means = sorted(mean for row in chosen.values() if (mean := _mean(row)) is not None)
        cells = [_middle(shares), _number(shares[-1:]), _number(means[-1:]), _middle(times)]
        lines.append(line([kind, str(len(chosen)), *wrong, *cells]))
    yield "\n".join(lines)
    alarms = [
        f"- {name}, {side}, {JUDGES[judge]}: {one[judge]['problem']}"
        for name, row in rows.items() for side, one in row["sides"].items() for judge in judges
        if one.get(judge, {}).get("problem")
    ]  # fmt: skip
    if alarms:
        yield "\n".join(alarms)


def _candidates(found: Rows) -> Iterator[str]:
    rows: Rows = {name: row for name, row in found["rows"].items() if "failed" not in row}
    yield "### Right kernels that are no default"
    yield (
        f"{len(rows)} configurations in training, and results that are granted nothing for being torch's default"
        " (`scripts/bench judging candidates`): what torch.compile makes of them, with and without attention kept whole, and eager"
        " with attention taken apart, or on weights that were moved by their rounding, for several weights and inputs. Called"
        " wrong at first are those that are by the runs alone that every program gets."
    )
    lines = list(head(["", "results", "called wrong at first", "called wrong"]))
    for side, one in found["summary"]["sides"].items():
        lines.append(line([side, *(str(one[key]) for key in ("results", "wrong at first", "wrong"))]))
    yield "\n".join(lines)
    alarms = [
        f"- {name}, {side}: {one['problem']}"
        for name, row in rows.items() for side, one in row["sides"].items() if "problem" in one
    ]  # fmt: skip
    if alarms:
        yield "\n".join(alarms)


def _kind(name: str) -> str:
    """Its mode and precision, without the model."""
    return name.split(" ", 1)[1]


def _judges(told: Iterator[Rows]) -> list[str]:
    seen = {judge for one in told for judge in one}
    return [judge for judge in JUDGES if judge in seen]


def _wrong(row: Rows, judge: str) -> bool:
    return any(one.get(judge, {}).get("problem") for one in row["sides"].values())


def _share(row: Rows) -> float | None:
    return max(
        (one["expect"]["share"] for one in row["sides"].values() if "share" in one.get("expect", {})), default=None
    )


def _mean(row: Rows) -> float | None:
    return max(
        (one["expect"]["mean"] for one in row["sides"].values() if "mean" in one.get("expect", {})), default=None
    )


def _times(row: Rows) -> float | None:
    seconds = row["seconds"]
    return seconds["expect"] / seconds["today"] if "expect" in seconds else None


def _middle(values: list[float]) -> str:
    return _number(values[len(values) // 2 :])


def _number(values: list[float]) -> str:
    return f"{values[0]:.2f}" if values else "-"


def _large() -> Iterator[str]:
    """Models at the size that people run, on each kind of GPU."""
    found = file_of("judging_large")
    if not found:
        return
    yield "### False alarms at full size"
    yield (
        f"On {place_of(found)}: models as people run them, judged as"
        " tuning does it (`scripts/bench judging_large`), under torch.compile, host `aten`, and torch.compile with attention kept"
        " whole: the largest error as a share of what is allowed, and what is called wrong."
    )
    yield _large_rows(found)
    for other in of_other_kinds("judging_large").values():
        yield f"The same on {place_of(other)}:"
        yield _large_rows(other)


def _large_rows(found: Rows) -> str:
    sides = ("torch.compile", "aten", "attention proven")
    lines = list(head(["configuration", *sides, "judged", "commit"]))
    for name, row in found["results"]["rows"].items():
        said = [row.get("sides", {}).get(side, {}) for side in sides]
        how = next((one["how"].split(",")[0] for one in said if one.get("how")), row.get("failed", "-"))
        lines.append(line([name, *map(_said, said), how, row["commit"][:7]]))
    return "\n".join(lines)


def _said(one: Mapping[str, Any]) -> str:
    if not one:
        return "-"
    return f"{one.get('share', 0.0):.2g}" if one["status"] == "ok" else f"{one['status']}: {one['detail']}"


def _misses(found: Rows) -> Iterator[str]:
    rows: Rows = {name: row for name, row in found["rows"].items() if "failed" not in row}
    judges = _judges(one for row in rows.values() for one in row["faults"].values())
    dtypes = list(dict.fromkeys(name.rsplit(" ", 1)[1] for name in rows))
    yield "### Faults let through"
    yield (
        f"{found['summary']['faults']} kinds of faults, planted into {found['summary']['programs']} small programs wherever"
        " they have a place and move the exact result (`scripts/bench judging misses`). The last column is the largest error of"
        " what passed, over that of eager itself where inputs and weights are moved by their own rounding."
    )
    lines = list(head(["", "pairs", *(f"caught by {JUDGES[judge]}" for judge in judges), "largest ratio"]))
    for dtype in dtypes:
        pairs = [one for name, row in rows.items() if name.endswith(f" {dtype}") for one in row["faults"].values()]
        pairs = [one for one in pairs if any(judge in one for judge in judges)]
        caught = [sum(one[judge]["caught"] for one in pairs if judge in one) for judge in judges]
        ratios = [float(one[judges[0]]["ratio"]) for one in pairs if "ratio" in one[judges[0]]]
        shares = [f"{count} ({count / len(pairs):.1%})" for count in caught]
        lines.append(line([dtype, str(len(pairs)), *shares, _number(sorted(ratios)[-1:])]))
    yield "\n".join(lines)
    yield f"By fault, over all programs: pairs, and how many of them {JUDGES[judges[0]]} caught in each precision."
    yield "\n".join(_by_fault(rows, dtypes, judges[0]))


def _random(found: Rows) -> Iterator[str]:
    yield "### Faults of random values"
    yield (
        "Five kinds of faults of dropout, written into programs, of which one is compiled by torch.compile besides, each under"
        " other random numbers than eager's (`scripts/bench judging random`)."
    )
    lines = list(head(["", "pairs", "caught", "right called wrong", "passed"]))
    for dtype, one in found.items():
        numbers = [str(one["pairs"]), str(one["caught"]), str(len(one["right called wrong"]))]
        lines.append(line([dtype, *numbers, "; ".join(one["missed"]) or "-"]))
    yield "\n".join(lines)


def _regions() -> Iterator[str]:
    """Regions as they are, and with faults planted into them."""
    found = file_of("judging_regions", "json")
    if not found:
        return
    summary, every = (found["results"]["regions"][key] for key in ("summary", "rows"))
    rows: Rows = {name: row for name, row in every.items() if "failed" not in row}
    dtypes = [dtype for dtype in ("float32", "bfloat16", "float16") if summary[dtype]["share"] is not None]
    yield "### Regions"
    yield (
        f"Regions of {summary['programs']} small programs, as they are, compiled by Inductor (those that fuse) and ATen (all), and"
        f" with {summary['faults']} kinds of faults planted into them, wherever they have a place and move the exact result:"
        " faults of ops into what ATen runs, others into what the compiled region takes and gives (`scripts/bench judging regions`)."
        " The last column is as above. [judging_regions.json](../benchmarks/results/judging_regions.json) has every row."
    )
    lines = list(head(["", "programs", "regions", "right called wrong", "pairs", "caught", "largest ratio"]))
    for dtype in dtypes:
        one, chosen = summary[dtype], {name: row for name, row in rows.items() if name.endswith(f" {dtype}")}
        wrong = sum(len(row["wrong"]) for row in chosen.values())
        told = [one["pairs"], f"{one['caught']} ({one['caught'] / one['pairs']:.1%})"]
        ratio = f"{one['largest ratio of what is missed']:.2f}"
        lines.append(line([dtype, str(len(chosen)), str(one["regions"]), str(wrong), *map(str, told), ratio]))
    yield "\n".join(lines)
    if summary["called wrong"]:
        yield "\n".join(f"- {name}: {why}" for name, why in summary["called wrong"].items())
    yield "By fault, over all regions: pairs, and how many of them were caught in each precision."
    yield "\n".join(_by_region_fault(rows, dtypes))
    beside = file_of("region_judging", "json")
    if beside:
        yield _cost(beside)


def _by_region_fault(rows: Rows, dtypes: list[str]) -> Iterator[str]:
    yield from head(["fault", *dtypes])
    for fault in sorted({fault for row in rows.values() for fault in row["faults"]}):
        told = [
            [
                row["faults"][fault]
                for name, row in rows.items()
                if name.endswith(f" {dtype}") and fault in row["faults"]
            ]
            for dtype in dtypes
        ]
        counts = [[sum(one[key] for one in found) for key in ("caught", "pairs")] for found in told]
        yield line([fault, *(f"{caught} of {pairs}" if pairs else "-" for caught, pairs in counts)])


def _cost(found: Rows) -> str:
    """What judging a region takes, beside the rule before."""
    results = found["results"]
    times = results["benchmarks"]["region_judging"]["times"]
    ratios = {
        key: sorted(one["ratio"] for name, one in times.items() if name.endswith(key))
        for key in ("first_ms", "second_ms")
    }
    return (
        f"Judging a region takes {_middle(ratios['first_ms'])} times what it took under the rule before (commit"
        f" {results['other']}), in the median over {len(ratios['first_ms'])} regions in {results['rounds']} rounds, and"
        f" {_middle(ratios['second_ms'])} times for each further executor of the same region (`scripts/bench beside --tree OTHER"
        " region_judging`; [region_judging.json](../benchmarks/results/region_judging.json))."
    )


def _opinfo() -> Iterator[str]:
    """Single ops of PyTorch's own tests."""
    found = file_of("judging_opinfo", "json")
    if not found:
        return
    summary = found["results"]["opinfo"]["summary"]
    yield "### Single ops"
    yield (
        "Cases of PyTorch's own OpInfo tests under torch.compile and host `aten` (`scripts/bench judging opinfo`): the first ops in an"
        " order by the SHA-256 of name and dtype, and of each, forward and backward, one of the first five inputs, chosen in the same"
        " way. Left out are those that eager does not run, and those whose results no run can be held against: random numbers,"
        " memory that nobody has written to, sparse tensors. [judging_opinfo.json](../benchmarks/results/judging_opinfo.json) has every row."
    )
    lines = list(head(["", "ops", "cases", "of these backward", "left out", "called wrong", "raises", "share, median"]))
    alarms = dict[str, str]()
    for dtype, one in summary.items():
        if dtype != "failed" and one["cases"]:
            counts = [
                one["ops"],
                one["cases"],
                one["backward"],
                one["left out"],
                len(one["called wrong"]),
                len(one["raises"]),
            ]
            lines.append(line([dtype, *map(str, counts), f"{one['share, median']:.2f}"]))
            alarms |= {**one["called wrong"], **one["raises"]}
    yield "\n".join(lines)
    if alarms:
        yield "\n".join(f"- `{name}`: {why}" for name, why in alarms.items())


def _by_fault(rows: Rows, dtypes: list[str], judge: str) -> Iterator[str]:
    pairs, caught = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for name, row in rows.items():
        for fault, one in row["faults"].items():
            if judge in one:
                place = (fault, name.rsplit(" ", 1)[1])
                pairs[place] += 1
                caught[place] += one[judge]["caught"]
    yield from head(["fault", *dtypes])
    for fault in sorted({fault for fault, _ in pairs}):
        cells = [f"{caught[fault, dtype]} of {pairs[fault, dtype]}" if pairs[fault, dtype] else "-" for dtype in dtypes]
        yield line([fault, *cells])
