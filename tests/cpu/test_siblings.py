"""Matmuls of one input as one matmul, where a caller promises that weights stay: found, right, and merged anew when they change after all."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.exc import BackendCompilerFailed
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_cache
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

import fuseplan
from agreement import assert_as_accurate, in_double
from cpu.test_measure import FLAGS
from fuseplan.backend import programs_of
from fuseplan.capture.trace.format import Trace
from fuseplan.errors import OptionError
from fuseplan.explain import compiled_by
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.environment import environment
from fuseplan.measure.jobs import RacePlans, Setup, VetPlan
from fuseplan.measure.worker.answer import answer
from fuseplan.measure.worker.workplace import Workplace
from fuseplan.options import Options
from fuseplan.plan import Plan, Rewrite
from fuseplan.rewrites.kinds import usable_kinds
from fuseplan.rewrites.sites import Sites, missed_places
from fuseplan.runtime import capture_place, cudagraph, merged, regions
from fuseplan.runtime.merged import bytes_held
from fuseplan.tune import Tuner
from fuseplan.tuning.effort import FULL
from fuseplan.tuning.program.combine import Settings
from fuseplan.tuning.progress import Silent
from fuseplan.tuning.traces import traces_of
from fuseplan.tuning_db import Box, Places, Store, StoredPlan
from replaying import ReplayingPool
from rewriting import dynamo_graph, sites_in
from unheard import Unheard
from zoo import TRANSFORMERS

BOTH = (Rewrite("siblings", 0, "merged"), Rewrite("siblings", 1, "merged"))
WIDTH = 16
MERGED_BYTES = 4 * ((32 + 2 * 24) * WIDTH + 32)
"""The weights of query, key and value, those of gate and up, and the bias of the first three."""


class Layer(nn.Module):
    """Attention with two heads of keys for four of queries, and a gated step. Keys have no bias, the others have one."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = nn.Linear(WIDTH, 16), nn.Linear(WIDTH, 8, bias=False), nn.Linear(WIDTH, 8)
        self.gate, self.up, self.down = (
            nn.Linear(*sizes, bias=False) for sizes in ((WIDTH, 24), (WIDTH, 24), (24, WIDTH))
        )

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each(x).unflatten(-1, (-1, 4)).transpose(1, 2) for each in (self.query, self.key, self.value))
        y = x + F.scaled_dot_product_attention(q, k, v, enable_gqa=True).transpose(1, 2).flatten(2)
        return y + self.down(F.silu(self.gate(y)) * self.up(y))


def layer(seed: int = 0) -> Layer:
    torch.manual_seed(seed)
    return Layer().requires_grad_(False)


def rows(count: int = 5) -> Tensor:
    torch.manual_seed(7)
    return torch.randn(2, count, WIDTH)


def compiled(call: Any, host: str = "eager", **options: Any) -> Any:
    torch._dynamo.reset()
    return fuseplan.compile(call, plan=Plan(host, BOTH), weights="fixed", **options)


@pytest.fixture(autouse=True)
def nothing_is_merged() -> Iterator[None]:
    yield
    torch._dynamo.reset()
    gc.collect()
    assert bytes_held() == 0, "what is merged goes with the programs that read it"


# where they are


LAYERS = [(32, 16, 16), (48, 48)] * 2
COLUMNS: dict[str, list[tuple[int, ...]]] = {
    "llama": LAYERS, "qwen2": LAYERS, "bert": [(32, 32, 32)] * 2, "gpt2": [], "whisper": [(32, 32, 32), (32, 32, 32), (32, 32)],
}  # fmt: skip
USUAL = ("llama", "bert")


