"""Runs a script as Python itself would: its arguments, its `__main__`, its output, its traceback and its exit code."""

from __future__ import annotations

import importlib.util
import os
import runpy
import shutil
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.machinery import SourceFileLoader
from pathlib import Path
from pkgutil import get_importer
from types import ModuleType, TracebackType

from fuseplan.errors import OptionError

INTERRUPTED = 130
"""What a shell sees of a command that Ctrl-C has ended."""


@dataclass(frozen=True)
class Script:
    """A file, or with `module` a module by its dotted name, and its arguments."""

    target: str
    args: tuple[str, ...] = ()
    module: bool = False

    @property
    def name(self) -> str:
        """What it is called, without folders and without its ending.

        >>> Script("examples/train.py").name, Script("examples.train", module=True).name
        ('train', 'train')
        """
        return self.target.split(".")[-1] if self.module else Path(self.target).stem

    def found(self) -> Script:
        """Itself; or the command of this name, where there is no such file and that is written in Python: `torchrun`."""
        if self.module or os.sep in self.target or Path(self.target).exists():
            return self
        place = shutil.which(self.target)
        return replace(self, target=place) if place is not None and _is_python(Path(place)) else self

    def check(self) -> None:
        """OptionError where there is no such script."""
        if not self.module:
            if not Path(self.target).exists():
                raise OptionError(f"there is no script {self.target}")
            if Path(self.target).is_dir() and not any(Path(self.target).glob("__main__.py*")):
                raise OptionError(f"{self.target} is a folder with no __main__.py in it")
            return
        sys.path.insert(0, os.getcwd())
        try:
            found = importlib.util.find_spec(self.target.split(".")[0])
        except (ImportError, ValueError):
            found = None
        finally:
            del sys.path[0]
        if found is None:
            raise OptionError(f"there is no module {self.target}")

    def run(self) -> None:
        """Run it to its end; what it raises is raised."""
        argv, path = sys.argv[:], sys.path[:]
        sys.argv[:] = [self.target, *self.args]
        sys.path.insert(0, os.getcwd() if self.module else str(Path(self.target).resolve().parent))
        try:
            if self.module:
                runpy.run_module(self.target, run_name="__main__", alter_sys=True)
            else:
                _run_path(self.target)
        finally:
            sys.argv[:], sys.path[:] = argv, path


def _is_python(file: Path) -> bool:
    with suppress(OSError), file.open("rb") as opened:
        return b"python" in opened.readline(256).partition(b"#!")[2]
    return False


def _run_path(target: str) -> None:
    """Run a file as `python FILE` does: `__file__` is absolute, `sys.argv[0]` is not. runpy makes both the same.

    When it has ended, `__main__` is again what it was: what runs at the exit of the process finds that.
    """
    path = os.path.join(os.getcwd(), target)
    if get_importer(path) is not None or path.endswith(".pyc"):  # a folder or a zip file with a __main__ in it
        runpy.run_path(target, run_name="__main__")
        return
    main = ModuleType("__main__")
    main.__file__, main.__loader__ = path, SourceFileLoader("__main__", path)
    vars(main)["__cached__"] = None
    before = sys.modules["__main__"]
    sys.modules["__main__"] = main
    try:
        exec(compile(Path(path).read_bytes(), path, "exec", dont_inherit=True), vars(main))
    finally:
        sys.modules["__main__"] = before


@dataclass(frozen=True)
class Ended:
    """How a script ended: what it raised, if it did."""

    error: BaseException | None = None

    def tell(self) -> int:
        """Print what Python prints of it, and return the exit code that Python gives it."""
        error = self.error
        if error is None:
            return 0
        if isinstance(error, SystemExit):
            if error.code is None or isinstance(error.code, int):
                return error.code or 0
            print(error.code, file=sys.stderr)  # noqa: T201 – as Python does
            return 1
        error = error.with_traceback(_of_the_script(error.__traceback__))
        sys.excepthook(type(error), error, error.__traceback__)
        return INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1


def run_to_end(script: Script) -> Ended:
    """Run a script; whatever it raises is how it ended."""
    try:
        script.run()
    except BaseException as error:  # noqa: BLE001 – a script may raise anything, and that is its own affair
        return Ended(error)
    return Ended()


def _of_the_script(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the script's own first line on."""
    ours = {__file__, runpy.__file__, "<frozen runpy>"}
    while trace is not None and trace.tb_frame.f_code.co_filename in ours:
        trace = trace.tb_next
    return trace
