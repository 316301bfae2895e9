"""Kernels of our own, in Triton, where libraries and compilers leave most of a GPU unused. Nothing here knows what calls it."""
