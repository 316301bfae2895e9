"""Noise of the size of rounding."""

from __future__ import annotations

import torch
from torch import Tensor


class Noise:
    """Moves each element by half a unit in the last place of some precision, up or down."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.generators: dict[torch.device, torch.Generator] = {}

    def __call__(self, flat: Tensor, eps: float) -> Tensor:
        generator = self.generators.get(flat.device)
        if generator is None:
            generator = self.generators[flat.device] = torch.Generator(flat.device).manual_seed(self.seed)
        sign = torch.randint(0, 2, flat.shape, generator=generator, device=flat.device, dtype=torch.int8)
        return flat + flat * ((sign.to(flat.dtype.to_real()) - 0.5) * eps)
