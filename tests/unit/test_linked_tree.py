"""The linked tree stands in for an installation: the package imports from it, and its entry point is found."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from checks.linked_tree import make
from checks.project import ROOT

PROBE = """
from importlib.metadata import entry_points, version
import fuseplan, fuseplan.graph, fuseplan.models, fuseplan.tuning_db
print(fuseplan.__file__)
print(version("fuseplan") == fuseplan.__version__)
print([each.value for each in entry_points(group="torch_dynamo_backends") if each.name == "fuseplan"])
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the code, without what is built from it."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for folder in ("planner", "models", "tuning_db"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def test_it_is_a_package_with_an_entry_point(project: Path) -> None:
    place = make(project)
    ran = subprocess.run(
        [sys.executable, "-S", "-c", PROBE],  # -S: no site-packages, so no other fuseplan
        env={**os.environ, "PYTHONPATH": str(place)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.splitlines() == [
        f"{place}/fuseplan/__init__.py",
        "True",
        "['fuseplan.backend:fuseplan_backend']",
    ]


def test_making_it_again_drops_what_is_gone(project: Path) -> None:
    (project / "planner" / "gone.py").touch()
    make(project)
    (project / "planner" / "gone.py").unlink()
    place = make(project)
    assert not (place / "fuseplan" / "gone.py").is_symlink()
    assert (place / "fuseplan" / "errors.py").exists()
