"""Matmuls of few rows by a kernel of fuseplan's own, beside the library's, and beside the least that they could take: what one layer does
with the same rows is one call of ours, and of the library's one for each matrix.

Ours may give parts of sums, which whoever reads the results adds up. `with sums` is what it takes where nobody does so on the way, and a
kernel by itself has to. With `--tilings`, each is measured with others than the one that is taken, and the best of them is told.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from statistics import geometric_mean
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.captured import SHORTEST_US, TIMES, Call, side_by_side
from fuseplan.capture.fx.own_kernels import processors_of
from fuseplan.kernels.tiling import LEAST_ROWS, Tiling
from fuseplan.models import Machine

ROWS = (1, 8, 32, 64, 96, 128, 197, 256)
MATMULS: Mapping[str, tuple[int, tuple[int, ...]]] = {
    "llama qkv": (2048, (2048, 512, 512)), "llama out": (2048, (2048,)), "llama gate, up": (2048, (5632, 5632)),
    "llama down": (5632, (2048,)), "qwen2 qkv": (896, (896, 128, 128)), "qwen2 out": (896, (896,)),
    "qwen2 gate, up": (896, (4864, 4864)), "qwen2 down": (4864, (896,)), "gemma3 qkv": (1152, (1024, 256, 256)),
    "gemma3 gate, up": (1152, (6912, 6912)), "gemma3 down": (6912, (1152,)), "bert qkv": (768, (768, 768, 768)),
    "bert out": (768, (768,)), "bert up": (768, (3072,)), "bert down": (3072, (768,)), "whisper qkv": (512, (512, 512, 512)),
    "whisper up": (512, (2048,)), "whisper down": (2048, (512,)), "8b qkv": (4096, (4096, 1024, 1024)),
    "8b out": (4096, (4096,)), "8b gate, up": (4096, (14336, 14336)), "8b down": (14336, (4096,)),
}  # fmt: skip
"""Features, and the columns of each matrix: layers as large as those of such models."""
APART = 300 * 10**6
"""Bytes that all matrices of a graph take together, about: several times what a cache holds."""
TILED = ((16, 32, 64, 128), (32, 64, 128), (64, 128), (1, 2, 3, 4, 6))
"""Rows, columns and features of a block, and parts."""


def measure(arguments: list[str]) -> dict[str, Any]:
    """All matmuls, or those that are named, of each number of rows."""
    given = argparse.ArgumentParser(prog="scripts/bench few_rows", description=__doc__)
    given.add_argument("--only", action="append", choices=list(MATMULS), metavar="NAME", help="may be given again")
    given.add_argument("--rows", action="append", type=int, help=f"may be given again; {', '.join(map(str, ROWS))}")
    given.add_argument("--tilings", action="store_true", help="other tilings, too, which takes much longer")
    chosen = given.parse_args(arguments)
    if not torch.cuda.is_available():
        raise SystemExit("PyTorch finds no GPU on this machine, and the kernel is written for one")
    machine = Machine.guess(torch.cuda.get_device_name())
    rows: list[dict[str, Any]] = []
    for name, count in product(chosen.only or MATMULS, chosen.rows or ROWS):
        rows.append(_row(name, count, machine, tilings=chosen.tilings))
        told = " ".join(f"{key} {value:.2f}" for key, value in rows[-1].items() if key.endswith("_us"))
        print(name, count, told, rows[-1].get("best", ""), file=sys.stderr, flush=True)
    return {"by rows": by_rows(rows), "matmuls": rows}


def by_rows(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """How many times as fast ours are as the library's, in the geometric mean over all matmuls of so many rows, and at the least.

    >>> row = {"rows": 8, "library_us": 9.0, "ours_us": 3.0, "with_sums_us": 6.0}
    >>> by_rows([row, {**row, "ours_us": 12.0}])
    {'8': {'ours': 1.5, 'ours at least': 0.75, 'with sums': 1.5, 'with sums at least': 1.5}}
    """
    ratios: dict[str, dict[str, list[float]]] = defaultdict(lambda: {"ours": [], "with sums": []})
    for row in rows:
        for what, key in (("ours", "ours_us"), ("with sums", "with_sums_us")):
            ratios[str(row["rows"])][what].append(row["library_us"] / row[key])
    return {
        count: {
            key: round(value, 4)
            for what, every in found.items()
            for key, value in ((what, geometric_mean(every)), (f"{what} at least", min(every)))
        }
        for count, found in ratios.items()
    }


def _row(name: str, count: int, machine: Machine, *, tilings: bool) -> dict[str, Any]:
    features, columns = MATMULS[name]
    like: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    read = 2 * features * sum(columns)
    sets = min(TIMES, max(2, -(-APART // read)))
    weights = [[torch.randn(n, features, **like) / features**0.5 for n in columns] for _ in range(sets)]
    x = torch.randn(count, features, **like)
    own = Tiling.of(count, features, columns, processors_of(x.device))
    ours = partial(_ours, x, weights, own)

    def summed(i: int) -> Tensor:
        found = ours(i)
        return found.sum(0, dtype=torch.float32).to(x.dtype) if own.parts > 1 else found

    library_us, ours_us, with_sums_us = side_by_side(
        [lambda i: [F.linear(x, w) for w in weights[i]], ours, summed], sets
    )
    least = max(read / machine.bandwidth_gbs / 1e3, SHORTEST_US)
    found = {
        "what": name, "rows": count, "features": features, "columns": columns, "library_us": library_us, "ours_us": ours_us,
        "with_sums_us": with_sums_us, "least_us": least, "tiling": vars(own),
    }  # fmt: skip
    return {**found, **(_best(x, weights, sets) if tilings else {})}


def _ours(x: Tensor, weights: Sequence[Sequence[Tensor]], tiling: Tiling, i: int) -> Tensor:
    from fuseplan.kernels import few_rows

    shape, dtype = (x.shape[0], sum(weight.shape[0] for weight in weights[i])), x.dtype
    y = torch.empty((tiling.parts, *shape), dtype=torch.float32 if tiling.parts > 1 else dtype, device=x.device)
    few_rows.multiply(x, weights[i], [], y, tiling)
    return y


def _best(x: Tensor, weights: Sequence[Sequence[Tensor]], sets: int) -> dict[str, Any]:
    """The fastest tilings, and what they take, by how many parts they give: who reads parts has more to do."""
    calls = {tiling: partial(_ours, x, weights, tiling) for tiling in _others(*x.shape)}
    found: dict[int, list[tuple[float, Tiling]]] = defaultdict(list)
    for tiling, call in calls.items():
        if (us := _us(call, sets)) is not None:
            found[tiling.parts].append((us, tiling))
    best = {parts: min(every, key=lambda one: one[0]) for parts, every in sorted(found.items())}
    return {"best": {parts: {"us": us, **vars(tiling)} for parts, (us, tiling) in best.items()}}


def _us(call: Call, sets: int) -> float | None:
    """What a call takes; None where a multiprocessor has no room for it."""
    try:
        (found,) = side_by_side([call], sets)
    except Exception as error:  # noqa: BLE001 -- Triton's own, and the driver's: that is no tiling
        print(str(error).partition("\n")[0][:100], file=sys.stderr)
        return None
    return found


def _others(rows: int, features: int) -> Iterator[Tiling]:
    """Tilings that are whole, and of which no row of blocks is empty."""
    seen = set[Tiling]()
    for rows_each, columns, block, parts in product(*TILED):
        blocks = -(-features // block)
        each = -(-blocks // parts)
        found = Tiling(rows_each, columns, block, each, -(-blocks // each))
        if found not in seen and rows_each < max(2 * rows, 2 * LEAST_ROWS) and parts <= blocks:
            seen.add(found)
            yield found
