"""Whether a side decodes right: eager's tokens in float32, and in lower precision each step as right as the judge has it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.serve.loop import DecodeLoop
from benchmarks.serve.models import ServedCase
from benchmarks.serve.process import tried
from benchmarks.serve.requests import Request
from benchmarks.serve.servers import Call, EncoderServer, SlotServer, server_of
from benchmarks.serve.sides import DYNAMIC, OWN
from fuseplan.judge.expect import MORE, Spreads
from fuseplan.judge.fused import RoundedAttention
from fuseplan.judge.memory import is_float
from fuseplan.judge.moved import MovedRun
from fuseplan.judge.output import WIDER, Wider, widened_by
from fuseplan.judge.programs import JudgedRun, judge

DRAWS = 3
"""Runs of eager on moved values, the last in another order of summation, before anything is judged."""
AHEAD = 8
"""Steps of decoding that are judged of a server, after the prompts in its slots."""
_LOGITS = "logits"


def same_tokens(loop: DecodeLoop, model: nn.Module, call: Call) -> dict[str, Any]:
    """Of how many steps a side gives eager's tokens, and where it first does not."""
    right, found = loop.decoded(model), loop.decoded(call)
    wrong = [step for step, pair in enumerate(zip(right, found, strict=True)) if not torch.equal(*pair)]
    row: dict[str, Any] = {"steps": loop.steps, "same": loop.steps - len(wrong)}
    return row | ({"failed": f"wrong: other tokens than eager's from step {wrong[0]} on"} if wrong else {})


@dataclass(eq=False)
class ServedSteps:
    """What a server gives of the requests in its slots: of all prompts, and of some steps of decoding; of an encoder, of one batch.

    It runs a server, or makes one of a callable.
    """

    case: ServedCase
    model: nn.Module
    requests: Sequence[Request]
    dtype: torch.dtype | None = None
    """In which a callable computes, if not in the model's: its inputs are the same, rounded as they are for the model."""

    def widened(self, dtype: torch.dtype) -> ServedSteps:
        """The same requests for a model of another precision."""
        return ServedSteps(self.case, self.model, self.requests, dtype)

    def held(self) -> list[Tensor]:
        """Nothing: a cache is filled anew."""
        return []

    def decoded(self, call: Call | SlotServer | EncoderServer) -> list[Tensor]:
        """The tokens that it goes on with."""
        return self._served(call, None)[1]

    def forced(self, call: Call | SlotServer | EncoderServer, tokens: Sequence[Tensor]) -> list[Tensor]:
        """The logits, where it is given these tokens to go on with."""
        return self._served(call, tokens)[0]

    @torch.no_grad()
    def _served(
        self, call: Call | SlotServer | EncoderServer, given: Sequence[Tensor] | None
    ) -> tuple[list[Tensor], list[Tensor]]:
        server = call if isinstance(call, SlotServer | EncoderServer) else self._server(call)
        if isinstance(server, EncoderServer):
            server.read(self.requests)
            assert server.last is not None
            return [server.last], []
        tokens: list[Tensor] = []

        def go_on(place: Tensor) -> None:
            if given is not None:
                place.copy_(given[len(tokens)])
            tokens.append(place.clone())

        with _logits_of(server) as logits:
            for slot, request in enumerate(self.requests):
                server.take(slot, request)
                go_on(server.tokens[slot])
            for _ in range(min(AHEAD, self.case.cache - max(one.prompt for one in self.requests))):
                server.step()
                go_on(server.tokens)
        for slot in range(len(self.requests)):
            server.free(slot)
        prompts = len(self.requests)
        return [torch.cat(logits[:prompts]), *logits[prompts:]], tokens

    def _server(self, call: Call) -> SlotServer | EncoderServer:
        def wide(**inputs: Any) -> Any:
            return call(**{name: one.to(self.dtype) if is_float(one) else one for name, one in inputs.items()})

        called = call if self.dtype is None else wide
        return server_of(self.case, self.model, called, called)


@contextmanager
def _logits_of(server: SlotServer) -> Iterator[list[Tensor]]:
    """The logits of all that it computes meanwhile."""
    found: list[Tensor] = []

    def heard(call: Call) -> Call:
        def called(**inputs: Any) -> Any:
            result = call(**inputs)
            found.append(result.logits[:, -1].clone())
            return result

        return called

    calls = server.prefill, server.decode
    server.prefill, server.decode = map(heard, calls)
    try:
        yield found
    finally:
        server.prefill, server.decode = calls


@dataclass(eq=False)
class JudgedSteps:
    """What each step should give, where each is given eager's tokens, and how far eager moves while nothing is wrong."""

    loop: DecodeLoop | ServedSteps
    model: nn.Module
    tokens: Sequence[Tensor]
    spreads: Spreads
    draws: int = 0

    @staticmethod
    def of(loop: DecodeLoop | ServedSteps, model: nn.Module) -> JudgedSteps:
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

    def judge(self, call: Any, wider: Wider | float = 1.0) -> list[JudgedRun]:
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


def judge_sides(steps: JudgedSteps, calls: Mapping[str, Any], rows: dict[str, dict[str, Any]]) -> None:
    """Judge each side that is ours, and torch.compile's default before, by which the judge knows what that is off by."""
    wider: dict[str, float] = {}
    for side in [side for side in (DYNAMIC, *OWN) if side in calls]:

        def judged(side: str = side) -> dict[str, Any]:
            found = steps.judge(calls[side], WIDER if side == DYNAMIC else wider)
            if side == DYNAMIC:
                worst = max((output for one in found for output in one.evidence), key=lambda one: one.share)
                wider.update(widened_by([worst]))
            return told(found, steps.draws)

        put_checked(side, rows, "judged", judged, fails=side in OWN)


def put_checked(
    side: str, rows: dict[str, dict[str, Any]], name: str, check: Callable[[], dict[str, Any]], *, fails: bool
) -> None:
    """Put what a check says into a side's row; one of ours that is wrong has failed."""
    rows[side][name] = tried(check)
    if fails and "failed" in rows[side][name]:
        rows[side]["failed"] = rows[side][name]["failed"]