@pytest.mark.parametrize(
    ("name", "columns"),
    [pytest.param(*one, marks=() if one[0] in USUAL else pytest.mark.exhaustive) for one in COLUMNS.items()],
)
def test_they_are_found_in_models(name: str, columns: list[tuple[int, ...]]) -> None:
    """Those of GPT-2 are one matmul as they are written."""
    model, inputs = TRANSFORMERS[name].build()
    with torch.no_grad():
        found = sites_in("siblings", lambda: model.eval()(**inputs))
    assert [one.found.columns for one in found] == columns
    assert {one.reason("merged") for one in found} <= {None}
    assert [one.preferred for one in found] == [None] * len(found)  # on a CPU nobody has seen it pay


def a_matrix(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape), requires_grad=False)


class Near(nn.Module):
    """Two matmuls of one input, by a way of their own to be no siblings."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.one, self.other = way, a_matrix(6, WIDTH), a_matrix(6, WIDTH)
        self.base = a_matrix(12, WIDTH)
        if way == "shared":
            self.one, self.other = (nn.Parameter(half, requires_grad=False) for half in self.base.chunk(2))

    def forward(self, x: Tensor, given: Tensor) -> tuple[Tensor, ...]:
        one, other = self.one, self.other
        if self.way == "an input":
            return F.linear(x, given), F.linear(x, other)
        if self.way == "computed":
            return F.linear(x, one * 2), F.linear(x, other)
        if self.way == "tied":
            return F.linear(x, one), F.linear(x, one), F.linear(x, other)
        if self.way == "used elsewhere":
            return F.linear(x, one), F.linear(x, other), other.sum()
        if self.way == "written":
            first = F.linear(x, one)
            x.add_(1)
            return first, F.linear(x, other)
        if self.way == "another input":
            return F.linear(x, one), F.linear(x + 1, other)
        return F.linear(x, one), F.linear(x, other)


NEAR = {
    "an input": "its weight is no parameter of the program",
    "computed": "its weight is no parameter of the program",
    "tied": "its weight is used elsewhere, too",
    "used elsewhere": "its weight is used elsewhere, too",
    "shared": "its weight shares memory with another input",
    "written": None,
    "another input": None,
}


@pytest.mark.parametrize(("way", "reason"), NEAR.items())
def test_near_misses_are_told_with_their_reason(way: str, reason: str | None) -> None:
    gm = dynamo_graph(Near(way), rows(), torch.randn(6, WIDTH))
    assert Sites.of(gm, ("siblings",)).placed == []
    told = {one.reason for one in missed_places(gm, ("siblings",))}
    assert told == ({reason} if reason else set())


def test_parameters_that_lie_the_other_way_around_and_buffers() -> None:
    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = a_matrix(WIDTH, 6), nn.Buffer(torch.randn(WIDTH, 3))
            self.bias = nn.Parameter(torch.randn(3), requires_grad=False)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return torch.mm(x, self.one) * 2, torch.addmm(self.bias, x, self.other) * 2

    model, x = Turned(), torch.randn(5, WIDTH)
    torch._dynamo.reset()
    made = fuseplan.compile(model, plan=Plan("aten", BOTH[:1]), weights="fixed")
    assert_close(made(x), model(x))


def test_what_is_trained_is_refused() -> None:
    model = layer().requires_grad_(True)
    (first, second) = sites_in("siblings", model, rows())
    assert first.reason("merged") == second.reason("merged")
    assert str(first.reason("merged")).startswith("gradients go back through it")
    with pytest.raises(BackendCompilerFailed, match="cannot be merged: gradients go back through it"):
        compiled(model)(rows())


def test_what_is_computed_anew_in_the_backward_is_left_alone() -> None:
    model = layer()
    assert not sites_in("siblings", lambda x: checkpoint(model, x, use_reentrant=False), rows())


def test_weights_of_which_nobody_counts_what_is_written_are_refused() -> None:
    with torch.inference_mode():
        model, x = layer(), rows()
        with pytest.raises(BackendCompilerFailed, match="was made in inference mode"):
            compiled(model)(x)


def test_modules_that_fsdp_manages_are_refused() -> None:
    gm = dynamo_graph(layer(), rows())

    class FSDPNNModuleSource:
        """As Dynamo names what it finds in a module that FSDP manages."""

        base = None

    for node in gm.graph.find_nodes(op="placeholder"):
        node._dynamo_source = FSDPNNModuleSource()  # type: ignore[attr-defined]
    reasons = [one.reason("merged") for one in Sites.of(gm, ("siblings",)).placed]
    assert [str(one).partition(" is ")[2] for one in reasons] == ["sharded by FSDP, which writes to it unseen"] * 2


# that they are right


@pytest.mark.parametrize("host", ["eager", "aten", "inductor"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_merged_they_give_what_eager_gives(host: str, dtype: torch.dtype) -> None:
    model, x = layer().to(dtype), rows().to(dtype)
    made = compiled(model, host)
    exact = in_double(copy.deepcopy(model))(x.double())
    assert_as_accurate(made(x), model(x), exact)
    (program,) = programs_of(compiled_by(made))
    assert [one.way for one in program.plan.rewrites] == ["merged"] * 2
    if host == "aten":
        (record,) = program.graphs
        assert sum(op.target in ("aten.addmm.default", "aten.mm.default") for op in record.graph.ops) == 3
        assert str(record.graph).count("sym_size") == 0  # what is merged has sizes that are known


@pytest.mark.parametrize("host", ["eager", "aten"])
def test_results_lie_as_they_did_for_whoever_gets_them(host: str) -> None:
    def call(x: Tensor) -> tuple[Tensor, ...]:
        return model.query(x), model.key(x).view(-1), model.value(x).as_strided((2, 3), (3, 1)), model.gate(x) + 1

    model, x = layer(), rows()
    torch._dynamo.reset()
    made = fuseplan.compile(call, plan=Plan(host, BOTH[:1]), weights="fixed")
    for got, want in zip(made(x), call(x), strict=True):
        assert (got.stride(), got.untyped_storage().nbytes()) == (want.stride(), want.untyped_storage().nbytes())
        assert_close(got, want)


def test_autocast_around_them() -> None:
    model, x = layer(), rows()

    def call(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return model.gate(x) * model.up(x)

    torch._dynamo.reset()
    made = fuseplan.compile(call, plan=Plan("aten", BOTH[:1]), weights="fixed")
    assert made(x).dtype == torch.bfloat16
    assert_close(made(x), call(x), rtol=0.02, atol=0.02)


def test_rows_that_vary() -> None:
    model = layer()
    made = compiled(model, "aten", dynamic=True)
    for count in (5, 3, 9):
        assert_close(made(rows(count)), model(rows(count)))
    assert len(programs_of(compiled_by(made))) == 1


# that a change is seen


def swap(model: Layer) -> None:
    model.query.weight = nn.Parameter(torch.randn(16, WIDTH), requires_grad=False)


def step(model: Layer) -> None:
    model.query.weight.grad = torch.randn(16, WIDTH)
    torch.optim.SGD([model.query.weight], lr=1.0).step()


def within_inference(model: Layer) -> None:
    with torch.inference_mode():
        model.key.weight.mul_(2)


def elsewhere(model: Layer) -> None:
    model.up.weight.data = torch.randn(24, WIDTH)


def there_and_back(model: Layer) -> None:
    model.to(torch.float64)
    model.up.weight.mul_(2)
    model.to(torch.float32)


CHANGES: dict[str, Callable[[Layer], object]] = {
    "in place": lambda model: model.value.weight.mul_(2),
    "a bias in place": lambda model: model.value.bias.add_(1),
    "through a view": lambda model: model.gate.weight[3].zero_(),
    "in inference mode": within_inference,
    "an optimizer": step,
    "load_state_dict": lambda model: model.load_state_dict(layer(1).state_dict()),
    "load_state_dict, assigned": lambda model: model.load_state_dict(layer(1).state_dict(), assign=True),
    "another tensor": swap,
    "other memory": elsewhere,
    "to": there_and_back,
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_torch_sees_of_a_change_is_merged_anew(change: str) -> None:
    model, x = layer(), rows()
    made = compiled(model)
    before = made(x)
    assert_close(before, model(x))
    CHANGES[change](model)
    assert_close(made(x), model(x))
    assert not torch.allclose(before, model(x))
    assert bytes_held() == MERGED_BYTES


def test_memory_that_comes_back_is_not_taken_for_what_lay_there() -> None:
    """Let go of and given to another tensor, as where PEFT merges one adapter after another: version and address are what they were."""
    model, x = layer(), rows()
    memory = model.query.weight.numpy().copy()
    model.query.weight.data = torch.from_numpy(memory)
    made = compiled(model)
    before = made(x)
    place = model.query.weight.data_ptr()
    model.query.weight.data = torch.empty(0)
    memory *= 2
    model.query.weight.data = torch.from_numpy(memory)
    assert model.query.weight.data_ptr() == place
    assert_close(made(x), model(x))
    assert not torch.allclose(made(x), before)


def test_what_has_moved_is_let_go_when_asked() -> None:
    model, x = layer(), rows()
    compiled(model)(x)
    model.to(torch.float64)
    assert fuseplan.refresh(model) == 0
    assert bytes_held() == 0


def test_equal_blocks_find_what_is_merged_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are one program, which each of them calls in turn."""
    blocks, x, looked = [layer(seed) for seed in range(3)], rows(), list[int]()
    made = [compiled(blocks[0]), *map(compiled_like, blocks[1:])]
    for one in made:
        one(x)
    real = merged.MergedWeights._looked_up
    monkeypatch.setattr(
        merged.MergedWeights, "_looked_up", lambda program, weights: looked.append(1) or real(program, weights)
    )
    for _ in range(2):
        for one, block in zip(made, blocks, strict=True):
            assert_close(one(x), block(x))
    assert looked == []


