"""Matmuls of few rows as an operator of ours: found together where they read the same rows, and the same numbers in the same layout."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fuseplan
from agreement import assert_same
from fuseplan.backend import programs_of
from fuseplan.capture.fx import few_rows as operator
from fuseplan.explain import compiled_by
from fuseplan.kernels.tiling import MOST_ROWS, Tiling
from fuseplan.plan import Plan, Rewrite
from fuseplan.rewrites import few_rows
from fuseplan.rewrites.kinds import KINDS
from fuseplan.rewrites.sites import missed_places
from plans import on_both_hosts
from rewriting import dynamo_graph, sites_in, with_rewrites

OPERATOR = torch.ops.fuseplan.few_rows
Call = Callable[..., Any]


class Layer(nn.Module):
    """As decoders have: query, key and value, a way out, and a gated step."""

    def __init__(self, width: int = 256, bias: bool = False) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(width, width, bias), nn.Linear(width, width // 4, bias)
        self.value, self.out = nn.Linear(width, width // 4, bias), nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, 3 * width, bias=False)
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.query(x), self.key(x), self.value(x)
        y = x + self.out(q * torch.cat([k, v, k, v], -1).sigmoid())
        return y + self.down(F.silu(self.gate(y)) * self.up(y))


def layer(bias: bool = False, dtype: torch.dtype = torch.float64) -> Layer:
    torch.manual_seed(0)
    return Layer(bias=bias).to(dtype).requires_grad_(False)


def every(count: int) -> tuple[Rewrite, ...]:
    return tuple(Rewrite("few-rows", site, "triton") for site in range(count))


@pytest.fixture(params=[1, 3, 4])
def parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """So many parts of each sum, as on GPUs of several sizes. What the true one remembers is told from other sizes, as by it."""
    found = lru_cache(lambda *_: Tiling(16, 32, 64, -(-4 // request.param), request.param))
    monkeypatch.setattr(few_rows.Tiling, "of", found)
    return int(request.param)


@pytest.mark.parametrize(("bias", "host"), on_both_hosts([(True,), (False,)], [(True,)]))
def test_results_and_strides_are_the_same(bias: bool, host: str, parts: int) -> None:
    model = layer(bias)
    x = torch.randn(3, 1, 256, dtype=torch.float64)
    compiled = with_rewrites(model, every(4), host)
    assert_same([compiled(x)], [model(x)], bitwise=False)
    if host == "inductor":
        return
    (program,) = programs_of(compiled_by(compiled))
    targets = [op.target for record in program.graphs for op in record.graph.ops]
    assert targets.count("fuseplan.few_rows.default") == 4
    assert not any(target in ("aten.mm.default", "aten.addmm.default") for target in targets)


def test_those_of_the_same_rows_are_one_site() -> None:
    found = sites_in("few-rows", layer(True), torch.randn(8, 1, 256, dtype=torch.float64))
    assert [site.found.columns for site in found] == [(256, 64, 64), (256,), (768, 768), (256,)]
    assert [(site.refusal("triton"), site.preferred) for site in found] == [(None, None)] * 4  # on a CPU it is the same
    assert found[0].line("triton") == (
        "matmul of few rows 0: 3 matmuls of 8 × 256, 256 + 64 + 64 columns; variant triton"
    )
    compiled = with_rewrites(layer(True), every(1), "aten")
    compiled(torch.randn(8, 1, 256, dtype=torch.float64))
    assert found[0].line("triton") in fuseplan.explain(compiled, graphs=False)


@pytest.mark.parametrize(("count", "together"), [(1, [1]), (4, [4]), (5, [3, 2]), (9, [3, 3, 3]), (10, [4, 3, 3])])
def test_no_more_than_four_are_together(count: int, together: list[int]) -> None:
    weights = [torch.randn(8 + 8 * n, 64) for n in range(count)]
    found = sites_in("few-rows", lambda x: [F.linear(x, w) for w in weights], torch.randn(2, 64))
    assert [len(site.found.products) for site in found] == together


def spelled(x: Tensor, w: Tensor, b: Tensor) -> list[Tensor]:
    return [F.linear(x, w, b), F.linear(x, w), x @ w.t(), torch.mm(x, w.mT), torch.addmm(b, x, w.t()), x.matmul(w.T)]


def test_spellings() -> None:
    x, w, b = torch.randn(5, 64), torch.randn(24, 64), torch.randn(24)
    found = sites_in("few-rows", spelled, x, w, b)
    # the products of a matrix that is turned first are behind those before it that could be together
    assert sum(len(site.found.products) for site in found) == 6
    assert {site.refusal("triton") for site in found} == {None}
    assert_same(with_rewrites(spelled, every(len(found)), "aten")(x, w, b), spelled(x, w, b), bitwise=False)


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda x, w: x @ w, "its matrix does not lie row by row"),
        (lambda x, w: F.linear(x[:, :62], w[:, :62].contiguous()), "its matrix does not lie row by row"),
        (lambda x, w: F.linear(x, w, torch.ones(1)), "its bias is no number a column"),
        (lambda x, w: F.linear(x.long(), w.long()), "of another dtype"),
    ],
    ids=["by columns", "odd rows", "one bias", "integers"],
)
def test_what_the_kernel_does_not_do_is_refused(call: Call, why: str) -> None:
    (site,) = sites_in("few-rows", call, torch.randn(4, 64), torch.randn(64, 64))
    assert why in (site.refusal("triton") or "")


def test_what_is_trained_is_no_site() -> None:
    model, x = layer().requires_grad_(), torch.randn(4, 1, 256, dtype=torch.float64)
    assert sites_in("few-rows", model, x) == []
    assert len(sites_in("few-rows", torch.no_grad()(model), x)) == 4


def test_many_rows_are_no_site() -> None:
    def call(x: Tensor, w: Tensor) -> Tensor:
        return F.linear(x, w)

    assert sites_in("few-rows", call, torch.randn(MOST_ROWS + 1, 64), torch.randn(8, 64)) == []
    assert sites_in("few-rows", lambda x, y: x @ y, torch.randn(2, 3, 8), torch.randn(2, 8, 8)) == []  # each its own
    assert len(sites_in("few-rows", call, torch.randn(MOST_ROWS, 64), torch.randn(8, 64))) == 1


def test_rows_that_vary_are_few_in_the_whole_box(parts: int) -> None:
    model = layer(True)
    for rows, at_most in ((5, 8), (8, 8), (33, 64), (200, 256)):
        found = sites_in("few-rows", model, torch.randn(rows, 1, 256, dtype=torch.float64), dynamic=True)
        assert [site.refusal("triton") for site in found] == [None] * 4
        assert f"3 matmuls of at most {at_most} × 256," in found[0].line("triton")
    assert sites_in("few-rows", model, torch.randn(MOST_ROWS + 1, 1, 256, dtype=torch.float64), dynamic=True) == []
    torch._dynamo.reset()
    compiled = fuseplan.compile(model, plan=Plan("inductor", every(4)), dynamic=True)
    for rows in (5, 7, 8, 2, 100):
        x = torch.randn(rows, 1, 256, dtype=torch.float64)
        assert_same([compiled(x)], [model(x)], bitwise=False)
    assert len(programs_of(compiled_by(compiled))) == 1


def test_rows_that_nobody_has_counted_are_told_of() -> None:
    def call(x: Tensor, w: Tensor) -> Tensor:
        return F.linear(x[x[:, 0].nonzero()[:, 0]], w)

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        gm = dynamo_graph(call, torch.randn(6, 64), torch.randn(8, 64))
    (missed,) = missed_places(gm, ("few-rows",))
    assert missed.reason == "how many rows it has is known at run time only"


def test_what_is_written_between_keeps_them_apart() -> None:
    def call(x: Tensor, w: Tensor, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = x.clone()
        first = F.linear(y, w)
        y.mul_(2)
        second = F.linear(y, u)
        u2 = u * 3
        return first, second, F.linear(y, u2)

    x, w, u = torch.randn(4, 64), torch.randn(24, 64), torch.randn(16, 64)
    found = sites_in("few-rows", call, x, w, u)
    assert [site.found.columns for site in found] == [
        (24,),
        (16,),
        (16,),
    ]
    assert_same(with_rewrites(call, every(3), "aten")(x, w, u), call(x, w, u), bitwise=False)


def test_what_is_written_to_a_result_stays_there(parts: int) -> None:
    def call(x: Tensor, w: Tensor, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        one, two = F.linear(x, w), F.linear(x, u)
        one.add_(1)
        two.view(-1).mul_(3)
        return one, two, one.view(-1)

    x, w, u = torch.randn(4, 256), torch.randn(24, 256), torch.randn(16, 256)
    got, want = with_rewrites(call, every(1), "aten")(x, w, u), call(x, w, u)
    assert_same(got, want, bitwise=False)
    got[0].fill_(7)
    assert got[2].eq(7).all()
    assert not got[1].eq(7).any()


def test_autocast_is_left_alone() -> None:
    model = layer(dtype=torch.float32)

    def call(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return model(x)  # type: ignore[no-any-return]

    found = sites_in("few-rows", call, torch.randn(3, 1, 256))
    assert {site.refusal("triton") for site in found} == {"what it multiplies is of another dtype than its result"}


def test_vmap_leaves_it_as_it_is() -> None:
    def call(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
        return torch.vmap(lambda one: F.linear(x, w) * one)(y)

    (site,) = sites_in("few-rows", call, torch.randn(3, 64), torch.randn(8, 64), torch.randn(5, 8))
    assert site.refusal("triton") == "a transformation such as vmap is around it"


def turned_in_place(x: Tensor, w: Tensor, u: Tensor) -> Any:
    one, two = F.linear(x, w), F.linear(x, u)
    two.unsqueeze_(0)
    return one.t_(), two


def squeezed_in_place(x: Tensor, w: Tensor, u: Tensor) -> Any:
    return F.linear(x, w), F.linear(x, u[:1]).squeeze_(-1)


@pytest.mark.parametrize("call", [turned_in_place, squeezed_in_place])
@pytest.mark.parametrize("host", ["aten", "inductor"])
def test_what_takes_another_shape_in_place(call: Call, host: str, parts: int) -> None:
    x, w, u = torch.randn(4, 256), torch.randn(24, 256), torch.randn(16, 256)
    found = sites_in("few-rows", call, x, w, u)
    legal = tuple(site.rewrite("triton") for site in found if site.refusal("triton") is None)
    assert "it, or its rows, take another shape in place" in {site.refusal("triton") for site in found}
    assert_same(with_rewrites(call, legal, host)(x, w, u), call(x, w, u), bitwise=False)


@pytest.mark.parametrize("host", ["aten", "inductor"])
def test_what_is_trained_elsewhere_is_no_part_of_it(host: str, parts: int) -> None:
    """Where gradients are taken all around, what is computed without them is computed where that is said."""

    def call(x: Tensor, w: Tensor, trained: Tensor) -> tuple[Tensor, Tensor]:
        one = F.linear(x, w)
        with torch.no_grad():
            two = F.linear(x, trained)
        return one, two

    x, w, trained = torch.randn(4, 256), torch.randn(24, 256), torch.randn(16, 256, requires_grad=True)
    assert len(sites_in("few-rows", call, x, w, trained)) == 2
    found = with_rewrites(call, every(2), host)(x, w, trained)
    assert [one.requires_grad for one in found] == [False, False]
    assert_same(found, call(x, w, trained), bitwise=False)


@pytest.mark.parametrize("host", ["aten", "inductor"])
def test_of_one_row_each_result_has_memory_of_its_own(host: str, parts: int) -> None:
    def call(x: Tensor, w: Tensor, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        one, two = F.linear(x, w), F.linear(x, u)
        return one, two, two.as_strided((8,), (2,), 0)

    x, w, u = torch.randn(1, 256), torch.randn(25, 256), torch.randn(16, 256)
    found = with_rewrites(call, every(1), host)(x, w, u)
    assert_same(found, call(x, w, u), bitwise=False)
    assert [one.untyped_storage().nbytes() for one in found] == [4 * 25, 4 * 16, 4 * 16]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_the_operator_is_what_torch_computes(count: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 64, dtype=dtype)
    weights = [torch.randn(8 * (n + 1), 64, dtype=dtype) for n in range(count)]
    for biases in ([], [torch.randn(8 * (n + 1), dtype=dtype) for n in range(count)]):
        right = torch.cat([F.linear(x, w, b) for w, b in zip(weights, biases or [None] * count, strict=True)], -1)
        assert_same([OPERATOR(x, weights, biases, 1)], [right], bitwise=True)
        apart = OPERATOR(x, weights, biases, 3)
        assert apart.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        assert_same([apart.sum(0).to(dtype)], [right], bitwise=True)
        for parts in (1, 2):
            torch.library.opcheck(OPERATOR, (x, weights, biases, parts))


def test_what_the_kernel_cannot_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as a machine without a GPU can tell, where all else is as on one."""
    monkeypatch.setattr(operator, "run_here", lambda _: True)
    like: dict[str, Any] = {"dtype": torch.bfloat16}
    x, weight, bias = torch.randn(4, 64, **like), torch.randn(24, 64, **like), torch.randn(24, **like)
    assert operator._takes(x, [weight], [bias])
    assert operator._takes(x[:, ::2], [weight[:, :32]], [])  # rows are laid out anew
    for given in (
        (torch.randn(MOST_ROWS + 1, 64, **like), [weight], []), (x.float(), [weight.float()], []), (x, [weight.half()], []),
        (x, [weight], [bias.float()]), (x, [weight], [torch.randn(48, **like)[::2]]), (x, [weight], [bias[:1].expand(24)]),
        (x, [torch.randn(64, 24, **like).t()], []), (x, [torch.randn(24, 65, **like)[:, 1:]], []),
        (x, [torch.randn(24 * 64 + 1, **like)[1:].view(24, 64)], []),
    ):  # fmt: skip
        assert not operator._takes(*given)


