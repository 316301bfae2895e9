"""Between FX graphs of ATen operators and the Graph: what is kept whole, how targets are named, and both directions."""
