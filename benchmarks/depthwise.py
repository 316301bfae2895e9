"""Kernels of our own for convolutions channel by channel, beside the library's, and beside the least that they could take: each many
times in a CUDA graph, over so many images that none is still in the cache, in turns.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

import fuseplan.capture.fx.depthwise  # noqa: F401 -- defines the operators
from benchmarks.captured import SHORTEST_US, TIMES, Call, side_by_side
from benchmarks.given import names
from fuseplan.models import Machine

APART = 2**28
"""Bytes that all images of a graph take together, at least: several times what a cache holds."""


class Layer(NamedTuple):
    """Images as high as wide; how often a model has such a layer."""

    images: int
    channels: int
    height: int
    size: int
    stride: int
    times: int


LAYERS: dict[str, tuple[Layer, ...]] = {
    "convnext-t": (Layer(64, 96, 56, 7, 1, 3), Layer(64, 192, 28, 7, 1, 3), Layer(64, 384, 14, 7, 1, 9), Layer(64, 768, 7, 7, 1, 3)),
    "mobilenetv3-l": (
        Layer(128, 16, 112, 3, 1, 1), Layer(128, 64, 112, 3, 2, 1), Layer(128, 72, 56, 3, 1, 1), Layer(128, 72, 56, 5, 2, 1),
        Layer(128, 120, 28, 5, 1, 2), Layer(128, 240, 28, 3, 2, 1), Layer(128, 200, 14, 3, 1, 1), Layer(128, 184, 14, 3, 1, 2),
        Layer(128, 480, 14, 3, 1, 1), Layer(128, 672, 14, 3, 1, 1), Layer(128, 672, 14, 5, 2, 1), Layer(128, 960, 7, 5, 1, 2),
    ),
    "efficientnet-b0": (
        Layer(32, 32, 112, 3, 1, 1), Layer(32, 96, 112, 3, 2, 1), Layer(32, 144, 56, 3, 1, 1), Layer(32, 144, 56, 5, 2, 1),
        Layer(32, 240, 28, 5, 1, 1), Layer(32, 240, 28, 3, 2, 1), Layer(32, 480, 14, 3, 1, 2), Layer(32, 672, 14, 5, 1, 2),
        Layer(32, 1152, 7, 5, 1, 3), Layer(32, 1152, 7, 3, 1, 1),
    ),
}  # fmt: skip
"""Of models, at sizes that people train or serve."""


def measure(arguments: list[str]) -> dict[str, Any]:
    """The layers of all models, or of those that are named."""
    if not torch.cuda.is_available():
        raise SystemExit("PyTorch finds no GPU on this machine, and the kernels are written for one")
    machine = Machine.guess(torch.cuda.get_device_name())
    result = {}
    for name in names("depthwise", __doc__, arguments, LAYERS):
        rows = [row for layer in LAYERS[name] for row in _rows(layer, machine)]
        result[name] = {"layers": rows, "together": _together(rows)}
        print(name, result[name]["together"], file=sys.stderr, flush=True)
    return result


def _together(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Of each operator, over all layers of a model: what ours and the library's take, and how many times the least ours do."""
    found = {}
    for what in dict.fromkeys(row["what"] for row in rows):
        own = [row for row in rows if row["what"] == what]
        ours, library, least = (
            sum(row[key] * row["times"] for row in own) for key in ("ours_us", "library_us", "least_us")
        )
        found[what] = {
            "ours_us": ours,
            "library_us": library,
            "of the library": ours / library,
            "times the least": ours / least,
        }
    return found


def _rows(layer: Layer, machine: Machine) -> Iterator[dict[str, Any]]:
    ops, aten = torch.ops.fuseplan, torch.ops.aten
    images, channels, height, size, stride, _ = layer
    padding, high = size // 2, (height + 2 * (size // 2) - size) // stride + 1
    weight = torch.randn(channels, 1, size, size, device="cuda", dtype=torch.bfloat16)
    turned = weight.to(memory_format=torch.channels_last)
    moved = 2 * images * channels * (height**2 + high**2)
    sets = min(TIMES, math.ceil(APART / moved))
    xs, grads = ([_image(images, channels, side) for _ in range(sets)] for side in (height, high))

    def backward(i: int, *wanted: bool) -> object:
        return aten.convolution_backward(
            grads[i],
            xs[i],
            turned,
            None,
            [stride] * 2,
            [padding] * 2,
            [1, 1],
            False,
            [0, 0],
            channels,
            [*wanted, False],
        )

    calls: dict[str, tuple[Call, Call]] = {
        "forward": (
            lambda i: ops.depthwise(xs[i], weight, None, stride, padding),
            lambda i: torch.conv2d(xs[i], turned, None, stride, padding, 1, channels),
        ),
        "gradient of the input": (
            lambda i: ops.depthwise_input(grads[i], weight, height, height, stride, padding),
            lambda i: backward(i, True, False),
        ),
        "gradient of the weights": (
            lambda i: ops.depthwise_weight(grads[i], xs[i], size, stride, padding),
            lambda i: backward(i, False, True),
        ),
    }
    sums = images * channels * high**2 * size**2
    least = max(moved / machine.bandwidth_gbs / 1e3, sums / machine.pointwise_tops / 1e6, SHORTEST_US)
    for what, both in calls.items():
        ours, library = side_by_side(both, sets)
        yield {
            **layer._asdict(), "what": what, "ours_us": ours, "library_us": library, "least_us": least,
            "of the library": ours / library, "times the least": ours / least,
        }  # fmt: skip


def _image(images: int, channels: int, side: int) -> Tensor:
    found = torch.randn(images, channels, side, side, device="cuda", dtype=torch.bfloat16)
    return found.to(memory_format=torch.channels_last)
