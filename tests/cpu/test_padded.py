"""Padded plans: calls are filled up to the edge of a box, and give what they give without; what that would change is refused or found wrong."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.exc import BackendCompilerFailed
from torch._inductor.cudagraph_trees import ExecutionState

import fuseplan
from fuseplan import traces_of
from fuseplan.backend import programs_of
from fuseplan.capture.trace.calls import Calls
from fuseplan.capture.trace.format import Trace
from fuseplan.errors import PlanError
from fuseplan.explain import compiled_by
from fuseplan.measure.clocks import CpuClock
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.environment import environment
from fuseplan.measure.jobs import PLAN_RULE, OutcomeRow, RacePlans, Setup, VetPlan
from fuseplan.measure.worker.answer import answer
from fuseplan.measure.worker.loaded import sizes_that_come
from fuseplan.measure.worker.workplace import Workplace
from fuseplan.plan import Plan, Rewrite
from fuseplan.runtime import capture_place, cudagraph, in_place
from fuseplan.stats import stats
from fuseplan.tuning.traces import box_of
from fuseplan.tuning_db import Box, Places, Store, StoredPlan
from unheard import Unheard

BOX = (("s0", 33, 64),)
EAGER = Plan("eager", padded=BOX)
PADDED = "calls that were padded"
ADDED = "elements that padding added"
GIVEN = "elements that padded calls were given"
OUTSIDE = "calls outside of the box of a padded plan"
ELSEWHERE = "calls of a padded plan in another thread than its CUDA graph"
COMPILED, WAITED = "compilations", "calls that waited for a compilation"
Args = tuple[Any, ...]


class Masked(nn.Module):
    """Attention that looks at no place that is masked, and what a caller may want of it: outputs of several shapes, and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.qkv = nn.Embedding(50, 16), nn.Linear(16, 48)

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Any, ...]:
        q, k, v = self.qkv(self.table(ids)).chunk(3, -1)
        hide = torch.where(mask[:, None, :] > 0, 0.0, float("-inf"))
        found = torch.softmax(q @ k.transpose(1, 2) + hide, -1) @ v
        kept = found * mask[..., None]
        return (
            kept,
            kept.sum(1) / mask.sum(1, keepdim=True),
            ids.shape[1],
            found.transpose(1, 2),
            kept[0].half(),
            mask.bool(),
        )


def tokens(size: int) -> tuple[Tensor, Tensor]:
    ids, mask = torch.randint(1, 50, (3, size)), (torch.rand(3, size) < 0.8).long()
    mask[:, 0] = 1
    for one in (ids, mask):
        torch._dynamo.maybe_mark_dynamic(one, 1)
    return ids, mask


def rows(size: int) -> tuple[Tensor]:
    x = torch.randn(size, 8)
    torch._dynamo.maybe_mark_dynamic(x, 0)
    return (x,)


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    torch._dynamo.reset()
    with torch.no_grad():
        yield
    torch._dynamo.reset()


def right(compiled: Callable[..., Any], call: Callable[..., Any], given: Args, *, strides: bool = True) -> None:
    """A call gives what eager gives, in memory of its own that lies as eager's does."""
    for got, want in zip(compiled(*given), call(*given), strict=True):
        if not isinstance(want, Tensor):
            assert got == want
            continue
        torch.testing.assert_close(got, want)
        if strides:
            assert got.stride() == want.stride()
            assert got.untyped_storage().nbytes() == want.untyped_storage().nbytes()


def padded(call: Callable[..., Any], plan: Plan = EAGER) -> Callable[..., Any]:
    compiled: Callable[..., Any] = fuseplan.compile(call, plan=plan)
    return compiled


def since(before: dict[str, int], name: str) -> int:
    """How much a counter has grown."""
    return stats().get(name, 0) - before.get(name, 0)


def refused(call: Callable[..., Any], given: Args, box: tuple[tuple[str, int, int], ...] = BOX) -> str:
    with pytest.raises(Exception, match="it cannot be padded") as raised:
        padded(call, Plan("eager", padded=box))(*given)
    return str(raised.value).partition("it cannot be padded: ")[2].splitlines()[0]


def vetted(call: Callable[..., Any], given: Args, plan: Plan = EAGER) -> OutcomeRow:
    (trace,) = traces_of(call, *given)
    torch._dynamo.reset()
    outcome = answer(VetPlan(trace.to_json(), RaceEntry("padded", plan)), Workplace(Setup("cpu"), Unheard()))
    (row,) = outcome.rows
    return row


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


