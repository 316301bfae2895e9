"""Option `verify="sampled"`: whether a stored plan is still faster than the default, in production. Reading order: `rounds` (which
calls are timed, and what their times say), `times` (of one call, on the host or the device), `guard` (of one program).
"""
