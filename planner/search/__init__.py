"""Searching for plans: candidate regions, the k best segmentations, the two clocks, and the Optuna study as ledger."""
