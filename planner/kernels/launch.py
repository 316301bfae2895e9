"""Triton kernels launched, or compiled ahead of that: by processes that Inductor has for its own, while it works on the rest of a program.

A kernel that is first met when it is launched holds everything up while it is compiled, and a model may have dozens.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend

PATIENCE_S = 60.0
"""So long a launch waits for a kernel that another process compiles: it takes half a second."""
Launch = Callable[[Any, tuple[int, ...], Sequence[Any], Mapping[str, Any]], None]
"""What runs a kernel on what it is told, compiled for what is meant; or has it compiled for that."""
_Key = tuple[Any, ...]
_begun: dict[_Key, Future[bool]] = {}
"""What is being compiled for launches to come."""
_known: set[_Key] = set()
_LOCK = threading.Lock()


def _begin_anew() -> None:
    """Wait for nothing: nobody would tell a fork that what its parent has begun is done."""
    global _LOCK
    _LOCK = threading.Lock()
    _begun.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


def launch(kernel: Any, grid: tuple[int, ...], told: Sequence[Any], meant: Mapping[str, Any]) -> None:
    """Run a kernel on what it is `told`, compiled for what is `meant`. One that is compiled ahead is waited for: Triton finds it then."""
    if _begun:
        _wait_for(_key(kernel, told, meant))
    with torch.cuda.device_of(told[0]):
        kernel[grid](*told, **meant)


def compile_ahead(kernel: Any, grid: tuple[int, ...], told: Sequence[Any], meant: Mapping[str, Any]) -> None:
    """Have a kernel compiled as a launch with the same arguments will need it: tensors need be no more than fake. Where Inductor has
    no processes, or Triton has it already, that is left to the launch.
    """
    key, pool = _key(kernel, told, meant), _pool()
    if pool is None:
        return
    with _LOCK:  # one at a time: all of them listen to Triton
        if key not in _known:
            _known.add(key)
            found = _begin(pool, kernel, told, meant)
            if found is not None:
                _begun[key] = found


def _key(kernel: Any, told: Sequence[Any], meant: Mapping[str, Any]) -> _Key:
    """What tells kernels from each other, but for what Triton knows of their integers."""
    dtypes = tuple(one.dtype if isinstance(one, Tensor) else type(one) for one in told)
    return (kernel.__module__, kernel.__name__, told[0].device.index or 0, dtypes, *sorted(meant.items()))


def _wait_for(key: _Key) -> None:
    """Whatever was wrong with it shows where it is launched. Those that are done need not be asked for again."""
    own = _begun.get(key)
    if own is not None and wait([own], PATIENCE_S).not_done:
        _begun.clear()  # who should compile them is gone
    for done in [known for known, future in list(_begun.items()) if future.done()]:
        _begun.pop(done, None)


def _begin(pool: Any, kernel: Any, told: Sequence[Any], meant: Mapping[str, Any]) -> Future[bool] | None:
    index = told[0].device.index or 0
    with torch.cuda.device(index):
        found = specialized(kernel, told, meant)
        target = triton.runtime.driver.active.get_current_target()
    if found is None:
        return None
    _keep_cache(index)
    if _is_cached(kernel, found, target):
        return None
    where, tools = (target.backend, target.arch, target.warp_size), make_backend(target).hash()
    begun: Future[bool] = pool.submit(compiled, kernel.__module__, kernel.__name__, found, where, tools, _of_triton())
    return begun


def specialized(kernel: Any, told: Sequence[Any], meant: Mapping[str, Any]) -> dict[str, Any] | None:
    """What Triton would compile a kernel for, as plain data; None where it has that already. To be called by one thread at a time."""
    knobs, here, caught = triton.knobs.runtime, threading.get_ident(), list[dict[str, Any]]()
    before, listening = knobs.jit_cache_hook, True

    def hook(**given: Any) -> bool:
        if not listening or threading.get_ident() != here:  # others compile what they launch meanwhile
            return bool(before(**given)) if before is not None else False
        caught.append(given["compile"])
        return True  # so that it is not compiled now

    knobs.jit_cache_hook = hook
    try:
        kernel.warmup(*(one.dtype if isinstance(one, Tensor) else one for one in told), grid=(1,), **meant)
    finally:
        listening = False
        knobs.jit_cache_hook = before
    if not caught:
        return None
    given = caught[0]
    options = json.loads(given["specialization_data"])["options"]
    return {name: given[name] for name in ("signature", "constants", "configs")} | {"options": options}


def _source(kernel: Any, found: Mapping[str, Any]) -> tuple[ASTSource, dict[str, Any]]:
    """What Triton compiles, and its options."""
    options = {key: tuple(value) if isinstance(value, list) else value for key, value in found["options"].items()}
    return ASTSource(kernel, found["signature"], found["constants"], found["configs"][0]), options


def _is_cached(kernel: Any, found: Mapping[str, Any], target: GPUTarget) -> bool:
    """Whether Triton has it on disk: who waited for the processes to be there would wait for nothing."""
    from triton._C.libtriton import get_cache_invalidating_env_vars
    from triton.runtime.cache import get_cache_key, get_cache_manager

    backend, (source, options) = make_backend(target), _source(kernel, found)
    key = get_cache_key(source, backend, backend.parse_options(options), env_vars=get_cache_invalidating_env_vars())
    kept, name = get_cache_manager(hashlib.sha256(key.encode()).hexdigest()), f"{source.name}.json"
    return name in (kept.get_group(name) or {})


def compiled(
    module: str,
    name: str,
    found: Mapping[str, Any],
    target: tuple[str, int, int],
    tools: str,
    variables: Mapping[str, str],
) -> bool:
    """Compile a kernel into Triton's cache, unless that would be by other `tools` than it is launched by, and so kept under another key. It
    runs in a process that Inductor has for that, with an assembler of its choice, and touches no GPU.
    """
    with _with_variables(variables):
        if make_backend(GPUTarget(*target)).hash() != tools:
            return False
        source, options = _source(getattr(import_module(module), name), found)
        triton.compile(source, target=GPUTarget(*target), options=options)
    return True


@contextmanager
def _with_variables(variables: Mapping[str, str]) -> Iterator[None]:
    """Triton's variables as in another process for a while; what it remembers of its assembler is by these."""
    before = _of_triton()
    try:
        _set_variables(variables)
        yield
    finally:
        _set_variables(before)


def _set_variables(variables: Mapping[str, str]) -> None:
    for name in _of_triton():
        del os.environ[name]
    os.environ.update(variables)
    from triton.backends.nvidia import compiler

    for known in (compiler.get_ptxas_version, compiler.get_features):
        known.cache_clear()


def _of_triton() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("TRITON_")}


def _pool() -> Any:
    """Inductor's processes; None where it has none that were started for that alone: those that are forked from this one know its GPU."""
    from torch._inductor import config
    from torch._inductor.async_compile import AsyncCompile, get_compile_threads

    if config.worker_start_method != "subprocess" or get_compile_threads() <= 1:
        return None
    return AsyncCompile.process_pool()


def _keep_cache(device: int) -> None:
    """Have Triton keep what it compiles where it does once Inductor has launched its first kernel."""
    from torch._inductor.runtime.cache_dir_utils import triton_cache_dir

    os.environ.setdefault("TRITON_CACHE_DIR", triton_cache_dir(device))
