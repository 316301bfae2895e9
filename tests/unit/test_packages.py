"""A folder that pyproject.toml forgets would be missing from the wheel without a word."""

from __future__ import annotations

from pathlib import Path

import pytest

from checks.packages import differences
from checks.project import ROOT


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with three packages, all listed."""
    (tmp_path / "pyproject.toml").write_text(
        '[tool.setuptools]\npackages = [\n    "fuseplan",\n    "fuseplan.models",\n]\n'
    )
    for folder in ("planner", "models"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").touch()
    return tmp_path


def test_this_repository_lists_all_its_folders() -> None:
    assert differences(ROOT) == []


def test_nothing_to_say_of_a_complete_list(project: Path) -> None:
    assert differences(project) == []


def test_a_new_folder_that_is_not_listed(project: Path) -> None:
    (project / "planner" / "graph").mkdir()
    (project / "planner" / "graph" / "__init__.py").touch()
    assert differences(project) == [f"{project}/planner/graph is not in `packages` of pyproject.toml as fuseplan.graph"]


def test_a_listed_folder_that_is_gone(project: Path) -> None:
    (project / "models" / "__init__.py").unlink()
    assert differences(project) == ["pyproject.toml lists fuseplan.models, but there is no such folder"]


def test_a_folder_without_init(project: Path) -> None:
    (project / "models" / "__init__.py").rename(project / "models" / "roofline.py")
    assert differences(project) == [f"{project}/models has no __init__.py"]


def test_a_file_that_hides_a_package(project: Path) -> None:
    (project / "planner" / "models.py").touch()
    assert differences(project) == [f"{project}/planner/models.py stands where the package fuseplan.models does"]


def test_a_folder_listed_twice(project: Path) -> None:
    path = project / "pyproject.toml"
    path.write_text(path.read_text().replace('    "fuseplan.models",\n', '    "fuseplan.models",\n' * 2))
    assert differences(project) == ["pyproject.toml lists fuseplan.models twice"]
