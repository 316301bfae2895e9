"""What is Inductor's own about the inductor executor: its isolation, what it is given, what it says where it cannot."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.backends.common import aot_autograd
from torch._inductor import config

from conformance.build import dynamic_region_of, meta, region_of
from fuseplan.capture.fx.from_fx import from_fx
from fuseplan.errors import UnsupportedError
from fuseplan.executors.inductor import executor as inductor
from fuseplan.executors.inductor.executor import InductorExecutor
from fuseplan.graph import Graph, Symbol
from fuseplan.judge.inputs import make_inputs
from fuseplan.judge.regions import check

INDUCTOR = InductorExecutor()
aten = torch.ops.aten


def sine(x: Any) -> Any:
    return x.sin() + 1


def test_without_a_compiler_it_says_so_in_one_line() -> None:
    code = """
import torch._inductor.config as config
config.cpp.cxx = ("/no/such/compiler",)
from fuseplan.errors import ExecutorError
from fuseplan.executors.inductor.executor import InductorExecutor
from fuseplan.graph import Graph, Op, Ref, TensorType, Value
kind = TensorType("float32", (4,), (1,))
region = Graph((Value("x", kind),), (Op("aten.sin.default", (Ref("x"),), (), (Value("y", kind),)),), (Ref("y"),))
print(InductorExecutor().available())
try:
    InductorExecutor().compile(region)
except ExecutorError as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    said = run.stdout.splitlines()
    assert len(said) == 2
    assert said[0].startswith("no C++ compiler")
    assert "no C++ compiler" in said[1]


def test_what_it_returns_is_the_code_that_inductor_wrote() -> None:
    region = region_of(sine, meta(8, 16))
    call = INDUCTOR.compile(region)
    owner: Any = getattr(call, "__self__", call)
    assert call == owner._compiled_fx_graph.current_callable


def both(x: Any) -> Any:
    y = x + 1
    return y, y.t()


def test_a_view_of_what_others_hold_is_refused_at_the_edge() -> None:
    for function in (
        lambda x: x.unsqueeze(0),
        lambda x: (x[1:], x * 2),
        both,
        lambda x: (x + 1).unsqueeze(0).expand(3, 8, 16),
    ):
        with pytest.raises(UnsupportedError, match="at its edge is a view"):
            INDUCTOR.compile(region_of(function, meta(8, 16)))


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: aten.copy_.default(x, x * 2), "in place"),
        (lambda x: x.nonzero(), "depends on data"),
        (lambda x: x[x > 0], "depends on data"),
    ],
)
def test_effects_and_data_dependence_are_refused(function: Any, reason: str) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    with FakeTensorMode(shape_env=ShapeEnv()):
        graph = from_fx(make_fx(lambda x: [function(x)])(torch.empty(8, 16)))
    reasons = [INDUCTOR.supports(op, graph) for op in graph.ops]
    assert any(reason in (said or "") for said in reasons), reasons


def test_a_size_that_is_no_input_is_refused() -> None:
    region = dynamic_region_of(lambda n, x: x.sin(), [8], ["0", 4])
    without = Graph(region.inputs[1:], region.ops, region.outputs, symbols=region.symbols)
    with pytest.raises(UnsupportedError, match="s0"):
        INDUCTOR.compile(without)


def test_random_numbers_are_eagers() -> None:
    region = region_of(lambda x: [aten.native_dropout(x + 1, 0.5, True)[0] * 2, aten.bernoulli.p(x, 0.3)], meta(64, 64))
    call = INDUCTOR.compile(region)
    (x,) = make_inputs(region, 0)
    torch.manual_seed(5)
    expected = [aten.native_dropout(x + 1, 0.5, True)[0] * 2, aten.bernoulli.p(x, 0.3)]
    torch.manual_seed(5)
    for got, want in zip(call([x]), expected, strict=True):
        torch.testing.assert_close(got, want)


def _padded(graph: torch.fx.Graph) -> None:
    """What Inductor does to matmuls of odd sizes on a GPU: computes more columns than are wanted, and cuts them off."""
    (product,) = graph.find_nodes(op="call_function", target=torch.ops.aten.mm.default)
    a, b = product.args
    with graph.inserting_before(product):
        wide = graph.call_function(torch.ops.aten.constant_pad_nd.default, (b, [0, 3]))
        wider = graph.call_function(torch.ops.aten.mm.default, (a, wide))
        cut = graph.call_function(torch.ops.aten.slice.Tensor, (wider, 1, 0, 5))
    for node in (wide, wider, cut):
        node.meta["val"] = node.target(*(x.meta["val"] if isinstance(x, torch.fx.Node) else x for x in node.args))
    product.replace_all_uses_with(cut)
    graph.erase_node(product)


def test_outputs_that_inductor_pads_have_no_gaps() -> None:
    def function(a: Any, b: Any) -> Any:
        product = torch.mm(a, b)
        return product, product.relu()

    region = region_of(function, meta(4, 6), meta(6, 5))
    with config.patch(joint_custom_post_pass=_padded):
        compiled = INDUCTOR.compile(region)
    assert check(region, compiled).ok
    product, positive = compiled([torch.randn(4, 6), torch.randn(6, 5)])
    assert (product.stride(), positive.stride()) == ((5, 1), (5, 1))


