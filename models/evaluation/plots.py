"""The report as pictures: predicted against measured, regret against measurements spent, and coverage."""

from __future__ import annotations

import json
import os
from pathlib import Path

from fuseplan.charts import Panel, chart
from fuseplan.models.evaluation.evaluate import Report

NAME = "cost-model"
MOST_POINTS = 4000
"""Drawn in one panel: more would make a file of megabytes and not another picture."""
LEAST_US = 1.0


def write_report(report: Report, folder: Path) -> list[Path]:
    """Write cost-model.json and cost-model.svg, each at once or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        folder / f"{NAME}.json": json.dumps(report.figures, indent=2) + "\n",
        folder / f"{NAME}.svg": picture(report),
    }
    for path, text in files.items():
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    return list(files)


def picture(report: Report) -> str:
    """All panels side by side, as one SVG file."""
    return chart([_predictions(report), _regrets(report), _coverage(report)])


def _predictions(report: Report) -> Panel:
    pairs = list(zip(report.measured_us, report.predicted_us, report.unsure, strict=True))
    step = 1 + len(pairs) // MOST_POINTS
    shown = [one for one in pairs[::step] if min(one[:2]) >= LEAST_US]
    ends = [(x, x) for x in (LEAST_US, max([x for x, *_ in shown], default=10.0))]
    return Panel(
        "Regions of families left out",
        "measured, µs",
        "predicted, µs",
        {"": ends},
        log_x=True,
        log_y=True,
        points={
            "predicted": [(x, y) for x, y, unsure in shown if not unsure],
            "unsure": [(x, y) for x, y, unsure in shown if unsure],
        },
    )


def _regrets(report: Report) -> Panel:
    lines = {name: line for name, line in report.curves.items() if name != "random"}
    return Panel("Plans on replayed timings", "rows measured, %", "mean regret, %", lines)


def _coverage(report: Report) -> Panel:
    lines = {"as promised": [(50.0, 50.0), (95.0, 95.0)], **report.coverage}
    return Panel("Intervals", "promised, %", "held, %", lines, names_left=True)
