"""The modes in which a program runs: autocast, whether gradients are kept, and tensors without values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode


@contextmanager
def run_without_values(fakes: FakeTensorMode) -> Iterator[None]:
    """While it lasts, a program runs on tensors without values as Dynamo runs it: some operators in C++ take sizes for numbers, and sizes
    that hang on values are nobody's. Whatever modes it leaves behind, its caller's stay.
    """
    fresh = fakes.shape_env.ignore_fresh_unbacked_symbols() if fakes.shape_env else nullcontext()
    with fakes, enable_python_dispatcher(), modes_kept(), fresh:
        yield


@contextmanager
def modes_kept() -> Iterator[None]:
    """While it lasts, whoever enters autocast or a mode of gradients, and fails before it leaves, leaves it all the same."""
    gradients, depth = torch.is_grad_enabled(), _autocast_depth()
    casts = [(kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda")]
    with torch._C._PreserveDispatchKeyGuard():
        try:
            yield
        finally:
            torch._C._set_grad_enabled(gradients)
            for kind, enabled, dtype in casts:
                torch.set_autocast_enabled(kind, enabled)
                torch.set_autocast_dtype(kind, dtype)
            while _autocast_depth() > depth:
                if torch.autocast_decrement_nesting() == 0:
                    torch.clear_autocast_cache()


def _autocast_depth() -> int:
    """How many autocasts the caller is within."""
    within = torch.autocast_increment_nesting()
    torch.autocast_decrement_nesting()
    return within - 1