def test_parameters_that_are_handed_over_are_merged_as_ones_own() -> None:
    """Their program has the key of one whose parameters are its own, and so it has the sites of that."""

    def call(x: Tensor, one: nn.Parameter, other: nn.Parameter) -> tuple[Tensor, Tensor]:
        return F.linear(x, one) * 2, F.linear(x, other) * 2

    x, each = rows(), [(a_matrix(6, WIDTH), a_matrix(6, WIDTH)) for _ in range(2)]
    (site,) = sites_in("siblings", call, x, *each[0])
    assert site.reason("merged") is None
    torch._dynamo.reset()
    made = fuseplan.compile(call, plan=Plan("eager", BOTH[:1]), weights="fixed")
    for given in each * 2:
        assert_close(made(x, *given), call(x, *given))


def test_what_is_written_to_a_view_of_a_result_is_not_lost() -> None:
    """As they lie among others, `contiguous` would be a copy."""
    model = layer()

    def call(x: Tensor) -> Tensor:
        q, k = model.gate(x), model.up(x)
        k.contiguous().mul_(2)
        return q + k * 1

    torch._dynamo.reset()
    made, x = fuseplan.compile(call, plan=Plan("eager", BOTH[:1]), weights="fixed"), rows()
    assert_close(made(x), call(x))


