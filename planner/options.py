"""What a caller may ask of the backend, checked before anything is compiled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from fuseplan.errors import OptionError, PlanError
from fuseplan.plan import LAUNCHES, MODES, Plan, SegmentedPlan, WholePlan

ATTENTION = ("as-is", "proven")


@dataclass(frozen=True)
class Options:
    """The options of ``torch.compile(…, backend="fuseplan", options={…})``.

    >>> Options.parse({"plan": "eager"}).plan
    WholePlan(executor='eager', mode='default', anchors=(), launch='plain')
    """

    plan: Plan | None = None
    """A plan, or the name of one, for every program; None takes the best that is known of each."""
    mode: str = "default"
    """The mode that Inductor has where a program runs under torch.compile's own path."""
    launch: str = "plain"
    """How calls reach the GPU: plain, or cudagraph, which never overwrites what a caller still holds."""

    attention: str = "as-is"
    """`proven`: calls of attention lose a mask that is proven to change nothing, and stay whole. Works with any plan."""

    @staticmethod
    def parse(options: Mapping[str, Any] | None, mode: str | None = None) -> Options:
        """Return checked options; OptionError names what is wrong and what is known."""
        given = dict(options or {})
        known = [field.name for field in fields(Options)]
        unknown = sorted(set(given) - set(known))
        if unknown:
            raise OptionError(f"fuseplan has no option {', '.join(map(repr, unknown))}; known are {', '.join(known)}")
        chosen = given.get("mode") or mode or "default"
        if chosen not in MODES:
            raise OptionError(f"fuseplan has no mode {chosen!r}; known are {', '.join(MODES)}")
        launch = given.get("launch", "plain")
        if launch not in LAUNCHES:
            raise OptionError(f"fuseplan has no launch {launch!r}; known are {', '.join(LAUNCHES)}")
        attention = given.get("attention", "as-is")
        if attention not in ATTENTION:
            raise OptionError(f"option attention is {' or '.join(ATTENTION)}, not {attention!r}")
        return Options(_adapted(_plan(given.get("plan", "auto")), chosen, launch), chosen, launch, attention)

    def default(self) -> Plan:
        """The plan of a program for which none is stored: what torch.compile does, in the mode and launch asked for."""
        return _adapted(WholePlan("inductor"), self.mode, self.launch) or WholePlan("inductor")


def _adapted(plan: Plan | None, mode: str, launch: str) -> Plan | None:
    """The plan with the mode and the launch that were asked for beside it."""
    try:
        if isinstance(plan, WholePlan) and plan.executor == "inductor" and mode != "default":
            plan = replace(plan, mode=mode)
        if isinstance(plan, (WholePlan, SegmentedPlan)) and launch != "plain":
            plan = replace(plan, launch=launch)
    except PlanError as error:
        raise OptionError(str(error)) from None
    return plan


def _plan(value: object) -> Plan | None:
    if value is None or value == "auto":
        return None
    if isinstance(value, Plan):
        return value
    if not isinstance(value, str):
        raise OptionError(f"option plan takes a Plan or the name of one, not a {type(value).__name__}")
    try:
        return Plan.named(value)
    except PlanError as error:
        raise OptionError(f"{error}, or auto") from None
