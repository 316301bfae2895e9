"""Measurements, each a module with `measure(arguments)`; `scripts/bench NAME` runs one and writes its result file."""
