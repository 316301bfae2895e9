"""Plans the recorded programs without a clock, and compares every plan and verdict with those kept: `scripts/replay`.

raced            races over samples that are always the same: near ties, clear wins, noise
found_again      look-ups and stored plans in databases that commit 4a9fd47 has written, and in one that was really tuned
solved           the k best cuts of each recorded program, and of those in the tuned database, by launch and effort, by
                 predictions and by measured times
predicted        whole runs of tuning with effort none
tuned_quick      the same with effort quick: what is measured in which order, joins across anchors, which plans are vetted and
                 raced, the verdict, its moves and evidence; later programs know the layers of earlier ones
tuned_plainly    the same by a model that does not know its doubts
tuned_full       the same with effort full

Times come from `benchmarks/results/search_tables` where they were measured, else from the roofline with an error that is always
the same; seconds pass where the pool says so. Nothing hangs on the last digits that a processor gives (`exact.py`), so that what
is kept holds on every kind of machine. Races, and look-ups in its own databases, stand as commit 4a9fd47 decided them. The other
sections were kept anew by a commit that changed the corpus and nothing that is planned: times on a grid are other times.
"""
