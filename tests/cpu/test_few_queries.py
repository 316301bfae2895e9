"""Attention of a few queries over a long cache, as in a step of decoding: which ways there are, where, and that they compute the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import LlamaConfig, LlamaForCausalLM, WhisperConfig, WhisperForConditionalGeneration

from agreement import assert_as_accurate, assert_same, in_double
from attention_calls import found_in, in_ways
from cpu.test_measure import FLAGS
from cpu.test_measure_programs import trace_of
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.jobs import VetPlan
from fuseplan.measure.pool import Limits, Workers
from fuseplan.plan import Plan, Rewrite
from fuseplan.rewrites.apply import rewritten
from fuseplan.rewrites.attention.calls import AttentionCall, attention_calls
from fuseplan.rewrites.kinds import KINDS
from fuseplan.rewrites.sites import Sites
from rewriting import with_rewrites

OPERATOR = torch.ops.fuseplan.sdpa_split_keys
HEADS, GROUPS, KEYS, SIZE = 4, 2, 40, 16
WAYS = ("auto+grouped", "auto+packed", "split", "split+grouped")
"""All under which something changes, of what is legal on a CPU."""


def by_hand(cached: Tensor) -> Tensor:
    """Keys or values repeated for each head of a group, as `transformers` does it."""
    batch, groups, keys, size = cached.shape
    return cached[:, :, None].expand(batch, groups, HEADS // groups, keys, size).reshape(batch, HEADS, keys, size)


def step(q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, at: Tensor) -> Tensor:
    """One step of decoding over a cache that is written to where it lies, and of which no more than its first part is filled."""
    keys.index_copy_(2, at, k)
    values.index_copy_(2, at, v)
    mask = (torch.arange(keys.shape[2]) <= at[:, None]).expand(q.shape[0], 1, -1, -1)
    return F.scaled_dot_product_attention(q, by_hand(keys), by_hand(values), mask, scale=0.3)


def growing(q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """The same over a cache that grows, and has nothing to hide."""
    keys, values = torch.cat([keys, k], dim=2), torch.cat([values, v], dim=2)
    return F.scaled_dot_product_attention(q, keys, values, enable_gqa=True)


def given(queries: int = 1, dtype: torch.dtype = torch.float32, grad: bool = False) -> list[Tensor]:
    torch.manual_seed(0)
    shapes = [(HEADS, queries), (GROUPS, queries), (GROUPS, queries), (GROUPS, KEYS), (GROUPS, KEYS)]
    return [torch.randn(2, *shape, SIZE, dtype=dtype).requires_grad_(grad) for shape in shapes]


def decoding(filled: int = 11, queries: int = 1, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [*given(queries, dtype), torch.arange(filled, filled + queries)]


# the operator


def masks(queries: int) -> dict[str, Tensor | None]:
    torch.manual_seed(1)
    places, random = torch.arange(KEYS), torch.rand(2, HEADS, queries, KEYS) < 0.3
    bias = torch.randn(2, HEADS, queries, KEYS)
    return {
        "none": None,
        "filled": (places <= 11)[None],
        "filled by batch": places <= torch.tensor([3, 30]).view(2, 1, 1, 1),
        "window": ((places > 20) & (places < 29)).expand(2, 1, queries, KEYS),
        "random": random,
        "by query": torch.rand(queries, KEYS) < 0.5,
        "biased": bias,
        "biased and hidden": bias.masked_fill(~random, -torch.inf),
        "the lowest": torch.zeros(2, 1, 1, KEYS).masked_fill(places > 11, torch.finfo(torch.float32).min),
        "of one": torch.ones(2, 1, queries, 1, dtype=torch.bool),
    }


@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("case", masks(1))
def test_the_operator_is_attention(case: str, queries: int) -> None:
    q, _, _, k, v = given(queries)
    mask = masks(queries)[case]
    wide = mask if mask is None or mask.dtype == torch.bool else mask.double()
    exact = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), wide, enable_gqa=True)
    eager = F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)
    assert_as_accurate(OPERATOR(q, k, v, mask, None), eager, exact)


def test_what_is_not_filled_is_not_read() -> None:
    """A cache that nobody has cleared: elsewhere what is hidden is multiplied by zero, and NaN stays NaN."""
    q, _, _, k, v = given()
    for cached in (k, v):
        cached[:, :, 12:] = torch.nan
    mask = (torch.arange(KEYS) <= 11).expand(2, 1, 1, KEYS)
    expected = F.scaled_dot_product_attention(q, k[:, :, :12], v[:, :, :12], enable_gqa=True)
    assert_same(OPERATOR(q, k, v, mask, None), expected, bitwise=False)
    assert_same(OPERATOR(q, k, v, torch.where(mask, 0.0, -torch.inf), None), expected, bitwise=False)


def test_a_query_that_sees_nothing_gets_zeros() -> None:
    q, _, _, k, v = given()
    for mask in (torch.zeros(2, 1, 1, KEYS, dtype=torch.bool), torch.full((2, 1, 1, KEYS), -torch.inf)):
        assert not OPERATOR(q, k, v, mask, None).any()


@pytest.mark.parametrize("queries", [1, 3])
def test_the_operator_keeps_to_what_it_declares(queries: int) -> None:
    q, _, _, k, v = given(queries)
    mask = (torch.arange(KEYS) <= 11).expand(2, 1, queries, KEYS)
    torch.library.opcheck(OPERATOR.default, (q, k, v, mask, 0.3))
    torch.library.opcheck(OPERATOR.default, (q, k, v, None, None))


def test_keys_that_are_not_as_many_as_values_are_an_error() -> None:
    """As of attention: how many there are may be known at run time only."""
    q, _, _, k, v = given()
    with pytest.raises(ValueError, match="not as many"):
        OPERATOR(q, k, v[:, :, 1:], None, None)
    with pytest.raises(RuntimeError):
        OPERATOR(q, k, v, torch.ones(2, 1, 1, KEYS - 1, dtype=torch.bool), None)


# sites


def test_a_step_of_decoding_has_ways_of_its_own() -> None:
    (call,), _ = found_in(step, *decoding())
    assert {*WAYS, "split+grouped"} <= set(call.variants)
    assert (call.rivals["split"], call.rivals["packed"]) == ("split+grouped", "auto+packed")
    assert call.preferred == "auto"
    (call,), _ = found_in(growing, *given())
    assert {"split", "split+unmasked", "auto+packed", "auto+unmasked+packed"} <= set(call.variants)
    assert (call.rivals["split"], call.rivals["packed"]) == ("split+unmasked", "auto+unmasked+packed")


def test_on_a_gpu_keys_are_split_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as a machine without one can tell: a site is asked about what it is given."""
    asked = [found_in(step, *decoding())[0][0], found_in(growing, *given())[0][0]]
    assert [call.preferred for call in asked] == ["auto", "auto+unmasked"]
    for call in asked:
        query = call.fakes["query"]
        with query.fake_mode:
            call.__dict__["fakes"] = {**call.fakes, "query": torch.empty(query.shape, device="cuda")}
    for processors, preferred in ((4, ["split+grouped", "split+unmasked"]), (3, ["split+grouped", "auto+unmasked"])):
        monkeypatch.setattr("fuseplan.rewrites.attention.site.processors_of", lambda _, n=processors: n)
        for call in asked:
            del call.__dict__["preferred"]
        assert [call.preferred for call in asked] == preferred
    assert [call.rivals["packed"] for call in asked] == ["auto+packed", "auto+unmasked+packed"]
    assert [call.rivals["unsplit"] for call in asked] == ["auto", "auto+unmasked"]
    monkeypatch.setattr("fuseplan.rewrites.attention.site.processors_of", lambda _: 132)
    kind = KINDS["attention"]
    del asked[1].__dict__["preferred"]
    assert kind.preferred(asked[1]) == "split+unmasked"
    monkeypatch.setattr("fuseplan.rewrites.attention.kind.forbidden", lambda _, way: way.kernel == "split" or None)
    assert kind.preferred(asked[1]) == "auto+unmasked"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("host", ["aten", "eager"])
