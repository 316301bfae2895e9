"""Every error that fuseplan raises on purpose.

    FuseplanError
    ├── GraphError          a graph that is malformed, or that cannot be written down
    ├── PlanError           a plan that does not fit the graph it is meant for
    │   └── NoRoomError     a plan that fits, and takes more memory here than it may
    ├── OptionError         an option or argument that fuseplan does not know
    ├── UnsupportedError    an executor was given what it had said no to
    ├── ExecutorError       an executor could not compile or run a region here
    └── StoreError          a tuning database that cannot be used, or input that does not belong in one

A message says what was wrong, where, and what to do next.
"""


class FuseplanError(Exception):
    """The base of all errors that fuseplan raises on purpose."""


class GraphError(FuseplanError):
    """A graph is malformed, or cannot be written down."""


class PlanError(FuseplanError):
    """A plan does not fit the graph that it is meant for."""


class NoRoomError(PlanError):
    """A plan takes more memory than there is for it here, or than an option allows."""


class OptionError(FuseplanError, ValueError):
    """An option or argument is not one that fuseplan knows."""


class UnsupportedError(FuseplanError):
    """An executor was given a region that it had said no to."""


class ExecutorError(FuseplanError):
    """An executor could not compile or run a region on this machine."""


class StoreError(FuseplanError):
    """A tuning database cannot be used, or what was given to it does not belong there."""
