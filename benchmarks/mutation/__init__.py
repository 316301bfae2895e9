"""How much of planner/ the tests hold: single changes, drawn by a seed, each run against the tests that reach its line.

sites     every operator, constant and condition that can be changed, and how
tree      a copy of a checkout in which they are changed: nothing is ever changed in the checkout itself
reached   which tests reach which lines, by one run of them all
"""
