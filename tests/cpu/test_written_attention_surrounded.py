"""Attention that is written out beside attention that is called, under what surrounds programs: hooks, compiled autograd, several
processes, vmap, distributed tensors; and made by what comes before it in models: convolutions, linear layers, einops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import einops
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing import assert_close

import fuseplan
from agreement import assert_as_accurate, in_double
from fuseplan.backend import programs_of
from fuseplan.explain import compiled_by
from fuseplan.plan import Plan, Rewrite
from fuseplan.rewrites.found import SiteFound
from fuseplan.rewrites.sites import Sites
from rewriting import dynamo_graph

BOTH = (Rewrite("attention", 0, "flash+causal"), Rewrite("written-attention", 0, "flash"))


def heads(**options: Any) -> Tensor:
    return torch.randn(1, 2, 6, 8, generator=torch.Generator().manual_seed(0)).requires_grad_(**options)


def called(q: Tensor) -> Tensor:
    """With a causal mask."""
    mask = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool, device=q.device).tril()
    return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)


def both(q: Tensor) -> Tensor:
    """A call, and then the same kind of thing written out, without a mask."""
    return (called(q) @ q.mT / 3.0).softmax(-1) @ q


def told(function: Callable[..., Any], *inputs: Any) -> list[SiteFound]:
    return list(Sites.of(dynamo_graph(function, *inputs)).told())


def rewrites_of(call: Any) -> tuple[Rewrite, ...]:
    (program,) = programs_of(compiled_by(call))
    return program.plan.rewrites


@pytest.fixture
def peers(tmp_path: Path) -> Iterator[None]:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/peers", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("host", ["aten", "inductor"])
def test_hooks_and_compiled_autograd_keep_their_meaning(host: str) -> None:
    seen: list[Tensor] = []

    def gradients(call: Callable[[Tensor], Tensor]) -> list[Tensor]:
        q = heads(requires_grad=True)
        q.register_hook(lambda grad: seen.append(grad) or grad * 2)  # type: ignore[func-returns-value]
        out = call(q)
        out.register_hook(lambda grad: grad * 3)
        out.sin().sum().backward()
        assert q.grad is not None
        return [out.detach(), q.grad]

    want = gradients(both)
    torch._dynamo.reset()
    compiled = fuseplan.compile(both, plan=Plan(host, BOTH))
    assert_close(gradients(compiled), want, rtol=1e-5, atol=1e-5)
    assert len(seen) == 2
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
        assert_close(gradients(compiled), want, rtol=1e-5, atol=1e-5)
    assert [(one.kind, one.way) for one in rewrites_of(compiled)] == [(one.kind, one.way) for one in BOTH]


class Projected(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, q: Tensor) -> Tensor:
        return both(self.linear(q))


def test_a_module_that_runs_on_several_processes_keeps_its_meaning(peers: None) -> None:
    model = Projected()
    want = model(heads())
    want.sin().sum().backward()
    gradients = [one.grad.clone() for one in model.parameters() if one.grad is not None]
    model.zero_grad()
    torch._dynamo.reset()
    parallel = fuseplan.compile(nn.parallel.DistributedDataParallel(model), plan=Plan("aten", BOTH))
    got = parallel(heads())
    got.sin().sum().backward()
    assert_close(got, want)
    assert_close([one.grad for one in model.parameters()], gradients, rtol=1e-5, atol=1e-5)
    assert len(rewrites_of(parallel)) == 2


def test_vmap_keeps_its_meaning() -> None:
    """What it maps is left alone, since nobody has shown what ways do to its tensors; what is outside is written as ever."""

    def program(q: Tensor) -> Tensor:
        return both(torch.vmap(both)(q)[0])

    q = torch.randn(3, 1, 2, 6, 8)
    sites = told(program, q)
    inside = [site for site in sites if any("transformation such as vmap" in why for why in site.refused.values())]
    outside = [site for site in sites if site not in inside]
    assert [site.ways for site in inside] == [()] * len(inside)
    assert [site.kind for site in inside] == ["attention"]  # of what is written out there, nothing is known
    assert [site.kind for site in outside] == ["attention", "written-attention"]
    rewrites = tuple(Rewrite(*site.named, site.preferred, site.digest) for site in outside if site.preferred)
    assert len(rewrites) == 2
    torch._dynamo.reset()
    compiled = fuseplan.compile(program, plan=Plan("aten", rewrites))
    assert_close(compiled(q), program(q), rtol=1e-5, atol=1e-5)
    assert len(rewrites_of(compiled)) == 2


def test_what_is_written_to_beside_vmap_and_within() -> None:
    """Who shares memory is known there, too: of what vmap maps, the tensor that it holds lies somewhere."""

    def program(q: Tensor) -> Tensor:
        def mapped(one: Tensor) -> Tensor:
            moved = one.sin()
            moved.add_(1.0)
            return moved

        queries = torch.vmap(mapped)(q)
        shifted = queries[0].clone()
        shifted.mul_(0.5)
        return both(shifted) + both(queries[1])

    q = torch.randn(3, 1, 2, 6, 8)
    sites = told(program, q)
    assert sorted(site.kind for site in sites) == ["attention"] * 2 + ["written-attention"] * 2
    torch._dynamo.reset()
    rewrites = tuple(Rewrite(*site.named, site.preferred, site.digest) for site in sites if site.preferred)
    compiled = fuseplan.compile(program, plan=Plan("aten", rewrites))
    assert_close(compiled(q), program(q), rtol=1e-5, atol=1e-5)
    assert len(rewrites_of(compiled)) == len(rewrites) == 4


def test_a_distributed_tensor_refuses_its_site(peers: None) -> None:
    def unmasked(q: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, q, q)

    spread = distribute_tensor(heads(), init_device_mesh("cpu", (1,)), [Replicate()])
    with sdpa_kernel(SDPBackend.MATH):  # the fused kernels of a CPU do not know how to distribute
        plain, refused = told(lambda q, d: (unmasked(q), unmasked(d)), heads(), spread)
    assert plain.preferred == "auto+unmasked"
    assert (refused.preferred, refused.ways) == (None, ())
    distributed = [way for way, why in refused.refused.items() if why.endswith(" is a DTensor")]
    assert {"auto", "math"} <= set(distributed)
    torch._dynamo.reset()
    with (
        sdpa_kernel(SDPBackend.MATH),
        pytest.raises(Exception, match=r"attention call 0 cannot be math: .* is a DTensor"),
    ):
        fuseplan.compile(unmasked, plan=Plan("eager", (Rewrite("attention", 0, "math"),)))(spread)


def test_attention_written_out_over_distributed_tensors_is_none(peers: None) -> None:
    def written(q: Tensor) -> Tensor:
        return (q @ q.mT / 3.0).softmax(-1) @ q

    spread = distribute_tensor(heads(), init_device_mesh("cpu", (1,)), [Replicate()])
    (site,) = told(lambda q, d: (written(q), written(d)), heads(), spread)
    assert site.preferred == "auto+unmasked"
    torch._dynamo.reset()
    compiled = fuseplan.compile(lambda q, d: (written(q), written(d)), plan=Plan("eager", BOTH[1:]))
    got, distributed = compiled(heads(), spread)
    assert isinstance(distributed, DTensor)
    assert_close([got, distributed.to_local()], [written(heads())] * 2)
    assert len(rewrites_of(compiled)) == 1


# what comes before it


class Convolved(nn.Module):
    """As sequences and images have it: queries, keys and values by one convolution, heads of channels."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Conv1d(12, 36, 3, padding=1), nn.Conv1d(12, 12, 1)

    def forward(self, x: Tensor) -> Tensor:
        b, c, n = x.shape
        q, k, v = self.qkv(x).view(b, 3, 2, c // 2, n).unbind(1)
        weights = torch.einsum("bhct,bhcs->bhts", q * (c // 2) ** -0.5, k).softmax(-1)
        out: Tensor = self.out(torch.einsum("bhts,bhcs->bhct", weights, v).reshape(b, c, n))
        return out


class Linear(nn.Module):
    """As text has it: three linear layers, heads by view and transpose."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.v, self.out = (nn.Linear(12, 12) for _ in range(3))
        self.k = nn.Linear(12, 12, bias=False)  # it would change nothing

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(1, 2)
        q, k, v = (layer(x).view(*x.shape[:2], 2, 6).transpose(1, 2) for layer in (self.q, self.k, self.v))
        weights = F.softmax(q @ k.transpose(-1, -2) / 6**0.5, dim=-1)
        out: Tensor = self.out((weights @ v).transpose(1, 2).flatten(2))
        return out


class Einops(nn.Module):
    """As whoever likes einops has it: heads, scores, a mask and the result."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(12, 36, bias=False)
        self.register_buffer("kept", torch.arange(7)[None] < torch.tensor([[7], [5]]))

    def forward(self, x: Tensor) -> Tensor:
        chunks = self.qkv(einops.rearrange(x, "b c n -> b n c")).chunk(3, dim=-1)
        q, k, v = (einops.rearrange(each, "b n (h d) -> b h n d", h=2) for each in chunks)
        scores = einops.einsum(q, k, "b head row d, b head column d -> b head row column") * 6**-0.5
        scores = einops.rearrange(scores, "b h i j -> (b h) i j")
        hidden = einops.repeat(~self.kept, "b j -> (b h) 1 j", h=2)
        weights = einops.rearrange(scores.masked_fill(hidden, -1e9).softmax(-1), "(b h) i j -> b h i j", h=2)
        out = einops.einsum(weights, v, "b head row column, b head column d -> b head row d")
        return einops.rearrange(out, "b h n d -> b n (h d)")


def step(call: Callable[..., Tensor], module: nn.Module, x: Tensor) -> list[Tensor]:
    module.zero_grad()
    out = call(x)
    out.sin().sum().backward()
    return [out.detach(), *(one.grad.clone() for one in module.parameters() if one.grad is not None)]


@pytest.mark.parametrize("model", [Convolved, Linear, Einops])
def test_it_is_found_behind_what_makes_queries_keys_and_values(model: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    module, x = model(), torch.randn(2, 12, 7)
    # of einops nothing is left in the graph under torch 2.13: Dynamo traces into it
    (site,) = [one for one in told(module, x) if one.kind == "written-attention"]
    assert "flash" in site.ways
    torch._dynamo.reset()
    compiled = fuseplan.compile(module, plan=Plan("eager", BOTH[1:]))
    found, double, wide = step(compiled, module, x), in_double(module), in_double(x)
    assert_as_accurate(found, step(module, module, x), step(double, double, wide))
    assert len(rewrites_of(compiled)) == 1
