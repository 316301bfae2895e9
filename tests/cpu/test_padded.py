"""Padded plans: calls are filled up to the edge of a box, and give what they give without; what that would change is refused or found wrong."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fuseplan
from fuseplan import traces_of
from fuseplan.backend import programs_of
from fuseplan.capture.trace.calls import Calls
from fuseplan.capture.trace.format import Trace
from fuseplan.explain import compiled_by
from fuseplan.measure import entry
from fuseplan.measure.clocks import CpuClock
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.environment import environment
from fuseplan.measure.jobs import PLAN_RULE, OutcomeRow, RacePlans, Setup, VetPlan
from fuseplan.measure.worker.answer import answer
from fuseplan.measure.worker.loaded import sizes_that_come
from fuseplan.measure.worker.workplace import Workplace
from fuseplan.plan import Plan
from fuseplan.runtime import capture_place, cudagraph
from fuseplan.stats import stats
from fuseplan.tuning.traces import box_of
from fuseplan.tuning_db import Box, Places, Store, StoredPlan
from unheard import Unheard

BOX = (("s0", 33, 64),)
EAGER = Plan("eager", padded=BOX)
PADDED = "calls that were padded"
ADDED = "elements that padding added"
GIVEN = "elements that padded calls were given"
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
def anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(entry, "PADDED_RACE", True)
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


def test_sizes_outside_of_the_box_run_without_padding() -> None:
    model = Masked().eval()
    compiled = padded(model)
    for size in (40, 20, 100, 41):
        right(compiled, model, tokens(size))


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


def test_a_box_with_too_much_in_it_is_refused() -> None:
    assert "3.2 times as large" in refused(lambda x: (x.cos(),), rows(40), (("s0", 20, 64),))
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


@pytest.mark.parametrize("host", ["inductor", "aten"])
def test_one_graph_is_captured_in_which_weights_and_nothing_else_stay(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen without a GPU: capturing is played by a stub."""
    told = list[dict[str, Any]]()

    def cudagraphify(plain: Callable[..., Any], **facts: Any) -> Callable[..., Any]:
        told.append(facts)
        return plain

    monkeypatch.setattr(capture_place, "LEARNING", 0)
    for module in (cudagraph, capture_place):
        monkeypatch.setattr(module, "get_manager", lambda *_, **__: None)
    monkeypatch.setattr(capture_place, "is_capturing", lambda: False)
    monkeypatch.setattr(cudagraph, "cudagraphify", cudagraphify)
    monkeypatch.setattr(cudagraph, "_obstacle", lambda _: None)
    monkeypatch.setattr(cudagraph, "_device_index", lambda _: 0)
    model = Masked().eval()
    for _ in range(2):  # the second is found in torch's caches
        torch._dynamo.reset()
        told.clear()
        compiled = padded(model, Plan(host, launch="cudagraph", padded=BOX))
        for size in (40, 64, 33, 50):
            right(compiled, model, tokens(size), strides=False)
        (facts,) = told
        assert len(facts["static_input_idxs"]) == 3
        assert len(facts["placeholders"]) == 5


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


def test_a_stored_plan_runs_in_its_box(own_database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuseplan.lookup.missing_compiler", lambda *_: "no compiler in this test")
    model = Masked().eval()
    first = fuseplan.compile(model)
    first(*tokens(40))
    (program,) = programs_of(compiled_by(first))
    torch._dynamo.reset()
    assert program.key is not None
    store = Store(Places(own_database))
    plan = Plan("aten", padded=BOX)
    assert store.add_plan(StoredPlan(program.key, environment("cpu"), plan, sizes=Box(BOX), wall_us=9.0))
    assert [one.plan for one in store.plans()] == [plan]
    store.close()
    compiled, before = fuseplan.compile(model), stats().get(PADDED, 0)
    for size in (40, 64, 33, 20, 100, 50):
        right(compiled, model, tokens(size), strides=False)
    assert [one.plan for one in programs_of(compiled_by(compiled))] == [Plan("eager"), plan]
    assert stats()[PADDED] - before == 3
    with torch.compiler.set_stance("fail_on_recompile"):
        right(compiled, model, tokens(41), strides=False)
