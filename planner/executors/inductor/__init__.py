"""Inductor: a region compiled by TorchInductor by itself. `api` holds all that is private in PyTorch."""
