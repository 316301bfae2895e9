"""Traces: a program written down, carried away and captured again is the same program."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.backends.debugging import aot_eager
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import checkpoint

import layer_programs
import zoo
from agreement import assert_as_accurate, assert_same
from fuseplan.capture.dynamo.program import program_key
from fuseplan.capture.trace.calls import Calls
from fuseplan.capture.trace.format import Trace
from fuseplan.capture.trace.key import key_of, native, retarget
from fuseplan.capture.trace.load import load_trace
from fuseplan.capture.trace.write import write_trace
from round_trips import Scope, assert_round_trips, matrix, traces_of


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Dropout(0.2), nn.Linear(16, 4))


# what is captured again


SCOPES: dict[str, Scope] = {
    "training": nullcontext,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}


@pytest.mark.parametrize("scope", SCOPES.values(), ids=SCOPES)
def test_a_module_in_each_mode_is_captured_again_as_the_same_program(scope: Scope) -> None:
    (trace,) = traces_of(mlp(), matrix(3, 8), scope=scope)
    assert_round_trips(trace)


@pytest.mark.parametrize("name", ["gpt2", "resnet"])
def test_a_model_in_training_is_captured_again_as_the_same_program(name: str) -> None:
    _check_model(name, training=True)


@pytest.mark.exhaustive
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", zoo.TRANSFORMERS)
def test_every_model_is_captured_again_as_the_same_programs(name: str, training: bool) -> None:
    _check_model(name, training)


def _check_model(name: str, training: bool) -> None:
    entry = zoo.TRANSFORMERS[name]
    model, inputs = entry.build(dropout=0.1)
    model.train(training and entry.trainable)
    traces = traces_of(model, scope=lambda: torch.set_grad_enabled(training), **inputs)
    assert traces
    for trace in traces:
        assert_round_trips(trace)


def _nested_autocast(x: Tensor, w: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        y = x @ w
        with torch.autocast("cpu", enabled=False):
            z = (x @ w).exp()
        with torch.no_grad():
            return y + z + y.exp()


def _chosen_kernels(q: Tensor) -> Tensor:
    with sdpa_kernel(SDPBackend.MATH):
        by_math = F.scaled_dot_product_attention(q, q, q)
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH], set_priority=True):
            either = F.scaled_dot_product_attention(q, q, by_math)
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]), torch.no_grad():
        return F.scaled_dot_product_attention(q, q, either) + either


def _after_a_break(x: Tensor, w: Tensor) -> Tensor:
    hidden = x @ w
    torch._dynamo.graph_break()
    return (hidden * w).sum(0)


def _writes_shared_memory(x: Tensor, y: Tensor) -> Tensor:
    x.add_(1)
    return y * 2


@torch.no_grad()
def _writes_a_parameter(weight: Tensor, grad: Tensor) -> None:
    weight.sub_(grad, alpha=0.1)


def _shared() -> tuple[Tensor, Tensor]:
    memory = matrix(20)
    return memory[:10], memory[4:12]


Case = tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]
CASES: dict[str, Case] = {
    "autocast_blocks": (_nested_autocast, lambda: (matrix(grad=True), matrix())),
    "chosen_kernels": (_chosen_kernels, lambda: (matrix(2, 3, 4, 8, grad=True),)),
    "input_that_is_no_leaf": (_after_a_break, lambda: (matrix(grad=True), matrix(grad=True))),
    "shared_memory": (_writes_shared_memory, _shared),
    "written_parameter": (_writes_a_parameter, lambda: (nn.Parameter(matrix(4)), matrix(4))),
    "odd_strides": (torch.add, lambda: (matrix(3, 1).expand(3, 4), matrix(8, 8)[::2, 1:5][:3])),
    "max_pool": (lambda x: F.max_pool2d(x, 2).mT, lambda: (matrix(1, 6, 6),)),
    "literals": (lambda x: x + torch.tensor([1.0, float("inf"), -0.0]) + x.dtype.itemsize, lambda: (matrix(3),)),
    "slices": (lambda x: x[..., 1:3, None].unbind(0)[0] ** 2, lambda: (matrix(5, 8, 8),)),
    "complex": (lambda x: torch.view_as_real(torch.fft.fft(x) * 1j), lambda: (matrix(4).to(torch.complex64),)),
    "encoder_layer": (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), lambda: (matrix(3, 2, 8),)),
    "lists": (lambda *x: torch._foreach_add(x, 1.0), lambda: (matrix(3), matrix(4))),
}


@pytest.mark.parametrize("name", CASES)
def test_what_programs_do_is_captured_again(name: str) -> None:
    call, make = CASES[name]
    traces = traces_of(call, *make())
    assert traces
    for trace in traces:
        assert_round_trips(trace)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", {**layer_programs.FUNCTIONS, **layer_programs.ATTENTION})
def test_layers_are_captured_again(name: str) -> None:
    call, make = {**layer_programs.FUNCTIONS, **layer_programs.ATTENTION}[name]
    (trace,) = traces_of(call, *make())
    assert_round_trips(trace)


def test_checkpointed_blocks_are_captured_again_and_draw_the_same_random_numbers() -> None:
    layer, weight = mlp(), matrix(4, 8)

    def program(x: Tensor) -> Tensor:
        hidden = checkpoint(layer, x * 2, use_reentrant=False)
        with torch.autocast("cpu", torch.bfloat16):
            left, right = checkpoint(lambda a, n: (a @ weight + n, a * n), hidden, 3.0, use_reentrant=False)
        return left.sum() + right.mean()

    (trace,) = traces_of(program, matrix(3, 8, grad=True))
    keys: list[str | None] = []

    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        keys.append(program_key(gm, example_inputs).key)
        return aot_eager(gm, example_inputs)  # Dynamo's own "eager" draws other numbers when it computes a block again

    loaded = load_trace(trace)
    captured = loaded.run(torch.compile(loaded.module, backend=backend))
    assert keys == [trace.key] == [key_of(trace.fields)]
    assert_same(captured, loaded.run())
    assert {value.dtype for value in load_trace(trace.in_double()).run().values()} == {torch.float64}


# what a loaded trace runs on


def test_a_loaded_module_with_the_weights_of_the_first_gives_what_the_first_gave() -> None:
    model, x = mlp().eval(), matrix(3, 8)
    given: list[Any] = []

    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        given.extend((write_trace(gm, example_inputs), list(example_inputs)))
        return gm.forward

    expected = torch.compile(model, backend=backend)(x)
    trace, values = given
    loaded = load_trace(trace)
    with torch.no_grad():
        for number, tensor in loaded.tensors.owned.items():
            tensor.copy_(values[number])
    assert_same(list(loaded.module(x)), [expected])


def test_the_trained_module_has_gradients_and_starts_anew_each_time() -> None:
    (trace,) = traces_of(nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Dropout()), matrix(3, 8, grad=True))
    loaded = load_trace(trace)
    first = loaded.run()
    gradients = [value for name, value in first.items() if name.startswith("gradient")]
    assert len(gradients) == 5  # of four parameters and the input
    assert all(value.isfinite().all() for value in gradients)
    statistics = [value for name, value in first.items() if name.startswith("buffer") and value.shape == (6,)]
    assert len(statistics) == 2
    assert not torch.equal(statistics[0], torch.zeros(6))
    assert_same(loaded.run(), first)
    assert not torch.equal(loaded.run(seed=1)["output 0"], first["output 0"])


def test_a_view_of_a_weight_that_is_given_back_where_nothing_is_recorded() -> None:
    """It wants gradients, and has nothing behind it that would take some."""
    linear = nn.Linear(4, 4)

    def call(x: Tensor) -> tuple[Tensor, Tensor]:
        return linear(x).relu(), linear.weight.view(2, 8)

    with torch.no_grad():
        (trace,) = traces_of(call, torch.randn(2, 4))
    assert not [name for name in load_trace(trace).run() if "gradient" in name]


def test_modes_hold_while_it_runs_and_no_longer() -> None:
    (trace,) = traces_of(mlp(), matrix(3, 8), scope=lambda: torch.autocast("cpu", torch.bfloat16))
    assert [out.dtype for out in load_trace(trace).step()] == [torch.bfloat16]
    assert not torch.is_autocast_enabled("cpu")
    (trace,) = traces_of(mlp(), matrix(3, 8), scope=torch.inference_mode)
    assert [out.requires_grad for out in load_trace(trace).step()] == [False]
    assert torch.is_grad_enabled()
    (trace,) = traces_of(mlp(), matrix(3, 8))
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        (out,) = load_trace(trace).step()
    assert out.dtype == torch.float32
    assert out.requires_grad


def test_the_gradient_of_what_adds_up_to_a_constant_shows() -> None:
    (trace,) = traces_of(lambda x: x.softmax(-1), matrix(5, 8, grad=True))
    loaded = load_trace(trace)
    (gradient,) = [value for name, value in loaded.run().items() if name.startswith("gradient")]
    assert gradient.abs().max() > 1e-3


def _embedded(ids: Tensor, mask: Tensor, places: Tensor, table: Tensor, labels: Tensor) -> Tensor:
    hidden = F.embedding(ids, table) + F.embedding(places, table) * mask[..., None]
    return F.cross_entropy(hidden.flatten(0, 1), labels.flatten())


def test_inputs_are_made_up_in_the_range_and_the_order_that_was_seen() -> None:
    ids = torch.randint(3, 90, (4, 32))
    mask = (torch.arange(32) < torch.tensor([[32], [20], [9], [31]])).long()
    places = torch.arange(32).expand(4, 32)
    labels = torch.where(mask == 1, torch.randint(0, 16, (4, 32)), -100)
    (trace,) = traces_of(_embedded, ids, mask, places, matrix(100, 16), labels)
    made = load_trace(trace).inputs(seed=5)
    assert made[0].min() >= 3
    assert made[0].max() < 90
    assert not torch.equal(made[0], ids)
    by_shape = dict(zip(_order(trace), made, strict=True))
    assert torch.equal(by_shape["places"], places)
    assert by_shape["mask"].unique().tolist() == [0, 1]
    assert (by_shape["mask"].diff(dim=-1) <= 0).all()
    assert set(by_shape["labels"].unique().tolist()) <= {-100, *range(16)}
    assert -100 in by_shape["labels"]


def _order(trace: Trace) -> list[str]:
    """Which argument each input of `_embedded` is, told by how its values are spread."""

    def name(item: Mapping[str, Any]) -> str:
        values = item["values"]
        if item["dtype"] == "float32":
            return "table"
        if values.get("order"):
            return "places" if values["order"] == "counting" else "mask"
        return "labels" if "marks" in values else "ids"

    return [name(item) for item in trace.fields["inputs"]]


def test_the_trace_holds_no_weights() -> None:
    layer = nn.Linear(8, 3)
    (trace,) = traces_of(layer, matrix(2, 8))
    numbers = {f"{number:.6g}" for number in [*layer.weight.flatten().tolist(), *layer.bias.tolist()]}
    assert not [number for number in numbers if number in trace.to_json()]


# what beside the program a file holds


def test_a_file_has_one_thing_a_line_and_reads_as_the_same_trace() -> None:
    layer = mlp()
    (trace,) = traces_of(lambda x: checkpoint(layer, x, use_reentrant=False), matrix(3, 8, grad=True))
    counted = replace(trace, calls=(Calls({}, 12, 0.25),))
    assert Trace.from_json(counted.to_text()) == Trace.from_json(counted.to_json()) == counted
    lines = counted.to_text().splitlines()
    assert lines.count('  {"sizes": {}, "calls": 12, "seconds": 0.25}') == 1
    assert sum('"target"' in line for line in lines) == counted.to_json().count('"target"')
    assert max(line.count('"kind"') for line in lines) == 1
    other = replace(trace, calls=(Calls({}, 13, 0.25),)).to_text().splitlines()
    assert len([line for line, its in zip(lines, other, strict=True) if line != its]) == 1


def test_counts_are_no_part_of_what_a_program_is() -> None:
    (trace,) = traces_of(mlp(), matrix(3, 8))
    counted = replace(trace, calls=(Calls({}, 7, 0.0), Calls({}, 2, 0.0)))
    assert (trace.times, counted.times) == (1, 9)
    assert counted.in_double().times == 9
    assert counted.in_double().key == trace.in_double().key


# the edited trace


def test_in_double_is_the_same_program_of_the_same_values() -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            hidden = x @ w
        return hidden.float().softmax(-1, dtype=torch.float32) + torch.zeros(4, dtype=x.dtype)

    (trace,) = traces_of(program, matrix(4, 4, grad=True), matrix())
    exact, eager = load_trace(trace.in_double()).run(), load_trace(trace).run()
    assert {value.dtype for value in exact.values()} == {torch.float64}
    assert (exact["output 0"] - eager["output 0"]).abs().max() < 0.05
    assert_as_accurate(eager, eager, exact)
    assert trace.in_double().key != trace.key
    assert trace.in_double().in_double() == trace.in_double()


def test_in_double_attention_runs_by_math() -> None:
    (trace,) = traces_of(_chosen_kernels, matrix(2, 3, 4, 8))
    assert {node["args"][0] for node in trace.fields["nodes"] if "_backend_from_string" in node["target"]} > {"MATH"}
    exact = trace.in_double()
    assert {node["args"][0] for node in exact.fields["nodes"] if "_backend_from_string" in node["target"]} == {"MATH"}
    assert_as_accurate(load_trace(trace).run(), load_trace(trace).run(), load_trace(exact).run())


def test_values_in_double_are_those_that_the_narrow_dtype_can_hold() -> None:
    (trace,) = traces_of(lambda x: x + 1, matrix(64).bfloat16())
    (narrow,), (wide,) = load_trace(trace).inputs(3), load_trace(trace.in_double()).inputs(3)
    assert wide.dtype == torch.float64
    assert torch.equal(narrow.double(), wide)


def test_a_retargeted_trace_names_the_other_device_throughout() -> None:
    def program(x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16):
            return (x @ x).to("cpu") + torch.arange(4, device=x.device)

    with torch.autocast("cpu", torch.bfloat16):
        (trace,) = traces_of(program, matrix())
    moved = retarget(trace, "cuda").fields
    assert "cpu" not in json.dumps({**moved, "torch": ""})
    assert retarget(trace, "cpu").key == trace.key
    on_meta = load_trace(retarget(traces_of(mlp(), matrix(3, 8))[0], "meta"))
    assert [out.device.type for out in on_meta.step()] == ["meta"]


ON_META = [*(name for name in CASES if name not in ("autocast_blocks", "literals")), "gpt2", "checkpointed"]
"""Programs that are captured on the CPU and on another kind of device, of which every machine has one: meta.