def test_each_way_computes_the_same_step_after_step(way: str, host: str) -> None:
    """The cache, too, which is written to in place, and filled further from step to step."""
    call, filled = with_rewrites(step, (Rewrite("attention", 0, way),), host), [11, 12, 39]
    ours, theirs = decoding(), decoding()
    for at in filled:
        ours[-1], theirs[-1] = torch.tensor([at]), torch.tensor([at])
        exact = in_double(theirs)
        found, eager = call(*ours), step(*theirs)
        assert_as_accurate(found, eager, step(*exact))
        assert_same(found, eager, bitwise=False)
        assert_same(ours[3:5], theirs[3:5])


@pytest.mark.parametrize("way", ["auto+packed", "split", "split+unmasked", "auto+unmasked+packed"])
def test_each_way_computes_the_same_over_a_cache_that_grows(way: str) -> None:
    """The second time it is compiled for as many keys as there may be."""
    call = in_ways(growing, way)
    for keys in (17, 18, 40):
        q, k, v, *cached = given()
        cached = [one[:, :, :keys] for one in cached]
        assert_same(call(q, k, v, *cached), growing(q, k, v, *cached), bitwise=False)


def test_several_queries_at_once_are_split_too() -> None:
    """As where tokens are guessed, and looked at together."""
    (call,), _ = found_in(step, *decoding(queries=3))
    assert "split+grouped" in call.variants
    assert call.refusal("auto+packed") == "it has not one query of each head"
    ours, theirs = decoding(queries=3), decoding(queries=3)
    assert_same(in_ways(step, "split+grouped")(*ours), step(*theirs), bitwise=False)