def test_what_torch_cannot_see_is_merged_anew_when_asked() -> None:
    model, x = layer(), rows()
    made = compiled(model)
    before = made(x)
    model.query.weight.data.mul_(2)
    assert_close(made(x), before)  # as the docs say
    assert fuseplan.refresh(layer()) == 0
    assert fuseplan.refresh(model) == 3
    assert_close(made(x), model(x))
    assert not torch.allclose(made(x), before)


def test_nothing_is_merged_at_a_call_that_finds_all_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, times = layer(), rows(), list[int]()
    real = merged.merged_of
    monkeypatch.setattr(merged, "merged_of", lambda *given, **named: times.append(1) or real(*given, **named))
    made = compiled(model)
    for _ in range(3):
        made(x)
    assert len(times) == 3  # two weights and a bias
    model.query.weight.mul_(2)
    places = [one.tensor.data_ptr() for one in merged._known.values()]
    for _ in range(3):
        made(x)
    assert len(times) == 4  # and no more than what has changed
    assert [one.tensor.data_ptr() for one in merged._known.values()] == places


# whose they are


def test_models_that_share_a_program_have_weights_of_their_own() -> None:
    one, other, x = layer(0), layer(1), rows()
    made = compiled(one)
    twin = copy.deepcopy(made)
    second = compiled_like(other)
    for _ in range(2):
        assert_close(made(x), one(x))
        assert_close(twin(x), one(x))
        assert_close(second(x), other(x))
    assert bytes_held() == 3 * MERGED_BYTES
    one.query.weight.mul_(2)
    assert_close(made(x), one(x))
    assert not torch.allclose(twin(x), made(x))
    del other, second
    gc.collect()
    assert bytes_held() == 2 * MERGED_BYTES


