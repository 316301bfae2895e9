"""How SQLite opens a file that may be damaged, or somebody else's."""

from __future__ import annotations

import sqlite3
from pathlib import Path


def address(path: Path) -> str:
    """A file as SQLite takes it; what is asked of it may follow."""
    return "file:" + str(path).replace("%", "%25").replace("?", "%3f").replace("#", "%23")


def be_careful(connection: sqlite3.Connection) -> None:
    """Read a file that may be damaged, or somebody else's, without believing what it says of itself."""
    connection.text_factory = decoded
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")


def decoded(data: bytes) -> str:
    """Text that is no UTF-8 must not fail the query that meets it: its row's digest says that it is damaged."""
    return data.decode("utf-8", "surrogateescape")
