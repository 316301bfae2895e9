"""Writes the golden file of the present schema: ``python tests/golden_database.py``. Those of released ones stay as they are."""

from __future__ import annotations

from pathlib import Path

from fuseplan.tuning_db import schema
from stored import fill, store_at

GOLDEN = Path(__file__).parent / "unit" / "tuning_db" / "golden"


def main() -> None:
    """Make the file anew."""
    path = GOLDEN / f"schema_{schema.VERSION}.sqlite3"
    path.unlink(missing_ok=True)
    store = store_at(path)
    fill(store)
    store.close()
    print(f"{path} written")


if __name__ == "__main__":
    main()
