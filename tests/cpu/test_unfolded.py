"""Attention inside of functions of torch, such as nn.MultiheadAttention calls: found, written in other ways, and equal to eager."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

import fuseplan
from agreement import assert_as_accurate
from fuseplan.backend import programs_of
from fuseplan.explain import compiled_by
from fuseplan.plan import Plan
from fuseplan.rewrites import unfolded as rewrites_unfolded
from fuseplan.rewrites.apply import rewritten
from fuseplan.rewrites.sites import PlacedSite, Sites
from fuseplan.rewrites.unfolded import unfolded
from fuseplan.rewrites.written.site import find_written

CALLED, WRITTEN = "attention", "written-attention"
N, WIDTH, HEADS = 6, 16, 4


@dataclass
class Rewriting:
    """A backend that writes all that it finds in one way, where that is legal; it keeps what it saw."""

    way: str = "math"
    graphs: list[GraphModule] = field(default_factory=list)
    sites: list[PlacedSite] = field(default_factory=list)
    targets: list[str] = field(default_factory=list)

    def __call__(self, gm: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        self.graphs.append(gm)
        self.sites = list(Sites.of(gm, (CALLED, WRITTEN)).placed)
        legal = tuple(site.rewrite(self.way) for site in self.sites if site.refusal(self.way) is None)
        new = rewritten(gm, legal).gm if legal else gm
        self.targets = [getattr(node.target, "__name__", str(node.target)) for node in new.graph.nodes]
        return new.forward

    @property
    def found(self) -> list[str]:
        """The kinds of the sites."""
        return [site.name for site in self.sites]

    @property
    def reasons(self) -> list[str]:
        """Why a softmax is no site, and why a call stays as it is."""
        (one,) = [unfolded(gm) for gm in self.graphs]
        return [*(miss.reason for miss in find_written(one.gm)[1]), *one.left.values()]


class Attending(nn.Module):
    """Attention of a sequence to itself or to another, by nn.MultiheadAttention."""

    def __init__(self, call: Callable[..., Any], **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, **{"batch_first": True, **options})
        self.call = call

    def forward(self, *inputs: Tensor, **options: Any) -> Any:
        return self.call(self.attention, *inputs, **options)


def causal(n: int) -> Tensor:
    return torch.ones(n, n, dtype=torch.bool).triu(1)


def padding() -> Tensor:
    hidden = torch.zeros(2, N, dtype=torch.bool)
    hidden[1, 4:] = True
    return hidden


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape or (2, N, WIDTH), generator=torch.Generator().manual_seed(3))


PROGRAMS: dict[str, tuple[Callable[[], nn.Module], tuple[Tensor, ...], str]] = {
    "to itself": (lambda: Attending(lambda a, x: a(x, x, x, need_weights=False)[0]), (drawn(),), CALLED),
    "weights unread": (lambda: Attending(lambda a, x: a(x, x, x)[0]), (drawn(),), WRITTEN),
    "rows first, no bias": (
        lambda: Attending(lambda a, x, y: a(x, y, y, need_weights=False)[0], batch_first=False, bias=False),
        (drawn(), drawn(9, N, WIDTH)), CALLED,
    ),
    "of other widths": (
        lambda: Attending(lambda a, x, y, z: a(x, y, z)[0], kdim=8, vdim=12), (drawn(), drawn(2, 9, 8), drawn(2, 9, 12)), WRITTEN,
    ),
    "no batch": (lambda: Attending(lambda a, x: a(x, x, x, attn_mask=causal(N))[0]), (drawn(N, WIDTH),), WRITTEN),
    "mask and padding": (
        lambda: Attending(lambda a, x, m, p: a(x, x, x, key_padding_mask=p, attn_mask=m, need_weights=False)[0]),
        (drawn(), torch.randn(N, N), padding().float() * -50), CALLED,
    ),
    "padding, weights unread": (
        lambda: Attending(lambda a, x, p: a(x, x, x, key_padding_mask=p, attn_mask=causal(N))[0]), (drawn(), padding()), WRITTEN,
    ),
    "a mask for each head": (
        lambda: Attending(lambda a, x, m: a(x, x, x, attn_mask=m, need_weights=False)[0]), (drawn(), drawn(2 * HEADS, N, N)), CALLED,
    ),
    "more keys": (
        lambda: Attending(lambda a, x: a(x, x, x, attn_mask=causal(N))[0], add_bias_kv=True, add_zero_attn=True),
        (drawn(),), WRITTEN,
    ),
    "a hint": (
        lambda: Attending(lambda a, x: a(x, x, x, attn_mask=causal(N), is_causal=True, need_weights=False)[0]), (drawn(),), CALLED,
    ),
    "a layer of an encoder": (
        lambda: nn.TransformerEncoderLayer(WIDTH, HEADS, 24, dropout=0.0, batch_first=True), (drawn(),), CALLED,
    ),
}  # fmt: skip


def step(module: nn.Module, call: Callable[..., Any], inputs: Sequence[Tensor]) -> list[Tensor]:
    """What a module gives, and the gradients of its parameters and inputs."""
    floats = [each.clone().requires_grad_() if each.is_floating_point() else each for each in inputs]
    result = call(*floats)
    weight = torch.linspace(-1, 1, result.numel(), dtype=torch.float64).reshape(result.shape).to(result.dtype)
    leaves = [*module.parameters(), *(each for each in floats if each.requires_grad)]
    return [result.detach(), *torch.autograd.grad((result * weight).sum(), leaves)]


def assert_same_step(module: nn.Module, call: Callable[..., Any], inputs: Sequence[Tensor]) -> None:
    exact = copy.deepcopy(module).double()
    wide = [each.double() if each.is_floating_point() else each for each in inputs]
    assert_as_accurate(step(module, call, inputs), step(module, module, inputs), step(exact, exact, wide))


def compiled(module: Callable[..., Any], way: str, **options: Any) -> tuple[Callable[..., Any], Rewriting]:
    torch._dynamo.reset()
    backend = Rewriting(way)
    return torch.compile(module, backend=backend, fullgraph=True, **options), backend


@pytest.mark.parametrize("way", ["math", "auto"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_it_is_found_and_trains_the_same(name: str, way: str) -> None:
    make, inputs, kind = PROGRAMS[name]
    module = make()
    run, backend = compiled(module, way)
    assert_same_step(module, run, inputs)
    assert (backend.found, backend.reasons) == ([kind], [])
    if backend.sites[0].refusal(way) is None:
        assert f"attention_{way}" in backend.targets
        assert not {"multi_head_attention_forward", "softmax.int", "baddbmm.default"} & set(backend.targets)
    else:
        assert way == "auto"  # of a row that may be hidden as a whole, a fused kernel gives other gradients
        assert name in ("padding, weights unread", "more keys")


@pytest.mark.parametrize("name", ["mask and padding", "weights unread"])
def test_sizes_may_be_known_at_run_time_only(name: str) -> None:
    make, inputs, kind = PROGRAMS[name]
    module = make()
    run, backend = compiled(module, "math", dynamic=True)
    assert_same_step(module, run, inputs)
    assert_same_step(
        module, run, [each.repeat(2, *([1] * (each.dim() - 1))) if each.shape[0] == 2 else each for each in inputs]
    )
    assert (backend.found, len(backend.graphs)) == ([kind], 1)
    assert "attention_math" in backend.targets


@pytest.mark.parametrize("name", ["no batch", "causal of floats"])
def test_a_mask_that_is_proven_causal_is_dropped(name: str) -> None:
    def masked(attention: nn.MultiheadAttention, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return attention(x, x, x, attn_mask=mask, need_weights=False)[0]  # type: ignore[no-any-return]

    module, inputs = (
        (Attending(masked), (drawn(),)) if name == "causal of floats" else (PROGRAMS[name][0](), PROGRAMS[name][1])
    )
    run, backend = compiled(module, "flash+causal")
    assert_same_step(module, run, inputs)
    assert [site.preferred for site in backend.sites] == ["auto+causal"]
    assert "attention_flash" in backend.targets
    assert name == "no batch" or "triu" not in backend.targets  # there it is written into in place, and stays, unread


# the layer that torch fuses in inference


LAYERS = {
    "norm behind": ({}, {}),
    "norm before, gelu": ({"norm_first": True, "activation": "gelu"}, {}),
    "padding": ({}, {"src_key_padding_mask": padding()}),
    "padding of floats": ({}, {"src_key_padding_mask": padding().float().masked_fill(padding(), -torch.inf)}),
    "mask and padding": ({"activation": "gelu"}, {"src_mask": causal(N), "src_key_padding_mask": padding()}),
    "mask of floats": ({}, {"src_mask": causal(N).float()}),
}  # fmt: skip


@pytest.mark.parametrize("way", ["math", "flash"])
@pytest.mark.parametrize("name", LAYERS)
def test_the_fused_layer_of_an_encoder_is_found_and_gives_the_same(name: str, way: str) -> None:
    options, given = LAYERS[name]
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 24, batch_first=True, **options).eval()
    run, backend = compiled(layer, way)
    with torch.no_grad():
        exact = copy.deepcopy(layer).double()
        wide = {key: each.double() if each.is_floating_point() else each for key, each in given.items()}
        assert_as_accurate(run(drawn(), **given), layer(drawn(), **given), exact(drawn().double(), **wide))
    (gm,) = backend.graphs
    assert torch._transformer_encoder_layer_fwd in {node.target for node in gm.graph.nodes}
    assert (backend.found, backend.reasons) == ([WRITTEN], [])
    assert f"attention_{way}" in backend.targets


@pytest.mark.parametrize("fused", [True, False])
def test_layers_that_read_one_another_are_all_found(fused: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 24, dropout=0.0, batch_first=True)
    module = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).train(not fused)
    run, backend = compiled(module, "math")
    with torch.set_grad_enabled(not fused):
        assert_close(run(drawn()), module(drawn()))
    assert backend.found == [WRITTEN if fused else CALLED] * 3


@pytest.mark.parametrize("fused", [True, False])
def test_rows_that_are_hidden_as_a_whole_stay_nan(fused: bool) -> None:
    hidden = torch.zeros(2, N, dtype=torch.bool)
    hidden[1] = True
    torch.manual_seed(0)
    layer: nn.Module = nn.TransformerEncoderLayer(WIDTH, HEADS, 24, batch_first=True)
    module = (
        layer.eval() if fused else Attending(lambda a, x, src_key_padding_mask: a(x, x, x, src_key_padding_mask)[0])
    )
    for way in ("math", "auto"):
        run, backend = compiled(module, way)
        with torch.no_grad():
            found, expected = (call(drawn(), src_key_padding_mask=hidden) for call in (run, module))
        assert f"attention_{way}" in backend.targets
        assert expected[1].isnan().all()
        assert_close(found, expected, equal_nan=True)


# what keeps its meaning, or is left alone


def test_dropout_leaves_out_its_share() -> None:
    module = Attending(lambda a, x: a(x, x, x, need_weights=False)[0], dropout=0.25)
    with torch.no_grad():
        module.attention.in_proj_weight.zero_()
        nn.init.ones_(module.attention.in_proj_bias)
        nn.init.eye_(module.attention.out_proj.weight)
    run, backend = compiled(module, "math")
    found, expected = run(drawn(64, 64, WIDTH)), module(drawn(64, 64, WIDTH))
    assert backend.sites[0].found.fakes["dropout_p"] == 0.25  # type: ignore[attr-defined]
    assert "attention_math" in backend.targets
    for moment in (Tensor.mean, Tensor.std):
        assert abs(moment(found) - moment(expected)) < 0.02
    assert found.std() > 0.01


@pytest.mark.parametrize("inside", [True, False])
def test_autocast_keeps_its_meaning(inside: bool) -> None:
    def attend(attention: nn.MultiheadAttention, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=inside):
            return attention(x, x, x, need_weights=False)[0]  # type: ignore[no-any-return]

    module = Attending(attend if inside else PROGRAMS["to itself"][0]().call)
    run, backend = compiled(module, "math")
    with torch.autocast("cpu", torch.bfloat16, enabled=not inside):
        found, expected = run(drawn()), module(drawn())
    assert found.dtype == expected.dtype == torch.bfloat16
    assert_close(found, expected, rtol=0.05, atol=0.02)
    assert (backend.found, "attention_math" in backend.targets) == ([CALLED], True)


def test_weights_that_are_read_keep_it_as_it_is() -> None:
    module = Attending(lambda a, x: a(x, x, x))
    run, backend = compiled(module, "math")
    for found, expected in zip(run(drawn()), module(drawn()), strict=True):
        assert torch.equal(found, expected)
    assert (backend.found, backend.reasons) == ([], ["the attention weights are read by view, too"])
    assert "multi_head_attention_forward" in backend.targets


def test_weights_that_are_shaped_for_nobody_do_not() -> None:
    def attend(attention: nn.Module, x: Tensor) -> Tensor:
        result, weights = attention(x, x, x)
        weights[:, None].broadcast_to(len(weights), HEADS, *weights.shape[1:])
        return result  # type: ignore[no-any-return]

    module = Attending(attend)
    run, backend = compiled(module, "math")
    assert_same_step(module, run, [drawn()])
    assert (backend.found, backend.reasons) == ([WRITTEN], [])


@pytest.mark.parametrize("fused", [True, False])
def test_a_call_whose_ops_would_compute_in_another_type_is_left_alone(fused: bool) -> None:
    """Captured without autocast, and looked at under it."""
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 24, batch_first=True).eval()
    run, backend = compiled(layer if fused else PROGRAMS["to itself"][0](), "math")
    with torch.no_grad():
        run(drawn())
    (gm,) = backend.graphs
    untouched = GraphModule(gm, copy.deepcopy(gm.graph))
    with torch.autocast("cpu", torch.bfloat16):
        found = unfolded(untouched)
    assert found.gm is untouched
    fallen = "autocast does not reach into it, and would change its ops"
    assert list(found.left.values()) == [fallen if fused else "its ops would give bfloat16, and it gives float32"]


def test_what_goes_wrong_while_one_is_unfolded_leaves_it_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch runs stays what fuseplan can plan, whatever torch's next version puts into its functions."""
    run, backend = compiled(PROGRAMS["to itself"][0](), "math")
    with torch.no_grad():
        run(drawn())
    (gm,) = backend.graphs
    untouched = GraphModule(gm, copy.deepcopy(gm.graph))
    inserted = rewrites_unfolded._inserted

    def failing(*args: Any) -> Any:
        inserted(*args)
        raise KeyError("new")

    monkeypatch.setattr(rewrites_unfolded, "_inserted", failing)
    before = untouched.code
    found = unfolded(untouched)
    assert found.gm is untouched
    assert untouched.code == before
    assert list(found.left.values()) == ["it could not be unfolded: KeyError"]


