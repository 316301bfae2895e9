"""Attention, the first kind of rewrite: its calls in a Dynamo graph, what is proven of their masks, and the kernels."""
