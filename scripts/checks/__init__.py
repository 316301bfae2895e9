"""What scripts/check holds this repository to, beyond what ruff and mypy know."""