def test_a_transformation_is_left_alone() -> None:
    module = Attending(lambda a, x: a(x, x, x, need_weights=False)[0]).requires_grad_(False)
    run, backend = compiled(lambda x: torch.vmap(lambda each: module(each))(x), "math")
    found = run(drawn(3, 2, N, WIDTH))
    assert_close(found, torch.vmap(module)(drawn(3, 2, N, WIDTH)))
    assert backend.found == []
    assert all("a tensor of a transformation such as vmap" in reason for reason in backend.reasons)


def test_the_graph_that_was_captured_stays_as_it_is_and_is_let_go() -> None:
    run, backend = compiled(PROGRAMS["to itself"][0](), "math")
    run(drawn())
    (gm,) = backend.graphs
    assert "multi_head_attention_forward" in gm.code
    assert unfolded(gm).gm is unfolded(gm).gm is not gm
    assert unfolded(unfolded(gm).gm).gm is unfolded(gm).gm
    kept = weakref.ref(unfolded(gm).gm)
    del gm, run
    backend.graphs.clear()
    backend.sites.clear()
    torch._dynamo.reset()
    for _ in range(2):  # the copy goes once the captured graph has gone
        gc.collect()
    assert kept() is None


# plans


class Checkpointed(nn.Module):
    """Two equal layers, of which one is computed anew in the backward."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(PROGRAMS["to itself"][0]() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.layers
        return first(checkpoint(second, x, use_reentrant=False))  # type: ignore[no-any-return]


def test_sites_in_checkpointed_blocks_are_found_and_equal_ones_are_one_decision() -> None:
    module = Checkpointed()
    run, backend = compiled(module, "math")
    assert_same_step(module, run, (drawn(),))
    told = Sites(backend.sites).told()
    assert [(site.kind, site.number) for site in told] == [(CALLED, 0), (CALLED, 1)]
    assert len({site.digest for site in told}) == 2
    assert len({site.group for site in told}) == 1
    again, other = compiled(Checkpointed(), "math")
    again(drawn())
    assert [site.digest for site in other.sites] == [site.digest for site in backend.sites]


@pytest.mark.parametrize("host", ["eager", "aten", pytest.param("inductor", marks=pytest.mark.exhaustive)])
def test_a_plan_rewrites_it_under_each_host(host: str) -> None:
    module = Checkpointed()
    _, backend = compiled(module, "math")
    _(drawn())
    plan = Plan(host, tuple(site.rewrite("math") for site in backend.sites))
    torch._dynamo.reset()
    run = fuseplan.compile(module, plan=plan)
    assert_same_step(module, run, (drawn(),))
    (program,) = programs_of(compiled_by(run))
    assert program.plan == plan
    assert "attention call 1: no mask is given; variant math" in fuseplan.explain(run, graphs=False)


def test_a_function_called_by_hand_is_found_too() -> None:
    def by_hand(x: Tensor, w: Tensor, o: Tensor) -> Tensor:
        given = (x, x, x, WIDTH, HEADS, w, None, None, None, False, 0.0, o, None)
        return F.multi_head_attention_forward(*given, need_weights=False)[0]

    inputs = (drawn(), drawn(3 * WIDTH, WIDTH), drawn(WIDTH, WIDTH))
    run, backend = compiled(by_hand, "flash")
    assert_close(run(*inputs), by_hand(*inputs))
    assert backend.found == [CALLED]
    assert "attention_flash" in backend.targets
