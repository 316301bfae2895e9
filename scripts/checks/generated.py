"""Everything under docs/, and in README.md, that is written by a program: here it is written, or found to be out of date."""

from __future__ import annotations

import sys

from checks import figures, judged, reference, served, spared, under_thunder, written
from checks.project import ROOT
from checks.tables import unnamed


def main(arguments: list[str]) -> int:
    """Write the pages, or with --check only tell which are out of date."""
    pages = {
        **reference.pages(),
        **figures.pages(),
        **judged.pages(),
        **written.pages(),
        **under_thunder.pages(),
        **served.pages(),
        **spared.pages(),
    }
    for path, text in pages.items():
        for heading in unnamed(text):
            print(f"{path.relative_to(ROOT)}: a table below {heading!r} does not say on which machine", file=sys.stderr)
            return 1
    stale = {path: text for path, text in pages.items() if not path.exists() or path.read_text("utf-8") != text}
    if "--check" in arguments:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is out of date: run scripts/docs", file=sys.stderr)
        return bool(stale)
    for path, text in stale.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
