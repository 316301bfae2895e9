"""One model under a mix of requests, in a process of its own: recorded, tuned, and then all sides serve the same requests in turns.

What is known stands in its report at once. What was tuned, and what Inductor has compiled, is found again by the next process where a
folder is kept; the sides are warmed up anew.
"""

from __future__ import annotations

import gc
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from time import monotonic
from typing import Any

import torch

import fuseplan
from benchmarks.fleet import Report, Task
from benchmarks.one_model import MARGIN_S, Time, without_plans
from benchmarks.result import commit
from benchmarks.serve.checked import JudgedSteps, ServedSteps, judge_sides
from benchmarks.serve.engine import Served, latencies, serve
from benchmarks.serve.models import EVERY, ServedCase
from benchmarks.serve.process import carried_out, tried
from benchmarks.serve.requests import Request, at_rate, percentile
from benchmarks.serve.servers import EncoderServer, SlotServer
from benchmarks.serve.sides import AFTER, EAGER, OTHERS, OWN, compared, compiled_by, of_fuseplan, serving
from benchmarks.serve.tuned import left_out, plans_left_out, tuned
from benchmarks.timing import rounds_of
from benchmarks.together import running, undisturbed
from benchmarks.tuned_model import clear
from fuseplan.garbage import no_collection
from fuseplan.measure.clocks import failing
from fuseplan.measure.race import LaneError, Sample
from fuseplan.stats import counts

WARM_SEED, SEED = 1, 2
"""Of the requests that are recorded and warm a side up, and of those by which it is measured."""
BURST = 8.0
"""So many times as fast as the fastest side could answer, requests come where tokens a second are measured: it never waits for one."""
STEADY = 0.7
"""As a share of what the fastest of the others could answer, the rate at which latencies are measured."""
ROUNDS = (7, 15)
"""Passes of each side at least, of which fewer would tell nothing for sure, and at most."""
HOPELESS = 1.5
"""A side that is so many times as slow as another, in a burst or by P99 between tokens, has two."""
OFF = 1e-4
"""As a share of the largest that eager gives, how far an encoder in float32 may be off."""


def run(task: Task) -> None:
    """Do what there is time for; the row says what was left out."""
    carried_out(task, partial(_run, task))


def _run(task: Task, report: Report, time: Time) -> None:
    given, case = task.arguments, EVERY[task.name]
    report.put(
        part="mix", commit=commit(), effort=given["effort"], kind=case.kind, slots=case.slots, requests=case.requests
    )
    report.at("loading")
    model = case.load(given["device"])
    if AFTER in given["sides"]:
        _tuned(task, case, model, report, time)
    passes = Passes(case, given["device"])
    rows: dict[str, dict[str, Any]] = {}
    for side in given["sides"]:
        time.need(MARGIN_S, f"{side} to compile")
        report.at("warming up", side)
        made = partial(serving, case, model, compiled_by(side, case.kind, given))
        rows[side] = tried(partial(passes.warm_up, side, made))
        report.put(sides=rows, seconds=report.seconds())
    time.need(MARGIN_S, "the checks")
    report.at("checking")
    _held_to_plans(passes, rows, report)
    _check(passes, model, rows)
    report.put(sides=rows, seconds=report.seconds())
    able = [side for side in given["sides"] if "failed" not in rows[side]]
    if able:
        for name in ("burst", "steady"):
            time.need(given["seconds"], f"the passes of {name}")
            report.at(f"passes: {name}")
            still = [side for side in able if "failed" not in rows[side]]
            with undisturbed():
                raced = passes.raced(name, still, given["seconds"], rows)
            report.put(**{name: raced}, sides=rows, seconds=report.seconds())
    for side in able:
        rows[side]["after"] = passes.compiled_since(side)
    _held_to_plans(passes, rows, report)
    report.put(sides=rows, left_out=left_out(given, report.fields))


def _tuned(task: Task, case: ServedCase, model: torch.nn.Module, report: Report, time: Time) -> None:
    """Record a pass, and tune what it has called; what an earlier process has found is not looked for again."""
    given = task.arguments
    report.at("recording")
    with fuseplan.record(name=task.name) as recording:
        server = serving(case, model, of_fuseplan({"backend": "eager"}))
        serve(server, case.pattern.draw(case.requests, WARM_SEED), partial(wait, given["device"]), whole=is_whole(case))
    del server
    clear(given["device"])
    tuned(task, recording, report, time)