def test_a_plan_by_hand_that_cannot_be_padded_fails_as_others_do_that_do_not_fit() -> None:
    """As one that names a site that is not there."""
    for plan in (EAGER, Plan("eager", (Rewrite("attention", 0, "math"),))):
        torch._dynamo.reset()
        with pytest.raises(BackendCompilerFailed) as raised:
            padded(lambda x: (x.t(), x + 1), plan)(*rows(40))
        assert isinstance(raised.value.inner_exception, PlanError)


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda x: (x.mul_(2) + 1,), "it writes to an input that would be filled up"),
        (lambda x: (x.t(), x + 1), "output 0 lies in the memory of an input that would be filled up"),
        (lambda x: ((y := x + 1), y.t()), "output 0 shares memory with another output"),
        (lambda x: (x + torch.rand_like(x),), "draws random numbers"),
        (lambda x: (nn.functional.dropout(x, 0.1),), "draws random numbers"),
    ],
)
def test_what_cannot_be_padded_is_refused(call: Callable[..., Any], why: str) -> None:
    assert why in refused(call, rows(40))


class Kept(nn.Module):
    """A buffer that something is written to at each call."""

    def __init__(self, write: Callable[[Tensor, Tensor], object]) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(100, 8))
        self.write = write

    def forward(self, x: Tensor) -> tuple[Tensor]:
        self.write(self.kept, x)
        return (x * 2,)


@pytest.mark.parametrize(
    "write",
    [
        lambda kept, x: kept[: x.shape[0]].copy_(x),
        lambda kept, x: kept.index_copy_(0, torch.arange(x.shape[0]), x),
        lambda kept, x: kept.add_(x.sum(0)),
        lambda kept, x: kept.add_(x.shape[0]),
        lambda kept, x: kept[: x.shape[0]].zero_(),
        lambda kept, x: kept[x.shape[0]].fill_(1),
        lambda kept, x: kept[0].copy_(torch.zeros(8).add_(x.amax(0))),
        lambda kept, x: nn.functional.batch_norm(x, kept[0], kept[1], training=True),
    ],
    ids=["as many rows", "by position", "sum", "number", "zeros", "place", "through another", "batch norm"],
)
def test_a_buffer_that_gets_what_hangs_on_what_is_filled_up_is_a_reason(write: Callable[[Tensor, Tensor], Any]) -> None:
    assert refused(Kept(write), rows(40)) == "what it writes to an input or buffer hangs on what would be filled up"


def test_an_input_that_is_not_filled_up_is_as_a_buffer() -> None:
    def call(cache: Tensor, positions: Tensor, x: Tensor) -> tuple[Tensor]:
        cache.index_copy_(0, positions, x)
        return (x * 2,)

    positions = torch.arange(40)
    torch._dynamo.maybe_mark_dynamic(positions, 0)
    why = "what it writes to an input or buffer hangs on what would be filled up"
    assert refused(call, (torch.zeros(100, 8), positions, *rows(40))) == why


def test_a_buffer_that_gets_the_same_at_each_call_is_no_reason() -> None:
    def write(kept: Tensor, x: Tensor) -> None:
        assert kept[: x.shape[0]].shape == x.shape
        kept.add_(1)
        kept[3].mul_(kept[2])

    model = Kept(write)
    compiled = padded(model)
    for size in (40, 64, 33):
        right(compiled, lambda x: (x * 2,), rows(size))
    assert model.kept[0].tolist() == [3.0] * 8


def test_dropout_that_leaves_nothing_out_is_no_reason() -> None:
    def attend(x: Tensor) -> tuple[Tensor]:
        return (nn.functional.scaled_dot_product_attention(x[None], x[None], x[None], is_causal=True)[0],)

    right(padded(attend), attend, rows(40))


def test_a_size_that_hangs_on_data_is_refused() -> None:
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        assert refused(lambda x: (x.nonzero() + 1,), rows(40)) == "it has tensors that are not ordinary ones"


def test_what_is_trained_is_refused() -> None:
    with torch.enable_grad():
        x = torch.randn(40, 8, requires_grad=True)
        torch._dynamo.maybe_mark_dynamic(x, 0)
        assert refused(lambda x: (x.cos(),), (x,)) == "it is trained"


def test_inputs_that_share_memory_are_refused() -> None:
    memory = torch.randn(80, 8)
    x, y = memory[:40], memory[40:]
    for one in (x, y):
        torch._dynamo.maybe_mark_dynamic(one, 0)
    assert refused(lambda x, y: (x + y,), (x, y)) == "some of its inputs share memory"


