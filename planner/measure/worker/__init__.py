"""The worker process: ``python -m fuseplan.measure.worker`` answers jobs from stdin until it closes. See `pool`.

In the order of the flow: `serve` hears jobs, `answer` has each done, in a `workplace`, at a program that is `loaded`, or at a
region; `racing` times what they compiled, `machine` the machine. It stands above the rest of fuseplan, as the command line does:
it compiles programs the way that a user does.
"""