def test_a_sum_whose_dimensions_were_lost_gets_them_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Inductor did it before torch 2.12 where it took two sums in one kernel, which no CPU does."""

    def losing(region: Graph, variant: str) -> Any:
        call, holds = compiled(region, variant)
        return lambda args: [got.squeeze() for got in call(args)], holds

    compiled = inductor._compile
    monkeypatch.setattr(inductor, "_compile", losing)
    monkeypatch.setattr(inductor, "_loses_dims", lambda region: True)
    region = region_of(lambda x: (x.sum([0, 1], keepdim=True), x.sum(0, keepdim=True), x.sin()), meta(4, 8, 16))
    result = check(region, INDUCTOR.compile(region))
    assert result.ok, result.reason


def test_strides_are_eagers_where_a_decomposition_gives_others() -> None:
    channels_last = meta(2, 4, 8, 8, stride=(256, 1, 32, 4))
    transposed = meta(8, 16, stride=(1, 8))
    for function, given in (
        (lambda x: (F.softmax(x, 1), F.silu(x) * x), channels_last),
        (lambda x: (F.avg_pool2d(x, 2), F.interpolate(x, scale_factor=2)), channels_last),
        (lambda x: (F.log_softmax(x, -1), F.layer_norm(x, [16]), x.cumsum(0)), transposed),
    ):
        region = region_of(function, given)
        result = check(region, INDUCTOR.compile(region), seeds=[0, 1])
        assert result.ok, result.reason


@pytest.mark.parametrize(
    ("function", "seen", "shapes", "others"),
    [
        (lambda n, x: F.adaptive_avg_pool2d(x, (4, 4)), [8], [(2, 3, "0", "0")], [[9], [16], [5]]),
        (lambda n, m, x: x.softmax(-1), [8, 16], [("0", "1")], [[3, 5000], [2, 4096], [2, 4097]]),
        (lambda n, x: x.view(4, -1) * 2, [8], [("0",)], [[12], [4]]),
    ],
)
def test_sizes_that_inductor_tells_apart_are_compiled_apart(
    function: Any, seen: list[int], shapes: list[Any], others: list[list[int]]
) -> None:
    """By a branch on the size in a decomposition, or a limit up to which a way to write the kernel goes."""
    region = dynamic_region_of(function, seen, *shapes)
    call = INDUCTOR.compile(region)
    specialized: Any = call.specialized  # type: ignore[attr-defined]
    sizes = [{f"s{i}": size for i, size in enumerate(chosen)} for chosen in [seen, *others]]
    result = check(region, call, sizes=sizes)
    assert result.ok, result.reason
    assert len(specialized.compiled) > 1


def test_sizes_apart_without_end_run_under_aten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuseplan.executors.inductor.executor.MAX_SPECIALIZED", 2)
    region = dynamic_region_of(lambda n, x: F.adaptive_avg_pool2d(x, (4, 4)) * 2, [8], [2, 3, "0", "0"])
    call = INDUCTOR.compile(region)
    for size in (8, 9, 10, 11, 9):
        x = torch.randn(2, 3, size, size)
        torch.testing.assert_close(call([size, x])[0], F.adaptive_avg_pool2d(x, (4, 4)) * 2)
    assert len(call.specialized.compiled) == 2  # type: ignore[attr-defined]


def test_compiles_inside_the_compilation_of_another_program() -> None:
    """As in the runtime: AOTAutograd is half-way through, and its tracing context must not notice."""
    calls = []

    def compiler(gm: torch.fx.GraphModule, _: Any) -> Any:
        region = from_fx(gm)
        calls.append(INDUCTOR.compile(region))

        def run(args: list[Any]) -> Any:
            return calls[0](args)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    backend = aot_autograd(fw_compiler=compiler, inference_compiler=compiler)
    x = torch.randn(8, 16)
    with torch.no_grad():
        got = torch.compile(lambda x: F.gelu(x) * 2, backend=backend)(x)
    torch.testing.assert_close(got, F.gelu(x) * 2)
    assert len(calls) == 1


def test_config_is_the_callers_before_and_after() -> None:
    region = dynamic_region_of(lambda n, x: aten.native_dropout(x, 0.5, True), [8], ["0", 64])
    before = (config.fallback_random, config.fx_graph_cache, config.max_autotune)
    INDUCTOR.compile(region)
    assert (config.fallback_random, config.fx_graph_cache, config.max_autotune) == before


def test_a_region_of_a_graph_with_unused_symbols_compiles() -> None:
    region = dynamic_region_of(lambda n, m, x: x.sin(), [8, 12], ["0", 4])
    assert [symbol.name for symbol in region.symbols] == ["s0", "s1"]
    assert check(region, INDUCTOR.compile(region)).ok


def test_a_callable_outlives_everything_around_it() -> None:
    """CompiledFxGraph takes its code apart when it is collected."""
    import gc

    region = region_of(lambda x, w: F.relu(torch.mm(x, w)) + 1, meta(8, 16), meta(16, 16))
    call = INDUCTOR.compile(region)
    gc.collect()
    assert check(region, call).ok


def test_many_threads_may_call_one_callable() -> None:
    region = region_of(sine, meta(64, 64))
    call = INDUCTOR.compile(region)
    wrong: list[int] = []

    def work(seed: int) -> None:
        (x,) = make_inputs(region, seed)
        wrong.extend(seed for _ in range(50) if not torch.allclose(call([x])[0], x.sin() + 1, atol=1e-6))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_hints_do_not_bound_the_sizes() -> None:
    region = dynamic_region_of(lambda n, x: x.sum(-1), [8], [4, "0"])
    wide = Graph(region.inputs, region.ops, region.outputs, symbols=(Symbol("s0", 2, None, 1000),))
    result = check(wide, INDUCTOR.compile(wide), sizes=[{"s0": 1000}, {"s0": 3}, {"s0": 4097}])
    assert result.ok, result.reason
