"""All pages, in the order of the navigation."""

from fuseplan.tuning_db.dashboard.page import Page
from fuseplan.tuning_db.dashboard.pages import compare, lookups, model, overview, program, programs, run

PAGES: tuple[Page, ...] = (
    overview.PAGE, programs.PAGE, program.PAGE, compare.PAGE, model.PAGE, run.PAGE, lookups.PAGE,
)  # fmt: skip
DOWNLOADS: tuple[Page, ...] = (programs.PAGE, compare.PAGE)
"""Pages whose data is a table that can be downloaded, as /NAME.csv and /NAME.json."""
