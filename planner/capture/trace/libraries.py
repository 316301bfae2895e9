"""Operators that other libraries brought: from where, so that a process which meets a trace with them can have them too."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch._library import custom_ops

from fuseplan.errors import ExecutorError, GraphError

_TORCHS = ("aten", "prim", "prims", "quantized", "fuseplan")
"""Namespaces that are there wherever fuseplan is."""
_HELPERS = ("torch.library", "torch._library.custom_ops", "torch._ops")
"""Modules that register what others define."""
_KNOWN = frozenset({
    "accelerate", "diffusers", "lightning", "sentence_transformers", "timm", "torchao", "torchaudio", "torchvision", "transformers",
})  # fmt: skip
"""Libraries that everybody has: what they bring is imported without being asked for. A trace is data, and may name any module."""
_SCRIPTS = ("__main__", "__mp_main__")
_PLACE = re.compile(r"registered at (.+):\d+")


def modules_of_operators() -> dict[str, str]:
    """The module that brought each operator which this process has beside those that torch always has, by its name.

    One that a script defines in itself is not among them: to import it would run the script. Nor is one that is written in
    C++, unless a module has the name of its namespace.

    >>> "aten::add" in modules_of_operators()
    False
    """
    return _homes(_registered())


def brought(targets: Iterable[str]) -> dict[str, str]:
    """The modules that brought the operators among the targets of a trace, as far as that is known.

    >>> brought(["ops.aten.add.Tensor", "torch.add"])
    {}
    """
    names = {"::".join(target.split(".")[1:3]) for target in targets if target.startswith("ops.")}
    others = {name for name in names if name.partition("::")[0] not in _TORCHS}
    return _homes(others & _registered()) if others else {}


def check_brought(modules: Mapping[str, str]) -> None:
    """GraphError where an operator of a trace is not here, which says what brings it. A trace imports nothing by itself but parts of
    libraries that are known.

    >>> check_brought({"lib::op": "no_such_module"})
    Traceback (most recent call last):
    ...
    fuseplan.errors.GraphError: there is no operator lib::op here, which no_such_module brings: fuseplan --import no_such_module
    """
    for name, module in modules.items():
        if not _is_here(name) and is_known(module):
            try:
                load(module, f", which brings {name},")
            except ExecutorError as error:
                raise GraphError(str(error)) from error
        if not _is_here(name):
            raise GraphError(f"there is no operator {name} here, which {module} brings: fuseplan --import {module}")


def is_known(module: str) -> bool:
    """Whether it is a part of a library that everybody has, and no script of it.

    >>> is_known("transformers.integrations.moe"), is_known("transformers.__main__"), is_known("transformers_of_mine")
    (True, False, False)
    """
    parts = module.split(".")
    return parts[0] in _KNOWN and all(part.isidentifier() and not part.startswith("__") for part in parts)


def _is_here(name: str) -> bool:
    namespace, _, operation = name.partition("::")
    return hasattr(getattr(torch.ops, namespace, None), operation)


def known_in(text: str) -> dict[str, str]:
    """What a trace, as text, says of its operators that libraries bring which everybody has.

    >>> known_in('{"libraries": {"torchvision::nms": "torchvision", "a::b": "mine"}}'), known_in("{}")
    ({'torchvision::nms': 'torchvision'}, {})
    """
    named = json.loads(text).get("libraries", {}) if '"libraries"' in text else {}
    return {name: module for name, module in named.items() if is_known(module)}


def bring(text: str, modules: Mapping[str, str], path: Sequence[str] = ()) -> bool:
    """Import what brings the operators that a trace, as text, names; tell whether anything was imported.

    The folders of `path` are searched after this process's own, from now on: an operator may import more when it runs.
    ExecutorError where one of them cannot be imported.

    >>> bring('"target": "ops.lib.op.default"', {"lib::op": "no_such_module"})
    Traceback (most recent call last):
    ...
    fuseplan.errors.ExecutorError: no_such_module, which brings lib::op, cannot be imported: No module named 'no_such_module'
    """
    wanted = {module: name for name, module in modules.items() if module not in sys.modules and _names(text, name)}
    if wanted:
        sys.path += [folder for folder in path if folder not in sys.path]
    for module, name in wanted.items():
        load(module, f", which brings {name},")
    return bool(wanted)


def load(module: str, aside: str = "") -> None:
    """Import a library. ExecutorError, in one line, where it fails: it is not ours, and may fail with anything."""
    try:
        importlib.import_module(module)
    except Exception as error:  # a library may fail with anything
        why = next(iter(str(error).splitlines()), type(error).__name__)
        raise ExecutorError(f"{module}{aside} cannot be imported: {why}") from error


def _names(text: str, name: str) -> bool:
    """Whether a trace calls an operator, be it one overload of it."""
    called = f'"ops.{name.replace("::", ".")}'
    return f'{called}"' in text or f"{called}." in text


def _registered() -> set[str]:
    listed = getattr(torch._C, "_dispatch_get_all_op_names", list)  # private: without it, nothing is known
    names = {name.partition(".")[0] for name in listed()}
    return {name for name in names if name.partition("::")[0] not in _TORCHS}


def _homes(names: Iterable[str]) -> dict[str, str]:
    modules = dict(sys.modules)  # others may import meanwhile
    by_file = {file: name for name, one in modules.items() if (file := getattr(one, "__file__", None))}
    by_last: dict[str, str] = {}
    for module in sorted(modules, key=len):
        by_last.setdefault(module.rpartition(".")[2], module)
    found = [(name, _home(name, by_file, by_last)) for name in sorted(names)]
    return {name: module for name, module in found if module is not None and module not in _SCRIPTS}


def _home(name: str, by_file: Mapping[str, str], by_last: Mapping[str, str]) -> str | None:
    """The module that one operator is from, as its decorator, its registration or its namespace tell."""
    decorated = getattr(custom_ops, "OPDEFS", {}).get(name)
    if decorated is not None:
        return getattr(getattr(decorated, "_init_fn", None), "__module__", None)
    dump = getattr(torch._C, "_dispatch_dump", str)(name)
    files = (by_file.get(place.group(1)) for place in _PLACE.finditer(dump))
    registering = next((module for module in files if module is not None and module not in _HELPERS), None)
    return registering or by_last.get(name.partition("::")[0])
