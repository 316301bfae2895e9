"""Blocks of documents in a mask: known when planning, where no input has a say in it and its sizes are known."""

from __future__ import annotations

import torch
from torch import Tensor

from fuseplan.capture.fx.flex import Sight
from fuseplan.segment.masks import UnprovenError

MOST = 1 << 26
"""Elements of a mask that is looked at."""


def documents_in(mask: Tensor) -> Sight:
    """What each query sees by a mask: its own document, whole or as far as a window. UnprovenError where it is more than one
    mask, or another.
    """
    shown = _shown(mask)
    first, count = shown.int().argmax(-1), shown.sum(-1)
    if bool((count == 0).any()):
        raise UnprovenError("its mask hides a whole row")
    places, last = torch.arange(len(shown)), first + count - 1
    # a document begins where nothing behind sees what is before, nor the other way round
    behind = first.flip(0).cummin(0).values.flip(0)
    before = last.cummax(0).values
    starts = [0, *(i for i in range(1, len(shown)) if int(behind[i]) >= i and int(before[i - 1]) < i)]
    lengths = tuple(end - start for start, end in zip(starts, (*starts[1:], len(shown)), strict=True))
    whole = Sight(len(shown), None, None, lengths).ends()
    left, right = (
        None if ends == whole[side] else max(0, int(((places - seen) if side == 0 else (seen - places)).max()))
        for side, (seen, ends) in enumerate(((first, first.tolist()), (last, last.tolist())))
    )
    found = Sight(len(shown), left, right, lengths)
    if len(lengths) < 2 or not torch.equal(found.mask("cpu"), shown):
        raise UnprovenError("its mask shows no blocks of documents")
    return found


def _shown(mask: Tensor) -> Tensor:
    """Which keys a mask shows to which queries, the same in all batches and heads."""
    pages = mask.reshape(-1, *mask.shape[-2:])
    if pages.shape[0] == 0 or not bool((pages == pages[:1]).all()):
        raise UnprovenError("its mask differs between batches or heads")
    page = pages[0].cpu()
    if page.dtype == torch.bool:
        return page
    if not page.is_floating_point():
        raise UnprovenError("its mask is neither booleans nor floats")
    hidden = (page == float("-inf")) | (page == torch.finfo(page.dtype).min)
    if not bool((hidden | (page == 0)).all()):
        raise UnprovenError("its mask adds numbers to scores that neither hide them nor leave them as they are")
    return ~hidden
