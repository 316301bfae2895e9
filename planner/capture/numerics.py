"""The switches of a process that change how exactly it computes. A script that sets them is measured under the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Numerics:
    """How float32 products are computed, and in what products of shorter floats may sum."""

    matmul_precision: str
    cudnn_tf32: bool
    fp16_reduction: bool
    bf16_reduction: bool

    @staticmethod
    def now() -> Numerics:
        """As they are set in this process.

        >>> with Numerics("high", True, True, True).applied():
        ...     Numerics.now().matmul_precision
        'high'
        """
        matmul = torch.backends.cuda.matmul
        return Numerics(
            _matmul_precision(),
            _cudnn_tf32(),
            bool(matmul.allow_fp16_reduced_precision_reduction),
            bool(matmul.allow_bf16_reduced_precision_reduction),
        )

    @staticmethod
    def of(fields: Mapping[str, Any] | None) -> Numerics:
        """Those that a trace holds; those of this process, where it holds none."""
        return Numerics.now() if fields is None else Numerics(**fields)

    def set(self) -> None:
        """Make them those of this process."""
        if _matmul_precision() != self.matmul_precision:
            torch.set_float32_matmul_precision(self.matmul_precision)
        if _cudnn_tf32() != self.cudnn_tf32:  # torch.testing freezes cuDNN's flags, and refuses even what is so already
            torch.backends.cudnn.allow_tf32 = self.cudnn_tf32
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = self.fp16_reduction
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = self.bf16_reduction

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Make them those of this process for a while: what it starts meanwhile computes by them."""
        before = Numerics.now()
        self.set()
        try:
            yield
        finally:
            before.set()


def _matmul_precision() -> str:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # the program has set it per backend, and torch refuses to say it in the older words
        return "high" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "highest"


def _cudnn_tf32() -> bool:
    cudnn: Any = torch.backends.cudnn
    try:
        return bool(cudnn.allow_tf32)
    except RuntimeError:
        return bool(cudnn.conv.fp32_precision == "tf32")
