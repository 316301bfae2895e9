"""Models of the zoo that no library has as they are measured: a small language model written by hand, and image models with a loss."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Trained(NamedTuple):
    """What a step of training gives."""

    loss: Tensor
    logits: Tensor


class Block(nn.Module):
    """Attention and a feed-forward, each behind a norm, with dropout."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mixed, self.joined = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = (
            one.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for one in self.mixed(self.before(x)).split(width, -1)
        )
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        mixed = self.joined(mixed.transpose(1, 2).reshape(batch, length, width))
        x = x + F.dropout(mixed, dropout, self.training)
        return x + F.dropout(self.narrow(F.gelu(self.wide(self.between(x)))), dropout, self.training)


class SmallGpt(nn.Module):
    """A GPT as people write one to train it: a head that shares its weights with the words, its loss in the model."""

    def __init__(self, vocabulary: int = 50304, width: int = 768, layers: int = 12, heads: int = 12, dropout: float = 0.1) -> None:  # fmt: skip
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(1024, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.last, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.words.weight
        self.dropout = dropout
        for name, weight in self.named_parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, std=0.02 / (2 * layers) ** 0.5 if "narrow" in name or "joined" in name else 0.02)  # fmt: skip

    def logits(self, input_ids: Tensor) -> Tensor:
        """Of each place, what may come next."""
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = F.dropout(self.words(input_ids) + self.places(places), self.dropout, self.training)
        for block in self.blocks:
            x = block(x)
        found: Tensor = self.head(self.last(x))
        return found

    def forward(self, input_ids: Tensor, labels: Tensor) -> Trained:
        logits = self.logits(input_ids)
        return Trained(F.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits)


class Classified(nn.Module):
    """A model of images, and how far it is from their labels."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, labels: Tensor) -> Trained:
        logits = self.model(x)
        return Trained(F.cross_entropy(logits, labels), logits)
