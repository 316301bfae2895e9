"""The benchmark of serving: its requests, its engine, what it counts, and what its checks find."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from transformers import GenerationMixin

from benchmarks.serve import mix
from benchmarks.serve.checked import JudgedSteps, same_tokens, told
from benchmarks.serve.engine import Served, latencies, serve
from benchmarks.serve.loop import DecodeLoop
from benchmarks.serve.models import CASES, EVERY, TINY, ServedCase
from benchmarks.serve.requests import Request, at_rate
from benchmarks.serve.servers import EncoderServer, SlotServer, server_of
from benchmarks.serve.sides import AFTER, BEFORE, EAGER
from fuseplan.judge.output import WIDER
from served_wrong import off_by, scaled

FEW = 16
"""Steps of decoding: more than the window of a layer that has one."""
DECODERS = [name for name, case in TINY.items() if case.kind != "encoder"]


def nothing() -> None:
    return None


def served_by(case: ServedCase, model: nn.Module, requests: Sequence[Request]) -> tuple[Any, Served]:
    server = server_of(case, model, model, model)
    return server, serve(server, requests, nothing, whole=case.kind == "encoder")


# requests


@pytest.mark.parametrize("name", EVERY)
def test_requests_are_the_same_each_time_and_fit_the_cache(name: str) -> None:
    case = EVERY[name]
    requests = case.pattern.draw(200, 1)
    assert requests == case.pattern.draw(200, 1) != case.pattern.draw(200, 2)
    assert case.pattern.draw(10, 1) == requests[:10], "more requests are more of the same"
    prompts = [one.prompt for one in requests]
    assert case.pattern.prompt.least <= min(prompts) < max(prompts) <= case.pattern.prompt.most
    if case.cache:
        assert all(one.new >= 1 and one.prompt + one.new <= case.cache for one in requests)
    arrivals = [one.arrives for one in requests]
    assert arrivals == sorted(arrivals)
    assert [one.arrives for one in at_rate(requests, 4.0)] == [when / 4 for when in arrivals]


def test_the_usual_models_are_asked_for_more_than_one_box_of_sizes() -> None:
    for name, case in CASES.items():
        lengths = {one.prompt for one in case.pattern.draw(case.requests, mix.WARM_SEED)}
        assert len({(length - 1).bit_length() for length in lengths}) > 1, name


# the engine


@pytest.mark.parametrize("name", DECODERS)
def test_the_engine_gives_the_tokens_of_generate(name: str) -> None:
    """With requests that come while others are decoded, more of them than there are slots."""
    case = TINY[name]
    model = case.load("cpu", torch.float64)
    requests = case.pattern.draw(case.requests, 0)
    assert len(requests) > case.slots
    server, served = served_by(case, model, at_rate(requests, 1e6))
    assert len({tuple(tokens) for tokens in served.tokens.values()}) > 1
    for request in requests:
        asked = server.asked(request)
        asked.pop("logits_to_keep", None)
        found = GenerationMixin.generate(model, **asked, max_new_tokens=request.new, do_sample=False)
        assert served.tokens[request.number] == found[0, -request.new :].tolist()


class Counting:
    """A server that answers at once, and says what it was asked."""

    def __init__(self, slots: int) -> None:
        self.slots, self.asked, self.held = slots, list[str](), set[int]()

    def take(self, slot: int, request: Request) -> int:
        assert slot not in self.held
        self.held.add(slot)
        self.asked.append(f"take {request.number}")
        return 0

    def step(self) -> list[int]:
        self.asked.append("step")
        return list(range(self.slots))

    def free(self, slot: int) -> None:
        self.held.remove(slot)

    def read(self, requests: Sequence[Request]) -> None:
        self.asked.append(f"read {len(requests)}")


def test_prefill_and_decoding_take_turns_and_a_slot_is_had_again() -> None:
    requests = [Request(number, 0.0, 4, new) for number, new in enumerate((2, 4, 1, 2))]
    server = Counting(2)
    served = serve(server, requests, nothing)
    assert server.asked == ["take 0", "step", "take 1", "step", "take 2", "step", "take 3", "step"]
    assert server.held == set()
    assert [len(served.tokens[number]) for number in range(4)] == [2, 4, 1, 2]
    assert served.counted == 9
    assert [len(served.between()), len(served.firsts())] == [5, 4]


def test_nobody_works_while_nobody_asks() -> None:
    served = serve(Counting(2), [Request(0, 5.0, 4, 1), Request(1, 1000.0, 4, 1)], nothing)
    assert served.times[1][1] >= 1000.0
    assert 995.0 <= served.seconds < 996.0, "the clock goes on; the process has not waited for it"


def test_an_encoder_gets_all_that_wait() -> None:
    server = Counting(3)
    served = serve(server, [Request(number, 0.0, 10) for number in range(4)], nothing, whole=True)
    assert server.asked == ["read 3", "read 1"]
    assert served.counted == 40
    assert "between_p50_ms" not in latencies([served])


def test_padding_changes_nothing_of_what_an_encoder_gives() -> None:
    case = TINY["tiny bert"]
    model = case.load("cpu")
    server = EncoderServer(case, model, model)
    requests = case.pattern.draw(3, 0)
    server.read(requests)
    together = server.last
    for row, request in enumerate(requests):
        server.read([request])
        assert together is not None
        assert server.last is not None
        torch.testing.assert_close(server.last[0], together[row], rtol=1e-4, atol=1e-5)


def test_compilations_and_what_waits_for_them_are_counted() -> None:
    case = TINY["tiny llama"]
    model = case.load("cpu")
    torch._dynamo.reset()
    server = server_of(case, model, model, torch.compile(lambda **inputs: model(**inputs), backend="eager"))
    requests = case.pattern.draw(3, 0)
    first = serve(server, requests, nothing)
    assert (first.compilations(), [step.kind for step in first.stalls()]) == (1, ["decode"])
    assert serve(server, requests, nothing).compilations() == 0
    assert isinstance(server, SlotServer)


# decoding alone


@pytest.fixture(params=[name for name, case in TINY.items() if case.kind == "decoder"])
def loop(request: pytest.FixtureRequest) -> tuple[DecodeLoop, nn.Module]:
    model = TINY[request.param].load("cpu")
    return DecodeLoop.of(model, 2, 8, steps=FEW), model


def test_winding_back_gives_the_same_tokens_again(loop: tuple[DecodeLoop, nn.Module]) -> None:
    """Of a window too, which has forgotten the prompt by then; and the addresses stay."""
    steps, model = loop
    places = [tensor.data_ptr() for tensor in steps.held()]
    first = steps.decoded(model)
    assert len({int(token[0]) for token in first}) > 1
    again = steps.decoded(model)
    assert all(map(torch.equal, first, again))
    assert [tensor.data_ptr() for tensor in steps.held()] == places
    assert same_tokens(steps, model, model) == {"steps": FEW, "same": FEW}


def test_another_token_is_seen(loop: tuple[DecodeLoop, nn.Module]) -> None:
    steps, model = loop
    found = same_tokens(steps, model, off_by(model, 3.0, 9))
    right = [int(token[0]) for token in steps.decoded(model)]
    if set(right) == {5}:
        pytest.fail("the model says nothing else: another token has to be asked for")
    assert found["failed"].startswith("wrong: other tokens than eager's from step 9 on")


def test_the_judge_lets_right_steps_pass_and_no_wrong_one() -> None:
    model = TINY["tiny llama"].load("cpu", torch.bfloat16)
    steps = DecodeLoop.of(model, 2, 8, steps=4)
    judge = JudgedSteps.of(steps, model)
    right = told(judge.judge(model, WIDER), judge.draws)
    assert (right["steps"], right["wrong"]) == (4, 0)
    wrong = told(judge.judge(off_by(model, 0.5, 2, 4)), judge.draws)
    assert wrong["wrong"] == 1
    assert wrong["failed"].startswith("wrong: step 2: logits is off by")


@pytest.mark.parametrize("name", ["tiny llama", "tiny bert", "tiny whisper"])
def test_in_low_precision_a_mix_judges_what_a_side_gives(name: str) -> None:
    """The one that is right passes, and each that is wrong in prefill, decode or batch has failed; eager stands for what is compiled."""
    case = TINY[name]
    model = case.load("cpu", torch.bfloat16)
    passes = mix.Passes(case, "cpu")
    sides = {EAGER: (model, model), AFTER: (model, model), BEFORE: (scaled(model), model)}
    rows = {side: passes.warm_up(side, partial(server_of, case, model, *calls)) for side, calls in sides.items()}
    mix._check(passes, model, rows)
    assert "failed" not in rows[AFTER]
    assert rows[AFTER]["judged"]["wrong"] == 0
    assert rows[BEFORE]["failed"].startswith("wrong: step 0: logits is off by")
    if case.kind != "encoder":
        passes.warm_up(BEFORE, partial(server_of, case, model, model, scaled(model)))
        rows[BEFORE] = {}
        mix._check(passes, model, rows)
        assert rows[BEFORE]["failed"].startswith("wrong: step 1: logits is off by")
