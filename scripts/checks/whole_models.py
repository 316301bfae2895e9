"""The parts of docs/results.md about whole models, and README's table: torch's modes beside fuseplan, an earlier version, and
sizes that a seed drew. What was not measured is said, and so is why a side has no time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.models import SIDES as ASKED_SIDES
from benchmarks.one_model import TORCH
from benchmarks.timing import QUIET
from benchmarks.tuned_model import TUNED
from benchmarks.zoo import SHOWN
from checks.tables import head, line, ms, on_machine, percent, ratio

Rows = Mapping[str, Any]
NAMES = {"fuseplan tuned": "tuned plain", "fuseplan tuned cudagraph": "tuned, CUDA graphs"}
"""Of sides, where they are called otherwise than on the command line."""
GAINS = 0.01
"""Below so much a model gains nothing that anybody would notice."""
LAUNCHES = {"plain": "plain", "cudagraph": "CUDA graphs"}
ASKED = {"either": "the faster", **LAUNCHES}
SIDES = ("eager", "torch.compile", *(side for side in TORCH if side not in ("eager", "torch.compile")), *TUNED)


def parts(
    file: Rows, drawn: Rows, others: Mapping[str, Rows] | None = None, first: Rows | None = None
) -> Iterator[str]:
    """All sections about whole models, from their result file, that of drawn sizes, those of other kinds of GPU by name, and that of
    the first version.
    """
    models: Rows = file.get("results", {"models": {}})["models"]
    yield "## Whole models"
    yield (
        f"bf16, unmodified models of {_libraries(models)} with random weights, all sides of a model interleaved in one process:"
        " `scripts/bench models`. Tuning had effort `quick`, and the tuned sides found their plans in the database; `fuseplan` is asked"
        " for without a launch, and the tuned ones with theirs. `best` is the"
        " best of torch's, and `faster` the better tuned side over that; then each tuned side over what torch does at the same"
        f" launch. `noise` is how far the best of torch's was from itself{_of_compile(models)}."
    )
    yield from on_machine(_of_kind(file, "models.gpu"), file)
    if first:
        yield from on_machine(_since(first["results"]["models"], models), first)
    for name, other in (others or {}).items():
        machine = other["environment"]
        yield f"## Whole models on an {machine['gpu'].split(',')[0]}"
        yield f"The same there, with torch {machine['packages']['torch']}: no table has rows of two kinds of GPU."
        yield from on_machine(_of_kind(other, name), other)
    yield "## Sizes that a seed drew"
    if drawn.get("results", {}).get("models"):
        yield from on_machine(_drawn(drawn["results"], models), drawn)
    else:
        yield "None were measured: `scripts/bench drawn`."


def _libraries(models: Rows) -> str:
    return " and ".join(sorted({row.get("library", "transformers") for row in models.values()}))


def _of_kind(file: Rows, name: str) -> Iterator[str]:
    """What was measured on one kind of GPU, whose chart has such a name."""
    found = file.get("results", {"models": {}})
    models: Rows = found["models"]
    yield "\n".join(table(models))
    geomean = found.get("summary", {}).get("geomean over the best of torch")
    told = "" if geomean is None else f"Geomean over the best of torch's: {geomean:.2f} ×. "
    yield f"{told}Milliseconds a step; a dash where a side was not asked for, or its race did not say."
    yield from _listed("Without a time are:", _failures(models))
    yield from _listed(f"Noise is above {QUIET:.0%} in:", _noisy(models))
    left = [name for name in SHOWN if name not in models]
    sides = [side for side in ASKED_SIDES if not any(side in row.get("sides", {}) for row in models.values())]
    if left or sides:
        yield f"Not measured yet: {', '.join([*left, *(f'{side} of any model' for side in sides)])}."
    kinds = {row["gpu"].partition(",")[0] for row in models.values() if row.get("gpu")}
    if len(kinds) > 1:
        yield f"Rows are of several kinds of GPU: {', '.join(sorted(kinds))}."
    yield f"![Steps a second of each side, torch.compile = 1](../benchmarks/results/{name}.svg)"
    yield "What tuning took of the seconds that it had for a program, which plan won, and how far the two clocks were off for the whole plans that raced:"
    yield "\n".join(_tuning(models))
    yield from _against(models)


def brief(files: Sequence[Rows]) -> Iterator[str]:
    """A line for each model that people are shown, from the kind of GPU on which most of them were measured, the newest last, else from
    another; and what gains nothing, in words.
    """
    kinds = sorted(files, key=lambda file: (len(file["results"]["models"]), file["when"]), reverse=True)
    rows = {
        name: (row, file)
        for file in kinds[::-1]
        for name, row in file["results"]["models"].items()
        if row.get("speedup")
    }
    yield from head(["model, batch × length", "torch.compile", "best of torch", "fuseplan", "faster", "on"])
    for name in SHOWN:
        if name not in rows:
            continue
        row, file = rows[name]
        best, tuned = (row["sides"][row[side]]["wall_us"] for side in ("best_torch", "best_tuned"))
        card = file["environment"]["gpu"].split(",")[0].removeprefix("NVIDIA ").split(" ")[0]
        yield line(
            [name, _cell(row["sides"].get("torch.compile")), ms(best), ms(tuned), f"{ratio(row['speedup'])} ×", card]
        )
    small = [name for name in SHOWN if name in rows and rows[name][0]["speedup"] < 1 + GAINS]
    missing = [name for name in SHOWN if name not in rows]
    told = f"Gains nothing: {', '.join(small)}." if small else "Each gains something."
    mean = math.exp(sum(math.log(row["speedup"]) for row, _ in rows.values()) / len(rows))
    yield f"\nIn the geometric mean {mean:.2f} ×. {told}" + (
        f" Not measured yet: {', '.join(missing)}." if missing else ""
    )


def table(models: Rows) -> Iterator[str]:
    """A line for each model; sides stand in it that some row has."""
    sides = [side for side in SIDES if any(side in row.get("sides", {}) for row in models.values())]
    over = [launch for launch in LAUNCHES if any(launch in row.get("over_default", {}) for row in models.values())]
    more = ["best", "verdict", *(f"× {LAUNCHES[launch]}" for launch in over), "noise", "commit"]
    yield from head(["model, batch × length", *(NAMES.get(side, side) for side in sides), "faster", *more])
    for name, row in models.items():
        cells = [name, *(_cell(row.get("sides", {}).get(side)) for side in sides), f"{ratio(row.get('speedup'))} ×"]
        cells += [row.get("best_torch") or "-", row.get("verdict", "-")]
        cells += [ratio(row.get("over_default", {}).get(launch)) for launch in over]
        cells += [percent(row.get("noise")), row.get("commit", "-")[:7]]
        yield line(cells)


def _cell(side: Rows | None) -> str:
    """Milliseconds, or why there are none, in short."""
    if side is None:
        return "-"
    if "wall_us" in side:
        return ms(side["wall_us"])
    return str(side.get("failed", "-")).partition(":")[0].partition(", at")[0]


def _failures(models: Rows) -> Iterator[str]:
    for name, row in models.items():
        for side, found in row.get("sides", {}).items():
            if "failed" in found:
                yield f"{name}, {NAMES.get(side, side)}: {found['failed']}"
        if "failed" in row:
            yield f"{name}: {row['failed']}"


def _noisy(models: Rows) -> Iterator[str]:
    for name, row in models.items():
        if row.get("noise", 0.0) > QUIET:
            older = f"torch.compile is {row['noise']:.1%} from itself after {row['rounds']} rounds, of a time when no row got more"
            yield f"{name}: {row.get('noisy', older)}"


def _of_compile(models: Rows) -> str:
    """In which rows the noise is of another side than the best."""
    older = sum("noise" in row and "noise_of" not in row for row in models.values())
    return f" (in {older} older rows, how far torch.compile was)" if older else ""


def _listed(title: str, entries: Iterator[str]) -> Iterator[str]:
    found = list(entries)
    if found:
        yield title
        yield "\n".join(f"- {entry}" for entry in found)


ONCE_S = 120.0
"""What quick had for a program when rows did not say so yet."""


def _tuning(models: Rows) -> Iterator[str]:
    yield from head(["model", "launch", "seconds", "of", "measured", "won", "clocks off by, median", "P90", "commit"])
    for name, row in models.items():
        for launch, verdicts in row.get("tuning", {}).get("launches", {}).items():
            for one in verdicts:
                off = one["prediction_error"]
                yield line([
                    name, ASKED[launch], f"{one['seconds']:.0f}", f"{row.get('budget_s', ONCE_S):.0f}", str(one["measured"]), one["winner"] or one["status"],
                    percent(off["median"]), percent(off["p90"]), one.get("commit", "-")[:7],
                ])  # fmt: skip


def _against(models: Rows) -> Iterator[str]:
    """What an earlier version made of the same models, on the same card in the same session."""
    yield "### Beside an earlier version"
    both = {name: row for name, row in models.items() if "against" in row}
    if not both:
        yield "None was measured: `scripts/bench models --against CHECKOUT`."
        return
    yield (
        "Another checkout of fuseplan was tuned and raced by its own benchmark, in a process of its own on the same card, right"
        " after the row above. Milliseconds a step of the best tuned side of each, and of the side of torch's that was fastest"
        " here, as it ran beside each; now / then is of the tuned sides over that side: below 1, what is here is the faster."
    )
    lines = list(head([
        "model", "of torch's", "then", "now", "tuned then", "tuned now", "now / then", "noise then", "now", "commit then", "now",
    ]))  # fmt: skip
    failures = []
    for name, row in both.items():
        then = row["against"]
        if "failed" in then:
            failures.append(f"{name}, {then['commit'][:7]}: {then['failed']}")
            continue
        beside = fastest(row, then)
        walls = [one["sides"][side]["wall_us"] for one in (then, row) for side in (beside, one["best_tuned"])]
        torch_then, tuned_then, torch_now, tuned_now = walls
        cells = [name, beside, *map(ms, (torch_then, torch_now, tuned_then, tuned_now))]
        cells += [ratio(tuned_now / torch_now / (tuned_then / torch_then), 3), percent(then.get("noise"))]
        lines.append(line([*cells, percent(row.get("noise")), then["commit"][:7], row.get("commit", "-")[:7]]))
    yield "\n".join(lines)
    yield from _listed("Without a time are:", iter(failures))


def _since(before: Rows, models: Rows) -> Iterator[str]:
    """What the rows of the first version took, beside those that stand now."""
    yield "### Since the first version"
    yield (
        "The rows that stood at the end of the first version (4a9fd47), beside those above that were measured since: on other cards of"
        " the kind, on other days. Columns as in the table above; `now / then` are milliseconds, and over what torch's side took."
    )
    lines = list(
        head(
            [
                "model",
                "of torch's",
                "then",
                "now",
                "tuned then",
                "tuned now",
                "now / then",
                "over torch's",
                "commit then",
                "now",
            ]
        )
    )
    same = []
    for name, then in before.items():
        row = models.get(name, {})
        if row.get("commit") == then["commit"] or "best_tuned" not in row or "best_tuned" not in then:
            same.append(name)
            continue
        side = fastest(row, then)
        walls = [one["sides"][of]["wall_us"] for one in (then, row) for of in (side, one["best_tuned"])]
        torch_then, tuned_then, torch_now, tuned_now = walls
        cells = [name, side, *map(ms, (torch_then, torch_now, tuned_then, tuned_now)), ratio(tuned_now / tuned_then, 3)]
        cells += [ratio(tuned_now / torch_now / (tuned_then / torch_then), 3), then["commit"][:7], row["commit"][:7]]
        lines.append(line(cells))
    yield "\n".join(lines)
    if same:
        yield f"Not to be compared, or not measured again: {', '.join(same)}."


def fastest(row: Rows, other: Rows) -> str:
    """The side of torch's that is the fastest in a row, of those that another row has too."""
    sides: Mapping[str, Rows] = {side: one for side, one in row["sides"].items() if side in TORCH and "wall_us" in one}
    both = [side for side in sides if "wall_us" in other["sides"].get(side, {})]
    return min(both, key=lambda side: float(sides[side]["wall_us"]))


