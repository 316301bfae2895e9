"""`import fuseplan`, and all that plans without running anything, start without torch."""

from __future__ import annotations

import json
import subprocess
import sys

from checks.layers import TORCH_FREE, unit_of
from checks.project import ROOT, modules


def loaded_after(code: str) -> set[str]:
    ran = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport json, sys\nprint(json.dumps(list(sys.modules)))"],
        check=True,
        capture_output=True,
        text=True,
    )
    return set(json.loads(ran.stdout))


def test_import_fuseplan_loads_no_other_package() -> None:
    loaded = loaded_after("import fuseplan")
    assert "fuseplan" in loaded
    assert not loaded & {"torch", "numpy", "optuna", "sklearn", "sqlite_utils", "click", "rich"}


def test_torch_free_layers_load_no_torch() -> None:
    names = [name for name in modules(ROOT) if any(unit_of(name) in layer for layer in TORCH_FREE)]
    loaded = loaded_after("\n".join(f"import {name}" for name in names))
    assert {"fuseplan.graph", "fuseplan.models", "fuseplan.tuning_db", "fuseplan.errors"} <= loaded
    assert "torch" not in loaded