def test_a_box_of_other_sizes_is_refused() -> None:
    assert "the sizes that vary are s0" in refused(lambda x: (x.cos(),), rows(40), (("s1", 33, 64),))


def test_a_parameter_whose_size_varies_is_refused() -> None:
    weight = nn.Parameter(torch.randn(40, 8), requires_grad=False)
    torch._dynamo.maybe_mark_dynamic(weight, 0)
    with torch._dynamo.config.patch(force_parameter_static_shapes=False):
        assert refused(lambda x: (x + weight,), rows(40)) == "a parameter or buffer has a size that varies"


def test_the_judge_says_whether_it_changes_anything() -> None:
    row = vetted(Masked().eval(), tokens(40))
    assert (row.status, row.detail) == ("ok", "")
    assert "at sizes of its box" in row.how


@pytest.mark.parametrize(
    "call",
    [
        lambda x: (x.mean(0),),
        lambda x: (torch.softmax(x @ x.t(), -1) @ x,),
        lambda x: (x.cos().reshape(-1)[-8:],),
        pytest.param(lambda x: (x.flip(0),), marks=pytest.mark.exhaustive),
        pytest.param(lambda x: (x.abs().min(0).values,), marks=pytest.mark.exhaustive),
    ],
    ids=["mean", "attention", "last", "flip", "least"],
)
def test_what_padding_changes_is_found_wrong(call: Callable[..., Any]) -> None:
    assert vetted(call, rows(40)).status == "wrong"


def test_zeros_that_are_nothing_by_chance_are_found_wrong() -> None:
    """The largest of positive numbers, and whether all of a mask is set where no mask of the trace is."""
    (x,) = rows(40)
    assert vetted(lambda x: (x.max(0).values,), (x.abs_().add_(0.1),)).status == "wrong"

    def all_set(x: Tensor, mask: Tensor) -> tuple[Tensor]:
        return (torch.where(mask.all(), x, -x) * mask[:, None],)

    mask = torch.rand(40) < 0.5
    torch._dynamo.maybe_mark_dynamic(mask, 0)
    assert vetted(all_set, (*rows(40), mask)).status == "wrong"


@pytest.mark.parametrize(
    ("call", "values"),
    [
        (lambda x: (x.mean(0),), torch.zeros(40, 8)),
        (lambda x: (x.amax(0),), torch.ones(40, 8)),
        (lambda x: (x.amax(0),), torch.randint(1, 4, (40, 8)).float()),
        (lambda x: (torch.softmax(x @ x.t(), -1) @ x,), torch.zeros(40, 8)),
        (lambda x: (torch.softmax(x @ x.t() * 4, -1) @ x,), torch.full((40, 8), 9.0).addcmul_(*torch.rand(2, 40, 8))),
    ],
    ids=["mean of zeros", "amax of ones", "amax of few", "attention to zeros", "attention to none but one"],
)
def test_floats_of_which_a_trace_has_few_values_may_have_others(call: Callable[..., Any], values: Tensor) -> None:
    torch._dynamo.maybe_mark_dynamic(values, 0)
    assert vetted(call, (values,)).status == "wrong"


def test_few_floats_that_zeros_are_nothing_to_are_right() -> None:
    def call(x: Tensor, mask: Tensor) -> tuple[Tensor]:
        return ((x * mask[:, None]).relu().amax(0),)

    mask = (torch.rand(40) < 0.5).float()
    x = torch.zeros(40, 8)
    for one in (x, mask):
        torch._dynamo.maybe_mark_dynamic(one, 0)
    assert vetted(call, (x, mask)).status == "ok"


@pytest.mark.parametrize("attends", [False, True])
def test_integers_of_which_nothing_but_zeros_is_known_are_refused(attends: bool) -> None:
    """What they pick is what filling up picks."""
    table = nn.Embedding(50, 8)

    def call(ids: Tensor) -> tuple[Tensor]:
        found = table(ids)
        return (torch.softmax(found @ found.t(), -1) @ found if attends else found.mean(0),)

    ids = torch.zeros(40, dtype=torch.long)
    torch._dynamo.maybe_mark_dynamic(ids, 0)
    row = vetted(call, (ids,))
    assert row.status == "refused"
    assert row.detail.startswith("it cannot be padded: nothing but zeros is known of input")


