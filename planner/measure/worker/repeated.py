"""Results that were found right, kept to be recognized: a run that gives the same bits once more need not be judged once more.

Judging takes several kernels, and waits, for each of hundreds of gradients; to compare bits takes one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

MOST_BYTES = 2**30
"""As much is kept at most; what is beyond is judged each time."""


class RightResults:
    """Values that were right, as copies: what a CUDA graph gives is overwritten with its next run, or held against it."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, str], tuple[Tensor, tuple[int, ...]]] = {}
        self._bytes = 0

    def keep(self, seed: int, found: Mapping[str, Any]) -> None:
        """Remember what a run on the inputs of a seed gave, which is right."""
        for name, value in found.items():
            if not _is_plain(value) or (seed, name) in self._known or self._bytes + value.nbytes > MOST_BYTES:
                continue
            try:
                self._known[seed, name] = value.detach().clone(), value.stride()
            except torch.OutOfMemoryError:  # what was right stays right, and is judged once more
                return
            self._bytes += value.nbytes

    def among(self, seed: int, found: Mapping[str, Any]) -> frozenset[str]:
        """The names of what is the same again, bit for bit, and lies the same way.

        >>> known = RightResults()
        >>> known.keep(0, {"y": torch.ones(2), "n": 3})
        >>> sorted(known.among(0, {"y": torch.ones(2), "n": 3})), sorted(known.among(1, {"y": torch.ones(2)}))
        (['y'], [])
        >>> sorted(known.among(0, {"y": torch.ones(2).double()})), sorted(known.among(0, {"y": torch.tensor([1.0, 2.0])}))
        ([], [])
        """
        return frozenset(name for name, value in found.items() if self._is_known(seed, name, value))

    def _is_known(self, seed: int, name: str, value: Any) -> bool:
        known, strides = self._known.get((seed, name), (None, ()))
        if known is None or not _is_plain(value):
            return False
        same = (value.dtype, value.device, value.shape) == (known.dtype, known.device, known.shape)
        return same and value.stride() == strides and torch.equal(value, known)


def _is_plain(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout is torch.strided and not value.is_nested
