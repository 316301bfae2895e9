"""The programs that faults are planted into: blocks and their inputs, and some small models of transformers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.judging import blocks
from benchmarks.judging.blocks import WIDTH
from benchmarks.judging.more_models import MORE
from benchmarks.small_zoo import TRANSFORMERS


@dataclass(frozen=True)
class Program:
    """A module and its inputs, in training unless it says otherwise."""

    build: Callable[[], tuple[nn.Module, dict[str, Tensor]]]
    train: bool = True


def _rows() -> dict[str, Tensor]:
    return {"x": torch.randn(4, 12, WIDTH)}


def _masked() -> dict[str, Tensor]:
    return _rows() | {"kept": (torch.arange(12) < torch.tensor([12, 9, 7, 4])[:, None]).long()}


def _pictures() -> dict[str, Tensor]:
    return {"pixels": torch.randn(4, 3, 12, 12), "labels": torch.randint(0, 10, (4,))}


def _tokens() -> dict[str, Tensor]:
    return {"ids": torch.randint(0, 64, (4, 16)), "labels": torch.randint(0, 5, (4, 16))}


def _graph() -> dict[str, Tensor]:
    return {"x": torch.randn(16, WIDTH), "source": torch.randint(0, 16, (40,)), "target": torch.randint(0, 16, (40,))}


def _x(*shape: int, grad: bool = False) -> Callable[[], dict[str, Tensor]]:
    return lambda: {"x": torch.randn(*shape, requires_grad=grad)}


def _two(*shape: int) -> Callable[[], dict[str, Tensor]]:
    return lambda: {"x": torch.randn(*shape), "y": torch.randn(*shape)}


def _places() -> dict[str, Tensor]:
    return {"x": torch.randn(2, 4, WIDTH), "places": torch.tensor([3, 4, 5, 6])}


def _of(module: Callable[[], nn.Module], inputs: Callable[[], dict[str, Tensor]], train: bool = True) -> Program:
    return Program(lambda: (module(), inputs()), train)


def _model(name: str, train: bool = True) -> Program:
    entry: Any = {**TRANSFORMERS, **MORE}[name]
    return Program(lambda: entry.build(), train)


PROGRAMS: dict[str, Program] = {
    "perceptron": _of(blocks.Perceptron, _rows),
    "attention": _of(blocks.Attention, _rows),
    "kept attention": _of(blocks.KeptAttention, _masked),
    "norms": _of(blocks.Norms, _rows),
    "gated": _of(blocks.Gated, _rows),
    "rotary": _of(blocks.Rotary, _rows),
    "convolutions": _of(blocks.Convolutions, _pictures),
    "upsampling": _of(blocks.Upsampling, _x(2, 8, 8, 8)),
    "language": _of(blocks.Language, _tokens),
    "dropouts": _of(blocks.Dropouts, _rows),
    "scan": _of(blocks.Scan, _rows),
    "key cache": _of(blocks.KeyCache, _places, train=False),
    "experts": _of(blocks.Experts, _x(24, WIDTH)),
    "edges": _of(blocks.Edges, _graph),
    "statistics": _of(blocks.Statistics, _x(4, 12, WIDTH, grad=True)),
    "aliases": _of(blocks.Aliases, _two(8, 12), train=False),
    "specials": _of(blocks.Specials, _x(16, 16), train=False),
    "codes": _of(blocks.Codes, _x(8, WIDTH)),
    "long sums": _of(blocks.LongSums, _x(4, 4096)),
    "pooling": _of(blocks.Pooling, _x(2, 4, 10, 10)),
    "recurrent": _of(blocks.Recurrent, _x(4, 6, WIDTH)),
    "contrast": _of(blocks.Contrast, _two(12, WIDTH)),
    "deep": _of(blocks.Deep, _x(8, 16)),
    "averages": _of(blocks.Averages, _x(24, WIDTH), train=False),
    "large": _of(blocks.Large, _x(4, 12, WIDTH), train=False),
    "mobile": _of(blocks.Mobile, _x(2, 8, 8, 8)),
    "bert": _model("bert"),
    "gpt2": _model("gpt2"),
    "llama": _model("llama"),
    "t5": _model("t5"),
    "vit": _model("vit"),
    "gemma2": _model("gemma2", train=False),
}