def test_no_key_is_repeated_any_more() -> None:
    _, gm = found_in(step, *decoding())
    for way, name in (("split+grouped", "attention_split("), ("auto+packed", "attention_packed(")):
        code = rewritten(gm, (Rewrite("attention", 0, way),)).gm.code
        assert name in code
        assert "reshape" not in code


def test_the_judge_finds_each_way_right() -> None:
    """In bfloat16, as it is served."""
    plans = [Plan("eager", (Rewrite("attention", 0, way),)) for way in WAYS]
    trace = trace_of(step, *decoding(dtype=torch.bfloat16))
    with torch.no_grad(), Workers("cpu", limits=Limits(plan_s=240.0), flags=FLAGS) as workers:
        jobs = [VetPlan(trace, RaceEntry(way, plan)) for way, plan in zip(WAYS, plans, strict=True)]
        outcomes = workers.map(jobs)
    assert [outcome.status for outcome in outcomes] == ["ok"] * len(WAYS)
    assert [outcome.row(way).status for way, outcome in zip(WAYS, outcomes, strict=True)] == ["ok"] * len(WAYS)


def other(change: Callable[..., Any]) -> Callable[..., Any]:
    """A step over keys and values as they lie in the cache, in which something is done otherwise."""

    def call(q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor) -> Any:
        return change(q, keys, values)

    return call


