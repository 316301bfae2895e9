"""Programs that call flex_attention by themselves, on a GPU: traced with their backward, and right under whole plans."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from fuseplan.capture.trace.format import Trace
from fuseplan.capture.trace.load import load_trace
from fuseplan.judge.expect import expect
from fuseplan.tuning.traces import traces_of

LENGTH = 512


class Block(nn.Module):
    """Attention within documents, with a slope for each head, under a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.out = nn.Linear(128, 384), nn.Linear(128, 128)
        self.slopes = nn.Buffer(torch.tensor([0.5, 0.25]))
        documents = torch.arange(LENGTH, device="cuda") // 200

        def is_seen(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return (documents[q] == documents[k]) & (q >= k)

        self.mask = create_block_mask(is_seen, None, None, LENGTH, LENGTH, "cuda")

    def forward(self, x: Tensor) -> Tensor:
        def sloping(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return score + self.slopes[h] * (k - q)

        query, key, value = self.heads(x).view(-1, LENGTH, 3, 2, 64).permute(2, 0, 3, 1, 4).unbind(0)
        found: Any = flex_attention(query, key, value, score_mod=sloping, block_mask=self.mask)
        return x + self.out(found.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("launch", ["plain", "cudagraph"])
@pytest.mark.parametrize("grad", [False, True])
def test_a_program_that_calls_flex_attention_is_right_as_a_whole(grad: bool, launch: str) -> None:
    torch._dynamo.reset()
    net = Block().cuda()
    with torch.set_grad_enabled(grad):
        (trace,) = traces_of(net, torch.randn(2, LENGTH, 128, device="cuda"), name="flex")
    loaded = load_trace(Trace.from_json(trace.to_json()), torch.device("cuda"))
    expected = expect(loaded)
    torch._dynamo.reset()
    compiled = torch.compile(
        loaded.module, backend="fuseplan", options={"plan": "inductor", "launch": launch, "tune": "off"}
    )
    for seed in (0, 1, 0, 1):
        judged = expected.judge(loaded.run(compiled, seed), seed, "gaps", wider=2.0)
        assert judged.problem is None
    assert sum(name.startswith("gradient") for name in loaded.run(compiled, 0)) == (4 if grad else 0)
