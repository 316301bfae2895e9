"""The sides: what each compiles of a served model, and how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.serve.models import ServedCase
from benchmarks.serve.servers import Call, EncoderServer, SlotServer, server_of
from benchmarks.zoo import fresh

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
    prefill, decode = (_call(model, asked) for asked in (compiled.prefill, compiled.decode))
    return server_of(case, model, prefill, decode)


def _call(model: nn.Module, asked: Asked | None) -> Call:
    return model if asked is None else torch.compile(fresh(model), **asked)