@pytest.mark.parametrize("most", [4, 99], ids=["few values", "many values"])
def test_integers_that_are_nothing_by_chance_are_found_wrong(most: int) -> None:
    def largest(x: Tensor) -> tuple[Tensor]:
        return (x.max(0).values,)

    x = torch.randint(1, most, (40, 8))
    torch._dynamo.maybe_mark_dynamic(x, 0)
    assert vetted(largest, (x,)).status == "wrong"
    (of_any_sign,) = rows(40)
    assert vetted(lambda x: (x.clamp(min=0).max(0).values,), (of_any_sign,)).status == "ok"


@pytest.mark.parametrize(
    "call",
    [
        lambda x: (x.amax(0),),
        lambda x: (x.topk(3, 0).values,),
        lambda x: (x.argmax(0),),
        lambda x: (nn.functional.conv1d(x.t()[None], torch.ones(4, 8, 3), padding=1).amax(-1),),
        lambda x: (torch.where((x > 0).all(), x, -x),),
        lambda x: (torch.where((x < 0).all(), x, -x),),
    ],
    ids=["amax", "topk", "argmax", "conv1d", "all above", "all below"],
)
def test_zeros_that_are_nothing_among_numbers_of_both_signs_are_found_wrong(call: Callable[..., Any]) -> None:
    row = vetted(call, rows(40))
    assert row.status == "wrong"
    assert "zero)" in row.detail, "not on the values of the trace"


@pytest.mark.parametrize("marked", [False, True], ids=["both signs", "with a mark"])
def test_integers_of_both_signs_are_judged_as_those_of_one(marked: bool) -> None:
    x = torch.randint(1, 50, (40, 8)) if marked else torch.randint(-50, 50, (40, 8))
    x[0] = -100 if marked else x[0]
    torch._dynamo.maybe_mark_dynamic(x, 0)
    assert vetted(lambda x: (x.amax(0),), (x,)).status == "wrong"
    torch._dynamo.reset()
    assert vetted(lambda x: (x.clamp(min=0).amax(0),), (x,)).status == "ok"


def test_bytes_are_judged_above_zero() -> None:
    """They have no sign, and the least of them is zero in the trace."""
    x = torch.randint(0, 4, (40, 8), dtype=torch.uint8)
    torch._dynamo.maybe_mark_dynamic(x, 0)
    assert vetted(lambda x: (x.amin(0) * 1,), (x,)).status == "wrong"


def test_integers_that_pick_something_are_judged_as_they_are() -> None:
    table = nn.Embedding(50, 8)

    def call(ids: Tensor) -> tuple[Tensor]:
        return (table(ids),)

    ids = torch.randint(1, 50, (40,))
    torch._dynamo.maybe_mark_dynamic(ids, 0)
    assert vetted(call, (ids,)).status == "ok"


def test_a_refusal_is_the_row_of_a_candidate() -> None:
    row = vetted(lambda x: (x.t(), x + 1), rows(40))
    assert row.status == "refused"
    assert row.detail.startswith("it cannot be padded: output 0 lies in the memory")


def counted(trace: Trace, counts: dict[int, int]) -> Trace:
    return replace(trace, calls=tuple(Calls({"s0": size}, many, 0.0) for size, many in counts.items()))


def test_a_process_beside_makes_it_ready_as_it_runs_by_size() -> None:
    (trace,) = traces_of(Masked().eval(), *tokens(40))
    torch._dynamo.reset()
    job = VetPlan(trace.to_json(), RaceEntry("padded", Plan("aten", padded=BOX)), by_size=True)
    outcome = answer(job, Workplace(Setup("cpu"), Unheard()))
    assert (outcome.status, outcome.detail) == ("ok", "")


class Trees:
    """Those of a thread, in which nothing is under way."""

    current_node = None
    path_state = ExecutionState.EXECUTION


