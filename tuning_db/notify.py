"""Says once what a user should know, of the database above all. Never an error: a program runs on without it."""

from __future__ import annotations

import warnings

from fuseplan.log import logger


def notify(text: str) -> None:
    """Log and warn; where warnings are made errors, only log."""
    logger.warning(text)
    try:
        warnings.warn(f"fuseplan: {text}", stacklevel=3)
    except Warning:
        return
