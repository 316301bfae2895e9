"""Whether a side decodes right: eager's tokens in float32, and in lower precision each step as right as the judge has it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.serve.loop import DecodeLoop
from benchmarks.serve.servers import Call
from fuseplan.judge.expect import MORE, Spreads
from fuseplan.judge.fused import RoundedAttention
from fuseplan.judge.moved import MovedRun
from fuseplan.judge.output import Wider
from fuseplan.judge.programs import JudgedRun, judge

DRAWS = 3
"""Runs of eager on moved values, the last in another order of summation, before anything is judged."""
_LOGITS = "logits"


def same_tokens(loop: DecodeLoop, model: nn.Module, call: Call) -> dict[str, Any]:
    """Of how many steps a side gives eager's tokens, and where it first does not."""
    right, found = loop.decoded(model), loop.decoded(call)
    wrong = [step for step, pair in enumerate(zip(right, found, strict=True)) if not torch.equal(*pair)]
    row: dict[str, Any] = {"steps": loop.steps, "same": loop.steps - len(wrong)}
    return row | ({"failed": f"wrong: other tokens than eager's from step {wrong[0]} on"} if wrong else {})


@dataclass(eq=False)
class JudgedSteps:
    """What each step should give, where each is given eager's tokens, and how far eager moves while nothing is wrong."""

    loop: DecodeLoop
    model: nn.Module
    tokens: Sequence[Tensor]
    spreads: Spreads
    draws: int = 0

    @staticmethod
    def of(loop: DecodeLoop, model: nn.Module) -> JudgedSteps:
        """Run eager, the same in higher precision from the same cache, and eager moved."""
        tokens = loop.decoded(model)
        eager = _by_step(loop.forced(model, tokens))
        dtype = torch.float64 if model.dtype == torch.float32 else torch.float32
        wide, widened = deepcopy(model).to(dtype), loop.widened(dtype)
        exact = _by_step([one.to(torch.float32) for one in widened.forced(wide, tokens)] if dtype == torch.float32 else widened.forced(wide, tokens))  # fmt: skip
        del wide, widened
        found = JudgedSteps(loop, model, tokens, Spreads(eager, exact))
        for number in range(DRAWS):
            found._draw(reordered=number == DRAWS - 1)
        return found

    def judge(self, call: Call, wider: Wider | float = 1.0) -> list[JudgedRun]:
        """What is to be said of each step of a side; where that is in doubt, eager runs some more."""
        found, more = self.loop.forced(call, self.tokens), list(MORE)
        while True:
            judged = [
                judge({_LOGITS: logits}, self.spreads.leaves[step], "any", wider) for step, logits in enumerate(found)
            ]
            if not more or not any(one.doubtful for one in judged):
                return judged
            for number in range(more.pop(0)):
                self._draw(reordered=number % 2 == 1)

    def _draw(self, *, reordered: bool) -> None:
        given = [*self.model.parameters(), *self.model.buffers(), *self.loop.held()]
        moved = MovedRun(given, self.draws, reordered=reordered)
        with moved, RoundedAttention() if reordered else nullcontext():
            logits = self.loop.forced(self.model, self.tokens)
        for step, results in _by_step(logits).items():
            self.spreads.learn(step, results)
        self.draws += 1


def _by_step(logits: Sequence[Tensor]) -> dict[int, dict[str, Tensor]]:
    return {step: {_LOGITS: one} for step, one in enumerate(logits)}


def told(judged: Sequence[JudgedRun], draws: int) -> dict[str, Any]:
    """What a row says of all steps: how many are wrong, and of the worst what it is off by as a share of what is allowed."""
    wrong = [(step, one.problem) for step, one in enumerate(judged) if one.problem is not None]
    worst = max((output.share for one in judged for output in one.evidence), default=0.0)
    row: dict[str, Any] = {"steps": len(judged), "wrong": len(wrong), "worst": round(worst, 4), "draws": draws}
    return row | ({"failed": f"wrong: step {wrong[0][0]}: {wrong[0][1]}"} if wrong else {})
