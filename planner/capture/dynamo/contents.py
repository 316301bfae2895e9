"""The bytes of a tensor that belongs to a program."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes


def contents(tensor: torch.Tensor) -> bytes | None:
    """Return the elements of a real tensor in C order, or None for a fake one. Works while something is traced."""
    if isinstance(tensor, FakeTensor):
        return None
    with _disable_current_modes(), torch.no_grad():
        dense = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        return dense.reshape(-1).view(torch.uint8).numpy().tobytes() if dense.numel() else b""
