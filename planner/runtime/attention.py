"""The attention variants of a plan: chosen by what is proven, and put into the Dynamo graph before anything is traced."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TypeVar

from torch._inductor import config
from torch.fx import GraphModule

from fuseplan.capture.attention import AttentionCall, attention_calls, proven_choices, rewrite_attention
from fuseplan.capture.kernels import FUNCTIONS
from fuseplan.plan import Plan, SegmentedPlan, WholePlan
from fuseplan.runtime.record import Program

AnyPlan = TypeVar("AnyPlan", bound=Plan)
_MEANING = "1"
"""Another one, should these functions ever do something else: torch counts it in."""


def with_proven_attention(plan: AnyPlan, gm: GraphModule) -> AnyPlan:
    """Return the plan with the proven variant of each attention call; choices that it makes itself stand."""
    if not isinstance(plan, (WholePlan, SegmentedPlan)):
        return plan
    return replace(plan, anchors=proven_choices(attention_calls(gm), plan.anchors))


def with_anchors(plan: Plan, gm: GraphModule, program: Program) -> GraphModule:
    """Return `gm` as the plan wants its attention, and note in `program` what was proven. Free where it says nothing."""
    if not isinstance(plan, (WholePlan, SegmentedPlan)) or not plan.anchors:
        return gm
    choices = {choice.call: choice.variant for choice in plan.anchors}
    calls = attention_calls(gm)
    program.attention = [describe_call(call, choices.get(call.number)) for call in calls]
    return rewrite_attention(gm, choices, calls)


def known_to_torchs_cache(plan: WholePlan | SegmentedPlan) -> AbstractContextManager[object]:
    """While it lasts, torch's cache of what AOTAutograd makes takes programs whose attention is the plan's.

    It refuses any function that it does not know, and then a program is traced anew at every start, which may take as long
    as all else. Under the plan of torch.compile itself nothing changes: it shares what is kept.
    """
    if not plan.anchors:
        return nullcontext()
    functions = {f"{one.__module__}.{one.__name__}": _MEANING for one in FUNCTIONS.values()}
    known = config.unsafe_marked_cacheable_functions
    patched: AbstractContextManager[object] = config.patch(unsafe_marked_cacheable_functions={**known, **functions})
    return patched


def describe_call(call: AttentionCall, variant: str | None) -> str:
    """One line on an attention call, for people."""
    verdict = {"causal": "mask proven causal", "all": "mask proven to hide nothing"}.get(call.proof.verdict or "")
    found = f"{verdict} {call.proof.reason}" if verdict else f"nothing proven of its mask, since {call.proof.reason}"
    if call.arguments["attn_mask"] is None:
        found = call.proof.reason
    return f"attention call {call.number}: {found}; " + (f"variant {variant}" if variant else "left as it is")
