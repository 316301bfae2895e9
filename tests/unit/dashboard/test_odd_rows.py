"""Every page of a database whose rows somebody has tampered with: all of it is shown as far as it makes sense."""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from fuseplan.tuning_db.dashboard.ask import parse
from fuseplan.tuning_db.dashboard.pages import PAGES
from fuseplan.tuning_db.dashboard.reader import Reader, readers
from fuseplan.tuning_db.dashboard.render import Served, View

EVIDENCE = (
    '{"raced":["abc",{"status":"ok","predicted_us":"x","wall_us":1}]}', '{"raced":5', '{"raced":5}', "null",
    '{"raced":{"a":{"status":"ok","name":"n","predicted_us":1.5,"wall_us":2}}}', "[]",
)  # fmt: skip
TAMPERED = (
    "UPDATE run SET error_median = 1e300, started_at = '2026-13-45T99:00:00.000Z' WHERE id = 1",
    "UPDATE run SET started_at = 'soon', changed_at = '', key = upper(key) WHERE id = 2",
    "UPDATE measurement SET predicted_us = 1e-300, spread = 0 WHERE id = 3",
    "UPDATE measurement SET predicted_us = 9e13, device_us = 1e-9 WHERE id = 4",
    "UPDATE measurement SET predicted_us = 5e-324, device_us = 1e300, executor = '' WHERE id = 5",
    "UPDATE plan SET wall_us = 1e-320, best_default_us = 1e300, noise_us = 1e308 WHERE id = 2",
    "UPDATE plan SET json = '{\"kind\": [[', moves = char(0) || 'x' WHERE id = 3",
    "UPDATE graph SET json = replace(json, 'aten.mm', 'aten..mm'), ops = 99999999 WHERE id = 1",
    "UPDATE program SET name = char(0x202e) || name WHERE id = 2",
    "UPDATE counter SET count = 0",
)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory, tuned_database: Path) -> Iterator[Reader]:
    path = Path(shutil.copy(tuned_database, tmp_path_factory.mktemp("odd")))
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA ignore_check_constraints = ON")
    for place, text in enumerate(EVIDENCE, 1):
        connection.execute("UPDATE plan SET evidence = ? WHERE id = ?", (text, place))
    for sql in TAMPERED:
        connection.execute(sql)
    connection.commit()
    connection.close()
    yield from readers([path]).values()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_odd_rows_are_shown(reader: Reader, page: object) -> None:
    assert isinstance(page, type(PAGES[0]))
    keys = [str(key) for (key,) in reader.read(lambda c: c.execute("SELECT key FROM program").fetchall())]
    runs = [
        str(key) for (key,) in reader.read(lambda c: c.execute("SELECT key FROM run WHERE key = lower(key)").fetchall())
    ]
    queries = {
        "program": [f"key={key}" for key in keys],
        "compare": ["", "kind=runs", "kind=databases", f"kind=runs&a={runs[0]}&b={runs[-1]}"],
        "run": ["", *(f"key={key}" for key in runs)],
    }.get(page.name, [""])
    for query in queries:
        ask = parse(query, page.params)
        text = str(View(page, ask, page.load(reader, ask), Served({})).html())
        assert "<h1>" in text
        assert re.findall(r"\b(?:nan|inf|Infinity)\b|>None<", text) == [], query