Not those that name a device themselves, nor tensors made of numbers, which are constants and stay on the CPU.
"""


@pytest.mark.parametrize("name", ON_META)
def test_a_retargeted_trace_has_the_key_of_what_that_device_captures(name: str) -> None:
    call, args, kwargs = _program(name)
    memory: dict[int, Tensor] = {}
    there = [tree_map(lambda given: _on_meta(given, memory), part) for part in (args, kwargs)]
    for trace, its in zip(traces_of(call, *args, **kwargs), _keys(call, *there), strict=True):
        moved, reasons = native(trace, "meta")
        assert (moved.key, reasons) == (its, [])
        assert native(moved, "cpu")[0] == trace


def _program(name: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    if name == "gpt2":
        model, inputs = zoo.TRANSFORMERS[name].build(dropout=0.1)
        return model, (), inputs
    if name == "checkpointed":
        return Checkpointed(), (matrix(3, 8, grad=True),), {}
    call, make = CASES[name]
    return call, make(), {}


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = mlp()

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.layer, x * 2, use_reentrant=False)  # type: ignore[no-any-return]


def _keys(call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str | None]:
    """The keys of what Dynamo captures where everything is on the meta device."""
    keys: list[str | None] = []

    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        keys.append(program_key(gm, example_inputs).key)
        return gm.forward

    if isinstance(call, nn.Module):
        call = copy.deepcopy(call).to("meta")
        getattr(call, "tie_weights", lambda: None)()  # `to` makes one tensor of meta for each place
    torch.compile(call, backend=backend)(*args, **kwargs)
    torch._dynamo.reset()
    return keys


def _on_meta(given: Any, memory: dict[int, Tensor]) -> Any:
    """A tensor like this one; two that share their memory do so there, too."""
    if not isinstance(given, Tensor):
        return given
    storage = given.untyped_storage()
    base = torch.empty(storage.nbytes() // given.itemsize, dtype=given.dtype, device="meta")
    base = memory.setdefault(storage._cdata, base)
    moved = base.as_strided(given.shape, given.stride(), given.storage_offset())
    return nn.Parameter(moved) if isinstance(given, nn.Parameter) else moved.requires_grad_(given.requires_grad)
