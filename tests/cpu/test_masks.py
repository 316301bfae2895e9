"""What is proven of masks that programs really build: by hand, by `transformers`, and at random.

No claim may be false, at any size; and the claims that matter must be made.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from fuseplan.capture.fx.from_fx import from_fx
from fuseplan.graph import Ref
from fuseplan.rewrites.attention.calls import attention_calls
from fuseplan.segment.masks import MaskProof, Window, classify_mask
from zoo import TRANSFORMERS, static_and_dynamic

Mask = Callable[[Any, Any], Tensor]
"""Builds a mask for so many queries and keys."""


def verdict_of(mask: Tensor) -> str | None:
    """What the mask is, by looking at it."""
    if mask.dtype is torch.bool:
        shown = mask
    else:
        shown = mask == 0
        if not bool((shown | (mask == -math.inf) | (mask == torch.finfo(mask.dtype).min)).all()):
            return None
    if bool(shown.all()):
        return "all"
    causal = torch.ones(mask.shape[-2:], dtype=torch.bool).tril()
    return "causal" if bool((shown == causal).all()) else None


def proofs(
    program: Callable[..., Any], *arguments: Any, dynamic: bool | None = None, **keywords: Any
) -> list[MaskProof]:
    """What is proven of each call of attention in a program."""
    found: list[MaskProof] = []

    def backend(gm: GraphModule, _: Any) -> Callable[..., Any]:
        found.extend(call.proof for call in attention_calls(gm))
        return gm.forward

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(program, backend=backend, dynamic=dynamic)(*arguments, **keywords)
    return found


def proof_of(mask: Mask, queries: int, keys: int, dynamic: bool) -> MaskProof:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask(q.shape[-2], k.shape[-2]))

    q, k, v = torch.randn(2, 3, queries, 4), torch.randn(2, 3, keys, 4), torch.randn(2, 3, keys, 4)
    (proof,) = proofs(attend, q, k, v, dynamic=dynamic)
    return proof


# masks by hand


def ones(queries: Any, keys: Any) -> Tensor:
    return torch.ones(queries, keys, dtype=torch.bool)


def positions(queries: Any, keys: Any) -> tuple[Tensor, Tensor]:
    return torch.arange(queries)[:, None], torch.arange(keys)[None, :]


def hidden_by_infinity(n: Any, m: Any) -> Tensor:
    return torch.zeros(n, m).masked_fill(~ones(n, m).tril(), -math.inf)


def hidden_by_lowest(n: Any, m: Any) -> Tensor:
    return torch.zeros(n, m).masked_fill(~ones(n, m).tril(), torch.finfo(torch.float32).min)


def hidden_by_little(n: Any, m: Any) -> Tensor:
    return torch.zeros(n, m).masked_fill(~ones(n, m).tril(), -1e4)


def compared(n: Any, m: Any) -> Tensor:
    i, j = positions(n, m)
    return j <= i


def window(n: Any, m: Any) -> Tensor:
    i, j = positions(n, m)
    return (j <= i) & (j > i - 4)


def packed(n: Any, m: Any) -> Tensor:
    """As `transformers` looks for packed sequences: positions that do not go up by one begin another."""
    at = torch.arange(m)[None].expand(2, -1)
    part = (torch.diff(at, prepend=at[:, :1] - 1, dim=-1) != 1).cumsum(-1)
    batch, (i, j) = torch.arange(2)[:, None, None], positions(n, m)
    return ((part[batch, i[None]] == part[batch, j[None]]) & (j <= i))[:, None]


def written_in_place(n: Any, m: Any) -> Tensor:
    mask = torch.zeros(n, m, dtype=torch.bool)
    mask[:, :1] = True
    mask |= compared(n, m)
    return mask


def last_row_padded(n: Any, m: Any) -> Tensor:
    mask = compared(n, m)
    mask[-1] = True
    return mask


def view_written(n: Any, m: Any) -> Tensor:
    mask = compared(n, m)
    mask[1:][:1].fill_(False)
    return mask


@dataclass(frozen=True)
class Hand:
    mask: Mask
    square: str | None
    oblong: str | None
    """What must be proven for every size: with as many keys as queries, and with more."""


HAND: dict[str, Hand] = {
    "tril": Hand(lambda n, m: ones(n, m).tril(), "causal", "causal"),
    "tril of floats, compared": Hand(lambda n, m: torch.tril(torch.ones(n, m)) > 0, "causal", "causal"),
    "tril of floats, cast": Hand(lambda n, m: torch.tril(torch.ones(n, m)).bool(), "causal", "causal"),
    "not triu": Hand(lambda n, m: ~ones(n, m).triu(1), "causal", "causal"),
    "positions compared": Hand(compared, "causal", "causal"),
    "positions compared the other way": Hand(lambda n, m: positions(n, m)[0] >= positions(n, m)[1], "causal", "causal"),
    "positions subtracted": Hand(lambda n, m: (positions(n, m)[1] - positions(n, m)[0]) < 1, "causal", "causal"),
    "with a batch and a head": Hand(lambda n, m: compared(n, m)[None, None].expand(2, 1, n, m), "causal", "causal"),
    "where, infinity": Hand(lambda n, m: torch.where(compared(n, m), 0.0, -math.inf), "causal", "causal"),
    "masked_fill, infinity": Hand(hidden_by_infinity, "causal", "causal"),
    "masked_fill, lowest": Hand(hidden_by_lowest, "causal", "causal"),
    "full and triu": Hand(lambda n, m: torch.full((n, m), -math.inf).triu(1), "causal", "causal"),
    "one minus, times lowest": Hand(
        lambda n, m: (1.0 - compared(n, m).float()) * torch.finfo(torch.float32).min, "causal", "causal"
    ),
    "packed sequences": Hand(packed, "causal", None),
    "written in place": Hand(written_in_place, "causal", "causal"),
    "cut out of a larger one": Hand(lambda n, m: ones(n + 3, m + 3).tril()[3:, 3:], "causal", "causal"),
    "two halves": Hand(lambda n, m: torch.cat([compared(n, m)[:1], compared(n, m)[1:]]), "causal", "causal"),
    "padded by a column": Hand(lambda n, m: F.pad(ones(n, m - 1).tril(-1), (1, 0), value=True), "causal", "causal"),
    "nothing hidden": Hand(ones, "all", "all"),
    "zeros": Hand(lambda n, m: torch.zeros(1, 1, n, m), "all", "all"),
    "no position below zero": Hand(lambda n, m: (positions(n, m)[0] >= 0).expand(n, m), "all", "all"),
    "one row for all": Hand(lambda n, m: torch.ones(1, m, dtype=torch.bool), "all", "all"),
    # near misses
    "one too far": Hand(lambda n, m: ones(n, m).tril(1), None, None),
    "one too short": Hand(lambda n, m: ones(n, m).tril(-1), None, None),
    "below the diagonal": Hand(lambda n, m: positions(n, m)[1] < positions(n, m)[0], None, None),
    "aligned at the end": Hand(lambda n, m: ones(n, m).tril(m - n), "causal", None),
    "transposed": Hand(lambda n, m: ones(m, n).tril().T, None, None),
    "turned around": Hand(lambda n, m: ones(n, m).tril().flip(0), None, None),
    "a window": Hand(window, None, None),
    "the last row shows everything": Hand(last_row_padded, "causal", None),
    "a row written through a view": Hand(view_written, None, None),
    "the last key hidden": Hand(lambda n, m: compared(n, m) & (positions(n, m)[1] < m - 1), None, None),
    "a number that does not hide": Hand(hidden_by_little, None, None),
    "ones added where shown": Hand(lambda n, m: torch.ones(n, m).tril(), None, None),
    "one causal row for all": Hand(lambda n, m: ones(1, m).tril(), None, None),
    "blocks": Hand(lambda n, m: positions(n, m)[1] // 2 <= positions(n, m)[0] // 2, None, None),
    "a slope": Hand(lambda n, m: -(positions(n, m)[0] - positions(n, m)[1]).abs().float(), None, None),
}
SIZES = ((2, 2), (3, 3), (6, 6), (9, 9), (3, 7), (7, 3), (2, 9), (6, 7))


def _fits(queries: int, keys: int, square: bool) -> bool:
    return (queries == keys) is square


@pytest.mark.parametrize("name", HAND)
@pytest.mark.parametrize("square", [True, False], ids=["square", "oblong"])
def test_what_is_proven_for_every_size_is_so_at_every_size(name: str, square: bool) -> None:
    case = HAND[name]
    queries, keys = (6, 6) if square else (5, 7)
    proof = proof_of(case.mask, queries, keys, dynamic=True)
    assert proof.verdict == (case.square if square else case.oblong), proof.reason
    if proof.verdict is not None:
        seen = {verdict_of(case.mask(n, m)) for n, m in SIZES if _fits(n, m, square)}
        assert seen == {proof.verdict}


@pytest.mark.parametrize("name", HAND)
def test_what_is_proven_for_one_size_is_so_there(name: str) -> None:
    mask = HAND[name].mask
    for queries, keys in ((6, 6), (5, 7)):
        proof = proof_of(mask, queries, keys, dynamic=False)
        actual = verdict_of(
            mask(queries, keys).expand(queries, keys) if name == "one causal row for all" else mask(queries, keys)
        )
        assert proof.verdict in (actual, None)
        assert proof.verdict == actual or name in UNFOLLOWED, proof.reason


UNFOLLOWED = ("packed sequences", "blocks")
"""What is causal by chance at some size, by arithmetic that the prover does not follow."""


# windows


def distance(n: Any, m: Any) -> Tensor:
    i, j = positions(n, m)
    return j - i


WINDOWS: dict[str, tuple[Mask, Window | None]] = {
    "causal": (window, Window(3, 0)),
    "causal, infinity": (lambda n, m: torch.where(window(n, m), 0.0, -math.inf), Window(3, 0)),
    "causal, lowest": (
        lambda n, m: torch.zeros(n, m).masked_fill(~window(n, m), torch.finfo(torch.float32).min),
        Window(3, 0),
    ),
    "causal, a band": (lambda n, m: ones(n, m).tril() & ones(n, m).triu(-2), Window(2, 0)),
    "to both sides": (lambda n, m: distance(n, m).abs() <= 2, Window(2, 2)),
    "to both sides, unequally": (lambda n, m: (distance(n, m) <= 2) & ~(distance(n, m) < -1), Window(1, 2)),
    "all before": (lambda n, m: ones(n, m).tril(2), Window(None, 2)),
    "all behind": (lambda n, m: (distance(n, m) > -3)[None, None], Window(2, None)),
    "itself alone": (lambda n, m: distance(n, m) == 0, Window(0, 0)),
    "of several": (lambda n, m: window(n, m) & (distance(n, m) >= -1) & (distance(n, m) < 5), Window(1, 0)),
    "not itself": (lambda n, m: ones(n, m).tril(-1).triu(-3), None),
    "with a hole": (lambda n, m: window(n, m) & (distance(n, m) != -2), None),
    "with a sink": (lambda n, m: window(n, m) | (positions(n, m)[1] == 0), None),
    "without the first key": (lambda n, m: window(n, m) & (positions(n, m)[1] > 0), None),
    "in steps": (lambda n, m: positions(n, m)[1] // 2 == positions(n, m)[0] // 2, None),
    "twice as steep": (lambda n, m: positions(n, m)[1] * 2 - positions(n, m)[0] <= 1, None),
}


def is_window(mask: Tensor, window: Window) -> bool:
    """Whether a mask shows what a window shows, by looking at it."""
    shown = mask if mask.dtype is torch.bool else mask == 0
    hidden = ~mask if mask.dtype is torch.bool else (mask == -math.inf) | (mask == torch.finfo(torch.float32).min)
    assert bool((shown | hidden).all())
    rows, columns = mask.shape[-2:]
    wanted = torch.tensor([[window.shows(row, column) for column in range(columns)] for row in range(rows)])
    return bool((shown == wanted).all())


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", WINDOWS)
def test_what_is_proven_a_window_is_one_at_every_size(name: str, dynamic: bool) -> None:
    mask, wanted = WINDOWS[name]
    proof = proof_of(mask, 9, 9, dynamic)
    assert (proof.verdict, proof.window) == (None, wanted)
    assert wanted is None or all(is_window(mask(n, m), wanted) for n, m in SIZES)


def test_what_changes_with_the_size_is_a_window_at_its_size_alone() -> None:
    def half(n: Any, m: Any) -> Tensor:
        return (distance(n, m) <= 0) & (distance(n, m) > -(n // 2))

    assert proof_of(half, 8, 8, dynamic=False).window == Window(3, 0)
    assert proof_of(half, 8, 8, dynamic=True).window is None


# masks that `transformers` builds


MODELS = {
    "gpt2": "causal", "llama": "causal", "qwen2": "causal", "gemma": "causal", "mixtral": "causal", "mistral": None,
    "bert": "all", "distilbert": "all", "vit": "all",
}  # fmt: skip
"""Without a padding mask. Mistral's window is 8 here: it may be shorter than the text."""


