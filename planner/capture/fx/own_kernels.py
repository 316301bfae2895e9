"""What operators of fuseplan's own with Triton kernels have in common: where the kernels can run, and that they are compiled ahead."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor

from fuseplan.log import logger

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""What kernels of ours take, or some of these; anything else, such as to judge them, PyTorch computes."""
LEAST_CAPABILITY = (8, 0)
"""Of a GPU: older ones have no bfloat16, and nobody has tried the kernels there."""


@cache
def missing() -> str | None:
    """What is not installed for the kernels; None where all is."""
    return None if importlib.util.find_spec("triton") else "there is no Triton: pip install triton"


def no_kernels(device: torch.device) -> str | None:
    """Why Triton, or bfloat16, is not there on a GPU; None where all is, or where there is no GPU to ask."""
    if torch.cuda.is_available() and torch.cuda.get_device_capability(device) < LEAST_CAPABILITY:
        return f"the kernels need a GPU of compute capability {'.'.join(map(str, LEAST_CAPABILITY))}"
    return missing()


def processors_of(device: torch.device) -> int:
    """The multiprocessors of a GPU; of what is none, as many as a usual one has."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return 128
    return _processors(device)


@cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def run_here(tensor: Tensor) -> bool:
    """Whether kernels of ours can be given a tensor."""
    return tensor.is_cuda and tensor.dtype in DTYPES and tensor.numel() > 0 and missing() is None


def compiles_ahead(*given: Tensor) -> bool:
    """Whether a program is traced for kernels of which all is known, on a GPU that this process has begun to use."""
    is_known = all(type(size) is int for one in given for size in one.shape)
    if not is_known or not all(map(run_here, given)) or not torch.cuda.is_initialized():
        return False
    return all((one.device.index or 0) < torch.cuda.device_count() for one in given)


@contextmanager
def head_start() -> Iterator[None]:
    """What is compiled ahead may as well be compiled when it is launched, which says what is wrong."""
    try:
        yield
    except Exception:  # noqa: BLE001 -- of Triton, and of processes that compile
        logger.debug("a kernel is not compiled ahead", exc_info=True)
