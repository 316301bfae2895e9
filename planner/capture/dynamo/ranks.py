"""Which of several processes that run one program together this is."""

from __future__ import annotations

import torch


def runs_in_step() -> bool:
    """Whether other processes run the same program in step with this one: what changes in one of them changes at another step.

    >>> runs_in_step()
    False
    """
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def tunes_here() -> bool:
    """Whether this process tunes: of several that run one program together, the first does.

    >>> tunes_here()
    True
    """
    distributed = torch.distributed
    return not (distributed.is_available() and distributed.is_initialized() and distributed.get_rank() != 0)
