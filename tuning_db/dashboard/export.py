"""All pages in one file that works from a disk without a network: style, scripts, Plotly and data are within it."""

from __future__ import annotations
