"""Losses of heads whose logits get room behind each row, or never stand in memory whole: the same loss and gradients, however written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule

import fuseplan
from agreement import assert_as_accurate, assert_same, in_double
from fuseplan.backend import programs_of
from fuseplan.capture.trace.format import Trace
from fuseplan.capture.trace.load import load_trace
from fuseplan.capture.trace.write import write_trace
from fuseplan.errors import FuseplanError
from fuseplan.explain import compiled_by
from fuseplan.judge.expect import expect
from fuseplan.measure.memory import Peak
from fuseplan.plan import Rewrite
from fuseplan.rewrites.apply import rewritten
from fuseplan.rewrites.loss import kind
from fuseplan.rewrites.loss.chunked import loss_in_chunks
from fuseplan.rewrites.sites import missed_places
from plans import on_both_hosts
from rewriting import dynamo_graph, sites_in, with_rewrites

COLUMNS, WIDTH = 521, 16
WAYS = ("padded", "chunked-4", "chunked-8")
Call = Callable[..., Tensor]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kind, "LEAST_ELEMENTS", 0)


def shifted(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    logits = F.linear(x, w)
    return F.cross_entropy(logits[..., :-1, :].contiguous().view(-1, COLUMNS), t[..., 1:].contiguous().view(-1))


def by_hand(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    logits = F.linear(x, w, b).float()
    return (logits.logsumexp(-1) - logits.gather(-1, t[..., None]).squeeze(-1)).mean()


def from_logarithms(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    logarithms = (x @ w.t()).log_softmax(-1)
    return -logarithms.gather(2, t.unsqueeze(-1)).sum()


SPELLINGS: dict[str, Call] = {
    "flat": lambda x, w, b, t: F.cross_entropy(F.linear(x, w, b).flatten(0, 1), t.flatten()),
    "rows that are shifted": shifted,
    "classes second": lambda x, w, b, t: F.cross_entropy((x @ w.t()).transpose(1, 2), t),
    "permuted": lambda x, w, b, t: F.cross_entropy(F.linear(x, w).permute(0, 2, 1), t, reduction="sum"),
    "likelihood": lambda x, w, b, t: F.nll_loss(F.log_softmax(torch.addmm(b, x.flatten(0, 1), w.t()), -1), t.view(-1)),
    "by hand": by_hand,
    "logarithms by hand": from_logarithms,
    "a module": lambda x, w, b, t: nn.CrossEntropyLoss(label_smoothing=0.1)(F.linear(x, w).view(-1, COLUMNS), t.view(-1)),
}  # fmt: skip


def given(rows: int = 7, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    torch.manual_seed(0)
    shapes = ((2, rows, WIDTH), (COLUMNS, WIDTH), (COLUMNS,))
    floats = [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]
    return [*floats, torch.randint(0, COLUMNS, (2, rows))]


def trained(call: Call, inputs: list[Tensor]) -> list[Tensor]:
    loss = call(*inputs)
    needed = [one for one in inputs if one.requires_grad]
    found = torch.autograd.grad(loss * 0.7, needed, allow_unused=True)
    return [loss, *(torch.zeros(()) if one is None else one for one in found)]


def compiled(call: Call, way: str, host: str = "aten") -> Call:
    return with_rewrites(call, (Rewrite("loss", 0, way),), host)


def shapes_in(call: Call) -> set[tuple[Any, ...]]:
    """Of all that its programs make."""
    graphs = [record.graph for program in programs_of(compiled_by(call)) for record in program.graphs]
    return {tuple(getattr(value.type, "shape", ())) for graph in graphs for op in graph.ops for value in op.outputs}


@pytest.mark.parametrize("way", ["padded", "chunked-4", pytest.param("chunked-8", marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(("spelling", "host"), on_both_hosts(SPELLINGS, ()))
def test_every_spelling_gives_the_same(spelling: str, host: str, way: str) -> None:
    call, inputs = SPELLINGS[spelling], given()
    if spelling == "by hand":  # in double precision, its cast would round
        inputs = given(dtype=torch.float32)
    (site,) = sites_in("loss", call, *inputs)
    assert (site.refusal(way), site.preferred) == (None, None)
    made = compiled(call, way, host)
    assert_same(trained(made, inputs), trained(call, inputs), bitwise=False)


@pytest.mark.parametrize("way", [pytest.param("padded", marks=pytest.mark.exhaustive), "chunked-4"])
def test_inductor_computes_it_too(way: str) -> None:
    inputs = given()
    assert_same(trained(compiled(shifted, way, "inductor"), inputs), trained(shifted, inputs), bitwise=False)


ASKED: dict[str, Mapping[str, Any]] = {
    "sum": {"reduction": "sum"},
    "smoothing": {"label_smoothing": 0.2},
    "smoothing of a sum": {"label_smoothing": 0.2, "reduction": "sum"},
    "another number is ignored": {"ignore_index": 3},
}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("asked", ASKED)
def test_what_may_be_asked_for(asked: str, weighted: bool) -> None:
    x, w, _, t = given()
    t[0, :3] = ASKED[asked].get("ignore_index", -100)
    classes = torch.rand(COLUMNS, dtype=x.dtype) if weighted else None

    def call(x: Tensor, w: Tensor, t: Tensor, classes: Tensor | None) -> Tensor:
        return F.cross_entropy(F.linear(x, w).flatten(0, 1), t.flatten(), classes, **ASKED[asked])

    inputs: list[Any] = [x, w, t, classes]

    def run(call: Call) -> list[Tensor]:
        loss = call(*inputs)
        return [loss, *torch.autograd.grad(loss, [x, w])]

    assert_same(run(compiled(call, "chunked-4")), run(call), bitwise=False)


@pytest.mark.parametrize("ignored", ["a chunk", "all"])
def test_rows_that_are_ignored(ignored: str) -> None:
    x, w, b, t = given(8)
    t[:, :4] = -100
    t[1:] = -100
    if ignored == "all":
        t[:] = -100
    call = SPELLINGS["flat"]
    actual, expected = trained(compiled(call, "chunked-4"), [x, w, b, t]), trained(call, [x, w, b, t])
    assert_same(actual, expected, bitwise=False)
    assert bool(expected[0].isnan()) == (ignored == "all")


def test_where_all_is_ignored_no_gradient_is_infinite_whatever_the_loss_is_divided_by() -> None:
    x, w, b, t = given(8)
    t[:] = -100

    def call(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(x, w, b).flatten(0, 1), t.flatten(), reduction="sum") / (t != -100).sum()

    actual, expected = (trained(one, [x, w, b, t]) for one in (compiled(call, "chunked-4", "eager"), call))
    assert bool(expected[0].isnan())
    assert_same(actual, expected, bitwise=False)
    assert not any(bool(one.isnan().any()) for one in actual[1:])


def test_logits_that_are_very_large_lose_no_logarithm() -> None:
    """Two classes that are equally likely, in a row of which a float has no digits left behind the point."""
    rows, weight = torch.full((4, 1), 2.0**20), torch.zeros(COLUMNS, 1)
    weight[:2] = 2.0**8
    loss = loss_in_chunks(
        rows, weight, None, torch.zeros(4, dtype=torch.int64), None, 2, "mean", None, 0.0, (torch.float32,) * 2, False
    )
    torch.testing.assert_close(loss, torch.tensor(2.0).log())


@pytest.mark.parametrize("rows", [1, 3])
def test_fewer_rows_than_chunks(rows: int) -> None:
    call, inputs = SPELLINGS["flat"], given(rows)
    assert_same(trained(compiled(call, "chunked-8"), inputs), trained(call, inputs), bitwise=False)


def half(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(x, w, b).float().flatten(0, 1), t.flatten())


@pytest.mark.parametrize("way", ["padded", "chunked-4"])
@pytest.mark.parametrize("under", ["bfloat16", "autocast"])
def test_half_precision_is_as_accurate(under: str, way: str) -> None:
    inputs = given(40, torch.float32 if under == "autocast" else torch.bfloat16)

    def call(*given: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16) if under == "autocast" else nullcontext():
            return half(*given)

    actual, eager = trained(compiled(call, way), inputs), trained(call, inputs)
    assert_as_accurate(actual, eager, trained(SPELLINGS["flat"], in_double(inputs)))


def test_the_logits_never_stand_whole() -> None:
    x, w, b, t = given(32)
    made = compiled(SPELLINGS["flat"], "chunked-4")
    trained(made, [x, w, b, t])
    shapes = shapes_in(made)
    assert (16, COLUMNS) in shapes
    assert not {(64, COLUMNS), (2, 32, COLUMNS)} & shapes


@pytest.mark.parametrize("way", ["padded", "chunked-4"])
def test_without_gradients(way: str) -> None:
    inputs = given()
    made = compiled(shifted, way)
    with torch.no_grad():
        assert_same(made(*inputs), shifted(*inputs), bitwise=False)
    frozen = [inputs[0], inputs[1].detach(), *inputs[2:]]
    assert_same(trained(made, frozen), trained(shifted, frozen), bitwise=False)


@pytest.mark.parametrize("way", ["padded", "chunked-4"])
def test_no_gradient_goes_where_none_went(way: str) -> None:
    inputs = given()
    assert_same(trained(compiled(detached, way), inputs), trained(detached, inputs), bitwise=False)


def test_rows_that_vary() -> None:
    """They are not cut into chunks, and get room."""
    call = SPELLINGS["classes second"]
    made = compiled(call, "padded")
    for rows in (3, 5, 9):
        inputs = given(rows)
        for one in (inputs[0], inputs[3]):
            torch._dynamo.mark_dynamic(one, 1)
        assert_same(trained(made, inputs), trained(call, inputs), bitwise=False)
    assert len(programs_of(compiled_by(made))) == 1
    (site,) = sites_in("loss", call, *inputs)
    assert site.refusal("chunked-4") == "how many rows there are is known at run time only"


def softened(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(x, w).flatten(0, 1), torch.ones(t.numel(), COLUMNS, dtype=x.dtype) / COLUMNS)


def scaled(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    return F.cross_entropy((F.linear(x, w) * 0.5).flatten(0, 1), t.flatten())


def given_out(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    logits = F.linear(x, w)
    return F.cross_entropy(logits.flatten(0, 1), t.flatten()), logits


def counted(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    logits = F.linear(x, w)
    return F.cross_entropy(logits.flatten(0, 1), t.flatten()), logits.argmax(-1)


def rounded(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(x, w).bfloat16().float().flatten(0, 1), t.flatten())


def written_to(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    rows = x * 2
    logits = F.linear(rows, w.detach())
    rows.mul_(0.5)
    return F.cross_entropy(logits.flatten(0, 1), t.flatten())


def columns_left_out(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(x, w)[:, :, :COLUMNS].flatten(0, 1), t.flatten())


def detached(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    with torch.no_grad():
        logits = F.linear(x, w)
    return F.cross_entropy(logits.flatten(0, 1), t.flatten()) + x.sum()


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (softened, "its targets are probabilities"),
        (scaled, "its logits come from mul, which is no matmul"),
        (given_out, "logits is a result of the program"),
        (counted, "logits is read by argmax, too"),
        (columns_left_out, "its logits come from getitem, which is no matmul"),
        (rounded, "its logits come from bfloat16, which is no matmul"),
        (written_to, "mul_ may write to what it is computed of"),
    ],
)
def test_what_is_no_site_says_why(call: Call, why: str) -> None:
    gm = dynamo_graph(call, *given())
    (missed,) = missed_places(gm, ("loss",))
    assert missed.reason == why
    assert sites_in("loss", call, *given()) == []


def test_ways_that_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    each: Call = lambda x, w, b, t: F.cross_entropy(F.linear(x, w).flatten(0, 1), t.flatten(), reduction="none").mean()  # noqa: E731
    (site,) = sites_in("loss", each, *given())
    assert site.refusal("chunked-4") == "the gradient of each row's own loss is known in the backward alone"
    assert site.refusal("padded") is None
    (site,) = sites_in("loss", half, *given(dtype=torch.float16))
    assert site.refusal("chunked-8") == "in float16, gradients have to be scaled before they are computed"
    aligned = given()
    aligned[1] = torch.randn(576, WIDTH, dtype=torch.float64, requires_grad=True)
    aligned[2] = torch.randn(576, dtype=torch.float64, requires_grad=True)
    (site,) = sites_in("loss", SPELLINGS["flat"], *aligned)
    assert (site.refusal("padded"), site.refusal("chunked-4")) == ("its rows begin at aligned addresses", None)
    monkeypatch.setattr(kind, "LEAST_ELEMENTS", 10_000)
    (site,) = sites_in("loss", SPELLINGS["flat"], *given())
    assert site.refusal("chunked-4") == "there are 7,294 logits: it pays from 10,000 on"


def test_a_second_derivative_is_refused_and_not_wrong() -> None:
    """As in all that is compiled; where nothing is, it says so."""
    x, w, b, t = given()
    loss = compiled(SPELLINGS["flat"], "chunked-4", "eager")(x, w, b, t)
    with pytest.raises(FuseplanError, match="has no second derivative"):
        torch.autograd.grad(loss, x, create_graph=True)


@pytest.mark.parametrize("rewrites", [("loss", "embedding"), ("embedding",)])
def test_a_head_that_shares_its_table(rewrites: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    from fuseplan.rewrites import embedding

    monkeypatch.setattr(embedding, "LEAST_ELEMENTS", 0)
    torch.manual_seed(0)
    words, ids = nn.Embedding(COLUMNS, WIDTH).double(), torch.randint(0, COLUMNS, (2, 6))

    def call(ids: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(words(ids).tanh(), words.weight).flatten(0, 1), ids.flatten())

    ways = {"loss": "chunked-4", "embedding": "rows"}
    made = with_rewrites(call, [Rewrite(name, 0, ways[name]) for name in sorted(rewrites)], "aten")
    actual, expected = (torch.autograd.grad(each(ids), words.weight) for each in (made, call))
    assert_same(actual, expected, bitwise=False)


def test_it_is_told_of() -> None:
    made = compiled(SPELLINGS["flat"], "chunked-4")
    made(*given())
    assert "loss 0: 14 rows of 521 logits; variant chunked-4" in fuseplan.explain(made, graphs=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_judge_calls_each_way_right(dtype: torch.dtype) -> None:
    found: list[Trace] = []

    def look(gm: GraphModule, inputs: Sequence[Any]) -> Call:
        found.append(write_trace(gm, inputs, "loss"))
        return gm.forward

    torch._dynamo.reset()
    torch.compile(half, backend=look)(*given(40, dtype))  # type: ignore[arg-type]
    loaded = load_trace(found[0])
    expectation = expect(loaded, seeds=(0,))

    def problem(way: str) -> str | None:
        def backend(gm: GraphModule, _: Any) -> Call:
            return rewritten(gm, (Rewrite("loss", 0, way),)).gm.forward

        torch._dynamo.reset()
        return expectation.judge(loaded.run(torch.compile(loaded.module, backend=backend)), 0).problem  # type: ignore[arg-type]

    assert {way: problem(way) for way in WAYS} == dict.fromkeys(WAYS)


@pytest.mark.exhaustive
def test_chunks_take_less_memory() -> None:
    # so large that each chunk is mapped by itself, and given back: of less, a process keeps what others have left
    rows, columns, peaks = 4096, 20_480, list[int]()
    x, t = torch.randn(rows, WIDTH, requires_grad=True), torch.randint(0, columns, (rows,))
    w = torch.randn(columns, WIDTH, requires_grad=True)

    def call(x: Tensor, w: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(x, w), t)

    for rewrites in ((), *((Rewrite("loss", 0, way),) for way in kind.CHUNKS)):
        made, peak = with_rewrites(call, rewrites, "aten"), Peak(torch.device("cpu"))
        torch.autograd.grad(made(x, w), [x, w])
        peak.settle()
        torch.autograd.grad(made(x, w), [x, w])
        found = peak.bytes()
        if found is None:
            pytest.skip("this system does not tell what memory a process takes")
        peaks.append(found)
    whole = rows * columns * 4
    assert peaks[0] > whole
    assert peaks[1] < peaks[0] * 0.75, peaks
    assert peaks[2] < peaks[1] * 0.75, peaks


def head(name: str) -> nn.Module:
    """A model of transformers, small, with the loss that it has itself."""
    import transformers as hf

    small = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1, "vocab_size": COLUMNS}
    tokens: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
    if name == "gpt2":
        model = hf.GPT2LMHeadModel(
            hf.GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=COLUMNS, n_positions=64, **tokens)
        )
        model.loss_type = "ForCausalLM"  # else a warning parts the loss from the rest
        return model.eval()
    if name == "llama":
        return hf.LlamaForCausalLM(hf.LlamaConfig(**small, **tokens, num_key_value_heads=2, intermediate_size=32))
    sizes = {"d_model": 32, "d_kv": 16, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    config = hf.T5Config(**sizes, vocab_size=COLUMNS, decoder_start_token_id=0, **tokens)
    return hf.T5ForConditionalGeneration(config).eval()


@pytest.mark.parametrize(
    "name", ["llama", *(pytest.param(one, marks=pytest.mark.exhaustive) for one in ("gpt2", "t5"))]
)
def test_heads_of_transformers_are_found(name: str) -> None:
    model, ids = head(name), torch.randint(0, COLUMNS, (2, 8))

    def loss(ids: Tensor) -> Tensor:
        found: Tensor = model(input_ids=ids, labels=ids).loss
        return found

    (site,) = sites_in("loss", loss, ids)
    assert {way: site.refusal(way) for way in WAYS} == dict.fromkeys(WAYS)
    if name != "llama":
        return
    weights = list(model.parameters())
    made = compiled(loss, "chunked-4")
    actual, expected = (torch.autograd.grad(each(ids), weights) for each in (made, loss))
    for got, want in zip(actual, expected, strict=True):
        torch.testing.assert_close(got, want)
    gm = dynamo_graph(lambda ids: model(input_ids=ids, labels=ids).to_tuple()[:2], ids)
    (missed,) = missed_places(gm, ("loss",))
    assert missed.reason == "logits is a result of the program"
