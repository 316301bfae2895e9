"""Attention that is written out: scores by a matmul, a softmax, a second matmul, whatever is added, masked or dropped between them.

In the order of the flow: `missed` (why something does not match), `versions` (which value an op reads), `layouts` and `contraction`
(axes by their names), `reduced` (one number for each row), `scores` (from the first matmul to the softmax), `softmax` (however it is
spelled), `weights` (from there to the second matmul), `lowest` (what a bias may hold), `match` (all of it together), `biases` (what
each may hide), `writer` (new nodes in a draft), `written`, `hidden` and `writing` (the same as one call), `site`, `kind`.
"""
