"""The dependency check finds what it is there to find, and finds nothing in the code as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from checks.layers import torch_in, violations


def found(tmp_path: Path, **sources: str) -> list[str]:
    """The complaints about a few modules, with file names cut off; `a__b` stands for fuseplan.a.b."""
    files = {}
    for name, source in sources.items():
        path = tmp_path / f"{name}.py"
        path.write_text(source)
        files[f"fuseplan.{name.replace('__', '.')}"] = path
    return [line.removeprefix(f"{tmp_path}/") for line in violations(files)]


@pytest.mark.parametrize(
    "line",
    ["from fuseplan.runtime import flat", "import fuseplan.runtime.flat", "from fuseplan import runtime"],
)
def test_an_import_against_the_direction(tmp_path: Path, line: str) -> None:
    assert found(tmp_path, graph__ir=line) == ["graph__ir.py:1: graph must not import runtime, which builds on it"]


@pytest.mark.parametrize("line", ["import torch", "import torch.fx as fx", "from torch.fx import Node"])
@pytest.mark.parametrize("module", ["graph__ir", "segment__moves", "models", "tuning_db__store", "plan"])
def test_torch_below_the_layers_that_may(tmp_path: Path, module: str, line: str) -> None:
    unit = module.split("__")[0]
    assert found(tmp_path, **{module: line}) == [f"{module}.py:1: {unit} must not import torch"]
    assert found(tmp_path, capture__x=line) == []


def test_an_import_inside_a_function_counts(tmp_path: Path) -> None:
    source = "def f():\n    from fuseplan.cli import main\n    return main"
    assert found(tmp_path, backend=source) == ["backend.py:2: backend must not import cli, which builds on it"]


def test_the_dashboard_is_not_the_database(tmp_path: Path) -> None:
    assert found(tmp_path, tuning_db__dashboard__app="from fuseplan.backend import compile") == []
    assert found(tmp_path, tuning_db__store="import fuseplan.tuning_db.dashboard") == [
        "tuning_db__store.py:1: tuning_db must not import tuning_db.dashboard, which builds on it"
    ]


def test_the_public_names_are_for_the_top_alone(tmp_path: Path) -> None:
    line = "from fuseplan import Graph"
    assert found(tmp_path, cli__doctor=line) == []
    assert found(tmp_path, runtime__flat=line) == [
        "runtime__flat.py:1: runtime imports fuseplan.Graph: name the module it comes from"
    ]
    assert found(tmp_path, tuning_db__store="from fuseplan import __version__") == []


def test_a_circle_within_a_layer(tmp_path: Path) -> None:
    assert found(tmp_path, capture__a="import fuseplan.executors.b", executors__b="import fuseplan.capture.a") == [
        "these import each other in a circle: capture -> executors -> capture"
    ]
    assert found(tmp_path, executors__b="import fuseplan.capture.a", capture__a="") == []


def test_a_module_without_a_place(tmp_path: Path) -> None:
    assert found(tmp_path, misc="") == ["misc.py: fuseplan.misc has no layer: give it one in layers.py"]


def test_unit_tests_that_would_need_torch(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text("import torchless\n")
    (tmp_path / "test_b.py").write_text("\nfrom torch import nn\n")
    assert torch_in(tmp_path) == [f"{tmp_path}/test_b.py:2: what is here runs without torch"]
