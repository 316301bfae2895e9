"""The switches of a process that change how exactly it computes. A script that sets them is measured under the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import torch

_PER_BACKEND = ("cuda.matmul", "cudnn.conv", "cudnn.rnn", "mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn")
"""Where torch keeps the precision of float32 too, in words that are newer than ours and say more."""


@dataclass(frozen=True)
class Numerics:
    """How float32 products are computed, and in what products of shorter floats may sum."""

    matmul_precision: str
    cudnn_tf32: bool
    fp16_reduction: bool
    bf16_reduction: bool

    @staticmethod
    def here() -> Numerics:
        """As they are set in this process.

        >>> with Numerics("high", True, True, True).applied():
        ...     Numerics.here().matmul_precision
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
    def of(found: Mapping[str, Any] | None) -> Numerics:
        """Those that a trace or an environment holds; those of this process, where it holds none."""
        if found is None:
            return Numerics.here()
        precision, *switches = (found[one.name] for one in fields(Numerics))
        return Numerics(str(precision), *map(bool, switches))

    def set(self) -> None:
        """Make them those of this process. What is so already is left alone: torch may know more of it than this says."""
        matmul = torch.backends.cuda.matmul
        if _matmul_precision() != self.matmul_precision:
            torch.set_float32_matmul_precision(self.matmul_precision)
        if _cudnn_tf32() != self.cudnn_tf32:  # torch.testing freezes cuDNN's flags, and refuses even what is so already
            torch.backends.cudnn.allow_tf32 = self.cudnn_tf32
        if bool(matmul.allow_fp16_reduced_precision_reduction) != self.fp16_reduction:
            matmul.allow_fp16_reduced_precision_reduction = self.fp16_reduction
        if bool(matmul.allow_bf16_reduced_precision_reduction) != self.bf16_reduction:
            matmul.allow_bf16_reduced_precision_reduction = self.bf16_reduction

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Make them those of this process for a while: what it starts meanwhile computes by them."""
        before, words = Numerics.here(), precisions()
        self.set()
        try:
            yield
        finally:
            before.set()
            set_precisions(words)


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


def precisions() -> dict[str, str]:
    """The precision of float32 in torch's newer words, by backend: what nobody has set is none, and another word than what is usual. The keys of
    torch's caches have these words.
    """
    found = {name: getattr(_backend(name), "fp32_precision", None) for name in _PER_BACKEND}
    return {name: precision for name, precision in found.items() if precision is not None}


def set_precisions(words: Mapping[str, str]) -> None:
    """Make these the words of this process, as far as this torch has them."""
    for name, word in words.items():
        if getattr(_backend(name), "fp32_precision", word) != word:
            _backend(name).fp32_precision = word


def _backend(name: str) -> Any:
    found: Any = torch.backends
    for part in name.split("."):
        found = getattr(found, part, None)
    return found