def model_proofs(name: str, dynamic: bool | None, **changes: Any) -> list[MaskProof]:
    model, inputs = TRANSFORMERS[name].build()
    given = {key: value for key, value in inputs.items() if key not in ("labels", "attention_mask")}
    return proofs(model.eval(), **{**given, **changes}, dynamic=dynamic)


@pytest.mark.parametrize(("name", "dynamic"), static_and_dynamic(MODELS, ("llama", "bert", "mistral")))
def test_masks_of_models(name: str, dynamic: bool | None) -> None:
    found = model_proofs(name, dynamic)
    assert [proof.verdict for proof in found] == [MODELS[name]] * 2, found
    assert [proof.window for proof in found] == [Window(7, 0) if name == "mistral" else None] * 2


def test_a_text_shorter_than_the_window_is_causal_at_its_size_alone() -> None:
    short = torch.arange(3, 9)[None]
    assert {proof.verdict for proof in model_proofs("mistral", None, input_ids=short)} == {"causal"}
    assert {proof.verdict for proof in model_proofs("mistral", True, input_ids=short)} == {None}


@pytest.mark.parametrize("dynamic", [None, True], ids=["static", "dynamic"])
def test_a_padding_mask_is_data(dynamic: bool | None) -> None:
    mask = torch.ones(2, 11, dtype=torch.int64)
    for name in ("bert", "llama"):
        found = model_proofs(name, dynamic, attention_mask=mask)
        assert {proof.verdict for proof in found} == {None}
        assert all("attention_mask" in proof.reason for proof in found), found


