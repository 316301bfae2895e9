"""Collecting the rows that cost models learn from: regions of real models and made-up ones, measured under all executors.

`prepare` decides what to measure and needs no GPU; `crew` and `worker` measure it; `rowfile` keeps it.
"""