class Captures:
    """Capturing without a GPU, played by a stub: what it was told of each function, and how often any of them ran."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.told: list[dict[str, Any]] = []
        self.runs = 0
        trees: dict[int, Trees] = {}
        monkeypatch.setattr(capture_place, "LEARNING", 0)
        for module in (cudagraph, capture_place):
            monkeypatch.setattr(
                module, "get_manager", lambda *_, **__: trees.setdefault(threading.get_ident(), Trees())
            )
        monkeypatch.setattr(capture_place, "is_capturing", lambda: False)
        monkeypatch.setattr(capture_place, "follow", lambda *_: None)
        monkeypatch.setattr(cudagraph, "cudagraphify", self.cudagraphify)
        monkeypatch.setattr(cudagraph, "_obstacle", lambda _: None)
        monkeypatch.setattr(cudagraph, "_device_index", lambda _: 0)
        monkeypatch.setattr(in_place, "lie_at", lie_at)

    def cudagraphify(self, plain: Callable[..., Any], **facts: Any) -> Callable[..., Any]:
        self.told.append(facts)

        def run(args: list[Any]) -> Any:
            self.runs += 1
            return plain(args)

        return run


def lie_at(args: list[Any], pointers: Sequence[int | None], chosen: list[int]) -> bool:
    """As torch says it where there is a GPU."""
    return all(args[i].data_ptr() == pointers[i] for i in chosen)


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> Captures:
    return Captures(monkeypatch)


@pytest.mark.parametrize("host", ["inductor", "aten"])
def test_one_graph_is_captured_in_which_weights_and_nothing_else_stay(host: str, captures: Captures) -> None:
    model = Masked().eval()
    for _ in range(2):  # the second is found in torch's caches
        torch._dynamo.reset()
        captures.told.clear()
        compiled = padded(model, Plan(host, launch="cudagraph", padded=BOX))
        for size in (40, 64, 33, 50):
            right(compiled, model, tokens(size), strides=False)
        (facts,) = captures.told
        assert len(facts["static_input_idxs"]) == 3
        assert len(facts["placeholders"]) == 5


def test_one_graph_is_captured_wherever_calls_at_the_edge_lie(captures: Captures) -> None:
    """They are copied to where those of other sizes are filled up, large as they may be."""

    def call(x: Tensor) -> tuple[Tensor]:
        return (x.cos(),)

    compiled, held = padded(call, Plan("aten", launch="cudagraph", padded=BOX)), []
    for size in (64, 64, 40, 64, 64, 33, 64):
        x = torch.randn(size, 5000)
        torch._dynamo.maybe_mark_dynamic(x, 0)
        held.append(x)
        right(compiled, call, (x,))
    assert held[0].nbytes >= in_place.LEAST
    assert len(captures.told) == 1
    assert captures.runs == len(held)


def test_another_thread_than_that_of_the_graph_runs_the_default(captures: Captures) -> None:
    """It would run plain there, and each call as long as the longest."""
    model = Masked().eval()
    compiled = padded(model, Plan("aten", launch="cudagraph", padded=BOX))
    for size in (40, 64):
        right(compiled, model, tokens(size), strides=False)
    before, runs = stats(), captures.runs
    with ThreadPoolExecutor(1) as other:
        for size in (40, 64, 35):
            other.submit(torch.no_grad()(right), compiled, model, tokens(size), strides=False).result()
    assert since(before, ELSEWHERE) == 3
    assert since(before, COMPILED) == 1
    assert captures.runs == runs
    right(compiled, model, tokens(41), strides=False)
    assert captures.runs == runs + 1


def test_blocks_of_a_race_have_whole_turns() -> None:
    ran, clock = list[int](), CpuClock()
    calls: list[Callable[[], object]] = [partial(ran.append, i) for i in range(3)]
    clock.add("turns", calls, turns=3)
    ran.clear()
    clock.block("turns")
    assert len(ran) % 3 == 0
    assert ran


def test_a_race_is_on_the_sizes_that_come() -> None:
    (trace,) = traces_of(Masked().eval(), *tokens(40))
    assert [sizes for _, sizes in sizes_that_come(trace)] == [{}, {}]
    many = counted(trace, {33: 1, 50: 6, 60: 2, 200: 90})
    assert [sizes["s0"] for _, sizes in sizes_that_come(many)] == [50, 50, 50, 60]
    assert [dict(sizes) for _, sizes in sizes_that_come(counted(trace, {50: 6}))] == [{}, {}]


def test_a_padded_plan_races() -> None:
    (trace,) = traces_of(Masked().eval(), *tokens(40))
    torch._dynamo.reset()
    text = counted(trace, {33: 1, 50: 6, 60: 2}).to_json()
    entries = (RaceEntry("eager", Plan("eager"), default=True), RaceEntry("padded", EAGER))
    rule = replace(PLAN_RULE, least=2, most=2, seconds=5.0)
    outcome = answer(RacePlans(text, entries, "eager", rule), Workplace(Setup("cpu"), Unheard()))
    assert outcome.ok, outcome.detail
    assert all(row.status == "ok" and row.wall_us for row in outcome.rows)


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
