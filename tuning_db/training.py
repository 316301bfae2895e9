"""Measurements of regions as rows that cost models learn from and are evaluated on."""

from __future__ import annotations

import math
from pathlib import Path

from fuseplan.errors import GraphError
from fuseplan.graph import Graph
from fuseplan.models.rows import Measured, Rows
from fuseplan.tuning_db.layers import Places
from fuseplan.tuning_db.store import Store

PARTS = 8
"""A database does not know what model a region is of: regions are dealt out to so many families."""

_MEASURED = """
SELECT coalesce(e.gpu, e.cpu), e.device, r.key, r.json, m.executor, m.variant, m.status, m.device_us, m.host_us, m.peak_bytes
FROM measurement m JOIN region r ON r.id = m.region_id JOIN environment e ON e.id = m.environment_id
WHERE m.status <> 'refused' ORDER BY m.measured_at, m.id
"""


def rows_of(path: Path) -> list[Rows]:
    """The measurements of a database, by device; the latest of each region, executor and variant counts."""
    database = Store(Places(path), reading=True).required().file
    found = database.read(lambda connection: connection.execute(_MEASURED).fetchall())
    database.close()
    headers: dict[str, dict[str, str]] = {}
    rows: dict[str, dict[tuple[str, str, str], Measured]] = {}
    graphs: dict[str, dict[str, Graph]] = {}
    for name, device, key, text, executor, variant, status, device_us, host_us, peak in found:
        known = graphs.setdefault(name, {})
        try:
            known[key] = known.get(key) or Graph.from_json(text)
        except GraphError:
            continue  # `fuseplan db check` tells of it
        headers[name] = {"device": device, "cpu" if device == "cpu" else "gpu": name}
        device_us, host_us = (math.inf if time is None else float(time) for time in (device_us, host_us))
        family = f"own{int(key[:8], 16) % PARTS}"
        row = Measured(key, family, key, "", executor, variant, status, device_us, host_us, peak)
        rows.setdefault(name, {})[key, executor, variant] = row
    return [
        Rows({"environment": headers[name]}, tuple(mine.values()), graphs[name]) for name, mine in sorted(rows.items())
    ]
