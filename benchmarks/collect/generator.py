"""Made-up programs: what fusions are made of, at sizes from tiny to a gigabyte, with views at every place.

A program is the family and a number; the same number gives the same program. They are traced with fake tensors, so that
no device is needed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from benchmarks.collect import elementwise, sums
from benchmarks.collect.devices import moved_to
from benchmarks.collect.draw import MOST_BYTES, Draw, Made
from fuseplan.capture.fx.from_fx import from_fx
from fuseplan.graph import Graph


def program(family: str, number: int, device: str, most: int = MOST_BYTES) -> Graph:
    """The program of this number; `most` are the bytes of its inputs and outputs at most.

    >>> graph = program("softmax", 3, "cpu")
    >>> graph == program("softmax", 3, "cpu"), any("softmax" in op.target for op in graph.ops)
    (True, True)
    """
    for attempt in range(100):
        draw = Draw(random.Random(f"{family} {number} {attempt}"))
        with FakeTensorMode(allow_non_fake_inputs=True):
            function, inputs = FAMILIES[family](draw)
            gm = make_fx(_listed(function))(*inputs)
        gm.graph.eliminate_dead_code()
        graph = from_fx(gm)
        size = sum(_bytes(value) for value in (*inputs, *_results(gm)))
        if size <= most and graph.ops and not graph.opaque:
            return graph if device == "cpu" else moved_to(graph, device)
    raise AssertionError(f"no program of {family} is as small as {most} bytes")


def _listed(function: Callable[..., Any]) -> Callable[..., list[Any]]:
    def listed(*args: Tensor) -> list[Any]:
        found = function(*args)
        return [value for value in (found if isinstance(found, (list, tuple)) else [found]) if value is not None]

    return listed


def _results(gm: torch.fx.GraphModule) -> list[Any]:
    return [node.meta["val"] for node in gm.graph.output_node().args[0]]  # type: ignore[union-attr]


def _bytes(value: Any) -> int:
    return value.numel() * value.element_size() if isinstance(value, Tensor) else 0


FAMILIES: dict[str, Callable[[Draw], Made]] = {
    "pointwise": elementwise.pointwise,
    "pointwise-outputs": elementwise.pointwise_outputs,
    "casts": elementwise.casts,
    "broadcast": elementwise.broadcast,
    "transpose": elementwise.transpose,
    "heads": elementwise.heads,
    "rope": elementwise.rope,
    "reduction-inner": sums.reduction("inner"),
    "reduction-outer": sums.reduction("outer"),
    "reduction-middle": sums.reduction("middle"),
    "reduction-all": sums.reduction("all"),
    "layer-norm": sums.norm("layer"),
    "rms-norm": sums.norm("rms"),
    "layer-norm-backward": sums.norm_backward("layer"),
    "rms-norm-backward": sums.norm_backward("rms"),
    "softmax": sums.softmax,
    "softmax-backward": sums.softmax_backward,
    "activation-backward": sums.activation_backward,
    "gated": elementwise.gated,
    "concat": elementwise.concat,
    "slices": elementwise.sliced,
    "loss": sums.loss,
    "embedding": elementwise.embedding,
    "channels": elementwise.channels,
}
"""How a program of each family is made."""