LEAVE = F.scaled_dot_product_attention
MISSES: dict[str, tuple[Callable[..., Any], Sequence[Any], str]] = {
    "too many queries": (other(lambda q, k, v: LEAVE(q, k, v, enable_gqa=True)), given(17), "it has 17 queries"),
    "trained": (other(lambda q, k, v: LEAVE(q, k, v, enable_gqa=True)), given(grad=True), "it takes a gradient"),
    "causal": (other(lambda q, k, v: LEAVE(q, k, v, is_causal=True, enable_gqa=True)), given(2), "it is causal"),
    "dropout": (other(lambda q, k, v: LEAVE(q, k, v, dropout_p=0.5, enable_gqa=True)), given(), "it has dropout"),
    "one of each batch": (other(lambda q, k, v: LEAVE(q, k[:1], v[:1], enable_gqa=True)), given(), "are not as many"),
    "three dimensions": (other(lambda q, k, v: LEAVE(q[0, :2], k[0], v[0])), given(), "four dimensions"),
    "very many heads": (
        other(lambda q, k, v: LEAVE(q.repeat(1, 20, 1, 1), k[:, :1], v[:, :1], enable_gqa=True)), given(), "80 queries share keys",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", MISSES)
def test_near_misses_are_refused_with_a_reason(case: str) -> None:
    call, arguments, reason = MISSES[case]
    with torch.no_grad() if case != "trained" else torch.enable_grad():
        (site,), _ = found_in(call, *arguments)
    assert reason in (site.refusal("split") or "")
    assert [way for way in site.offered if way.startswith("split")] == ["split"]


@pytest.mark.parametrize("shape", [(3, KEYS), (1, 1, 3, KEYS), (1, HEADS, 3, KEYS)])
def test_a_mask_of_more_rows_than_queries_is_not_packed(shape: tuple[int, ...]) -> None:
    """Attention gives a row for each row of such a mask."""
    q, k, v = given()[:1] + given()[3:]
    found = list[AttentionCall]()

    def backend(gm: GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        found.extend(attention_calls(gm))
        return lambda *_: (q,)  # on a CPU some kernels refuse such a mask

    call = torch.compile(lambda *args: F.scaled_dot_product_attention(*args, enable_gqa=True), backend=backend)
    torch._dynamo.reset()
    call(q, k, v, torch.ones(shape).bool())
    (site,) = found
    assert site.refusal("auto+packed") == "its mask may be larger than the scores"


def test_heads_that_share_nothing_are_not_packed() -> None:
    (site,), _ = found_in(other(lambda q, k, v: LEAVE(q[:, :2], k, v)), *given())
    assert site.refusal("auto+packed") == "its keys and values are not repeated for each head of a group"
    assert "split" in site.variants


def test_whoever_switches_kernels_off_is_heard() -> None:
    _, gm = found_in(step, *decoding())
    with sdpa_kernel(SDPBackend.MATH):
        (told,) = Sites.of(gm, ("attention",)).told()
    assert "split+grouped" not in told.ways
    assert "switched off" in told.refused["split+grouped"]


# models


def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=None,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def whisper() -> WhisperForConditionalGeneration:
    torch.manual_seed(0)
    config = WhisperConfig(
        vocab_size=61, num_mel_bins=8, encoder_layers=1, decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2,
        d_model=32, encoder_ffn_dim=48, decoder_ffn_dim=48, max_source_positions=16, max_target_positions=32, pad_token_id=0,
        bos_token_id=1, eos_token_id=None, decoder_start_token_id=2, suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    return WhisperForConditionalGeneration(config).eval()


def tokens(model: Any, cache: str) -> Tensor:
    """A few of those that a model finds most likely, one after the other, in a loop of one's own."""
    from transformers import DynamicCache, EncoderDecoderCache, StaticCache

    torch.manual_seed(1)
    prompt = torch.randint(3, 61, (2, 7))

    def made() -> Any:
        return (
            StaticCache(config=model.config, max_cache_len=20)
            if cache == "static"
            else DynamicCache(config=model.config)
        )

    with torch.no_grad():
        if isinstance(model, WhisperForConditionalGeneration):
            encoded = model.model.encoder(torch.randn(2, 8, 32))
            fixed = {"encoder_outputs": encoded, "past_key_values": EncoderDecoderCache(made(), DynamicCache())}
            name = "decoder_input_ids"
        else:
            fixed, name = {"past_key_values": made()}, "input_ids"
        found, given = [], prompt
        for _ in range(5):
            given = model(**{name: given}, **fixed, use_cache=True).logits[:, -1:].argmax(-1)
            found.append(given)
    return torch.cat(found, dim=1)


@pytest.mark.parametrize(
    ("model", "cache"),
    [
        (llama, "static"),
        (whisper, "dynamic"),
        *(pytest.param(*case, marks=pytest.mark.exhaustive) for case in ((llama, "dynamic"), (whisper, "static"))),
    ],
)
def test_models_of_a_library_give_the_same_tokens(model: Callable[[], Any], cache: str) -> None:
    """Unmodified, with a cache that has its place or grows: each site of each program whose keys may be split has them so."""
    expected, ours, split = tokens(model(), cache), model(), list[str]()

    def backend(gm: GraphModule, _: Any) -> Callable[..., Any]:
        sites = Sites.of(gm, ("attention",)).told()
        ways = {
            one.number: next((way for way in dict(one.rivals).values() if way.startswith("split")), None)
            for one in sites
        }
        split.extend(way for way in ways.values() if way)
        return rewritten(gm, tuple(Rewrite("attention", at, way) for at, way in ways.items() if way)).gm.forward

    torch._dynamo.reset()
    (ours.model.decoder if model is whisper else ours).compile(backend=backend)
    assert torch.equal(tokens(ours, cache), expected)
    assert len(split) >= 2, "the steps of decoding have sites with keys to split"
