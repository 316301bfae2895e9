"""Programs with their graphs, traces and plans, and regions: how their rows are made, and how the good ones are read back."""

from __future__ import annotations

import sqlite3

from fuseplan.errors import FuseplanError
from fuseplan.graph import Graph
from fuseplan.tuning_db import clock, schema
from fuseplan.tuning_db.columns import Row
from fuseplan.tuning_db.lookup import environment_of
from fuseplan.tuning_db.records import StoredPlan, trace_key


def plans_like(connection: sqlite3.Connection, prefix: str) -> list[StoredPlan]:
    """The plans whose keys begin with `prefix`; damaged ones are left out."""
    return _plans(connection, "WHERE substr(plan.key, 1, ?) = ?", len(prefix), prefix)


def plans_of_program(connection: sqlite3.Connection, program: str) -> list[StoredPlan]:
    """The plans of a program; damaged ones are left out."""
    return _plans(connection, "WHERE plan.program_id = (SELECT id FROM program WHERE key = ?)", program)


def _plans(connection: sqlite3.Connection, where: str, *values: object) -> list[StoredPlan]:
    found = []
    for row in schema.PLAN.good(connection, where, *values):
        environment = environment_of(connection, row["environment"])
        if environment is None:
            continue
        try:
            found.append(StoredPlan.of(row, environment))
        except FuseplanError:
            continue
    return found


def programs_like(connection: sqlite3.Connection, prefix: str) -> list[str]:
    """The keys of programs that begin with `prefix`."""
    found = schema.PROGRAM.good(connection, "WHERE substr(program.key, 1, ?) = ?", len(prefix), prefix)
    return [str(row["key"]) for row in found]


def names_of(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    """Key and name of each program that has one."""
    return [(str(row["key"]), str(row["name"])) for row in schema.PROGRAM.good(connection) if row["name"] is not None]


def graphs_of(connection: sqlite3.Connection, program: str) -> list[tuple[str, str, str]]:
    """Role, key and text of each graph of a program."""
    links = schema.PROGRAM_GRAPH.good(connection, "WHERE program_.key = ? ORDER BY program_graph.id", program)
    return [
        (str(link["role"]), str(row["key"]), str(row["json"]))
        for link in links
        for row in schema.GRAPH.good(connection, "WHERE graph.key = ?", link["graph"])
    ]


def readable(text: str) -> Graph | None:
    """A stored graph; None where its text is none."""
    try:
        return Graph.from_json(text)
    except FuseplanError:
        return None


def traces_where(connection: sqlite3.Connection, where: str, argument: str) -> list[tuple[str, str]]:
    """Keys and texts of traces."""
    return [(str(row["key"]), str(row["json"])) for row in schema.TRACE.good(connection, f"WHERE {where}", argument)]


def trace_row(program: str, sizes: str, text: str, calls: int) -> Row:
    """The logical row of a trace."""
    key = trace_key(program, sizes)
    return {"key": key, "program": program, "sizes": sizes, "json": text, "calls": calls, "changed_at": clock.now()}


def program_row(key: str, name: str | None) -> Row:
    """The logical row of a program."""
    # Without a name there is nothing to say yet, and whatever is known of the program is newer.
    return {"key": key, "name": name, "changed_at": clock.now() if name is not None else clock.BEGINNING}


def graph_row(graph: Graph) -> Row:
    """The logical row of a graph."""
    return {"key": graph.key, "ops": len(graph.ops), "json": graph.to_json()}


def region_row(region: Graph) -> Row:
    """The logical row of a region."""
    return {"key": region.key, "title": title(region), "ops": len(region.ops), "json": region.to_json()}


def title(region: Graph) -> str:
    """What a person calls a region: its ops in order, repetitions counted."""
    words: list[list[object]] = []
    for op in region.ops:
        name = op.target.split(".")[1] if op.target.count(".") else op.target
        if words and words[-1][0] == name:
            words[-1][1] = int(str(words[-1][1])) + 1
        else:
            words.append([name, 1])
    text = ", ".join(str(name) if times == 1 else f"{name} ×{times}" for name, times in words)
    return text if len(text) <= 400 else f"{text[:399]}…"
