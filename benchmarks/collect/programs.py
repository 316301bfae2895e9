"""Writes the graphs of the models that regions are taken from: `python -m benchmarks.collect.programs [NAME…]`.

Run on a CPU, once; three of their equal layers are enough. Which device they are for is decided when they are measured.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from torch import nn

from benchmarks.collect.tasks import PROGRAMS
from benchmarks.search_tables import captured
from benchmarks.zoo import CASES

MANY, KEPT = 8, 3
"""Of lists of at least so many equal layers so many stay."""


def shorten(model: nn.Module) -> nn.Module:
    """The model with few layers.

    >>> len(shorten(nn.ModuleDict({"layers": nn.ModuleList(nn.Identity() for _ in range(12))}))["layers"])
    3
    """
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.ModuleList) and len(child) >= MANY:
                module.add_module(name, child[:KEPT])
    return model


def main(names: Sequence[str]) -> None:
    """Capture the named models, or all."""
    for name in names or CASES:
        case = CASES[name]
        model, inputs = case.load("cpu", torch.bfloat16)
        table = captured(name, shorten(model), inputs, case.train)
        print(table.write(PROGRAMS), {role: len(graph.ops) for role, graph in table.graphs.items()})
        torch._dynamo.reset()


if __name__ == "__main__":
    main(sys.argv[1:])
