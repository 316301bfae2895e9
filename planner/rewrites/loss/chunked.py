"""The cross-entropy of a linear layer's result, chunk by chunk of its rows: the logits never stand in memory whole.

Where gradients are taken, those of a chunk are computed as soon as its logits are there, and both are let go of. So nothing is computed
twice, and what waits for the backward is as large as the gradients. For that the loss has to be one number: the gradient of each row's
own is known only in the backward.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fuseplan.errors import FuseplanError


def loss_in_chunks(
    rows: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    class_weights: Tensor | None,
    chunks: int,
    reduction: str,
    ignored: int | None,
    smoothing: float,
    dtypes: tuple[torch.dtype, torch.dtype],
    trained: bool,
) -> Tensor:
    """The cross-entropy of `linear(rows, weight, bias)`, its mean or its sum, in so many chunks. `dtypes` are those of the loss and of
    what its logits are cast to; it is computed in at least float32. Gradients are taken where it is `trained`.

    >>> rows, weight, targets = torch.ones(4, 3), torch.zeros(5, 3), torch.tensor([0, 1, 2, -100])
    >>> given = (rows, weight, None, targets, None, 2, "mean", -100, 0.0, (torch.float32,) * 2, False)
    >>> loss_in_chunks(*given).exp().round()
    tensor(5.)
    """
    asked = _Asked(chunks, reduction, ignored, smoothing, *dtypes)
    if trained:
        found: Tensor = _Chunked.apply(rows, weight, bias, targets, class_weights, asked)  # type: ignore[no-untyped-call]
        return found
    with torch.no_grad():
        return _Sums(asked, rows, weight, bias, targets, class_weights).loss()


@dataclass(frozen=True)
class _Asked:
    """What a cross-entropy is asked for."""

    chunks: int
    reduction: str
    ignored: int | None
    smoothing: float
    dtype: torch.dtype
    of_logits: torch.dtype

    @property
    def precise(self) -> torch.dtype:
        """In which it is computed."""
        return torch.promote_types(self.of_logits, torch.float32)


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        class_weights: Tensor | None,
        asked: _Asked,
    ) -> Tensor:
        sums = _Sums(asked, rows, weight, bias, targets, class_weights)
        loss, gradients = sums.loss_and_gradients(ctx.needs_input_grad[:3])
        ctx.save_for_backward(*gradients, sums.kept.any())
        ctx.precise = asked.precise
        return loss

    @staticmethod
    def backward(ctx: Any, *given: Any) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # of what the forward has computed, nothing is known of how
            raise FuseplanError("a loss in chunks has no second derivative: run this program under another plan")
        *gradients, is_any_kept = ctx.saved_tensors
        # of rows that are all ignored no gradient is infinite, whatever the loss is divided by
        factor = torch.where(is_any_kept, given[0].to(ctx.precise), 0.0)
        scaled = [None if one is None else (one.to(ctx.precise) * factor).to(one.dtype) for one in gradients]
        return (*scaled, None, None, None)


@dataclass
class _Sums:
    """A loss and its gradients, summed up over chunks."""

    asked: _Asked
    rows: Tensor
    weight: Tensor
    bias: Tensor | None
    targets: Tensor
    class_weights: Tensor | None

    def __post_init__(self) -> None:
        precise, ignored = self.asked.precise, self.asked.ignored
        self.kept = torch.ones_like(self.targets, dtype=torch.bool) if ignored is None else self.targets != ignored
        self.targets = self.targets.masked_fill(~self.kept, 0)
        self.weights = None if self.class_weights is None else self.class_weights.to(precise)
        counts = self.kept.to(precise)
        shares = counts if self.weights is None else self.weights[self.targets].masked_fill(~self.kept, 0.0)
        self.total = shares.sum() if self.asked.reduction == "mean" else counts.new_ones(())
        """Where all is ignored, the mean of nothing is no number, and has no gradients."""
        self.shares = shares * (1.0 - self.asked.smoothing)
        """What the logarithm of each target's probability counts for …"""
        self.even = counts * (self.asked.smoothing / self.weight.shape[0])
        """… and that of each class in its row."""

    def loss(self) -> Tensor:
        """The loss alone."""
        with torch.autocast(self.rows.device.type, enabled=False):
            return self._whole([self._losses(logits, logits.logsumexp(-1), place) for place, logits in self._chunks()])

    def loss_and_gradients(self, needed: tuple[bool, ...]) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        """The loss, and those of its gradients by rows, weight and bias that are needed."""
        of_rows, of_weight, of_bias = needed
        losses, found = list[Tensor](), list[Tensor]()
        matrix: Tensor | None = None
        column: Tensor | None = None
        with torch.autocast(self.rows.device.type, enabled=False):  # what it would cast has been
            for place, logits in self._chunks():
                whole = logits.logsumexp(-1)
                losses.append(self._losses(logits, whole, place))
                gradient = self._gradient(logits, whole, place).to(self.rows.dtype)
                if of_rows:
                    found.append(gradient @ self.weight)
                if of_weight:
                    matrix = _with_product(matrix, gradient.t(), self.rows[place], self.asked.precise)
                if of_bias:
                    sums = gradient.sum(0, dtype=self.asked.precise)
                    column = sums if column is None else column + sums
        gradients = (
            torch.cat(found) if found else None,
            None if matrix is None else matrix.to(self.weight.dtype),
            None if column is None else column.to(self.weight.dtype),
        )
        # The loss last: all of this is the forward's, whoever cuts it from the backward.
        return self._whole(losses), gradients

    def _chunks(self) -> Iterator[tuple[slice, Tensor]]:
        """The logits of one chunk after another, less the largest of their row, and its place among the rows."""
        rows, chunks = self.rows.shape[0], self.asked.chunks
        for chunk in range(chunks):
            place = slice(rows * chunk // chunks, rows * (chunk + 1) // chunks)
            logits = F.linear(self.rows[place], self.weight, self.bias).to(self.asked.precise)
            yield place, logits - logits.amax(-1, keepdim=True)  # the loss stays, and beside it no logarithm is lost

    def _losses(self, logits: Tensor, whole: Tensor, place: slice) -> Tensor:
        """The sum over the rows of a chunk, of which the logarithm of the sum of all exponentials is known."""
        losses = self.shares[place] * (whole - logits.gather(-1, self.targets[place, None]).squeeze(-1))
        if self.asked.smoothing:
            each = (whole[:, None] - logits) * (1.0 if self.weights is None else self.weights)
            losses = losses + self.even[place] * each.sum(-1)
        return torch.where(self.kept[place], losses, 0.0).sum()

    def _whole(self, losses: list[Tensor]) -> Tensor:
        return (torch.stack(losses).sum() / self.total).to(self.asked.dtype)

    def _gradient(self, logits: Tensor, whole: Tensor, place: slice) -> Tensor:
        """That of the logits of a chunk."""
        kept = self.kept[place]
        share, even = (torch.where(kept, one[place] / self.total, 0.0)[:, None] for one in (self.shares, self.even))
        found = (logits - whole[:, None]).exp()
        is_target = self.targets[place, None] == torch.arange(logits.shape[-1], device=logits.device)
        if not self.asked.smoothing:
            return found * share - torch.where(is_target, share, 0.0)
        each = 1.0 if self.weights is None else self.weights
        all_of_them = logits.shape[-1] if self.weights is None else self.weights.sum()
        return found * (share + even * all_of_them) - torch.where(is_target, share, 0.0) - even * each


def _with_product(found: Tensor | None, one: Tensor, other: Tensor, precise: torch.dtype) -> Tensor:
    """A sum of products with one more: what was rounded before it is added is rounded once more at the end alone."""
    if found is None:
        return (one @ other).to(precise)
    if one.dtype == precise:
        return torch.addmm(found, one, other)
    # Inductor writes the result of a `foreach` on a GPU at once: of a chain of sums it would keep every product until the last.
    return torch._foreach_add([found], [(one @ other).to(precise)])[0]
