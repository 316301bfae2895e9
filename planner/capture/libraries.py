"""Operators that other libraries brought: from where, so that a process which meets a trace with them can have them too."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Mapping, Sequence

import torch
from torch._library import custom_ops

from fuseplan.errors import ExecutorError
from fuseplan.graph.limits import short

_TORCHS = ("aten", "prim", "prims", "quantized", "fuseplan")
"""Namespaces that are there wherever fuseplan is."""
_PLACE = re.compile(r"registered at (.+):\d+")


def modules_of_operators() -> dict[str, str]:
    """The module that brought each operator which this process has beside those of torch's C++, by the operator's name.

    One that a script defines in itself is not among them: to import it would run the script.

    >>> "aten::add" in modules_of_operators()
    False
    """
    by_file = {file: name for name, one in [*sys.modules.items()] if (file := getattr(one, "__file__", None))}
    found = [(name, _home(name, by_file)) for name in sorted(_registered())]
    return {name: module for name, module in found if module is not None and module != "__main__"}


def bring(text: str, modules: Mapping[str, str], path: Sequence[str] = ()) -> None:
    """Import what brings the operators that a trace, as text, names; from folders of `path` too.

    ExecutorError where one of them cannot be imported.

    >>> bring('"target": "ops.lib.op.default"', {"lib::op": "no_such_module"})
    Traceback (most recent call last):
    ...
    fuseplan.errors.ExecutorError: no_such_module, which brings lib::op, cannot be imported: No module named 'no_such_module'
    """
    for name, module in modules.items():
        if f'"ops.{name.replace("::", ".")}' in text and module not in sys.modules:
            here = list(sys.path)
            sys.path += [folder for folder in path if folder not in here]
            try:
                importlib.import_module(module)
            except Exception as error:  # a library may fail with anything
                why = str(error).splitlines()[0] if str(error) else type(error).__name__
                raise ExecutorError(f"{module}, which brings {name}, cannot be imported: {short(why)}") from error
            finally:
                sys.path[:] = here


def _registered() -> set[str]:
    listed = getattr(torch._C, "_dispatch_get_all_op_names", list)  # private: without it, nothing is known
    names = {name.partition(".")[0] for name in listed()}
    return {name for name in names if name.partition("::")[0] not in _TORCHS}


def _home(name: str, by_file: Mapping[str, str]) -> str | None:
    """The module that one operator is from, as its decorator, its registration or its namespace tell."""
    decorated = getattr(custom_ops, "OPDEFS", {}).get(name)
    if decorated is not None:
        return getattr(getattr(decorated, "_init_fn", None), "__module__", None)
    dump = getattr(torch._C, "_dispatch_dump", str)(name)
    files = (by_file.get(place.group(1)) for place in _PLACE.finditer(dump))
    modules = [module for module in files if module is not None and not module.startswith("torch.")]
    if modules:
        return modules[0]
    namespace = name.partition("::")[0]
    named = [one for one in sys.modules if one == namespace or one.endswith(f".{namespace}")]
    return min(named, key=len, default=None)
