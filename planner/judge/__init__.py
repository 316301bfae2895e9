"""What is right: the same program in higher precision, how far eager itself is off, and the comparison of regions and programs.

In the order of the flow: `ranges` says which numbers an input may hold, and `inputs` draws them; `evaluate` runs a graph op by op,
`rounding` shakes that run, `reference` widens it, and `truth` makes of it what outputs should be; `memory` and `compare` hold
tensors against that; `regions` judges a compiled region so, and `programs` a whole program, only as closely as rounding that has
gone through all of it allows.
"""
