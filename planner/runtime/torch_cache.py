"""All that fuseplan uses of the private interfaces of AOTAutograd's cache. Nothing else imports them.

Written against torch 2.10 to 2.13. Where one of them is missing, `missing` says which, and programs are traced at each
start, as they are where the cache is off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from importlib import import_module
from typing import Any

import torch
from torch.fx import GraphModule

missing: str | None = None
"""What this torch does not have of all that is needed, or None."""
try:
    from torch._functorch._aot_autograd.aot_autograd_result import GenericCompiledBackward
    from torch._functorch._aot_autograd.autograd_cache import BypassAOTAutogradCache as NotToBeKept
    from torch._functorch._aot_autograd.autograd_cache import FXGraphCacheMiss as NotThere
    from torch._functorch._aot_autograd.autograd_cache import check_cacheable, should_use_local_autograd_cache
    from torch._functorch._aot_autograd.schemas import SerializableAOTDispatchCompiler
    from torch._inductor.output_code import OutputCode

    _functorch: Any = import_module("torch._functorch.config")
    _inductor: Any = import_module("torch._inductor.config")
    _compiler: Any = import_module("torch.compiler.config")
    _SETTINGS = {"bundled_autograd_cache": True, "force_non_lazy_backward_lowering": True}
    for _name in _SETTINGS:
        getattr(_functorch, _name)
    _compilation: Any = import_module("torch._functorch._aot_autograd.graph_compile")
    _ = _compiler.cache_key_tag, _inductor.fx_graph_cache, _compilation.collect_bw_donated_buffer_idxs
    _DISABLES_BACKWARDS = "post_compile" in vars(GenericCompiledBackward)  # from torch 2.12 on
except (ImportError, AttributeError) as error:
    missing = str(error)
    OutputCode, NotToBeKept, NotThere = object, RuntimeError, RuntimeError  # type: ignore[misc, assignment]

__all__ = [
    "Compiler",
    "NotThere",
    "NotToBeKept",
    "OutputCode",
    "backward_at_once",
    "is_on",
    "keeping",
    "missing",
    "not_keeping",
    "not_traced",
    "overwriting_nothing",
    "serializable",
    "takes",
]

Compiler = Callable[[GraphModule, Sequence[Any]], Any]


def is_on() -> bool:
    """Whether torch would look into its cache, and keep in it what is new, on the disk of this machine."""
    return (
        missing is None
        and should_use_local_autograd_cache()
        and bool(_inductor.fx_graph_cache)
        and not _functorch.bundled_autograd_cache  # somebody else's way to keep
        and getattr(_inductor, "cudagraph_policy", None) is None  # would wrap what is found, but not what is compiled
        and not torch._dynamo.config.caching_precompile
    )


def takes(gm: GraphModule) -> bool:
    """Whether torch keeps programs such as this one: else its backward would be compiled ahead of time for nothing."""
    try:
        check_cacheable(gm)
    except NotToBeKept:
        return False
    return True


def serializable(compiler: Compiler) -> Compiler:
    """`compiler`, which returns an OutputCode, as one whose results torch may keep."""
    found: Compiler = SerializableAOTDispatchCompiler(OutputCode, compiler)
    return found


@contextmanager
def keeping(tag: str) -> Iterator[None]:
    """While it lasts, what AOTAutograd makes is looked for and kept with all that `tag` stands for in the key.

    The code of both graphs is kept in the entry itself, and so the backward has to be there when the forward is kept. It is
    compiled before anybody can know whether it will be called once, and so may not overwrite what its forward saved.
    """
    own = f"{_compiler.cache_key_tag} {tag}"
    with _functorch.patch(_SETTINGS), _compiler.patch(cache_key_tag=own), _donating_nothing():
        yield


@contextmanager
def _donating_nothing() -> Iterator[None]:
    """The switch donated_buffer would not do: switched off, it leaves what says at each call that a graph may not be retained."""
    collect = _compilation.collect_bw_donated_buffer_idxs
    _compilation.collect_bw_donated_buffer_idxs = lambda *args: []
    try:
        yield
    finally:
        _compilation.collect_bw_donated_buffer_idxs = collect


@contextmanager
def not_keeping(tag: str) -> Iterator[None]:
    """Within `keeping`, as if outside: there Inductor would keep no region, and share none with other programs."""
    if not _compiler.cache_key_tag.endswith(f" {tag}"):  # a compilation that torch has put off
        yield
        return
    before = _compiler.cache_key_tag.removesuffix(f" {tag}")
    with _functorch.patch(dict.fromkeys(_SETTINGS, False)), _compiler.patch(cache_key_tag=before):
        yield


@contextmanager
def overwriting_nothing() -> Iterator[None]:
    """Inductor's cache would give a backward that overwrites what its forward saved for one that may not: it has one name for both."""
    with _compiler.patch(cache_key_tag=f"{_compiler.cache_key_tag} fuseplan's, which overwrites nothing"):
        yield


@contextmanager
def backward_at_once() -> Iterator[None]:
    """Have a backward compiled with its forward, and not when it is called, where this torch can do so."""
    with nullcontext() if missing else _functorch.patch(force_non_lazy_backward_lowering=True):
        yield


def not_traced(backward: Callable[..., Any]) -> Callable[..., Any]:
    """A backward that was found in the cache, as Dynamo has to see it: not at all."""
    if _DISABLES_BACKWARDS:
        return backward
    found: Callable[..., Any] = torch._dynamo.disable(backward, reason="do not trace generated backwards pass")
    return found
