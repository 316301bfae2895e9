"""Tuning one program. Its stages, in reading order:

problem      a captured program: its graphs, and who could run what of them; frozen
knowledge    what is known of its regions; the one object that changes
services     the database, the workers and who watches; `budget`, the time that is left
baseline     the plans that need no search: the defaults, and whole programs with other anchors; `sparing`, those that take less memory
check_plans  whole plans compiled and checked, as long as there is time to race them
propose      the best cuts by what is known; `layers`, what other programs of these layers have shown
picking      what is worth measuring next, by `acquisition` and `spending`; `coarser`, regions across anchors
measure      regions checked, raced and kept; `rounds` goes from proposing to measuring and back
combine      the cuts as whole plans to race, kept as a study
search       the search under one launch, with its `entries` in a race; `launches`, several that race together
race         whole plans raced end to end, and the verdict
result       what is kept, with its `evidence` and `moves`, and told

`flow` calls them one after another, and `tuner` tunes one program after another on one device.
"""
