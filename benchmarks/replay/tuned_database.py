"""Writes the database that was really tuned, which a replay reads: `python -m benchmarks.replay.tuned_database`.

Three small programs are tuned on this CPU with effort full, by the model that leaves nothing unmeasured, in some ten minutes.
What is kept are plans, evidence, and what regions took; whose machine it was is left out.
"""

from __future__ import annotations

import lzma
import sqlite3
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn

from benchmarks.replay.stored import TUNED
from fuseplan.capture.trace.format import Trace
from fuseplan.tune import tune
from fuseplan.tuning.traces import traces_of


class Block(nn.Module):
    """Norms, attention and an MLP: islands between matmuls, and a site with ways."""

    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """One block."""
        parts = self.qkv(self.before(x)).unflatten(-1, (3, self.heads, -1)).movedim(-3, 0).transpose(-2, -3)
        query, key, value = parts.unbind(0)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(-2, -3).flatten(-2))
        more: Tensor = self.down(nn.functional.gelu(self.up(self.after(x))))
        return x + more


def weighed(x: Tensor, weight: Tensor) -> Tensor:
    """A softmax that is read by a sum, without any matmul."""
    return (torch.softmax((x * 2).sin() + x, -1) * weight).sum(-1).tanh()


def programs() -> list[Trace]:
    """A block in training and in inference, and one that is all one island."""
    torch.manual_seed(0)
    found = traces_of(Block(), torch.randn(4, 32, 64), name="block, training")
    with torch.no_grad():
        found += traces_of(Block(), torch.randn(4, 32, 64), name="block, inference")
    return found + traces_of(weighed, torch.randn(256, 512), torch.randn(512), name="weighed softmax")


def anonymous(file: Path) -> None:
    """Take out of a database on whose machine it was tuned, and make it as small as it can be."""
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE run SET host = NULL")
    connection.execute("VACUUM")
    connection.execute("PRAGMA journal_mode = DELETE")
    connection.close()


def main() -> None:
    """Tune, and keep the file."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "tuned.db"
        for found in tune(programs(), effort="full", model="roofline", db=file):
            print(found)
        anonymous(file)
        TUNED.write_bytes(lzma.compress(file.read_bytes(), preset=9 | lzma.PRESET_EXTREME))
    print(f"{TUNED} written: {TUNED.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