def test_on_a_gpu_it_is_preferred(monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as a machine without one can tell: a site is asked about what it is of."""
    sites = sites_in("few-rows", layer(dtype=torch.bfloat16), torch.randn(8, 1, 256, dtype=torch.bfloat16))
    kind = sites[0].kind
    for site in sites:
        for one in site.found.products:
            for node in (one.call, *one.read):
                given = node.meta["example_value"]
                if given.device.type == "cpu":
                    with given.fake_mode:
                        node.meta["example_value"] = torch.empty(given.shape, device="cuda", dtype=given.dtype)
    monkeypatch.setattr(few_rows, "no_kernels", lambda device: None)
    monkeypatch.setattr(few_rows, "PREFERRED_ROWS", 7)
    assert [kind.preferred(site.found) for site in sites] == [None] * 4
    monkeypatch.setattr(few_rows, "PREFERRED_ROWS", 8)
    assert [kind.preferred(site.found) for site in sites] == ["triton"] * 4
    assert [dict(kind.rivals(site.found)) for site in sites] == [{"triton": "triton"}] * 4
    monkeypatch.setattr(few_rows, "MOST_BYTES", 256 * 256 * 2)
    assert [kind.preferred(site.found) for site in sites] == [None, "triton", None, None]
    monkeypatch.setattr(few_rows, "LEAST_ELEMENTS", 256 * 256 + 1)
    assert [kind.preferred(site.found) for site in sites] == [None] * 4
    monkeypatch.setattr(few_rows, "no_kernels", lambda device: "there is no Triton")
    assert {kind.refusal(site.found, "triton") for site in sites} == {"there is no Triton"}


def test_it_goes_with_the_promise_but_not_with_siblings() -> None:
    assert list(KINDS).index("few-rows") < list(KINDS).index("siblings")  # of the two, it is preferred
    model = layer()
    compiled = fuseplan.compile(model, plan=Plan("aten", every(4)), weights="fixed")
    x = torch.randn(3, 1, 256, dtype=torch.float64)
    assert_same([compiled(x)], [model(x)], bitwise=False)
    both = (*every(1), Rewrite("siblings", 0, "merged"))
    torch._dynamo.reset()
    with pytest.raises(Exception, match="both"):
        fuseplan.compile(model, plan=Plan("aten", both), weights="fixed")(x)


def test_a_plan_means_its_site_though_more_are_found_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As another version may, which takes matmuls of more rows: its digest says which it is."""
    wide, narrow = (torch.randn(8, 64) for _ in range(2))

    def call(x: Tensor) -> tuple[Tensor, Tensor]:
        return F.linear(x, wide), F.linear(x[:2], narrow)

    x = torch.randn(100, 64)
    with monkeypatch.context() as earlier:
        earlier.setattr(few_rows, "MOST_ROWS", 64)
        (old,) = sites_in("few-rows", call, x)
    both = sites_in("few-rows", call, x)
    assert [site.digest == old.digest for site in both] == [False, True]
    torch._dynamo.reset()
    compiled = fuseplan.compile(call, plan=Plan("aten", (Rewrite("few-rows", 0, "triton", old.digest),)))
    assert_same(compiled(x), call(x), bitwise=False)
    torch._dynamo.reset()
    with pytest.raises(Exception, match="is another than the one that the plan was made for"):
        fuseplan.compile(call, plan=Plan("aten", (Rewrite("few-rows", 0, "triton", "ab" * 8),)))(x)


def test_tilings_are_whole() -> None:
    for features in (1, 63, 64, 128, 896, 4096, 14336):
        for columns in ((8,), (896, 128, 128), (14336, 14336), (151936,)):
            for processors in (1, 78, 132):
                for rows in (1, 32, 33, 65, 197):
                    found = Tiling.of(rows, features, columns, processors)
                    blocks = -(-features // found.block)
                    assert (found.parts - 1) * found.blocks_each < blocks <= found.parts * found.blocks_each
                    assert Tiling.of(rows, features, columns, processors, found.parts) == found
