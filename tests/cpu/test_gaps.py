"""The result of a padded matmul with its gaps, as torch.compile leaves it: who may, and that nobody else is given it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._inductor import config
from torch._inductor.fx_passes import pad_mm

from fuseplan.backend import programs_of
from fuseplan.executors import GAPS
from fuseplan.executors.inductor.executor import InductorExecutor
from fuseplan.explain import compiled_by
from fuseplan.graph import Graph, Op, Ref, TensorType, Value
from fuseplan.judge.expect import leaves_of
from fuseplan.judge.programs import judge
from fuseplan.judge.regions import check
from fuseplan.plan import CarveOuts, Plan
from fuseplan.segment import Region, Segmentation, leaving
from fuseplan.tuning.effort import Effort
from fuseplan.tuning.program.problem import _variants


def matrix(rows: int, columns: int, device: str = "cpu") -> TensorType:
    return TensorType("float32", (rows, columns), (columns, 1), device)


def matmul(device: str = "cpu") -> Graph:
    op = Op("aten.mm.default", (Ref("a"), Ref("b")), (), (Value("y", matrix(16, 13, device)),))
    return Graph((Value("a", matrix(16, 8, device)), Value("b", matrix(8, 13, device))), (op,), (Ref("y"),))


@pytest.fixture
def padding(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Inductor pads on GPUs alone, where it finds that to be faster."""
    monkeypatch.setattr(pad_mm, "should_pad", lambda *args, **kwargs: True)
    with config.patch(fx_graph_cache=False):
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("padding")
def test_gaps_are_left_where_they_are_asked_for_and_nowhere_else() -> None:
    inputs = [torch.randn(16, 8), torch.randn(8, 13)]
    for variant, stride in (("default", (13, 1)), (GAPS, (16, 1))):
        compiled = InductorExecutor().compile(matmul(), variant)
        (result,) = compiled(list(inputs))
        torch.testing.assert_close(result, inputs[0] @ inputs[1])
        assert result.stride() == stride
        assert check(matmul(), compiled, gaps=True).ok
        assert check(matmul(), compiled).ok == (variant == "default")


def logits(x: Tensor, w: Tensor) -> Tensor:
    return torch.relu(x) @ w


def read_again(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = x @ w
    return y, y.softmax(-1)


@pytest.mark.slow
@pytest.mark.usefixtures("padding")
@pytest.mark.filterwarnings("ignore:fuseplan. a region of")
@pytest.mark.parametrize(("function", "train"), [(logits, False), (logits, True), (read_again, False)])
def test_only_what_an_inference_program_gives_out_has_gaps(function: Callable[..., Any], train: bool) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(2, 8, 8), torch.randn(8, 13, requires_grad=train)
    compiled = torch.compile(function, backend="fuseplan", options={"plan": "aten"})
    torch._dynamo.reset()
    compiled(x, w)
    parts = []
    for record in programs_of(compiled_by(compiled))[0].graphs:
        matmuls = [i for i, op in enumerate(record.graph.ops) if op.target == "aten.mm.default"]
        parts.append(CarveOuts(record.role, record.graph.key, Segmentation((Region((matmuls[0],), "inductor", GAPS),))))
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="fuseplan", options={"plan": Plan("aten", carve_outs=tuple(parts))})
    found, wanted = compiled(x, w), function(x, w)
    torch.testing.assert_close(found, wanted)
    (record,) = programs_of(compiled_by(compiled))[0].graphs[:1]
    refused = [region.fallback for region in record.regions if region.fallback]
    if function is logits and not train:
        assert found.stride() == (128, 16, 1)
        assert not refused
        leaves = leaves_of({"output 0": wanted}, None, [{"output 0": wanted}])
        assert "strides" in str(judge({"output 0": found}, leaves).problem)
        assert judge({"output 0": found}, leaves, "gaps").problem is None
    else:
        assert "gaps" in str(refused)
        assert (found if train else found[0]).is_contiguous()


@pytest.mark.parametrize(
    ("free", "effort", "offered"),
    [
        ({"y"}, "quick", ("default", GAPS)),
        ({"y"}, "full", ("default", "tuned", GAPS)),
        (set(), "quick", ("default",)),
    ],
)
def test_gaps_are_a_choice_for_what_leaves_a_program(free: set[str], effort: str, offered: tuple[str, ...]) -> None:
    spends = Effort.named(effort)
    assert _variants(InductorExecutor(), spends, free)(matmul("cuda:0")) == offered
    assert GAPS not in _variants(InductorExecutor(), spends, free)(matmul("cpu"))


def test_what_leaves_is_read_by_views_that_keep_rows_alone() -> None:
    start = matmul()
    views = {"kept": (4, 4, 13), "flat": (208,)}
    strides = {"kept": (52, 13, 1), "flat": (1,)}
    for name, shape in views.items():
        view = Op(
            "aten.view.default", (Ref("y"), shape), (), (Value(name, TensorType("float32", shape, strides[name])),)
        )
        found = leaving(Graph(start.inputs, (*start.ops, view), (Ref(name),)))
        assert found == ({"y", "kept"} if name == "kept" else {"flat"})
        both = leaving(Graph(start.inputs, (*start.ops, view), (Ref(name), Ref("y"))))
        assert ("y" in both) == (name == "kept")
    read = Op("aten.relu.default", (Ref("y"),), (), (Value("z", matrix(16, 13)),))
    assert leaving(Graph(start.inputs, (*start.ops, read), (Ref("z"), Ref("y")))) == {"z"}
