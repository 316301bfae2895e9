"""What is right: the same program in higher precision, how far eager moves while nothing is wrong, and the comparison with both.

In the order of the flow: `ranges` says which numbers an input of a region may hold, and `inputs` draws them, as `trials` has them;
`evaluate` runs a graph op by op, `reference` widens it, and `moved` runs eager otherwise, with `rounding` for noise and `reordered` for sums; `spread` learns
from that, `expect` makes of it what a program should give and `expected_region` what a region should; `memory` and `compare` hold
one value against that, `programs` all of a program and `regions` all of a region; `chances` does so where numbers of a program are
random, `output` is what is told of it. Where torch.compile is wrong `culprit` looks for the op in which it is, or for rounding
everywhere; `parts` cuts programs into smaller ones for that, and `shown` writes a fault down as a script.
"""
