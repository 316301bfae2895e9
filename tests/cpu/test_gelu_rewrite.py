"""The exact GELU by another formula: as accurate as eager's, forward and backward, and without an error function in what Inductor writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._inductor.utils import run_and_get_code

import fuseplan
from fuseplan.backend import programs_of
from fuseplan.capture.fx.gelu import DTYPES, gelu_backward_by_tail, gelu_by_tail
from fuseplan.explain import compiled_by
from fuseplan.plan import Plan, Rewrite
from rewriting import sites_in, with_rewrites

TAIL = (Rewrite("gelu", 0, "tail"),)
Call = Callable[..., Any]


def compiled(call: Call, host: str = "inductor", **options: Any) -> Call:
    return with_rewrites(call, TAIL, host, **options)


def everywhere(dtype: torch.dtype) -> Tensor:
    """Numbers of all sizes, both signs, and zero."""
    sizes = torch.logspace(-8, 1.1, 2000, dtype=torch.float64)
    return torch.cat([sizes, -sizes, torch.zeros(1, dtype=torch.float64)]).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_formula_is_as_accurate_as_eager(dtype: torch.dtype) -> None:
    x = everywhere(dtype)
    grad = torch.ones_like(x)
    exact, backward = F.gelu(x.double()), torch.ops.aten.gelu_backward(grad.double(), x.double())
    for ours, eager, right in (
        (gelu_by_tail(x), F.gelu(x), exact),
        (gelu_backward_by_tail(grad, x), torch.ops.aten.gelu_backward(grad, x), backward),
    ):
        assert ours.dtype == dtype
        errors = [(one.double() - right).abs() for one in (ours, eager)]
        assert errors[0].max() <= 1.1 * errors[1].max()
        assert errors[0].norm() <= 1.05 * errors[1].norm()
        # and where numbers are small, relatively: eager takes the difference of two that are nearly equal there
        worst = [(error / right.abs().clamp(min=1e-6)).max() for error in errors]
        assert worst[0] <= 1.05 * worst[1]


def test_what_is_infinite_or_no_number() -> None:
    x = torch.tensor([float("inf"), float("nan"), -float("inf"), 3e38, -3e38], dtype=torch.bfloat16)
    assert gelu_by_tail(x).tolist()[:1] == [float("inf")]
    assert gelu_by_tail(x)[1].isnan()
    assert gelu_by_tail(x)[2:].tolist() == [0.0, x[3].item(), 0.0]  # where eager has none for the first of these
    backward = gelu_backward_by_tail(torch.ones_like(x), x)
    assert backward[1].isnan()
    assert backward[3:].tolist() == [1.0, 0.0]


@pytest.mark.parametrize("host", ["inductor", "aten"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_plan_with_it_trains(dtype: torch.dtype, host: str) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(16, 32).to(dtype)
    x = torch.randn(64, 16, dtype=dtype)

    def net(x: Tensor) -> Tensor:
        return F.gelu(layer(x) * 3.0)

    def trained(call: Call, x: Tensor) -> list[Tensor]:
        out = call(x)
        return [out, *torch.autograd.grad(out.float().square().sum(), list(layer.parameters()))]

    made = compiled(net, host)
    found, eager = trained(made, x), trained(net, x)
    layer.double()
    right = trained(net, x.double())
    for ours, theirs, exact in zip(found, eager, right, strict=True):
        assert (ours.dtype, ours.stride()) == (theirs.dtype, theirs.stride())
        assert (ours - exact).norm() <= 1.2 * (theirs - exact).norm() + 1e-7 * exact.norm()
    (site,) = sites_in("gelu", net, x.double())
    assert site.refusal("tail") == "its formula is for half precision"


def test_inductor_writes_no_error_function() -> None:
    x = torch.randn(64, 64, dtype=torch.bfloat16, requires_grad=True)

    def trained(call: Call) -> Call:
        return lambda: call(x).sum().backward()

    with torch._inductor.config.patch(force_disable_caches=True):
        _, ours = run_and_get_code(trained(compiled(lambda x: F.gelu(x * 2.0))))
        torch._dynamo.reset()
        _, theirs = run_and_get_code(trained(torch.compile(lambda x: F.gelu(x * 2.0))))
    assert len(ours) == len(theirs) == 2  # forward and backward
    assert not any("erf(" in code for code in ours)
    assert all("erf(" in code for code in theirs)  # torch's own is taken apart as ever


def test_it_is_one_operator_elsewhere() -> None:
    made = compiled(lambda x: F.gelu(x) + 1.0, "aten")
    made(torch.randn(8, 8, dtype=torch.bfloat16, requires_grad=True)).sum().backward()
    (program,) = programs_of(compiled_by(made))
    targets = {op.target for record in program.graphs for op in record.graph.ops}
    assert {"fuseplan.gelu.default", "fuseplan.gelu_backward.default"} <= targets
    assert "GELU 0: of 8 × 8; variant tail" in fuseplan.explain(made, graphs=False)


def test_inductor_has_it_in_a_region() -> None:
    x = torch.randn(32, 32, dtype=torch.bfloat16)
    torch._dynamo.reset()
    made = fuseplan.compile(lambda x: F.gelu(x.sin()) * 2.0, plan=Plan("aten", TAIL, name="inductor-greedy"))
    torch.testing.assert_close(made(x), F.gelu(x.sin()) * 2.0)
    (program,) = programs_of(compiled_by(made))
    assert [(one.executor, len(one.ops)) for record in program.graphs for one in record.regions] == [("inductor", 3)]


def test_sizes_that_vary() -> None:
    made = compiled(lambda x: F.gelu(x))
    for rows in (3, 5, 9):
        x = torch.randn(rows, 8, dtype=torch.bfloat16)
        torch._dynamo.mark_dynamic(x, 0)
        torch.testing.assert_close(made(x), F.gelu(x))
    assert len(programs_of(compiled_by(made))) == 1


@pytest.mark.parametrize(
    "call",
    [lambda x: F.gelu(x, approximate="tanh"), nn.GELU("tanh"), lambda x: torch._C._nn.gelu_(x * 1.0), F.silu],
    ids=["tanh", "a module of tanh", "in place", "another"],
)
def test_others_are_no_sites(call: Call) -> None:
    assert sites_in("gelu", call, torch.randn(4, 4, dtype=torch.bfloat16)) == []


def test_what_is_large_on_a_gpu_is_raced() -> None:
    """As far as a machine without one can tell: a site is asked about what it is of."""
    for rows, way in ((2**12, "tail"), (4, None)):
        (site,) = sites_in("gelu", nn.GELU(), torch.randn(rows, 64, dtype=torch.bfloat16))
        kind, found = site.kind, site.found
        assert dict(kind.rivals(found)) == {}
        x = found.call.args[0]
        given = x.meta["example_value"]
        with given.fake_mode:
            x.meta["example_value"] = torch.empty(given.shape, device="cuda", dtype=given.dtype)
        assert kind.preferred(found) is None
        assert dict(kind.rivals(found)) == ({} if way is None else {"tail": "tail"})
