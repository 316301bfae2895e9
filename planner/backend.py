"""The backend behind ``torch.compile(model, backend="fuseplan")``: program -> key -> plan -> replay."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from fuseplan.capture.program import program_key
from fuseplan.options import Options
from fuseplan.plan import Plan, WholePlan
from fuseplan.runtime import Program, replay
from fuseplan.runtime.attention import with_proven_attention
from fuseplan.runtime.compiler import missing_compiler
from fuseplan.stats import count

_PROGRAMS = "_fuseplan_programs"
"""Where the object that torch.compile made keeps what was compiled for it; both go together."""


def fuseplan_backend(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile one Dynamo graph. This is the entry point that torch.compile finds under the name "fuseplan"."""
    checked = Options.parse(options, mode)
    identity = program_key(gm, example_inputs)
    plan, why = _choose(checked, gm, example_inputs)
    if checked.attention == "proven":
        plan = with_proven_attention(plan, gm)
    program = Program(identity.key, identity.why, plan, why)
    compiled = replay(plan, gm, example_inputs, program)
    count("programs")
    count(f"programs under plan {_short(plan)}")
    owner = _caller()
    if owner is not None:
        vars(owner).setdefault(_PROGRAMS, []).append(program)
    return compiled


def compile(model: Any = None, **options: Any) -> Any:
    """Return `model` compiled by fuseplan: `torch.compile` with backend "fuseplan".

    What torch.compile itself takes (fullgraph, dynamic, mode, disable …) goes there, everything else is an option of
    fuseplan's. Without a model it returns a decorator.

    >>> import torch
    >>> import fuseplan
    >>> double = fuseplan.compile(lambda x: x * 2, plan="aten")
    >>> double(torch.ones(2))
    tensor([2., 2.])
    """
    for_torch = {name: options.pop(name) for name in list(options) if name in _TORCH_ARGUMENTS}
    Options.parse(options, for_torch.get("mode"))
    if options and for_torch.get("mode") is not None:
        options["mode"] = for_torch.pop("mode")  # torch.compile takes a mode or options, never both
    return torch.compile(model, backend="fuseplan", options=options or None, **for_torch)


_TORCH_ARGUMENTS = ("fullgraph", "dynamic", "mode", "disable", "name")


def programs_of(wrapper: object) -> list[Program]:
    """Return the programs that were compiled for one call of torch.compile."""
    return list(vars(wrapper).get(_PROGRAMS, ()))


def _choose(options: Options, gm: GraphModule, example_inputs: Sequence[Any]) -> tuple[Plan, str]:
    if options.plan is not None:
        return options.plan, "asked for by option"
    missing = missing_compiler(gm, example_inputs)
    if missing is not None:
        return WholePlan("eager"), f"no plan is stored for it, and Inductor cannot run here: {missing}"
    return options.default(), "no plan is stored for it; this is what torch.compile does"


def _short(plan: Plan) -> str:
    if isinstance(plan, WholePlan):
        return plan.executor
    return "segmented"


def _caller() -> object | None:
    """The object that torch.compile made for this call: it calls the backend itself, and `explain` looks it up."""
    frame = sys._getframe(2)
    owner = frame.f_locals.get("self")
    return owner if type(owner).__name__ == "_TorchCompileWrapper" else None
