"""fuseplan plans how a PyTorch program is cut into fused kernels. The public names load on first use.

Importing fuseplan imports no torch: the tools that only read graphs and plans start in milliseconds.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fuseplan.backend import compile
    from fuseplan.bench import bench
    from fuseplan.bisect import bisect
    from fuseplan.capture.trace.format import Trace
    from fuseplan.diff import diff
    from fuseplan.doctor import doctor
    from fuseplan.draw import draw
    from fuseplan.errors import (
        ExecutorError,
        FuseplanError,
        GraphError,
        NoRoomError,
        OptionError,
        PlanError,
        StoreError,
        UnsupportedError,
    )
    from fuseplan.explain import explain
    from fuseplan.graph import Graph
    from fuseplan.judging import judge
    from fuseplan.plan import Plan
    from fuseplan.record import record
    from fuseplan.rerace import stale, tune_stale
    from fuseplan.run import run
    from fuseplan.runtime.merged import refresh
    from fuseplan.show import show
    from fuseplan.stats import stats
    from fuseplan.tune import agenda, tune
    from fuseplan.tuning.traces import traces_of
    from fuseplan.tuning_db.dashboard.serve import dashboard

__version__ = "0.2.0"

_HOME = {
    "ExecutorError": "fuseplan.errors",
    "FuseplanError": "fuseplan.errors",
    "Graph": "fuseplan.graph",
    "GraphError": "fuseplan.errors",
    "NoRoomError": "fuseplan.errors",
    "OptionError": "fuseplan.errors",
    "Plan": "fuseplan.plan",
    "PlanError": "fuseplan.errors",
    "StoreError": "fuseplan.errors",
    "Trace": "fuseplan.capture.trace.format",
    "UnsupportedError": "fuseplan.errors",
    "bench": "fuseplan.bench",
    "agenda": "fuseplan.tune",
    "bisect": "fuseplan.bisect",
    "compile": "fuseplan.backend",
    "dashboard": "fuseplan.tuning_db.dashboard.serve",
    "diff": "fuseplan.diff",
    "doctor": "fuseplan.doctor",
    "draw": "fuseplan.draw",
    "explain": "fuseplan.explain",
    "judge": "fuseplan.judging",
    "record": "fuseplan.record",
    "refresh": "fuseplan.runtime.merged",
    "run": "fuseplan.run",
    "show": "fuseplan.show",
    "stale": "fuseplan.rerace",
    "stats": "fuseplan.stats",
    "traces_of": "fuseplan.tuning.traces",
    "tune": "fuseplan.tune",
    "tune_stale": "fuseplan.rerace",
}

__all__ = [
    "ExecutorError",
    "FuseplanError",
    "Graph",
    "GraphError",
    "NoRoomError",
    "OptionError",
    "Plan",
    "PlanError",
    "StoreError",
    "Trace",
    "UnsupportedError",
    "__version__",
    "agenda",
    "bench",
    "bisect",
    "compile",
    "dashboard",
    "diff",
    "doctor",
    "draw",
    "explain",
    "judge",
    "record",
    "refresh",
    "run",
    "show",
    "stale",
    "stats",
    "traces_of",
    "tune",
    "tune_stale",
]


_ROOMS = ("thunder",)
"""Folders that a user means by their name, as in `fuseplan.thunder.executor()`, without importing them."""


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"fuseplan.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'fuseplan' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """Keeps `fuseplan.explain` the function: importing the submodule of that name would put the module in its place.

    `fuseplan.judge` has a home of another name, since there is a folder of its own: it stays unset until it is asked for.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if name in _HOME and isinstance(value, ModuleType):
            if _HOME[name] != f"fuseplan.{name}":
                return
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
