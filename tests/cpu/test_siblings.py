"""Matmuls of one input as one matmul, where a caller promises that weights stay: found, right, and merged anew when they change after all."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.exc import BackendCompilerFailed
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

import fuseplan
from agreement import assert_as_accurate, in_double
from fuseplan.backend import programs_of
from fuseplan.explain import compiled_by
from fuseplan.measure.environment import environment
from fuseplan.plan import Plan
from fuseplan.rewrites.sites import Sites, missed_places
from fuseplan.runtime import merged
from fuseplan.runtime.merged import bytes_held
from fuseplan.tuning_db import Box, Places, Store, StoredPlan
from rewriting import dynamo_graph, sites_in
from siblings import BOTH, MERGED_BYTES, WIDTH, Layer, compiled, layer, nothing_is_merged, rows
from zoo import TRANSFORMERS

__all__ = ["nothing_is_merged"]


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
