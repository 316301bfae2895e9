"""Plans the recorded programs without a clock, and compares every plan and verdict with those kept: `scripts/replay`.

raced            races over samples that are always the same: near ties, clear wins, noise
found_again      look-ups and stored plans in databases that commit 4a9fd47 has written
solved           the k best cuts of each recorded program, by launch and effort, by predictions and by measured times
predicted        whole runs of tuning with effort none
tuned_quick      the same with effort quick: what is measured in which order, joins across anchors, which plans are vetted and
                 raced, the verdict, its moves and evidence; later programs know the layers of earlier ones
tuned_plainly    the same by a model that does not know its doubts
tuned_full       the same with effort full

Times come from `benchmarks/results/search_tables` where they were measured, else from the roofline with an error that is always
the same; seconds pass where the pool says so. What is kept was written by commit 4a9fd47 under torch 2.13.
"""
