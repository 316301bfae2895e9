"""Host `inductor`: the Dynamo graph goes to torch.compile's own compiler, as it is or with regions carved out for others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import GraphModule, Node

from fuseplan.errors import PlanError
from fuseplan.executors.flat import Boxed
from fuseplan.host.settings import BUNDLES
from fuseplan.plan import Plan
from fuseplan.rewrites.apply import known_to_torchs_cache
from fuseplan.rewrites.reading import argument, draws, name_of
from fuseplan.runtime import kept, torch_cache
from fuseplan.runtime.kept import Kept, KeptCode, raising, recalled_by
from fuseplan.runtime.record import Program

if TYPE_CHECKING:
    from fuseplan.runtime.cudagraph import CudaGraphLaunch

Callee = Callable[..., Any]
_AFTER_JOINT = "joint_custom_post_pass"


def compile_under_inductor(plan: Plan, gm: GraphModule, example_inputs: Sequence[Any], program: Program) -> Callee:
    """Return what runs `gm` under torch.compile's own Inductor; the program gets what could not be had."""
    # The import takes seconds, unless torch.compile was asked for our backend by its name.
    from torch._inductor.compile_fx import compile_fx

    patches = options_under(plan.settings)
    _check_draws(plan, gm)
    whole = _budgeted(partial(compile_fx, gm, list(example_inputs)), BUNDLES[plan.settings].memory_budget)
    if plan.launch == "plain":
        with known_to_torchs_cache(plan):
            return _around(plan, program, patches, whole)
    from fuseplan.runtime.cudagraph import CudaGraphLaunch

    launch, tag = CudaGraphLaunch(program.remarks, program.cuda_graphs), kept.tag(plan, gm, example_inputs, program)
    inner: Any = partial(_compile_captured, launch, tag)
    with _keeping(plan, launch, tag):
        captured = _around(plan, program, patches, partial(whole, inner_compile=inner))
    return launch.unasked.watching(captured, example_inputs)


def _check_draws(plan: Plan, gm: GraphModule) -> None:
    """PlanError where less is saved than torch would, and what is computed again may be random numbers, as others: those of attention that
    drops weights, and where eager's numbers are asked for, all.
    """
    from torch._inductor import config

    if BUNDLES[plan.settings].memory_budget == 1.0:
        return
    nodes = [node for part in gm.modules() if isinstance(part, GraphModule) for node in part.graph.nodes]
    if any(map(_drops_weights, nodes)):
        raise PlanError(f"settings {plan.settings!r} may draw again which weights of attention are dropped")
    if config.fallback_random and any(map(draws, nodes)):
        raise PlanError(
            f"settings {plan.settings!r} may draw random numbers again, and torch._inductor.config.fallback_random asks for eager's"
        )


def _drops_weights(node: Node) -> bool:
    """Whether it is attention that has dropout, or may have it."""
    name = name_of(node) if node.op == "call_function" else ""
    if name == "multi_head_attention_forward":
        return True
    dropout = argument(node, 4, "dropout_p", default=0.0) if name == "scaled_dot_product_attention" else None
    return bool(node.kwargs.get("dropout_p", dropout or 0.0) != 0.0)


def _budgeted(compiler: Callable[..., Any], budget: float) -> Callable[..., Any]:
    """A compiler under which torch's cut keeps so large a share for the backward; torch's own key of the program holds that."""
    if budget == 1.0:
        return compiler

    def compiled(**options: Any) -> Any:
        with torch._functorch.config.patch(activation_memory_budget=budget):
            return compiler(**options)

    return compiled


def _around(plan: Plan, program: Program, patches: dict[str, Any] | None, compiler: Callable[..., Any]) -> Callee:
    """The program compiled around what the plan carves out, if anything."""
    if not plan.carve_outs:
        return compiler(config_patches=patches)  # type: ignore[no-any-return]
    from fuseplan.runtime.carving import compiled_around  # it brings Inductor

    return compiled_around(plan, program, patches, compiler)


def options_under(settings: str) -> dict[str, Any] | None:
    """The options of Inductor that a bundle of settings means here; None where it leaves them as they are."""
    from torch._inductor import config, list_mode_options

    from fuseplan.runtime.blocks_again import Blocks, KeptDraws

    bundle = BUNDLES[settings]
    missing = [name for name in bundle.options if not _is_known(config, name)]
    if missing:
        raise PlanError(
            f"settings {settings!r} are not those of this torch, whose Inductor has no {', '.join(missing)}"
        )
    of_mode = {} if bundle.mode == "default" else list_mode_options(bundle.mode)
    kind = Blocks if bundle.by_block else KeptDraws if bundle.memory_budget < 1.0 else None
    passes = {} if kind is None else {_AFTER_JOINT: kind(getattr(config, _AFTER_JOINT))}
    return {**of_mode, **bundle.options, **passes} or None


def _is_known(config: Any, name: str) -> bool:
    """Whether Inductor has an option of this name."""
    *folders, last = name.split(".")
    for folder in folders:
        config = getattr(config, folder, None)
    return hasattr(config, last)


@contextmanager
def _keeping(plan: Plan, launch: CudaGraphLaunch, tag: str | None) -> Iterator[None]:
    """AOTAutograd's cache by itself would keep what Inductor gave, and not what is wrapped around it."""
    if tag is None:
        with torch._functorch.config.patch(enable_autograd_cache=False):
            yield
        return

    def recall(found: Kept, inputs: Sequence[Any]) -> Boxed:
        from fuseplan.executors.inductor.api import recall_whole

        assert isinstance(found, KeptCode)
        assert found.facts is not None
        with torch_cache.not_keeping(tag):
            code = recall_whole(str(found.key), inputs, found.role)
        if code is None:
            raise torch_cache.NotThere(f"Inductor's cache has no {found.key} any more")
        return launch.wrapping(found.facts)(_called(code))

    with torch_cache.keeping(tag), recalled_by(recall), known_to_torchs_cache(plan):
        yield


def _compile_captured(
    launch: CudaGraphLaunch, tag: str | None, gm: GraphModule, example_inputs: Sequence[Any], **options: Any
) -> Callee:
    """Inductor's compiler of one graph, launched through CUDA graphs as any plan is."""
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.utils import BoxedBool

    role = "backward" if options.get("is_backward") else "inference" if options.get("is_inference") else "forward"
    facts = launch.facts(role, gm, folds=True)  # before Inductor takes the graph apart
    options["cudagraphs"] = BoxedBool(False)
    try:
        with _apart(tag, role):
            code: Any = compile_fx_inner(gm, example_inputs, **options)
    except Exception as error:  # a compiler fails with anything; ahead of time, that is for whoever calls the backward
        if tag is None or role != "backward":
            raise
        return Kept(role, raising(error), str(error))
    facts = facts.compiled(code)
    call = launch.wrapping(facts)(_called(code))
    return call if tag is None else KeptCode(role, call, getattr(code, "_fx_graph_cache_key", None), facts)


@contextmanager
def _apart(tag: str | None, role: str) -> Iterator[None]:
    """As Inductor is to see it, whose own cache is shared with programs of other plans, and of other callers."""
    from fuseplan.executors.inductor.api import may_overwrite

    apart = role == "backward" and not may_overwrite()
    with (
        nullcontext() if tag is None else torch_cache.not_keeping(tag),
        torch_cache.overwriting_nothing() if apart else nullcontext(),
    ):
        yield


def _called(code: Callee) -> Boxed:
    def call(args: list[Any]) -> Any:
        return code(args)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call
