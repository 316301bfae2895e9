"""The sides: what each compiles of a served model, and how."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.serve.models import ServedCase
from benchmarks.serve.servers import Call, EncoderServer, SlotServer, server_of
from benchmarks.timing import paired
from benchmarks.zoo import fresh
from fuseplan.measure.race import RaceResult

Asked = Mapping[str, Any]
EAGER, DYNAMIC, STATIC, BEFORE, AFTER = "eager", "torch.compile", "reduce-overhead", "fuseplan", "fuseplan tuned"
OTHERS = (EAGER, DYNAMIC, STATIC)
OWN = (BEFORE, AFTER)
SIDES = (*OTHERS, *OWN)


@dataclass(frozen=True)
class Compiled:
    """What torch.compile is asked of a prefill, or of all of an encoder, and of a step of decoding; nothing where it is left eager."""

    prefill: Asked | None
    decode: Asked | None


def compiled_by(side: str, kind: str, given: Mapping[str, Any]) -> Compiled:
    """What a side does.

    `torch.compile` has sizes that vary from the start. `reduce-overhead` is what transformers' documentation recommends: a static cache,
    and the step of decoding alone compiled in that mode, as `generate` does, which leaves the prefill eager; an encoder is compiled in it
    as a whole. fuseplan compiles both, without a plan and with those that were found.
    """
    if side == EAGER:
        return Compiled(None, None)
    if side == DYNAMIC:
        return Compiled({"dynamic": True}, {"dynamic": True})
    if side == STATIC:
        asked = {"mode": "reduce-overhead"}
        return Compiled(asked if kind == "encoder" else None, asked)
    db = Path(given["folder"]) / "empty.db" if side == BEFORE else Path(given["db"])
    return of_fuseplan({"backend": "fuseplan", "options": {"db": str(db)}})


def of_fuseplan(asked: Asked) -> Compiled:
    """The same of both; that lengths vary, the inputs say."""
    return Compiled(asked, asked)


def serving(case: ServedCase, model: nn.Module, compiled: Compiled) -> SlotServer | EncoderServer:
    """A server of a model, for which Dynamo compiles anew."""
    prefill, decode = (call_of(model, asked) for asked in (compiled.prefill, compiled.decode))
    return server_of(case, model, prefill, decode)


def call_of(model: nn.Module, asked: Asked | None) -> Call:
    """What calls a model: itself, or what torch.compile makes of a function of its own."""
    return model if asked is None else torch.compile(fresh(model), **asked)


def compared(race: RaceResult, sides: Sequence[str], rows: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """How many times as fast each side is as the best of the others, by the passes beside each other, and whether beyond noise."""
    able = [side for side in sides if "failed" not in rows[side]]
    times = {side: lane.wall_us for side in able if (lane := race.lane(side).medians) is not None}
    best = min((side for side in OTHERS if side in times), key=times.__getitem__, default="")
    found: dict[str, Any] = {"noise": race.noise, "noise_of": race.incumbent, "rounds": race.rounds, "best_other": best}
    gains = {side: {"ratio": paired(race, best, side), "verdict": _verdict(race, side, best)} for side in able if best}
    return {**found, "gains": gains}


def _verdict(race: RaceResult, side: str, best: str) -> str:
    """How a side compares; of one that was dropped as hopeless its two passes tell that much."""
    if race.lane(side).dropped is not None:
        return "slower" if min(race.differences(side, best)) > math.log1p(race.noise) else "unknown"
    return race.compared(side, best)