def wait(device: str) -> None:
    """Return once the device has done all that it was given."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def is_whole(case: ServedCase) -> bool:
    """Whether an answer comes at once."""
    return case.kind == "encoder"


class Passes:
    """The passes of all sides: each serves the same requests, one side after the other, in another order each round."""

    def __init__(self, case: ServedCase, device: str) -> None:
        self.case, self.device = case, device
        self.servers: dict[str, SlotServer | EncoderServer] = {}
        self.warm: dict[str, Served] = {}
        self.known: dict[str, dict[str, list[Served]]] = {}
        self.counted: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """What fuseplan has counted while a side served."""

    def warm_up(self, side: str, made: Callable[[], SlotServer | EncoderServer]) -> dict[str, Any]:
        """Make a side's server and have it serve what was recorded, all at once; what that took, and the memory that it has made its own."""
        cuda = self.device.startswith("cuda")
        gc.collect()
        wait(self.device)
        if cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        held, begin = torch.cuda.memory_allocated() if cuda else 0, running()
        self.servers[side] = made()
        self.warm[side] = self._pass(side, self.case.pattern.draw(self.case.requests, WARM_SEED), BURST * 1e6)
        if isinstance(server := self.servers[side], EncoderServer):  # what all sides can be compared by
            with self._counting(side):
                server.read(self.case.pattern.draw(self.case.slots, WARM_SEED))
        row: dict[str, Any] = {"warm_up_s": round(running() - begin, 2), "warm": _compiled([self.warm[side]])}
        if cuda:
            row["own_peak_bytes"] = torch.cuda.max_memory_allocated() - held
        return row | ({"counted": dict(self.counted[side])} if side in OWN else {})

    def raced(self, name: str, sides: Sequence[str], seconds: float, rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
        """Serve in rounds: in a burst, by the time of a token, or steadily, by P99 between tokens, or to an answer that comes at once."""
        rate = self.rate(name)
        requests = self.case.pattern.draw(self.case.requests, SEED)
        known = self.known[name] = {side: [] for side in sides}
        clock = _PassClock(
            lambda side: self._kept(known[side], self._pass(side, requests, rate)), name, is_whole(self.case)
        )
        costs = {side: cost for side in sides if (cost := _cost(clock, side, rows[side])) is not None}
        if not costs:
            return {"rate": round(rate, 4)}
        able = list(costs)
        rounds = max(ROUNDS[0], min(ROUNDS[1], int(seconds / sum(costs.values()))))
        same = min([side for side in able if side in OTHERS] or able, key=costs.__getitem__)
        result, noisy = rounds_of(able, clock, same, rounds, 0.0, HOPELESS)
        for side in able:
            lane, passes = result.lane(side), known[side]
            if lane.status != "ok":
                rows[side]["failed"] = f"{lane.status}: {lane.detail}"
            elif name == "burst":
                rows[side]["tokens_a_second"] = round(_middle([one.counted / one.seconds for one in passes]), 2)
            else:
                rows[side].update(latencies(passes))
        found = compared(result, able, rows)
        return {"rate": round(rate, 4), **found} | ({"noisy": noisy} if noisy else {})

    def rate(self, name: str) -> float:
        """How many requests a second come."""
        fastest = max(
            self._capacity(side) for side in self.warm if name == "burst" or side in OTHERS or not self._others()
        )
        return fastest * (BURST if name == "burst" else STEADY)

    def compiled_since(self, side: str) -> dict[str, Any]:
        """What was compiled once the side was warm."""
        return _compiled([one for passes in self.known.values() for one in passes.get(side, ())])

    def _others(self) -> list[str]:
        return [side for side in self.warm if side in OTHERS]

    def _capacity(self, side: str) -> float:
        """How many requests a second a side could answer, by what its steps take in the middle."""
        warm = self.warm[side]
        if is_whole(self.case):
            return self.case.slots / (warm.usual_s("batch") or 1.0)
        new = warm.counted / self.case.requests
        return 1 / ((warm.usual_s("prefill") or 0.0) + new * (warm.usual_s("decode") or 0.0) / self.case.slots)

    def _pass(self, side: str, requests: Sequence[Request], rate: float) -> Served:
        gc.collect()
        with no_collection(), self._counting(side):
            return serve(
                self.servers[side], at_rate(requests, rate), partial(wait, self.device), whole=is_whole(self.case)
            )

    @contextmanager
    def _counting(self, side: str) -> Iterator[None]:
        before = Counter(counts())
        try:
            yield
        finally:
            self.counted[side] += Counter(counts()) - before

    @staticmethod
    def _kept(passes: list[Served], served: Served) -> Served:
        passes.append(served)
        return served


class _PassClock:
    """The clock of a race in which a block is a pass."""

    def __init__(self, pass_of: Callable[[str], Served], name: str, whole: bool) -> None:
        self.pass_of, self.name, self.whole = pass_of, name, whole

    def block(self, name: str) -> Sample:
        """Serve once more; LaneError if that fails."""
        begin = monotonic()
        with failing():
            served = self.pass_of(name)
        if self.name == "burst":
            seconds = served.seconds / served.counted
        else:
            seconds = percentile(served.firsts() if self.whole else served.between(), 0.99)
        return Sample(0.0, 0.0, 1e6 * seconds, monotonic() - begin)


def _cost(clock: _PassClock, side: str, row: dict[str, Any]) -> float | None:
    """What a pass takes; a side that fails in it has failed."""
    try:
        return clock.block(side).seconds
    except LaneError as failed:
        row["failed"] = f"{failed.status}: {failed.detail}"
        return None


def _held_to_plans(passes: Passes, rows: dict[str, dict[str, Any]], report: Report) -> None:
    """Fail the tuned side where it has run anything else than stored plans, unless the row tells of programs without one."""
    if AFTER not in passes.warm or "failed" in rows[AFTER]:
        return
    why = without_plans(passes.counted[AFTER], partly=bool(plans_left_out(report.fields.get("tuning", {}))))
    if why is not None:
        rows[AFTER]["failed"] = why


def _check(passes: Passes, model: torch.nn.Module, rows: dict[str, dict[str, Any]]) -> None:
    """Compare all sides with eager, which tells what is wrong in float32; in lower precision each step is judged, as where decoding is
    measured alone.
    """
    exact = model.dtype == torch.float32
    _same_as_eager(passes, rows, exact=exact)
    if not exact:
        requests = passes.case.pattern.draw(passes.case.slots, WARM_SEED)
        servers = {side: passes.servers[side] for side in passes.warm if "failed" not in rows[side]}
        judge_sides(JudgedSteps.of(ServedSteps(passes.case, model, requests), model), servers, rows)


def _same_as_eager(passes: Passes, rows: dict[str, dict[str, Any]], *, exact: bool) -> None:
    """Of how many requests a side gives eager's tokens, or how far an encoder is off; where all is `exact`, what is not eager's is wrong."""
    if EAGER not in passes.warm:
        return
    for side, warm in passes.warm.items():
        row, server, eager = rows[side], passes.servers[side], passes.servers[EAGER]
        if isinstance(server, EncoderServer) and isinstance(eager, EncoderServer):
            assert server.last is not None
            assert eager.last is not None
            row["off"] = float((server.last - eager.last).abs().max() / eager.last.abs().max())
            wrong = "" if row["off"] <= OFF else f"an encoder in float32 that is off by {row['off']:.2g}"  # NaN is off
        else:
            right = passes.warm[EAGER].tokens
            same = row["same_tokens"] = sum(right[number] == tokens for number, tokens in warm.tokens.items()) / len(right)  # fmt: skip
            wrong = "" if same == 1 else f"other tokens than eager's in float32, of {1 - same:.0%} of the requests"
        if exact and wrong and "failed" not in row:
            row["failed"] = f"wrong: {wrong}"


def _compiled(passes: Sequence[Served]) -> dict[str, Any]:
    """The graphs that were compiled, the steps that waited for that, and how long."""
    stalls = [step for served in passes for step in served.stalls()]
    found = {"compilations": sum(one.compilations() for one in passes), "stalls": len(stalls)}
    return {**found, "stalled_s": round(sum(step.seconds for step in stalls), 3)}


def _middle(values: Sequence[float]) -> float:
    return percentile(values, 0.5)
