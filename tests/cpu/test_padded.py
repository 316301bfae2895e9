"""Padded plans: calls are filled up to the edge of a box, and give what they give without."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

import fuseplan
from fuseplan import traces_of
from fuseplan.backend import programs_of
from fuseplan.explain import compiled_by
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.environment import environment
from fuseplan.measure.jobs import Setup, VetPlan
from fuseplan.measure.worker.answer import answer
from fuseplan.measure.worker.workplace import Workplace
from fuseplan.plan import Plan
from fuseplan.stats import stats
from fuseplan.tuning.traces import box_of
from fuseplan.tuning_db import Box, Places, Store, StoredPlan
from padding import BOX, COMPILED, EAGER, WAITED, Args, Masked, anew, padded, right, rows, since, tokens, vetted
from unheard import Unheard

__all__ = ["anew"]


PADDED = "calls that were padded"


ADDED = "elements that padding added"


GIVEN = "elements that padded calls were given"


OUTSIDE = "calls outside of the box of a padded plan"


@pytest.mark.parametrize(
    "plan", [EAGER, Plan("aten", padded=BOX), Plan("inductor", padded=BOX)], ids=lambda one: one.host
)
def test_all_sizes_of_a_box_give_what_they_give_without_padding(plan: Plan) -> None:
    model = Masked().eval()
    compiled = padded(model, plan)
    for size in (40, 64, 33, 63, 50, 34, 64, 35):  # up and down: nothing of a longer call is left behind a shorter one
        right(compiled, model, tokens(size), strides=plan.host == "eager")
    (program,) = programs_of(compiled_by(compiled))
    assert program.plan == plan


def test_an_encoder_of_transformers() -> None:
    import transformers

    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=64, attn_implementation="sdpa",
    )  # fmt: skip
    model = transformers.BertModel(config).eval()

    def encode(ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        found = model(ids, attention_mask=mask)
        return found.last_hidden_state * mask[..., None], found.pooler_output

    compiled = padded(encode)
    for size in (40, 33, 64, 63):
        right(compiled, encode, tokens(size))
    assert vetted(encode, tokens(40)).status == "ok"


@pytest.mark.parametrize("host", ["eager", "inductor"])
def test_sizes_outside_of_the_box_run_without_padding(host: str) -> None:
    """Under torch.compile's default, compiled once for all of them; eagerly where the plan compiles nothing either."""
    model = Masked().eval()
    compiled = padded(model, Plan(host, padded=BOX))
    compiled(*tokens(40))
    before = stats()
    for size in (20, 100, 41, 7, 21):
        right(compiled, model, tokens(size), strides=host == "eager")
    assert since(before, OUTSIDE) == 4
    assert since(before, COMPILED) == since(before, WAITED) == (host == "inductor")


