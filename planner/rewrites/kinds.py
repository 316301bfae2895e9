"""The kinds of rewrite that there are: a new one is a file or a folder here, and one line of this list."""

from __future__ import annotations

from typing import Any

from fuseplan.rewrites.attention.kind import Attention
from fuseplan.rewrites.base import Kind

KINDS: dict[str, Kind[Any]] = {"attention": Attention()}
"""By the names that plans have for them."""
