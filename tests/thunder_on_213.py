"""Thunder 0.2.6 beside torch 2.13: it names five methods of tensors, all of named dimensions, which torch 2.13 has removed.

`supply` is called before Thunder is imported: they are methods then that refuse to be called. Under torch 2.10 to 2.12 it changes nothing.
"""

from __future__ import annotations

from typing import Any

import torch

REMOVED = ("align_as", "align_to", "has_names", "refine_names", "rename")


def supply() -> None:
    """Supply what is not there."""
    for name in REMOVED:
        if not hasattr(torch.Tensor, name):
            setattr(torch.Tensor, name, _refusing(name))


def _refusing(name: str) -> Any:
    def removed(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"torch {torch.__version__} has no Tensor.{name}")

    removed.__name__ = name  # Thunder makes operators of them by these names
    removed.__qualname__ = f"Tensor.{name}"
    return removed