def test_the_cross_attention_of_t5_hides_nothing_and_its_self_attention_is_learned() -> None:
    found = [proof.verdict for proof in model_proofs("t5", True, decoder_input_ids=torch.ones(2, 7, dtype=torch.int64))]
    assert found == [None, None, None, "all", None, "all"]


# masks at random: expressions of one shape, built from smaller ones


Recipe = tuple[Any, ...]


def leaves() -> st.SearchStrategy[Recipe]:
    shift = st.integers(-2, 3)
    relation = st.sampled_from(["__le__", "__lt__", "__ge__", "__gt__", "__eq__", "__ne__"])
    return st.one_of(
        st.tuples(st.just("compare"), relation, shift),
        st.tuples(st.sampled_from(["tril", "triu"]), shift),
        st.tuples(st.just("edge"), st.sampled_from(["row", "column"]), relation, shift),
        st.tuples(st.just("full"), st.booleans()),
    )


def branches(inner: st.SearchStrategy[Recipe]) -> st.SearchStrategy[Recipe]:
    small = st.integers(0, 2)
    return st.one_of(
        st.tuples(st.sampled_from(["and", "or", "xor"]), inner, inner),
        st.tuples(st.sampled_from(["not", "transpose", "flip", "additive", "index"]), inner),
        st.tuples(st.just("where"), inner, inner, inner),
        st.tuples(st.just("cut"), inner, small, small),
        st.tuples(st.just("pad"), inner, st.booleans()),
        st.tuples(st.just("cat"), inner, inner),
    )


