"""Processes that a script starts under `fuseplan record` and `fuseplan run`, which do as it does."""
