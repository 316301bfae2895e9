"""The Optuna study beside the search: its space, how points are named, the sampler, and the ledger of what was told."""
