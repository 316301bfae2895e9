"""ATen: PyTorch's own operators, one by one, and the other ways to run a single anchor."""
