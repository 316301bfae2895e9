"""Embeddings whose gradient touches the rows that were read alone: the same numbers, tied to a head or not, padded or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.exc import BackendCompilerFailed

import fuseplan
from agreement import assert_same
from fuseplan.backend import programs_of
from fuseplan.explain import compiled_by
from fuseplan.plan import Rewrite
from fuseplan.rewrites import embedding, matmul
from plans import on_both_hosts
from rewriting import sites_in, with_gradients, with_rewrites

VOCABULARY, WIDTH = 521, 16
BY_ROWS = (Rewrite("embedding", 0, "rows"),)
BESIDE = (*BY_ROWS, Rewrite("matmul", 0, "padded"))
REPEATED = [[1, 5, 1, 520, 7, 7, 7, 0], [1, 1, 1, 5, 5, 300, 2, 520]]
Call = Callable[..., Tensor]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "LEAST_ELEMENTS", 0)
    monkeypatch.setattr(matmul, "LEAST_ELEMENTS", 0)


class Words(nn.Module):
    """A head that reads the table of the words, or one of its own."""

    def __init__(self, tied: bool, padding: int | None = None) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH, padding)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.words(ids).tanh())
        return out


def net(tied: bool, padding: int | None = None, dtype: torch.dtype = torch.float64) -> Words:
    torch.manual_seed(0)
    return Words(tied, padding).to(dtype)


def trained(call: Call, net: nn.Module, ids: Tensor) -> list[Tensor]:
    torch.manual_seed(1)
    return with_gradients(call(ids), list(net.parameters()))


def compiled(call: Call, host: str = "aten", rewrites: tuple[Rewrite, ...] = BY_ROWS) -> Call:
    return with_rewrites(call, rewrites, host)


def targets(call: Call) -> list[str]:
    return [
        op.target for program in programs_of(compiled_by(call)) for record in program.graphs for op in record.graph.ops
    ]


@pytest.mark.parametrize("rewrites", [BY_ROWS, BESIDE], ids=["alone", "beside a matmul"])
@pytest.mark.parametrize(("padding", "host"), on_both_hosts([None, 5, -1], ()))
@pytest.mark.parametrize("tied", [True, False])
def test_gradients_are_the_same(tied: bool, padding: int | None, host: str, rewrites: tuple[Rewrite, ...]) -> None:
    model, ids = net(tied, padding), torch.tensor(REPEATED)
    made = compiled(model, host, rewrites)
    assert_same(trained(made, model, ids), trained(model, model, ids), bitwise=False)
    if host == "aten":
        found = targets(made)
        assert not any("embedding_dense_backward" in target for target in found)
        assert (
            found.count("aten.add.Tensor") == tied
        )  # the sums go to what the head has given, and nothing else is added


@pytest.mark.parametrize("host", ["aten", "inductor"])
def test_equal_tokens_are_summed_in_float32(host: str) -> None:
    """As eager does on a GPU: a sum of threes in bfloat16 goes astray from 256 on."""
    words, ids = net(False, dtype=torch.bfloat16).words, torch.full((1, 173), 7)
    given = torch.full((1, 173, WIDTH), 3.0, dtype=torch.bfloat16)
    (actual,) = torch.autograd.grad(compiled(words, host)(ids), words.weight, given)
    assert actual[7, 0] == torch.tensor(519.0).bfloat16()
    assert actual.count_nonzero() == WIDTH


@pytest.mark.parametrize("host", ["aten", "inductor"])
def test_two_embeddings_and_a_head_of_one_table(host: str) -> None:
    class Two(Words):
        def forward(self, ids: Tensor) -> Tensor:
            out: Tensor = self.head((self.words(ids) * 2 + self.words(ids.flip(-1)).sin()).tanh())
            return out

    torch.manual_seed(0)
    model, ids = Two(True).double(), torch.tensor(REPEATED)
    made = compiled(model, host, (*BY_ROWS, Rewrite("embedding", 1, "rows"), Rewrite("matmul", 0, "padded")))
    assert_same(trained(made, model, ids), trained(model, model, ids), bitwise=False)


def test_a_result_that_nobody_needs_a_gradient_of() -> None:
    model, ids = net(True), torch.tensor(REPEATED)

    def call(ids: Tensor) -> Tensor:
        out: Tensor = model.head(model.words(ids).detach().tanh())
        return out

    assert_same(trained(compiled(call), model, ids), trained(call, model, ids), bitwise=False)


def test_a_table_that_is_read_otherwise_too_is_left_there() -> None:
    model, ids = net(True), torch.tensor(REPEATED)

    def call(ids: Tensor) -> Tensor:
        out: Tensor = model.head(model.words(ids).tanh()) + model.words.weight.square().mean()
        return out

    assert_same(trained(compiled(call), model, ids), trained(call, model, ids), bitwise=False)


def bounded(w: Tensor, ids: Tensor) -> Tensor:
    return F.linear(F.embedding(ids, w).tanh() + F.embedding(ids, w, max_norm=1.0), w)


def halved(w: Tensor, ids: Tensor) -> Tensor:
    rows = F.embedding(ids, w)
    with torch.no_grad():
        w.mul_(0.5)
    return F.linear(rows.tanh(), w)


def turned(w: Tensor, ids: Tensor) -> Tensor:
    table = w * 1
    rows = F.embedding(ids, table)
    table.t().mul_(2)
    return rows.tanh() @ table.t()


def sparse(w: Tensor, ids: Tensor) -> Tensor:
    return F.embedding(ids, w).sin() + F.embedding(ids, w, sparse=True).detach()


@pytest.mark.parametrize(("call", "host"), on_both_hosts([bounded, halved, turned, sparse], [bounded, halved]))
def test_a_table_that_is_written_to_is_read_where_it_is(call: Callable[..., Tensor], host: str) -> None:
    torch.manual_seed(0)
    table, ids = torch.randn(VOCABULARY, WIDTH, dtype=torch.float64), torch.tensor(REPEATED)
    found = []
    for one in (compiled(call, host), call):
        w = table.clone().requires_grad_()
        out = one(w, ids)
        torch.manual_seed(1)
        found.append([out, *torch.autograd.grad(out, [w], torch.randn_like(out)), w.detach()])
    assert_same(*found, bitwise=False)


def test_padding_may_have_any_gradient() -> None:
    kinds, ids = nn.Embedding(3, WIDTH, padding_idx=1), torch.arange(3).repeat(300)
    given = torch.randn(900, WIDTH)
    given[ids == 1] = torch.nan
    (want,) = torch.autograd.grad(kinds(ids), kinds.weight, given)
    made = compiled(kinds, rewrites=(Rewrite("embedding", 0, "one-hot"),))
    assert_same(torch.autograd.grad(made(ids), kinds.weight, given)[0], want, bitwise=False)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"max_norm": 1.0}, "it has max_norm"),
        ({"max_norm": 0.0}, "it has max_norm"),
        ({"scale_grad_by_freq": True}, "it has scale_grad_by_freq"),
        ({"sparse": True}, "it has sparse"),
    ],
)
def test_what_changes_the_table_or_its_gradient_stays(options: dict[str, Any], why: str) -> None:
    table = torch.randn(VOCABULARY, WIDTH, requires_grad=True)
    for site in sites_in("embedding", lambda ids: F.embedding(ids, table, **options) * 2, torch.tensor(REPEATED)):
        assert site.refusal("rows") == why


@pytest.mark.parametrize("host", ["aten", "inductor"])
@pytest.mark.parametrize("padding", [None, 1])
def test_many_tokens_of_few_kinds_are_a_matmul(padding: int | None, host: str) -> None:
    torch.manual_seed(0)
    kinds, ids = nn.Embedding(3, WIDTH, padding).double(), torch.randint(0, 3, (4, 200))
    (site,) = sites_in("embedding", kinds, ids)
    assert (site.refusal("one-hot"), site.forbidden("one-hot")) == (None, None)
    made = compiled(kinds, host, (Rewrite("embedding", 0, "one-hot"),))
    assert_same(trained(made, kinds, ids), trained(kinds, kinds, ids), bitwise=False)
    if host == "aten":
        assert sum("mm" in target for target in targets(made)) == 1


@pytest.mark.parametrize("host", ["aten", "inductor"])
def test_autocast_around_it_rounds_no_sums(host: str) -> None:
    """Eager takes gradients outside of it, or sums in float32 there, too."""
    torch.manual_seed(0)
    kinds, ids = nn.Embedding(3, WIDTH), torch.randint(0, 3, (4, 200))
    made = compiled(kinds, host, (Rewrite("embedding", 0, "one-hot"),))
    with torch.autocast("cpu", torch.bfloat16):
        actual, expected = (trained(one, kinds, ids) for one in (made, kinds))
    assert_same(actual, expected, bitwise=False)


def test_what_is_no_matmul_of_few_kinds_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = torch.zeros(1, 1000, dtype=torch.int64)
    (site,) = sites_in("embedding", nn.Embedding(65, 4), ids)
    assert site.refusal("one-hot") == "its table has more than 64 rows"
    (site,) = sites_in("embedding", nn.Embedding(4, 4), ids)
    assert site.refusal("one-hot") == "it is not known to have 256 tokens for each row"

    def in_other_words() -> str:
        raise RuntimeError("the program has set it per backend")

    monkeypatch.setattr(torch, "get_float32_matmul_precision", in_other_words)
    (site,) = sites_in("embedding", nn.Embedding(3, 4), ids)
    assert site.refusal("one-hot") is None
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    (site,) = sites_in("embedding", nn.Embedding(3, 4), ids)
    assert site.refusal("one-hot") == "matmuls in float32 may be rounded, and sums may not"


def test_a_table_that_is_small_or_mostly_read_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    model = net(False)
    (site,) = sites_in("embedding", model.words, torch.arange(174)[None])
    assert site.refusal("rows") == "its table is not known to have 3 rows for each token"
    with pytest.raises(BackendCompilerFailed, match="embedding 0 cannot be rows"):
        compiled(model.words)(torch.arange(174)[None])
    monkeypatch.setattr(embedding, "LEAST_ELEMENTS", 10_000)
    (site,) = sites_in("embedding", model.words, torch.arange(8)[None])
    assert site.refusal("rows") == "its table has 8,336 elements: it pays from 10,000 on"


def test_without_a_gradient_there_is_no_site() -> None:
    model = net(True)
    with torch.no_grad():
        assert sites_in("embedding", model, torch.tensor(REPEATED)) == []
    assert sites_in("embedding", model.requires_grad_(False), torch.tensor(REPEATED)) == []


def test_who_asks_for_determinism_gets_it() -> None:
    model, ids = net(True), torch.tensor(REPEATED)
    torch.use_deterministic_algorithms(True)
    try:
        (site,) = sites_in("embedding", model, ids)
        assert site.forbidden("rows") == "it is not deterministic, which the caller asks for"
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_transformation_around_it() -> None:
    words, ids = nn.Embedding(VOCABULARY, WIDTH), torch.tensor(REPEATED)
    (site,) = sites_in("embedding", lambda scale: torch.vmap(lambda each: words(ids) * each)(scale), torch.randn(2))
    assert site.refusal("rows") == "a transformation such as vmap is around it"


def test_it_is_told_of() -> None:
    made = compiled(net(True))
    made(torch.tensor(REPEATED))
    assert "embedding 0: 16 of 521 rows of 16; variant rows" in fuseplan.explain(made, graphs=False)