def _drawn(found: Rows, models: Rows) -> Iterator[str]:
    """The same kinds of models at sizes that nobody chose."""
    yield (
        f"Each kind of model at a size that the seed {found['seed']} drew from the ranges in `benchmarks/zoo.py`, so that nobody has"
        " chosen it: `scripts/bench drawn`. The last two columns say which row above is of the same kind, and which share of"
        " its gain is left here, in logarithms."
    )
    rows: Rows = found["models"]
    lines, beside = list(table(rows)), [_beside(name, models) for name in rows]
    shares = [_share(row, models.get(other, {})) for row, other in zip(rows.values(), beside, strict=True)]
    more = [["of its kind", "share of the gain"], ["---", "---"], *map(list, zip(beside, shares, strict=True))]
    yield "\n".join(f"{one} {' | '.join(cells)} |" for one, cells in zip(lines, more, strict=True))
    yield from _listed("Without a time are:", _failures(rows))
    yield from _listed(f"Noise is above {QUIET:.0%} in:", _noisy(rows))


def _beside(name: str, models: Rows) -> str:
    """The first row of the same kind of model, trained or not as this one is."""
    return next((other for other in models if _kind(other) == _kind(name)), "-")


def _kind(name: str) -> Sequence[str]:
    """A name without its size, which begins with a digit."""
    return [word for word in name.split() if not word[0].isdigit()]


def _share(row: Rows, other: Rows) -> str:
    gain, usual = row.get("speedup"), other.get("speedup")
    return f"{math.log(gain) / math.log(usual):.0%}" if gain and usual and usual > 1.0 else "-"