def compiled_like(model: nn.Module) -> Any:
    """Another model of the same class, compiled by the same object: Dynamo finds the program of the first."""
    return torch.compile(model, backend="fuseplan", options={"plan": Plan("eager", BOTH), "weights": "fixed"})


def test_programs_of_one_model_share_what_is_merged() -> None:
    model = layer()
    made = compiled(model, dynamic=False)
    for count in (3, 5):
        assert_close(made(rows(count)), model(rows(count)))
    assert len(programs_of(compiled_by(made))) == 2
    assert bytes_held() == MERGED_BYTES
    model.query.weight.mul_(2)
    for count in (3, 5):
        assert_close(made(rows(count)), model(rows(count)))


def test_boxes_of_sizes_share_what_is_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuseplan.lookup.missing_compiler", lambda *_: "no compiler in this test")
    store, model = Store(Places(tmp_path / "tuning.db")), layer()

    def right(made: Any, *counts: int) -> None:
        for count in counts:
            x = rows(count)
            torch._dynamo.maybe_mark_dynamic(x, 1)
            assert_close(made(x), model(x))

    torch._dynamo.reset()
    first = fuseplan.compile(model, db=tmp_path / "tuning.db")
    right(first, 5)
    (program,) = programs_of(compiled_by(first))
    for low, high in ((5, 8), (9, 16)):
        box = Box.of({"s0": (low, high)})
        assert store.add_plan(
            StoredPlan(str(program.key), environment("cpu"), Plan("aten", BOTH), wall_us=1.0, sizes=box)
        )
    torch._dynamo.reset()
    made = fuseplan.compile(model, db=tmp_path / "tuning.db", weights="fixed")
    right(made, 6, 3, 12, 40)
    assert [one.plan.host for one in programs_of(compiled_by(made))] == ["eager", "aten", "aten"]
    assert bytes_held() == MERGED_BYTES
    model.key.weight.mul_(2)
    right(made, 6, 12)


def test_memory_is_bounded_and_told() -> None:
    one, other, x = layer(0), layer(1), rows()
    with pytest.raises(
        BackendCompilerFailed, match="merged weights would take 6 kB beside 0 kB; merged_memory allows 1 kB"
    ):
        compiled(one, merged_memory=1000)(x)
    options = {"plan": Plan("eager", BOTH), "weights": "fixed", "merged_memory": MERGED_BYTES}
    made, second = (torch.compile(model, backend="fuseplan", options=options) for model in (one, other))
    assert_close(made(x), one(x))
    text = fuseplan.explain(made)
    assert "2 merged weights beside the program's own hold 6 kB of 6 kB that all hold" in text
    assert "group of siblings 0: 3 matmuls of one input, 16 + 8 + 8 columns; variant merged" in text
    assert fuseplan.stats()["bytes held by merged weights"] == MERGED_BYTES
    with pytest.warns(UserWarning, match="several models share a program: merged weights would take 6 kB beside 6 kB"):
        assert_close(second(x), other(x))
    assert_close(second(x), other(x))
    assert_close(made(x), one(x))
    assert bytes_held() == MERGED_BYTES


