"""Which of several processes that run one program together this is."""

from __future__ import annotations

import torch


def tunes_here() -> bool:
    """Whether this process tunes: of several that run one program together, the first does.

    >>> tunes_here()
    True
    """
    distributed = torch.distributed
    return not (distributed.is_available() and distributed.is_initialized() and distributed.get_rank() != 0)
