"""Programs that compute nothing, such as what stands before a graph break: nobody records them, waits for them, or tunes them."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fuseplan
from fuseplan.capture.dynamo.computing import computes
from fuseplan.tuning.traces import traces_of


def handed_on(x: Tensor, y: Tensor) -> Tensor:
    """Two programs: one that hands a size on, and all else."""
    rows = x.shape[0]
    torch._dynamo.graph_break()
    return y[:rows] * 2 + x.sum()


def given(rows: int = 6) -> tuple[Tensor, Tensor]:
    x = torch.randn(rows, 3)
    torch._dynamo.mark_dynamic(x, 0)
    return x, torch.randn(64, 64)


def written(x: Tensor) -> None:
    x[0] = 1.0


def checked(x: Tensor) -> int:
    torch._check(x.shape[0] < 1000)
    return x.shape[0] * 2


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda x: x.shape[0], False),
        (lambda x: (x, x.shape[0] // 2), False),
        (checked, False),
        (lambda x: (x.shape[0] // 2, x + 1), True),
        (written, True),
        (lambda x: x.add_(1), True),
        (lambda x: x.view(-1), True),
        (lambda x: torch.arange(x.shape[0]), True),
    ],
    ids=["a size", "an input", "a check", "beside it", "a write", "in place", "a view", "made"],
)
def test_what_reads_sizes_alone_computes_nothing(call: Callable[..., Any], expected: bool) -> None:
    found = list[bool]()

    def backend(gm: Any, example_inputs: Any) -> Any:
        found.append(computes(gm))
        return gm.forward

    torch.compile(call, backend=backend)(given()[0])
    assert found == [expected]


def test_it_is_no_program_of_a_model() -> None:
    (trace,) = traces_of(handed_on, *given())
    assert trace.name == ""
    assert trace.fields["nodes"][0]["target"] == "operator.getitem"


def test_it_is_not_recorded() -> None:
    with fuseplan.record() as recording:
        compiled = fuseplan.compile(handed_on)
        compiled(*given())
    assert recording.notes == []
    assert [trace.fields["nodes"] != [] for trace in recording.programs] == [True]


@pytest.mark.parametrize("tune", ["later", "instant", "off"])
def test_it_runs_as_torch_compile_has_it_and_is_neither_tuned_nor_queued(
    tune: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("fuseplan.lookup.missing_compiler", lambda *_: "no compiler in this test")
    tuned = list[str]()
    monkeypatch.setattr(import_module("fuseplan.tune"), "tune_online", lambda gm, *_: tuned.append(str(gm.graph)))
    compiled = fuseplan.compile(handed_on, tune=tune, db=tmp_path / "tuning.db")
    before = fuseplan.stats()
    x, y = given()
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, y), handed_on(x, y))
    counted = {name: n - before.get(name, 0) for name, n in fuseplan.stats().items()}
    assert counted["programs"] == 2
    assert counted.get("plan misses: no such program", 0) == 1 + (
        tune == "instant"
    )  # it is asked for again once it was tuned
    assert counted.get("programs put into the queue", 0) == (tune == "later")
    assert len(tuned) == (tune == "instant")
    assert all("getitem" in graph for graph in tuned)
