"""What is told of the memory that calls took."""

from __future__ import annotations

import pytest
import torch

from fuseplan.measure import memory
from fuseplan.measure.memory import Peak


@pytest.mark.parametrize(("most", "told"), [(3072, 2048), (1024, None), (512, None), (None, None)])
def test_calls_that_seem_to_take_nothing_on_a_cpu_have_no_known_peak(
    monkeypatch: pytest.MonkeyPatch, most: int | None, told: int | None
) -> None:
    held = {"VmRSS": 1024, "VmHWM": most}
    monkeypatch.setattr(memory, "kilobytes", lambda path, field: held[field])
    monkeypatch.setattr(memory, "_reset_peak", lambda: True)
    peak = Peak(torch.device("cpu"))
    peak.settle()
    assert peak.bytes() == told
