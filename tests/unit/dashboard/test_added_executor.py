"""An executor that was added: its default, its version and its named plan are on the dashboard, which was not changed for it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import dashboards
from fuseplan.tuning_db.dashboard.queries.filters import told
from stored import HERE, having

ADDED = """
import json, sys
from pathlib import Path
from fuseplan.executors.known import register
from fuseplan.executors.traits import Traits

register(Traits("toy", title="Toy", greedy_default=True))
from fuseplan.plan import Plan, named_plans
from fuseplan.tuning_db.dashboard.ask import parse
from fuseplan.tuning_db.dashboard.pages import programs
from fuseplan.tuning_db.dashboard.pictures import _named
from fuseplan.tuning_db.dashboard.queries.filters import choices
from fuseplan.tuning_db.dashboard.reader import readers

(reader,) = readers([Path(sys.argv[1])]).values()
titles = [column.title for column in programs.COLUMNS]
tables = {query: programs.load(reader, parse(query, ())).rows for query in ("", "toy=7", "toy=8")}
print(json.dumps({
    "named": list(named_plans()), "greedy": _named("toy-greedy").greedy, "offered": vars(reader.read(choices)[3]),
    **{query or "all": [[row[titles.index(name)] for name in ("Program", "Toy greedy", "Toy")] for row in rows] for query, rows in tables.items()},
}))
"""


def test_an_added_executor_has_its_columns_its_filter_and_its_plan(tmp_path: Path) -> None:
    place = having(HERE, toy="7")
    rows: dashboards.Rows = [(dashboards.ENVIRONMENT, place.row())]
    for number, there in enumerate((HERE, place)):
        rows += dashboards.program(number, f"p{number}")
        rows += dashboards.planned(number, place=there, wall_us=5.0)
    rows += dashboards.timing(1, "toy-greedy", 6.0, place=place)
    path = dashboards.write(tmp_path / "tuning.db", rows)
    ran = subprocess.run([sys.executable, "-c", ADDED, str(path)], check=True, capture_output=True, text=True)
    found = json.loads(ran.stdout)
    assert "toy-greedy" in found["named"]
    assert found["greedy"] == "toy"
    assert found["offered"] == {"name": "toy", "title": "Toy", "offered": ["7", "none"]}
    assert sorted(found["all"]) == [["p0", None, None], ["p1", 6.0, "7"]]
    assert found["toy=7"] == [["p1", 6.0, "7"]]
    assert found["toy=8"] == []


def test_versions_in_words() -> None:
    assert told({"nvfuser": "0.2.36", "unheard": "1"}) == " · nvFuser 0.2.36 · unheard 1"
