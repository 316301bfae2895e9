"""Rows between databases: export to lines, import of lines or of foreign files as data, and merge of one's own files."""

from fuseplan.tuning_db.exchange.export import Selection, export
from fuseplan.tuning_db.exchange.intake import (
    Bounds,
    IntakeReport,
    check_database,
    check_file,
    import_file,
    import_lines,
    merge,
    merge_whole,
)

__all__ = [
    "Bounds",
    "IntakeReport",
    "Selection",
    "check_database",
    "check_file",
    "export",
    "import_file",
    "import_lines",
    "merge",
    "merge_whole",
]
