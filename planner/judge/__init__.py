"""What is right: the same program in higher precision, how far eager moves while nothing is wrong, and the comparison with both.

In the order of the flow: `ranges` says which numbers an input may hold, and `inputs` draws them; `evaluate` runs a graph op by op,
`rounding` shakes that run, `reference` widens it, and `truth` makes of it what outputs should be; `memory` and `compare` hold
tensors against that, and `regions` judges a compiled region so. Of a whole program `moved` runs eager otherwise, `spread` learns from
that, `expect` makes of it what outputs should be, `programs` compares, `chances` does so where numbers are random, `output` is what
is told of it, and `culprit` looks for the op that torch.compile gets wrong.
"""
