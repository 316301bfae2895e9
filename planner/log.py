"""The package's logger: silent unless the program that uses fuseplan sets logging up."""

from __future__ import annotations

import logging

logger = logging.getLogger("fuseplan")
logger.addHandler(logging.NullHandler())
