"""The page of a program tells of what torch.compile gets wrong: the ops, and a script that shows it."""

from __future__ import annotations

import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path

from fuseplan.tuning_db import Evidence
from fuseplan.tuning_db.dashboard.ask import parse
from fuseplan.tuning_db.dashboard.pages import PAGES
from fuseplan.tuning_db.dashboard.reader import readers
from fuseplan.tuning_db.dashboard.render import Served, View

SCRIPT = "import torch\n\nprint(torch.ones(2) < 1)\n"


def test_the_script_stands_beside_the_plan_that_is_wrong(tmp_path: Path, tuned_database: Path) -> None:
    path = Path(shutil.copy(tuned_database, tmp_path))
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA ignore_check_constraints = ON")
    stored = connection.execute(
        "SELECT plan.id, program.key, evidence FROM plan JOIN program ON program.id = program_id WHERE evidence LIKE '%raced%'"
    ).fetchall()
    for number, _, text in stored:
        found = Evidence.from_json(text)
        first = replace(
            found.raced[0], status="wrong", detail="the fault is in 3 ops that end in cumsum", script=SCRIPT
        )
        changed = replace(found, raced=(first, *found.raced[1:])).to_json()
        connection.execute("UPDATE plan SET evidence = ? WHERE id = ?", (changed, number))
    connection.commit()
    connection.close()
    (page,) = (one for one in PAGES if one.name == "program")
    (reader,) = readers([path]).values()
    ask = parse(f"key={stored[0][1]}", page.params)
    text = str(View(page, ask, page.load(reader, ask), Served({})).html())
    assert "the fault is in 3 ops that end in cumsum" in text
    assert "a script that shows the fault, without fuseplan" in text
    assert "print(torch.ones(2) &lt; 1)" in text
