"""Ways of several sites of both kinds in one program, in random company: whatever is chosen, the judge calls it right."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule

from fuseplan.capture.trace.format import Trace
from fuseplan.capture.trace.load import Loaded, load_trace
from fuseplan.capture.trace.write import write_trace
from fuseplan.judge.expect import Expectation, expect
from fuseplan.plan import Rewrite
from fuseplan.rewrites.apply import rewritten
from fuseplan.rewrites.found import SiteFound
from fuseplan.rewrites.sites import Sites

Chosen = Mapping[tuple[str, int], str | None]


def program(q: Tensor, k: Tensor, v: Tensor, table: Tensor, kept: Tensor) -> Tensor:
    """Called with a causal mask, with a bias by position and with padding; written out with each of these, too."""
    n, causal, bias = q.shape[-2], torch.ones(q.shape[-2], q.shape[-2]).tril(), table.permute(2, 0, 1)
    keys, values = (each[:, :, None].expand(2, 2, 2, n, 8).reshape(2, 4, n, 8) for each in (k, v))
    x = q + F.scaled_dot_product_attention(q, keys, values, attn_mask=causal == 1)
    x = x + F.scaled_dot_product_attention(x, keys, values, attn_mask=bias)
    x = x + F.scaled_dot_product_attention(x, keys, values, attn_mask=kept[:, None, None])
    ahead = torch.ones(n, n, dtype=torch.bool).triu(1)
    keys, values = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    x = x + ((x @ keys.mT) / math.sqrt(8)).masked_fill(ahead, -math.inf).softmax(-1) @ values
    x = x + torch.einsum("bhij,bhjd->bhid", (x @ keys.mT * 0.3 + bias).softmax(-1), values)
    scores = x.transpose(1, 2).contiguous().transpose(1, 2) @ keys.mT * 0.3
    return x + scores.masked_fill(~kept[:, None, None], torch.finfo(x.dtype).min).softmax(-1) @ values


@dataclass
class Subject:
    """The program as tuning has it, its sites, and what it should give."""

    loaded: Loaded
    sites: Sequence[SiteFound]
    expectation: Expectation

    def problem(self, chosen: Chosen) -> str | None:
        """What the judge says of it with its sites in these ways, forward and backward."""
        rewrites = tuple(Rewrite(*site, way) for site, way in chosen.items() if way is not None)

        def backend(gm: GraphModule, _: Any) -> Callable[..., Any]:
            return rewritten(gm, rewrites).gm.forward

        torch._dynamo.reset()
        call = torch.compile(self.loaded.module, backend=backend)
        return self.expectation.judge(self.loaded.run(call), 0).problem


@pytest.fixture(scope="module", params=["inference", "training"])
def subject(request: pytest.FixtureRequest) -> Subject:
    trains = request.param == "training"
    q, k, v = (torch.randn(2, heads, 16, 8, requires_grad=trains) for heads in (4, 2, 2))
    found: list[tuple[Trace, Sequence[SiteFound]]] = []

    def look(gm: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        found.append((write_trace(gm, inputs, "combined"), Sites.of(gm).told()))
        return gm.forward

    torch._dynamo.reset()
    torch.compile(program, backend=look)(q, k, v, torch.randn(16, 16, 4), torch.ones(2, 16, dtype=torch.bool))
    ((trace, sites),) = found
    loaded = load_trace(trace)
    return Subject(loaded, sites, expect(loaded, seeds=(0,)))


def test_there_are_sites_of_both_kinds_with_ways_of_each_sort(subject: Subject) -> None:
    assert [site.kind for site in subject.sites] == ["attention"] * 3 + ["written-attention"] * 3
    words = {word for site in subject.sites for way in site.ways for word in way.split("+")}
    assert words >= {"auto", "flash", "math", "causal", "rows", "grouped"}


@pytest.mark.parametrize("seed", range(2))
def test_each_way_is_right_in_random_company(subject: Subject, seed: int) -> None:
    """Each site goes through its ways in an order of its own: each way of each is met, beside others each time."""
    drawn = random.Random(seed)
    orders = {site.named: drawn.sample([None, *site.ways], len(site.ways) + 1) for site in subject.sites}
    combinations = [{named: drawn.choice(order) for named, order in orders.items()} for _ in range(5)]
    if seed == 0:
        longest = max(map(len, orders.values()))
        combinations = [{named: order[i % len(order)] for named, order in orders.items()} for i in range(longest)]
    for chosen in combinations:
        assert subject.problem(chosen) is None, chosen


def test_the_judge_sees_a_way_that_is_another_computation(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    from fuseplan.rewrites.attention import kernels

    def wrong(*args: Any, **kwargs: Any) -> Tensor:
        return kernels.attention_math(*args, **{**kwargs, "scale": (kwargs["scale"] or 8**-0.5) * 1.001})

    monkeypatch.setitem(kernels.FUNCTIONS, "flash", wrong)  # type: ignore[index]
    sites = [site for site in subject.sites if "flash" in site.ways]
    assert {site.kind for site in sites} == {"attention", "written-attention"}
    for site in (sites[0], sites[-1]):
        assert subject.problem({site.named: "flash"}) is not None