recipes = st.recursive(leaves(), branches, max_leaves=5)


def cooked(recipe: Recipe, n: Any, m: Any) -> Tensor:
    """The mask of a recipe, for so many queries and keys."""
    what, *rest = recipe
    i, j = positions(n, m)
    if what == "compare":
        return getattr(j, rest[0])(i + rest[1])
    if what in ("tril", "triu"):
        return getattr(ones(n, m), what)(rest[0])
    if what == "edge":
        side, size = (i, n) if rest[0] == "row" else (j, m)
        return getattr(side, rest[1])(size - rest[2]).expand(n, m)
    if what == "full":
        return torch.full((n, m), rest[0])
    if what == "cut":
        return cooked(rest[0], n + rest[1], m + rest[2])[rest[1] :, rest[2] :]
    if what == "pad":
        return F.pad(cooked(rest[0], n, m), (1, -1), value=rest[1])
    if what == "transpose":
        return cooked(rest[0], m, n).T
    if what == "cat":
        return torch.cat([cooked(rest[0], n, 1), cooked(rest[1], n, m)[:, 1:]], 1)
    return combined(what, [cooked(each, n, m) for each in rest], i, j)


def combined(what: str, masks: list[Tensor], i: Tensor, j: Tensor) -> Tensor:
    first = masks[0]
    if what == "not":
        return ~first
    if what == "flip":
        return first.flip(1)
    if what == "index":
        return first[i, j]
    if what == "additive":
        return torch.zeros(first.shape).masked_fill(~first, -math.inf) == 0
    if what == "where":
        return torch.where(first, masks[1], masks[2])
    return {"and": first & masks[1], "or": first | masks[1], "xor": first ^ masks[1]}[what]


