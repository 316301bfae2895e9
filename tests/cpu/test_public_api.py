"""Every public name resolves, is typed and documented, and every example in a docstring runs."""

from __future__ import annotations

import doctest
import inspect
import subprocess
import sys
from importlib import import_module

import pytest

import fuseplan
from checks.project import ROOT, modules

FUNCTIONS = [name for name in fuseplan.__all__ if inspect.isfunction(getattr(fuseplan, name))]
CLASSES = [
    name
    for name in fuseplan.__all__
    if inspect.isclass(value := getattr(fuseplan, name)) and not issubclass(value, fuseplan.FuseplanError)
]
WITH_EXAMPLES = [name for name, path in modules(ROOT).items() if ">>> " in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_public_function_has_types_and_an_example(name: str) -> None:
    function = getattr(fuseplan, name)
    signature = inspect.signature(function)
    untyped = [each.name for each in signature.parameters.values() if each.annotation is inspect.Parameter.empty]
    assert untyped == []
    assert signature.return_annotation is not inspect.Signature.empty
    assert ">>> " in (function.__doc__ or ""), f"the docstring of fuseplan.{name} shows no example"


@pytest.mark.parametrize("name", CLASSES)
def test_a_public_class_has_an_example_and_says_what_its_members_are(name: str) -> None:
    of = getattr(fuseplan, name)
    members = {key: value for key, value in vars(of).items() if not key.startswith("_") and hasattr(value, "__doc__")}
    routines = {key: value for key, value in members.items() if inspect.isroutine(value) or isinstance(value, property)}
    assert [key for key, value in routines.items() if not value.__doc__] == []
    texts = [of.__doc__, *(value.__doc__ for value in routines.values())]
    assert any(">>> " in (text or "") for text in texts), f"no docstring of fuseplan.{name} shows an example"


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_run(name: str) -> None:
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for test in doctest.DocTestFinder().find(import_module(name)):
        runner.run(test, clear_globs=False)  # Dynamo's guards still look at the names of what an example compiled
    assert runner.tries > 0
    assert runner.failures == 0


def test_importing_the_submodule_keeps_the_function() -> None:
    """Whichever of them is imported first: each process of its own has torch from the one that it is forked from."""
    script = """
import os, torch
for name in ("explain", "judge", "stats"):
    if not os.fork():
        exec(f"import fuseplan.{name}, fuseplan; print(name, callable(fuseplan.{name}), flush=True)")
        os._exit(0)
    os.wait()
"""
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == ["explain True", "judge True", "stats True"]
