"""All pages, in the order of the navigation."""

from fuseplan.tuning_db.dashboard.page import Page
from fuseplan.tuning_db.dashboard.pages import overview, program, programs

PAGES: tuple[Page, ...] = (overview.PAGE, programs.PAGE, program.PAGE)
DOWNLOADS: tuple[Page, ...] = (programs.PAGE,)
"""Pages whose data is a table that can be downloaded, as /NAME.csv and /NAME.json."""