def test_where_others_have_all_the_room_weights_are_merged_for_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = "calls that merged weights for themselves, for lack of room"
    before = fuseplan.stats().get(counted, 0)
    one, other, x = layer(0), layer(1), rows()
    made, second = compiled(one), compiled_like(other)
    assert_close(made(x), one(x))
    with monkeypatch.context() as patched:
        patched.setattr(merged, "_free", lambda device: 0)
        with pytest.warns(UserWarning, match="half of the 0 kB that is free"):
            assert_close(second(x), other(x))
    assert bytes_held() == MERGED_BYTES
    assert fuseplan.stats()[counted] == before + 1


# the promise


def test_who_promises_nothing_gets_no_such_plan(tmp_path: Path) -> None:
    store, model, x = Store(Places(tmp_path / "tuning.db")), layer(), rows()

    def run(**options: Any) -> Any:
        torch._dynamo.reset()
        made = fuseplan.compile(model, db=tmp_path / "tuning.db", **options)
        assert_close(made(x), model(x))
        (program,) = programs_of(compiled_by(made))
        return program

    key = str(run(plan="eager").key)
    assert store.add_plan(StoredPlan(key, environment("cpu"), Plan("eager", BOTH), wall_us=1.0))
    without, under = run(), run(weights="fixed")
    assert without.plan.rewrites == ()
    assert "has rewrites of siblings, for which option weights promises nothing" in without.why
    assert [one.way for one in under.plan.rewrites] == ["merged"] * 2
    del under  # what it has merged needs no room then
    torch._dynamo.reset()
    gc.collect()
    with pytest.warns(UserWarning, match="merged_memory allows 1 kB"):
        small = run(weights="fixed", merged_memory=1000)
    assert small.plan.rewrites == ()
    assert [one.status for one in store.plans()] == ["tuned"]  # for others it may have room


def test_what_is_no_promise_is_refused() -> None:
    with pytest.raises(OptionError, match="option weights is free or fixed, not 'frozen'"):
        Options.parse({"weights": "frozen"})
    with pytest.raises(OptionError, match="option merged_memory is an amount of memory"):
        Options.parse({"merged_memory": "some"})
    with pytest.raises(OptionError, match="option weights is free or fixed"):
        fuseplan.tune([], weights="frozen")
    torch._dynamo.reset()
    asked = fuseplan.compile(layer(), plan=Plan("eager", BOTH))
    with pytest.raises(BackendCompilerFailed, match="a plan with siblings needs option weights='fixed'"):
        asked(rows())


# what is kept, and what is captured


class Captures:
    """What torch was told of each graph that it was to capture, and where it was given its inputs."""

    def __init__(self) -> None:
        self.static: list[tuple[int, ...]] = []
        self.places: list[list[int]] = []

    def cudagraphify(self, plain: Any, *, static_input_idxs: Any, **told: Any) -> Any:
        self.static.append(tuple(static_input_idxs))

        def call(args: list[Any]) -> Any:
            self.places.append([args[i].data_ptr() for i in static_input_idxs])
            return plain(args)

        call._boxed_call = True  # type: ignore[attr-defined]
        return call


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> Iterator[Captures]:
    found = Captures()
    monkeypatch.setattr(capture_place, "LEARNING", 0)
    for module in (cudagraph, capture_place):
        monkeypatch.setattr(module, "get_manager", lambda *args, **options: None)
    monkeypatch.setattr(capture_place, "is_capturing", lambda: False)
    monkeypatch.setattr(cudagraph, "cudagraphify", found.cudagraphify)
    monkeypatch.setattr(cudagraph, "obstacle", lambda gm, but_cpu=False: None)
    monkeypatch.setattr(cudagraph, "obstacle_in_code", lambda code, on_cpu: None)
    monkeypatch.setattr(cudagraph, "_device_index", lambda gm: 0)
    with fresh_cache(), torch._functorch.config.patch(enable_autograd_cache=True):
        yield found


