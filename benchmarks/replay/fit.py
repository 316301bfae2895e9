"""Fits the learned model that every replay goes by, and keeps it: `python -m benchmarks.replay.fit`, wherever features change.

It is fitted on the rows that ship, by boosting alone: a tenth of the size of what is shipped, and as good for this.
"""

from __future__ import annotations

from benchmarks.replay.calls import FIT
from fuseplan.models.fitting import fit_heads
from fuseplan.models.rows import packaged, read_rows
from fuseplan.models.shipped import machine_of, model_rows


def main() -> None:
    """Fit, and write the file."""
    rows = read_rows(next(path for path in packaged() if "h200" in path.name))
    known, groups = model_rows(rows)
    FIT.write_bytes(fit_heads(known, machine_of(rows.header), groups, family="boosting").dump())
    print(f"{FIT} written: {FIT.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
