"""Decoding alone, at one batch, context and size of cache, in a process of its own: tuned, checked, and all sides against each other.

In float32 a side has to give eager's tokens; in bf16 each of the steps, given eager's tokens, has to pass the judge, which allows
torch.compile's default what it allows it elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import torch

import fuseplan
from benchmarks.fleet import Report, Task
from benchmarks.one_model import MARGIN_S, Time, without_plans
from benchmarks.result import commit
from benchmarks.serve.checked import JudgedSteps, judge_sides, put_checked, same_tokens
from benchmarks.serve.engine import compiled_so_far
from benchmarks.serve.loop import STEPS, DecodeLoop
from benchmarks.serve.models import EVERY
from benchmarks.serve.process import carried_out, tried
from benchmarks.serve.servers import Call
from benchmarks.serve.sides import AFTER, EAGER, OTHERS, OWN, STATIC, call_of, compared, compiled_by, of_fuseplan
from benchmarks.serve.tuned import left_out, plans_left_out, tuned
from benchmarks.timing import alternating, contest
from benchmarks.together import running, undisturbed
from benchmarks.tuned_model import clear

TIMES = (1, 4)
"""Caches of prompt and steps, and of so many times that."""
HOST_BLOCKS, HOST_STEPS, HOST_FIRST = 15, 20, 4
"""Blocks of a side in which the host's time is taken, the steps of each, and how many of these come behind another side's, and don't count."""


@dataclass(frozen=True)
class Decoding:
    """What is decoded: of which model, and how large."""

    model: str
    batch: int
    context: int
    times: int = 1
    single: bool = False
    """In float32, whatever the device."""

    @property
    def length(self) -> int:
        """The tokens that the cache holds."""
        return self.times * (self.context + STEPS)

    @property
    def name(self) -> str:
        """What its row is called.

        >>> Decoding("llama", 8, 512, 4).name
        'llama decode 8x512, cache 2304'
        """
        return (
            f"{self.model} decode {self.batch}x{self.context}, cache {self.length}{', float32' if self.single else ''}"
        )


def run(task: Task) -> None:
    """Do what there is time for; the row says what was left out."""
    carried_out(task, partial(_run, task))


def _run(task: Task, report: Report, time: Time) -> None:
    given = task.arguments
    what = Decoding(**given["what"])
    report.put(part="decode", commit=commit(), effort=given["effort"], **vars(what), cache=what.length)
    report.at("loading")
    model = EVERY[what.model].load(given["device"], torch.float32 if what.single else None)
    loop = DecodeLoop.of(model, what.batch, what.context, what.times)
    if AFTER in given["sides"]:
        _tuned(task, loop, model, report, time)
    rows: dict[str, dict[str, Any]] = {}
    calls: dict[str, Call] = {}
    for side in given["sides"]:
        time.need(MARGIN_S, f"{side} to compile")
        report.at("compiling", side)
        calls[side] = call_of(model, compiled_by(side, "decoder", given).decode)
        rows[side] = tried(partial(_compile, loop, calls[side], side))
        told = bool(plans_left_out(report.fields.get("tuning", {})))
        if side == AFTER and "failed" not in rows[side] and (why := without_plans(rows[side]["counted"], partly=told)):
            rows[side]["failed"] = why
        report.put(sides=rows, seconds=report.seconds())
    report.at("checking")
    _check(loop, model, {side: call for side, call in calls.items() if "failed" not in rows[side]}, rows)
    report.put(sides=rows, seconds=report.seconds())
    time.need(given["seconds"] + MARGIN_S, "the race")
    steps = {side: partial(loop.step, calls[side]) for side in given["sides"] if "failed" not in rows[side]}
    loop.rewind()
    with undisturbed():
        contested = contest(steps, given["device"], given["seconds"], report.at, twice=OTHERS)
        host = host_times({side: steps[side] for side in (STATIC, *OWN) if side in steps}, given["device"])
    rows = {side: {**rows[side], **contested.rows.get(side, {}), **host.get(side, {})} for side in given["sides"]}
    found = {} if contested.race is None else compared(contested.race, given["sides"], rows)
    noisy = {"noisy": contested.noisy} if contested.noisy else {}
    report.put(sides=rows, race={**found, **noisy}, left_out=left_out(given, report.fields))


def _tuned(task: Task, loop: DecodeLoop, model: torch.nn.Module, report: Report, time: Time) -> None:
    """Record some steps, and tune what they call."""
    report.at("recording")
    with fuseplan.record(name=task.name) as recording:
        call = call_of(model, of_fuseplan({"backend": "eager"}).decode)
        for _ in range(STEPS // 8):
            loop.step(call)
    loop.rewind()
    clear(task.arguments["device"])
    tuned(task, recording, report, time)


def _compile(loop: DecodeLoop, call: Call, side: str) -> dict[str, Any]:
    """Decode once from the prompt to the end: what that took, and what was compiled; and what more in a second time."""
    before, begin, compiled = fuseplan.stats(), running(), compiled_so_far()
    loop.decoded(call)
    row: dict[str, Any] = {
        "first_s": round(running() - begin, 2),
        "warm": {"compilations": compiled_so_far() - compiled},
    }
    compiled = compiled_so_far()
    loop.decoded(call)
    row["after"] = {"compilations": compiled_so_far() - compiled}
    counted = {event: n - before.get(event, 0) for event, n in fuseplan.stats().items()}
    return row | ({"counted": {event: n for event, n in counted.items() if n}} if side in OWN else {})


def host_times(steps: Mapping[str, Callable[[], object]], device: str) -> dict[str, dict[str, float]]:
    """What a step takes the host where the GPU has nothing left to do, so that it never waits: the median of many, the sides in turn. On a
    CPU, which has no other time, nothing.
    """
    if not device.startswith("cuda"):
        return {}

    def block(side: str) -> float:
        return median([_host_us(steps[side]) for _ in range(HOST_STEPS)][HOST_FIRST:])

    return {side: {"host_step_us": round(median(us), 2)} for side, us in alternating(steps, HOST_BLOCKS, block).items()}


def _host_us(step: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    begin = perf_counter()
    step()
    return 1e6 * (perf_counter() - begin)


def _check(loop: DecodeLoop, model: torch.nn.Module, calls: dict[str, Call], rows: dict[str, dict[str, Any]]) -> None:
    """Tokens in float32, of all sides; else each step."""
    if model.dtype != torch.float32:
        judge_sides(JudgedSteps.of(loop, model), calls, rows)
        return
    for side, call in calls.items():
        if side != EAGER:
            put_checked(side, rows, "tokens", partial(same_tokens, loop, model, call), fails=side in OWN)