def test_where_nothing_may_be_compiled_sizes_outside_of_the_box_run_eagerly() -> None:
    model = Masked().eval()
    compiled = padded(model, Plan("inductor", padded=BOX))
    compiled(*tokens(40))
    before = stats()
    with torch.compiler.set_stance("fail_on_recompile"):
        right(compiled, model, tokens(20), strides=False)
    assert since(before, COMPILED) == 0
    right(compiled, model, tokens(20), strides=False)
    assert since(before, COMPILED) == 1


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), TypeError("no number")], ids=["disk", "type"]
)
def test_where_the_compiler_fails_sizes_outside_of_the_box_run_eagerly(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(import_module("fuseplan.runtime.replay"), "compile_under_inductor", fail)
    model = Masked().eval()
    compiled = padded(model, Plan("aten", padded=BOX))
    for size in (40, 20, 21):
        right(compiled, model, tokens(size), strides=False)
    told = f"calls that are not padded run eagerly: {type(error).__name__}: {error}"
    assert told in fuseplan.explain(compiled, graphs=False)


def test_batch_and_length_may_both_vary() -> None:
    def call(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.cos(), x.sum(-1)

    compiled, before = padded(call, Plan("eager", padded=(("s0", 5, 8), ("s1", 17, 32)))), stats()
    for sizes in ((5, 17), (8, 32), (8, 17), (5, 32), (6, 20)):
        x = torch.randn(*sizes, 4)
        for dim in (0, 1):
            torch._dynamo.maybe_mark_dynamic(x, dim)
        right(compiled, call, (x,))
    assert since(before, PADDED) == 4


def test_nothing_is_left_behind_calls_of_sizes_at_random(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept to clear it is as much as there are sizes, and not as there are pairs of them."""
    made = list[object]()
    module = import_module("fuseplan.runtime.padded")
    kept = module._kept
    monkeypatch.setattr(module, "_kept", lambda known, key, views: (made.append(key), kept(known, key, views))[1])

    def total(x: Tensor) -> tuple[Tensor]:
        return (x.abs().sum(),)

    compiled = padded(total, Plan("eager", padded=(("s0", 5, 8), ("s1", 17, 32))))
    seeded = Random(0)
    choices = [(5, 32), (8, 17), (6, 20), (8, 32), (7, 31)]
    for _ in range(60):
        x = torch.randn(*seeded.choice(choices), 4)
        for dim in (0, 1):
            torch._dynamo.maybe_mark_dynamic(x, dim)
        right(compiled, total, (x,))
    assert len(made) == 2 * len(choices)


def test_what_is_padded_is_counted() -> None:
    before, model = stats(), Masked().eval()
    compiled = padded(model)
    for size in (40, 64, 48, 40, 20):
        compiled(*tokens(size))
    now = stats()
    assert now[PADDED] - before.get(PADDED, 0) == 3, "not the one at the edge, nor the one outside"
    assert now[GIVEN] - before.get(GIVEN, 0) == 3 * 2 * 3 * 64
    assert now[ADDED] - before.get(ADDED, 0) == 2 * 3 * (24 + 16 + 24)
    assert (
        "padded to the edge of s0=33..64: 3 calls, of which 33.3% of their inputs were filled up"
        in fuseplan.explain(compiled, graphs=False)
    )


def test_what_programs_that_are_gone_have_padded_is_counted_in_a_sum() -> None:
    before = stats()
    tallies = list[Any]()
    for size in (40, 48, 50):
        compiled = padded(lambda x: (x.cos(),))
        compiled(*rows(size))
        (program,) = programs_of(compiled_by(compiled))
        tallies.append(weakref.ref(program.padding))
        del compiled, program
        torch._dynamo.reset()
    gc.collect()
    assert [since(before, one) for one in (PADDED, GIVEN, ADDED)] == [3, 3 * 64 * 8, (24 + 16 + 14) * 8]
    gc.collect()
    assert [one() for one in tallies] == [None] * 3, "and nothing else of them is kept"


def test_threads_have_buffers_of_their_own() -> None:
    model = Masked().eval()
    compiled = padded(model)
    compiled(*tokens(40))
    failed = list[BaseException]()

    def calls(first: int) -> None:
        try:
            with torch.no_grad():
                for size in range(first, 64, 3):
                    right(compiled, model, tokens(size))
        except BaseException as error:  # noqa: BLE001 -- told below
            failed.append(error)

    threads = [threading.Thread(target=calls, args=(first,)) for first in (33, 34)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not failed


def test_inference_mode_and_its_absence_take_turns() -> None:
    def twice(x: Tensor) -> tuple[Tensor]:
        return (x * 2,)

    compiled = padded(twice)
    for mode in (True, False, True):
        with torch.inference_mode(mode):
            right(compiled, twice, rows(40))
            right(compiled, twice, rows(50))


def test_inputs_keep_their_layout() -> None:
    """Rows that lie apart, an input that is repeated over a size that stays, and one that begins within its memory."""

    def call(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
        return x + y.sum() * 0, y.cumsum(0), z.cos()

    def given(size: int) -> Args:
        x, y, z = torch.randn(8, size).t(), torch.randn(size, 1).expand(size, 4), torch.randn(size, 8)[:, 3:]
        for one in (x, y, z):
            torch._dynamo.maybe_mark_dynamic(one, 0)
        return x, y, z

    (trace,) = traces_of(call, *given(40))
    box = box_of(trace).spans
    assert len(box) == 5, "a size of each input, a stride, and where one begins"
    compiled = padded(call, Plan("eager", padded=box))
    for size in (40, 34, 63, 64, 50):
        right(compiled, call, given(size), strides=False)
    assert stats()[PADDED] > 0


def test_outputs_whose_strides_alone_vary_and_outputs_that_repeat() -> None:
    def call(x: Tensor) -> tuple[Tensor, int, Tensor]:
        y = (x + 1)[:, 0]
        return y, y.stride(0), (x * 2).sum(-1, keepdim=True).expand(2, x.shape[1], 4)

    compiled = padded(call, EAGER)
    for size in (50, 64, 33, 40):
        x = torch.randn(2, size, 4)
        torch._dynamo.maybe_mark_dynamic(x, 1)
        got, want = compiled(x), call(x)
        torch.testing.assert_close(got, want)
        assert [got[0].stride(), got[1], got[2].stride()] == [want[0].stride(), want[1], want[2].stride()]


def test_an_output_that_is_given_twice_is_one_tensor() -> None:
    def twice(x: Tensor) -> tuple[Tensor, Tensor]:
        found = x.cos()
        return found, found

    first, second = padded(twice)(*rows(40))
    assert first is second
    assert first.shape == (40, 8)


def test_a_process_beside_makes_it_ready_as_it_runs_by_size() -> None:
    (trace,) = traces_of(Masked().eval(), *tokens(40))
    torch._dynamo.reset()
    job = VetPlan(trace.to_json(), RaceEntry("padded", Plan("aten", padded=BOX)), by_size=True)
    outcome = answer(job, Workplace(Setup("cpu"), Unheard()))
    assert (outcome.status, outcome.detail) == ("ok", "")


def keep_plan(model: Callable[..., Any], plan: Plan, file: Path) -> None:
    """Store a plan for the box of a program."""
    first = fuseplan.compile(model)
    first(*tokens(40))
    (program,) = programs_of(compiled_by(first))
    torch._dynamo.reset()
    assert program.key is not None
    store = Store(Places(file))
    assert store.add_plan(StoredPlan(program.key, environment("cpu"), plan, sizes=Box(BOX), wall_us=9.0))
    assert [one.plan for one in store.plans()] == [plan]
    store.close()


def test_calls_that_a_stored_plan_does_not_take_run_under_the_default_that_stands_beside_it(own_database: Path) -> None:
    """Where its row is for more sizes than it pads."""
    model = Masked().eval()
    keep_plan(model, Plan("aten", padded=(("s0", 40, 64),)), own_database)
    compiled = fuseplan.compile(model)
    compiled(*tokens(50))
    default, stored = programs_of(compiled_by(compiled))
    assert (default.plan, stored.plan.padded) == (Plan("inductor"), (("s0", 40, 64),))
    assert stored.unpadded is not None
    before = stats()
    with torch.compiler.set_stance("fail_on_recompile"):
        for size in (35, 50, 33):
            right(compiled, model, tokens(size), strides=False)
    assert (since(before, OUTSIDE), since(before, PADDED), since(before, COMPILED)) == (2, 1, 0)


def test_a_stored_plan_runs_in_its_box(own_database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuseplan.lookup.missing_compiler", lambda *_: "no compiler in this test")
    model, plan = Masked().eval(), Plan("aten", padded=BOX)
    keep_plan(model, plan, own_database)
    compiled, before = fuseplan.compile(model), stats().get(PADDED, 0)
    for size in (40, 64, 33, 20, 100, 50):
        right(compiled, model, tokens(size), strides=False)
    assert [one.plan for one in programs_of(compiled_by(compiled))] == [Plan("eager"), plan]
    assert stats()[PADDED] - before == 3
    with torch.compiler.set_stance("fail_on_recompile"):
        right(compiled, model, tokens(41), strides=False)
