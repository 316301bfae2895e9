"""Does something as soon as a script has imported a module, so that it need not be imported before the script runs.

A script may set variables that torch reads when it is imported, such as the number of threads.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


@contextmanager
def once_imported(name: str, then: Callable[[Any], object]) -> Iterator[None]:
    """Call `then` with the module: now, if it is there, else when its import is done, if that is within this context.

    >>> with once_imported("json", lambda module: print(module.__name__)):
    ...     pass
    json
    """
    if name in sys.modules:
        then(sys.modules[name])
        yield
        return
    finder: Any = _Finder(name, then)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)


class _Finder:
    """Finds one module, as those after it would, and has its loader call back."""

    def __init__(self, name: str, then: Callable[[Any], object]) -> None:
        self.name, self.then = name, then

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        loader: Any = None if spec is None else spec.loader
        if loader is None:
            return spec
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module  # the loader's own again, for whoever loads the module anew
            execute(module)
            self.then(module)

        loader.exec_module = exec_module
        return spec
