"""What is replayed: each section yields its cases by name, with what came of them as plain data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.replay.calls import best_cuts, looked_up, opened, some_trace, tuned
from benchmarks.replay.corpus import RecordedProgram, programs
from benchmarks.replay.exact import ExactRoofline
from benchmarks.replay.meaning import digest, rounded
from benchmarks.replay.pool import ReplayedPool, drawn
from benchmarks.replay.stored import TUNED, copied
from benchmarks.search_tables import from_database
from fuseplan.measure.race import ReplayClock, Rule, Sample, race
from fuseplan.models import Machine

Cases = Iterator[tuple[str, Any]]
GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "unit" / "tuning_db" / "golden"
DATABASES = (GOLDEN / "schema_1.sqlite3", GOLDEN / "of_4a9fd47" / "plans.sqlite3", TUNED)
"""Two that commit 4a9fd47 has written, and one that was really tuned."""
SMALLEST, SMALL, LARGE = 150, 180, 1000
"""Ops of the programs that are predicted, tuned and solved in the short run."""
RACES = 300


def solved(folder: Path) -> Cases:
    """The k best cuts of each program, for each launch, with what each effort asks for: by predictions, and by what was measured."""
    stored = [RecordedProgram(table) for table in from_database(copied(TUNED, folder))]
    yield from _solved([*stored, *(program for program in programs() if program.ops <= LARGE)])


def _solved(chosen: list[RecordedProgram]) -> Cases:
    for program in chosen:
        model = ExactRoofline(Machine.guess(program.gpu))
        model.update(program.rows)
        costs = program.costs_of(model, program.timings(), 1.0)
        for effort in ("quick", "full") if program.ops <= SMALL else ("quick",):
            for launch in ("plain", "cudagraph"):
                found = best_cuts(program.graphs, costs, launch, effort)
                best = [rounded(found[0][0]), found[0][1]]
                others = [[rounded(us), digest(cuts)] for us, cuts in found[1:]]
                yield f"{program.name}, {launch}, {effort}", {"best": best, "others": others}


def tuned_quick(folder: Path) -> Cases:
    """Small programs tuned for both launches into one database, so that later ones know the layers of earlier ones."""
    yield from _tuned(folder, [program for program in programs() if program.ops <= SMALL], "quick", "learned", 0.01)


def tuned_full(folder: Path) -> Cases:
    """The smallest programs tuned with effort full, in a noisy place."""
    yield from _tuned(folder, list(programs())[:2], "full", "learned", 0.04)


def tuned_plainly(folder: Path) -> Cases:
    """Small programs tuned by a model that does not know its doubts."""
    yield from _tuned(folder, [program for program in programs() if program.ops <= SMALL], "quick", "roofline", 0.01)


def predicted(folder: Path) -> Cases:
    """Programs with a plan that is only predicted."""
    yield from _tuned(folder, [program for program in programs() if program.ops <= SMALLEST], "none", "learned", 0.01)


def _tuned(folder: Path, chosen: list[RecordedProgram], effort: str, model: str, noise: float) -> Cases:
    trace = some_trace()
    store = opened(folder / f"{effort}-{model}.db")
    for program in chosen:
        for launch in ("plain", "cudagraph"):
            pool = ReplayedPool(program, noise, seed=("plain", "cudagraph").index(launch))
            found = tuned(store, pool, trace, program.key, program.name, launch, effort, model)
            yield f"{program.name}, {launch}", {**found, "asked": pool.jobs}
    store.close()


def raced(folder: Path) -> Cases:
    """Races over samples that are always the same: near ties, clear wins, noise, a busy machine."""
    for number in range(RACES):
        draw = drawn("race", number)
        count, noise = draw.randrange(2, 8), draw.choice((0.001, 0.01, 0.05, 0.3))
        by = draw.choice((("wall_us",), ("device_us", "host_us")))
        rule = Rule(
            by=by, most=draw.choice((11, 24, 60)), alike=draw.choice((0.0, 0.01)), seconds=draw.choice((None, 2.0))
        )
        samples = {
            f"plan {i}": _samples(draw, 100.0 * draw.choice((1.0, 1.002, 0.98, 0.9, 1.3, 2.0)), noise)
            for i in range(count)
        }
        result = race(list(samples), ReplayClock(samples), incumbent="plan 0", rule=rule)
        lanes = [[lane.dropped, *map(rounded, (lane.ratio, lane.low, lane.high))] for lane in result.lanes]
        yield f"{number}", [result.winner, rounded(result.noise), result.rounds, lanes]


def _samples(draw: Any, us: float, noise: float) -> list[Sample]:
    found = []
    for _ in range(30):
        device, host = us * draw.lognormvariate(0.0, noise), 0.5 * us * draw.lognormvariate(0.0, noise)
        found.append(Sample(device, host, max(device, host) * draw.lognormvariate(0.0, noise), 0.01))
    return found


def found_again(folder: Path) -> Cases:
    """What look-ups answer in stored databases, and what stands there of each plan."""
    for file in DATABASES:
        store = opened(copied(file, folder))
        for name, answer in looked_up(store).items():
            yield f"{file.name.partition('.')[0]}: {name}", answer
        store.close()


SECTIONS: dict[str, Callable[[Path], Cases]] = {
    one.__name__: one
    for one in (
        raced, found_again, solved, tuned_plainly, predicted, tuned_quick, tuned_full,
    )
}  # fmt: skip
