"""From what PyTorch gives (Dynamo's graph, AOTAutograd's graphs) to the Graph, and back to FX.

The names load on first use: a trace is data, and whoever only reads traces needs no torch.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fuseplan.capture.from_fx import Captured, capture_fx, from_fx
    from fuseplan.capture.to_fx import fake_inputs, recalled, to_fx

__all__ = ["Captured", "capture_fx", "fake_inputs", "from_fx", "recalled", "to_fx"]

_HOME = {
    "Captured": "fuseplan.capture.from_fx",
    "capture_fx": "fuseplan.capture.from_fx",
    "from_fx": "fuseplan.capture.from_fx",
    "fake_inputs": "fuseplan.capture.to_fx",
    "recalled": "fuseplan.capture.to_fx",
    "to_fx": "fuseplan.capture.to_fx",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fuseplan.capture' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


class _Package(ModuleType):
    """Keeps `from_fx` and `to_fx` the functions: importing the modules of these names would put them in their place."""

    def __setattr__(self, name: str, value: object) -> None:
        if _HOME.get(name) == f"fuseplan.capture.{name}" and isinstance(value, ModuleType):
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
