"""The solver, pure and torch-free: links, candidate regions, cuts, the k best, windows, the two clocks, whole programs."""
