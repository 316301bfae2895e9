"""Matmuls whose gradient gets room behind each row: the same elements, forward and backward, however they are spelled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.exc import BackendCompilerFailed
from torch.utils.checkpoint import checkpoint

import fuseplan
from agreement import assert_same
from fuseplan.backend import programs_of
from fuseplan.explain import compiled_by
from fuseplan.plan import Rewrite
from fuseplan.rewrites import matmul
from plans import on_both_hosts
from rewriting import sites_in, with_gradients, with_rewrites

COLUMNS, WIDTH = 521, 16
PADDED = (Rewrite("matmul", 0, "padded"),)
Call = Callable[..., Tensor]
SPELLINGS: dict[str, Call] = {
    "linear": lambda x, w, b: F.linear(x, w, b),
    "linear without a bias": lambda x, w, b: F.linear(x, w) + b,
    "a bias by its name": lambda x, w, b: F.linear(x, weight=w, bias=b),
    "@": lambda x, w, b: x @ w.t() + b,
    "matmul": lambda x, w, b: torch.matmul(x, w.T) + b,
    "mm": lambda x, w, b: torch.mm(x.flatten(0, 1), w.t()).unflatten(0, x.shape[:2]) + b,
    "addmm": lambda x, w, b: torch.addmm(b, x.flatten(0, 1), w.t()).unflatten(0, x.shape[:2]),
}  # fmt: skip


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "LEAST_ELEMENTS", 0)


def given(rows: int = 3, *, seed: int = 0, columns: int = COLUMNS) -> list[Tensor]:
    torch.manual_seed(seed)
    shapes = ((2, rows, WIDTH), (columns, WIDTH), (columns,))
    # in float32, sums of so many columns differ by more than is granted, on some processors
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


def trained(call: Call, inputs: list[Tensor]) -> list[Tensor]:
    return with_gradients(call(*inputs), [one for one in inputs if one.requires_grad])


def compiled(call: Call, host: str = "aten", rewrites: tuple[Rewrite, ...] = PADDED, **options: Any) -> Call:
    return with_rewrites(call, rewrites, host, **options)


def padded_ops(call: Call) -> list[str]:
    """The ops of its programs that make room."""
    return [
        op.target
        for program in programs_of(compiled_by(call))
        for record in program.graphs
        for op in record.graph.ops
        if "pad" in op.target
    ]


@pytest.mark.parametrize(("spelling", "host"), on_both_hosts(SPELLINGS, ("linear", "addmm")))
def test_every_spelling_gives_the_same(spelling: str, host: str) -> None:
    call, inputs = SPELLINGS[spelling], given()
    (site,) = sites_in("matmul", call, *inputs)
    assert (site.refusal("padded"), site.preferred) == (None, None)  # on a CPU nobody has seen it pay
    made = compiled(call, host)
    assert_same(trained(made, inputs), trained(call, inputs), bitwise=False)
    if host == "aten":
        assert padded_ops(made) == ["aten.constant_pad_nd.default"] * 2


@pytest.mark.parametrize("needed", [(0,), (1,), (2,), (0, 2), (1, 2)])
def test_only_the_gradients_that_are_asked_for(needed: tuple[int, ...]) -> None:
    call, inputs = SPELLINGS["linear"], given()
    for place, one in enumerate(inputs):
        one.requires_grad_(place in needed)
    assert_same(trained(compiled(call), inputs), trained(call, inputs), bitwise=False)


@pytest.mark.parametrize("host", ["aten", "inductor"])
def test_rows_that_vary(host: str) -> None:
    call = SPELLINGS["linear"]
    made = compiled(call, host)
    for rows in (3, 5, 9):
        inputs = given(rows)
        torch._dynamo.mark_dynamic(inputs[0], 1)
        assert_same(trained(made, inputs), trained(call, inputs), bitwise=False)
    assert len(programs_of(compiled_by(made))) == 1


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_autocast(spelling: str) -> None:
    inputs = given()

    def call(*inputs: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return SPELLINGS[spelling](*inputs)

    made = compiled(call)
    actual, expected = trained(made, inputs), trained(call, inputs)
    for got, want in zip(actual, expected, strict=True):
        assert (got.dtype, got.stride()) == (want.dtype, want.stride())
        torch.testing.assert_close(got, want, rtol=0.02, atol=0.02)


def test_a_checkpointed_block_and_weights_that_are_shared() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(COLUMNS, WIDTH)

        def head(self, x: Tensor) -> Tensor:
            return F.linear(x.tanh(), self.words.weight)

        def forward(self, ids: Tensor) -> Tensor:
            out: Tensor = checkpoint(self.head, self.words(ids), use_reentrant=False)
            return F.cross_entropy(out.flatten(0, 1), ids.flatten())

    torch.manual_seed(0)
    net, ids = Net(), torch.randint(0, COLUMNS, (2, 3))
    (site,) = sites_in("matmul", net, ids)
    assert site.path
    for host in ("aten", "inductor"):
        made = compiled(net, host)
        actual, expected = (torch.autograd.grad(call(ids), net.words.weight) for call in (made, net))
        assert_same(actual, expected, bitwise=False)


@pytest.mark.parametrize(
    ("columns", "call", "why"),
    [
        (520, "linear", None),
        (509, "linear", "it has 509 columns: room behind each row pays from 512 on"),
    ],
)
def test_what_would_gain_nothing_stays(columns: int, call: str, why: str | None) -> None:
    found = sites_in("matmul", SPELLINGS[call], *given(columns=columns))
    assert [site.refusal("padded") for site in found] == ([] if why is None else [why])


def test_what_takes_no_gradient_or_is_small_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.no_grad():
        (site,) = sites_in("matmul", SPELLINGS["linear"], *given())
    assert site.refusal("padded") == "it takes no gradient"
    monkeypatch.setattr(matmul, "LEAST_ELEMENTS", 10_000)
    (site,) = sites_in("matmul", SPELLINGS["linear"], *given())
    assert site.refusal("padded") == "its result has 3,126 elements: it pays from 10,000 on"
    with pytest.raises(BackendCompilerFailed, match=r"matmul 0 cannot be padded: its result has 3,126 elements"):
        compiled(SPELLINGS["linear"])(*given())


@pytest.mark.parametrize(
    "call",
    [
        lambda x, w, b: torch.addmm(b, x[0], w.t(), beta=0.5),
        lambda x, w, b: torch.addmm(x.new_ones(x.shape[1], COLUMNS), x[0], w.t()),
        lambda x, w, b: x @ w.t().expand(2, WIDTH, COLUMNS),
        lambda x, w, b: x[0, 0] @ w.t(),
        lambda x, w, b: (x * 2 + 0.5) * w[0, 0],
    ],
    ids=["a factor", "a matrix is added", "many matrices", "one row", "no matmul"],
)
def test_other_products_are_no_sites(call: Call) -> None:
    assert sites_in("matmul", call, *given()) == []


def test_what_the_backward_does_not_need_may_be_written_to() -> None:
    """As in eager: the rows are kept for the gradient of the weights alone, and the weights for that of the rows."""
    x, w, b = given()

    def frozen(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        rows = x * 2
        out = F.linear(rows, w, b)
        rows.mul_(3)
        return out + rows.sum()

    def fed(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        out = F.linear(x, w, b)
        with torch.no_grad():
            w.mul_(0.5)
        return out

    for call, needed in ((frozen, (True, False, False)), (fed, (False, True, True))):
        for host in ("aten", "inductor"):
            inputs, again = (
                [one.detach().clone().requires_grad_(needs) for one, needs in zip((x, w, b), needed, strict=True)]
                for _ in range(2)
            )
            assert_same(trained(compiled(call, host), inputs), trained(call, again), bitwise=False)


@pytest.mark.parametrize(
    "call",
    [lambda x, w, b: x @ w.t().contiguous() + b, lambda x, w, b: F.linear(x.mT.contiguous().mT, w, b)],
    ids=["the matrix", "the rows"],
)
def test_gradients_are_laid_out_as_they_were(call: Call) -> None:
    (site,) = sites_in("matmul", call, *given())
    assert site.refusal("padded") == "its gradients would be laid out otherwise"


def test_nothing_to_multiply_is_no_site() -> None:
    x, w = torch.randn(2, 3, 0), torch.randn(COLUMNS, 0, requires_grad=True)
    assert sites_in("matmul", lambda x, w: F.linear(x, w), x, w) == []


def test_a_transformation_around_it() -> None:
    """It reads plain tensors, and its result meets others."""
    x, w, b = given()

    def call(scale: Tensor) -> Tensor:
        return torch.vmap(lambda each: F.linear(x, w, b) * each)(scale)

    (site,) = sites_in("matmul", call, torch.randn(2))
    assert site.refusal("padded") == "a transformation such as vmap is around it"


def test_it_is_told_of() -> None:
    made = compiled(SPELLINGS["linear"])
    made(*given())
    text = fuseplan.explain(made, graphs=False)
    assert "matmul 0: 521 columns, whose rows begin at unaligned addresses; variant padded" in text


def test_in_half_precision_on_a_gpu_it_is_preferred() -> None:
    """As far as a machine without one can tell: a site is asked about its result."""
    (site,) = sites_in("matmul", SPELLINGS["linear"], *given())
    kind, found = site.kind, site.found
    result = found.result.meta["example_value"]
    with result.fake_mode:
        for dtype, way in ((torch.bfloat16, "padded"), (torch.float32, None)):
            found.result.meta["example_value"] = torch.empty(
                2, 3, COLUMNS, device="cuda", dtype=dtype, requires_grad=True
            )
            assert kind.preferred(found) == way
