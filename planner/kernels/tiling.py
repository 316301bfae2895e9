"""How matmuls of few rows are parted between programs of a kernel: what is known of it where there is no Triton, too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

MOST_ROWS = 256
"""More were never tried."""
MOST_ROWS_EACH = 64
"""Of more, a program has some, and the matrices are read more than once."""
LEAST_ROWS = 16
"""As matrix units multiply at once."""
FEW_ROWS = 32
"""Of more rows, a program reads a smaller block with more columns of it."""
MOST_TOGETHER = 4
"""Matrices of one call."""
ALIGNED = 8
"""Rows of a matrix begin at multiples of so many elements: 16 bytes, as much as a thread reads at once."""
MOST_PARTS = 4
"""Of a sum: an Inductor that reads as many adds them up wherever they are used, and more by a kernel of its own."""
PROGRAMS_EACH = 3
"""So many programs for each multiprocessor are enough to keep memory busy."""
MOST_EACH = 4
"""Of more, each has more columns."""
_FEW, _MANY = 32, 64
"""Columns of a program."""


@dataclass(frozen=True)
class Tiling:
    """What a program has of a call: so many rows and columns, and a part of the features in so many blocks."""

    rows: int
    columns: int
    block: int
    """Features that are read at once."""
    blocks_each: int
    """Of a part."""
    parts: int

    @staticmethod
    @lru_cache(maxsize=1024)
    def of(rows: int, features: int, columns: tuple[int, ...], processors: int, parts: int | None = None) -> Tiling:
        """Few columns, unless that makes too many programs, or each would read many rows for them; and parts where there are too few.
        How many parts there are may be said.

        >>> Tiling.of(8, 4096, (4096, 1024, 1024), 132)
        Tiling(rows=16, columns=32, block=128, blocks_each=16, parts=2)
        >>> Tiling.of(8, 896, (896,), 132)
        Tiling(rows=16, columns=32, block=128, blocks_each=2, parts=4)
        >>> Tiling.of(8, 4096, (14336, 14336), 132)
        Tiling(rows=16, columns=64, block=128, blocks_each=32, parts=1)
        >>> Tiling.of(64, 4096, (4096, 1024, 1024), 132)
        Tiling(rows=64, columns=64, block=64, blocks_each=16, parts=4)
        """
        rows_each = min(MOST_ROWS_EACH, max(LEAST_ROWS, 1 << max(0, rows - 1).bit_length()))
        row_blocks = max(1, -(-rows // rows_each))
        each, tiles = _FEW, _tiles(columns, _FEW) * row_blocks
        if rows > FEW_ROWS or tiles > MOST_EACH * processors:
            each, tiles = _MANY, _tiles(columns, _MANY) * row_blocks
        block = 64 if features % 128 or rows > FEW_ROWS else 128
        blocks = max(1, -(-features // block))
        wanted = max(1, min(MOST_PARTS, blocks, round(PROGRAMS_EACH * processors / max(1, tiles))))
        of_part = -(-blocks // (parts or wanted))
        return Tiling(rows_each, each, block, of_part, parts or -(-blocks // of_part))


def _tiles(columns: Sequence[int], each: int) -> int:
    return sum(-(-n // each) for n in columns)
