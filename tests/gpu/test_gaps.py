"""The logits of a language model as a padded matmul leaves them, under either launch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fuseplan.backend import programs_of
from fuseplan.executors import GAPS
from fuseplan.explain import compiled_by
from fuseplan.plan import CarveOuts, Plan
from fuseplan.segment import Region, Segmentation


def logits(x: Tensor, w: Tensor) -> Tensor:
    return torch.relu(x) @ w.t()


@pytest.mark.parametrize("launch", ["plain", "cudagraph"])
def test_logits_with_gaps_are_eagers(launch: str) -> None:
    torch.manual_seed(0)
    x, w = (torch.randn(*shape, device="cuda", dtype=torch.bfloat16) for shape in ((4, 1024, 768), (50257, 768)))
    with torch.no_grad():
        compiled = torch.compile(logits, backend="fuseplan", options={"plan": "aten"})
        compiled(x, w)
        (record,) = programs_of(compiled_by(compiled))[0].graphs
        (matmul,) = (i for i, op in enumerate(record.graph.ops) if op.target == "aten.mm.default")
        cut = Segmentation((Region((matmul,), "inductor", GAPS),))
        plan = Plan("aten", carve_outs=(CarveOuts("inference", record.graph.key, cut),), launch=launch)
        torch._dynamo.reset()
        compiled = torch.compile(logits, backend="fuseplan", options={"plan": plan})
        for _ in range(4):
            found = compiled(x, w)
            torch.testing.assert_close(found, logits(x, w), rtol=0.02, atol=0.25)
    (record,) = programs_of(compiled_by(compiled))[0].graphs
    assert not [region.fallback for region in record.regions if region.fallback]
    assert found.stride() in ((1024 * 50264, 50264, 1), (1024 * 50257, 50257, 1))
