"""Carrying out a whole-program plan: the Dynamo graph goes to one compiler as it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from fuseplan.executors.flat import Boxed
from fuseplan.plan import WholePlan
from fuseplan.runtime.attention import known_to_torchs_cache
from fuseplan.runtime.eager import run_eagerly

Callee = Callable[..., Any]


def compile_whole(plan: WholePlan, gm: GraphModule, example_inputs: Sequence[Any], remarks: list[str]) -> Callee:
    """Return what runs `gm` under eager, or under torch.compile's own Inductor; `remarks` gets what could not be had."""
    if plan.executor == "eager":
        return run_eagerly(gm)
    # The import takes seconds and a machine without a compiler never needs it.
    from torch._inductor import list_mode_options
    from torch._inductor.compile_fx import compile_fx

    patches = None if plan.mode == "default" else list_mode_options(plan.mode)
    if plan.launch == "plain":
        with known_to_torchs_cache(plan):
            compiled: Any = compile_fx(gm, list(example_inputs), config_patches=patches)
        return compiled  # type: ignore[no-any-return]
    # AOTAutograd's cache keeps what Inductor gave, not what is wrapped around it.
    with torch._functorch.config.patch(enable_autograd_cache=False):
        inner: Any = _captured_compiler(remarks)
        captured: Any = compile_fx(gm, list(example_inputs), inner, config_patches=patches)
    return captured  # type: ignore[no-any-return]


def _captured_compiler(remarks: list[str]) -> Callable[..., Boxed]:
    """Inductor's compiler of one graph, launched through CUDA graphs as any plan is."""
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.utils import BoxedBool

    from fuseplan.runtime.cudagraph import CudaGraphLaunch

    launch = CudaGraphLaunch(remarks)

    def compile_graph(gm: GraphModule, example_inputs: Sequence[Any], **options: Any) -> Boxed:
        role = "backward" if options.get("is_backward") else "inference" if options.get("is_inference") else "forward"
        wrap = launch.prepare(role, gm)  # before Inductor takes the graph apart
        options["cudagraphs"] = BoxedBool(False)
        code: Any = compile_fx_inner(gm, example_inputs, **options)

        def call(args: list[Any]) -> Any:
            return code(args)

        call._boxed_call = True  # type: ignore[attr-defined]
        return wrap(call)

    return compile_graph
