"""The worker process: ``python -m fuseplan.measure.worker`` answers jobs from stdin until it closes. See `pool`.

It stands above the rest of fuseplan, as the command line does: it compiles programs the way that a user does.
"""