def test_the_next_process_finds_the_program_and_merges_its_own_weights(captures: Captures) -> None:
    """And a CUDA graph reads them where they lie, whatever they become."""
    x, told = rows(), []
    for seed in (0, 1):
        torch._dynamo.reset()
        counters.clear()
        regions._live.clear()
        captures.static.clear()
        captures.places.clear()
        model = layer(seed)
        made = fuseplan.compile(model, plan=Plan("inductor", BOTH, launch="cudagraph"), weights="fixed")
        assert_close(made(x), model(x))
        model.query.weight.mul_(2)
        assert_close(made(x), model(x))
        assert captures.places[0] == captures.places[1]
        told.append({word: counters["aot_autograd"][f"autograd_cache_{word}"] for word in ("hit", "miss", "saved")})
        (static,) = captures.static
        assert len(static) == 8 + 3  # all parameters, and what is merged of them
        del made, model
    assert told == [{"hit": 0, "miss": 1, "saved": 1}, {"hit": 1, "miss": 0, "saved": 0}]


# tuning


class Gated(nn.Module):
    """Gate and up, in the middle of a step."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(WIDTH, 24), nn.Linear(WIDTH, 24)

    def forward(self, x: Tensor) -> Tensor:
        x = x.relu()
        return F.silu(self.gate(x)) * self.up(x)


def traced() -> Trace:
    with torch.no_grad():
        (found,) = traces_of(Gated(), rows(), name="gated")
    return found


@pytest.mark.parametrize("weights", ["fixed", "free"])
def test_they_are_raced_under_the_promise_alone(tmp_path: Path, weights: str) -> None:
    store, trace = Store(Places(tmp_path / "tuning.db")), traced()
    pool = ReplayingPool({"eager": 2000.0, "inductor": 1000.0, "inductor, siblings merged": 500.0})
    settings = Settings(kinds=usable_kinds(None, weights))
    (found,) = Tuner(store, pool, "cpu", FULL, settings, Silent()).tune(trace, ("plain",))
    assert found.plan is not None
    raced = {entry.name for job in pool.jobs if isinstance(job, RacePlans) for entry in job.entries}
    (stored,) = store.plans()
    merged_there = [(one.kind, one.way) for one in stored.plan.rewrites]
    if weights == "free":
        assert not [name for name in raced if "siblings" in name]
        assert merged_there == []
        return
    assert merged_there == [("siblings", "merged")]
    text = fuseplan.explain(stored.program, db=tmp_path / "tuning.db")
    assert "siblings 0: merged; 2 matmuls of one input, 24 + 24 columns" in text


@pytest.mark.parametrize("right", [True, False])
def test_a_worker_judges_them_as_they_run(monkeypatch: pytest.MonkeyPatch, right: bool) -> None:
    if not right:
        real = merged.merged_of
        monkeypatch.setattr(merged, "merged_of", lambda *given, **named: real(*given, **named).mul_(1.01))
    entry = RaceEntry("merged", Plan("inductor", BOTH[:1]))
    place = Workplace(Setup("cpu", FLAGS), Unheard())
    outcome = answer(VetPlan(traced().to_json(), entry), place)
    assert outcome.status == ("ok" if right else "wrong"), outcome.detail


def test_a_stale_plan_of_theirs_waits_for_whoever_promises(tmp_path: Path) -> None:
    store, trace = Store(Places(tmp_path / "tuning.db")), traced()
    pool = ReplayingPool({"eager": 2000.0, "inductor": 1000.0, "inductor, siblings merged": 500.0})
    then = replace(environment("cpu"), torch="2.12.0", versions=(("inductor", "2.12.0"),))
    tuner = Tuner(store, pool, "cpu", FULL, Settings(kinds=None), Silent(), here=then)
    assert [one.status for one in tuner.tune(trace, ("plain",))] == ["tuned"]
    (one,) = fuseplan.tune_stale(db=tmp_path / "tuning.db")
    assert (one.tuned.status, one.tuned.detail) == (
        "failed",
        "its plan reads weights merged: tune it again with --weights fixed",
    )