@given(recipes, st.sampled_from(SIZES))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_random_masks_of_one_size(recipe: Recipe, size: tuple[int, int]) -> None:
    graph = from_fx(make_fx(lambda: (cooked(recipe, *size),), tracing_mode="fake")())
    assert isinstance(graph.outputs[0], Ref)
    proof, mask = classify_mask(graph, graph.outputs[0].name), cooked(recipe, *size)
    assert proof.verdict in (None, verdict_of(mask))
    assert proof.window is None or is_window(mask, proof.window)


@given(recipes, st.booleans())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_random_masks_of_every_size(recipe: Recipe, square: bool) -> None:
    hint = (6, 6) if square else (5, 7)
    traced = make_fx(lambda q, k: (cooked(recipe, q.shape[0], k.shape[0]),), tracing_mode="symbolic")(
        torch.empty(hint[0], 4), torch.empty(hint[1], 4)
    )
    graph = from_fx(traced)
    assert isinstance(graph.outputs[0], Ref)
    proof = classify_mask(graph, graph.outputs[0].name)
    guarded = bool(traced.shape_env.guards)  # then the trace, and what is proven of it, is for some sizes only
    sizes = [hint] if guarded else [size for size in SIZES if _fits(*size, square)]
    for size in sizes:
        assert proof.verdict in (None, verdict_of(cooked(recipe, *size))), f"wrong at {size}"
        assert proof.window is None or is_window(cooked(recipe, *size), proof.window), f"no window at {size}"
