"""Triton kernels launched, or compiled ahead of that: by processes that Inductor has for its own, while it works on the rest of a program.

A kernel that is first met when it is launched holds everything up while it is compiled, and a model may have dozens.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend

from fuseplan.log import logger

PATIENCE_S = 60.0
"""So long a launch waits for a kernel that another process compiles: one takes half a second."""
_begun: list[Future[bool]] = []
"""What is being compiled for launches to come."""
_known: set[tuple[Any, ...]] = set()
_LOCK = threading.Lock()


def launch(kernel: Any, grid: tuple[int, int], told: Sequence[Any], meant: Mapping[str, Any]) -> None:
    """Run a kernel on what it is `told`, compiled for what is `meant`. Those compiled ahead are waited for: Triton finds them then."""
    if _begun:
        finish()
    with torch.cuda.device_of(told[0]):
        kernel[grid](*told, **meant)


def finish() -> None:
    """Wait for all that is compiled ahead; whatever was wrong with it shows where it is launched."""
    while _begun:
        with suppress(Exception):
            _begun[0].result(PATIENCE_S)
        with suppress(IndexError):  # another thread waits as well
            _begun.pop(0)


def compile_ahead(kernel: Any, grid: tuple[int, int], told: Sequence[Any], meant: Mapping[str, Any]) -> None:
    """Have a kernel compiled as a launch with the same arguments will need it: tensors need be no more than fake. Where Inductor has
    no processes that is left to the launch.
    """
    index = told[0].device.index or 0
    dtypes = tuple(one.dtype if isinstance(one, Tensor) else type(one) for one in told)
    key = (kernel.__module__, kernel.__name__, index, dtypes, *sorted(meant.items()))
    with _LOCK:
        if key in _known:
            return
        _known.add(key)
    try:
        _begin(kernel, index, told, meant)
    except Exception:  # noqa: BLE001 -- a head start: the launch compiles it then, and says what is wrong
        logger.debug("a kernel is not compiled ahead", exc_info=True)


def _begin(kernel: Any, index: int, told: Sequence[Any], meant: Mapping[str, Any]) -> None:
    pool = _pool()
    if pool is None:
        return
    with torch.cuda.device(index):
        found = specialized(kernel, told, meant)
        target = triton.runtime.driver.active.get_current_target()
    if found is not None:
        where = (target.backend, target.arch, target.warp_size)
        _keep_cache(index)
        _begun.append(
            pool.submit(
                compiled, kernel.__module__, kernel.__name__, found, where, make_backend(target).hash(), _of_triton()
            )
        )


def specialized(kernel: Any, told: Sequence[Any], meant: Mapping[str, Any]) -> dict[str, Any] | None:
    """What Triton would compile a kernel for, as plain data; None where it has that already."""
    knobs, here, caught = triton.knobs.runtime, threading.get_ident(), list[dict[str, Any]]()
    before = knobs.jit_cache_hook

    def hook(**given: Any) -> bool:
        if threading.get_ident() != here:
            return bool(before(**given)) if before is not None else False
        caught.append(given["compile"])
        return True  # so that it is not compiled now

    knobs.jit_cache_hook = hook
    try:
        kernel.warmup(*(one.dtype if isinstance(one, Tensor) else one for one in told), grid=(1,), **meant)
    finally:
        knobs.jit_cache_hook = before
    if not caught:
        return None
    given = caught[0]
    options = json.loads(given["specialization_data"])["options"]
    return {name: given[name] for name in ("signature", "constants", "configs")} | {"options": options}


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
        source = ASTSource(
            getattr(import_module(module), name), found["signature"], found["constants"], found["configs"][0]
        )
        options = {key: tuple(value) if isinstance(value, list) else value for key, value in found["options"].items()}
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

    compiler.get_ptxas_version.cache_clear()


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
