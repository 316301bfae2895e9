"""Sites in programs that come from elsewhere: a trace that was recorded, and a script of nvFuser, have those of the program itself."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule

import fuseplan
from fuseplan.capture.nvfuser_script import read_script
from fuseplan.capture.trace.format import Trace
from fuseplan.capture.trace.load import load_trace
from fuseplan.capture.trace.write import write_trace
from fuseplan.plan import Plan, Rewrite
from fuseplan.rewrites.found import SiteFound
from fuseplan.rewrites.sites import Sites
from script_references import ON_GPUS, REFERENCES, text_of


def captured(call: Callable[..., Any], *inputs: Any) -> tuple[list[SiteFound], Trace]:
    """The sites of a program, and its trace."""
    found: list[tuple[list[SiteFound], Trace]] = []

    def look(gm: GraphModule, given: Sequence[Any]) -> Callable[..., Any]:
        found.append((list(Sites.of(gm).told()), write_trace(gm, given, "reloaded")))
        return gm.forward

    torch._dynamo.reset()
    torch.compile(call, backend=look)(*inputs)
    (one,) = found
    return one


def wordless(site: SiteFound) -> SiteFound:
    """Without what it says of inputs by their names, which are others."""
    return replace(site, about="", refused=dict.fromkeys(site.refused, ""))


def of_each_kind(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
    """Called with a mask and with a bias by position; written out with both."""
    n, bias = q.shape[-2], table.permute(2, 0, 1)
    causal = torch.ones(n, n, dtype=torch.bool).tril()
    x = F.scaled_dot_product_attention(q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1), attn_mask=causal)
    x = F.scaled_dot_product_attention(x, x, x, attn_mask=bias)
    return ((x @ x.mT + bias) / 3.0).masked_fill(~causal, float("-inf")).softmax(-1) @ x


@pytest.mark.parametrize("trains", [False, True])
def test_a_trace_that_is_loaded_again_has_the_same_sites(trains: bool) -> None:
    q, k, v = (torch.randn(2, heads, 6, 8, requires_grad=trains) for heads in (4, 2, 2))
    sites, trace = captured(of_each_kind, q, k, v, torch.randn(6, 6, 4))
    assert [site.kind for site in sites] == ["attention", "attention", "written-attention"]
    assert all(site.ways for site in sites)
    loaded = load_trace(Trace.from_json(trace.to_json()))
    with loaded.modes():
        again, _ = captured(loaded.module, *loaded.inputs())
    assert [wordless(site) for site in again] == [wordless(site) for site in sites]


def test_a_script_of_nvfuser_has_the_attention_of_the_program_it_stands_for() -> None:
    loaded = load_trace(read_script(text_of("today/attention")), "cpu")
    (reference,) = REFERENCES["today/attention"]
    with torch.no_grad():
        (site,), _ = captured(loaded.module, *loaded.inputs())
        (same,), _ = captured(reference, *loaded.inputs())
    assert (site.kind, site.preferred) == ("attention", "auto+causal")
    assert "flash+causal" in site.ways
    assert (site.ways, site.refused, site.rivals, site.about) == (same.ways, same.refused, same.rivals, same.about)


def test_a_kernel_that_a_script_needs_more_of_than_its_result_is_left_alone() -> None:
    """A backward in the script reads the log-sumexp and the state of the random numbers, which no other kernel gives so."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        loaded = load_trace(read_script(ON_GPUS["sdpfa_bwd"]), "meta")
    (site,), _ = captured(loaded.module, *loaded.inputs())
    assert (site.kind, site.preferred, site.ways) == ("attention", None, ())
    assert site.refused == {"auto": "the program reads what flash gives beside the result, such as its log-sumexp"}
    assert site.about == "the program calls the kernel itself"


def test_a_kernel_that_a_program_calls_by_its_name_is_left_alone() -> None:
    def chosen(q: Tensor) -> Tensor:
        """By name; then as PyTorch chooses, which keeps its number."""
        out = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, q, q)[0]
        return F.scaled_dot_product_attention(out, q, q)

    q = torch.randn(2, 4, 6, 8)
    for deterministic in (False, True):
        torch.use_deterministic_algorithms(deterministic)
        try:
            (called, by_name), _ = captured(chosen, q)
        finally:
            torch.use_deterministic_algorithms(False)
        assert (called.number, called.preferred) == (0, "auto+unmasked")
        assert (by_name.number, by_name.preferred) == (1, None)
        assert by_name.refused == {"auto": "the program calls flash by its name"}
    torch._dynamo.reset()
    compiled = fuseplan.compile(chosen, plan=Plan("eager", (Rewrite("attention", 0, "math"),)))
    torch.testing.assert_close(compiled(q), chosen(q))
    assert "attention call 1: the program calls the kernel itself; left as it is" in fuseplan.explain(
        compiled, graphs=False
    )
