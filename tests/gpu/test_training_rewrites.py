"""What a plan writes otherwise in training, on a GPU: heads of odd vocabularies, and tables of which few rows are read."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fuseplan
from fuseplan.plan import Plan, Rewrite
from fuseplan.rewrites.sites import Sites
from fuseplan.runtime.capture_place import SETTLING

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("fresh_compiler")]
VOCABULARY, WIDTH = 50_257, 256


class Words(nn.Module):
    """The smallest language model: a table of words, and a head that may be the same."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        logits = self.head(F.gelu(self.mix(self.words(ids))))
        return F.cross_entropy(logits.flatten(0, 1).float(), ids.flatten())


def tokens() -> Tensor:
    """Some far more often than others."""
    return (torch.rand(4, 512, device="cuda") ** 4 * VOCABULARY).long()


def trained(call: nn.Module, net: nn.Module, ids: Tensor) -> list[Tensor]:
    loss = call(ids)
    return [loss, *torch.autograd.grad(loss, list(net.parameters()))]


@pytest.mark.parametrize("launch", ["plain", "cudagraph"])
@pytest.mark.parametrize("host", ["inductor", "aten"])
@pytest.mark.parametrize("tied", [True, False])
def test_gradients_are_as_accurate_as_eager_s(tied: bool, host: str, launch: str) -> None:
    torch.manual_seed(0)
    net = Words(tied).cuda().bfloat16()
    exact = Words(tied).cuda().double()
    exact.load_state_dict(net.state_dict())
    call = fuseplan.compile(
        net, plan=Plan(host, (Rewrite("embedding", 0, "rows"), Rewrite("matmul", 0, "padded")), launch=launch)
    )
    for _ in range(SETTLING + 2):
        ids = tokens()
        want = trained(exact, exact, ids)
        errors = [
            [float((one - right).norm() / right.norm()) for one, right in zip(found, want, strict=True)]
            for found in (trained(call, net, ids), trained(net, net, ids))
        ]
        for ours, eager in zip(*errors, strict=True):
            assert ours <= 1.5 * eager + 1e-3, errors


def test_both_are_preferred() -> None:
    found: list[Sites] = []

    def look(gm: torch.fx.GraphModule, _: object) -> object:
        found.append(Sites.of(gm))
        return gm.forward

    torch.compile(Words(True).cuda().bfloat16(), backend=look)(tokens())  # type: ignore[arg-type]
    assert {site.named: site.preferred for site in found[0].placed if site.preferred} == {
        ("matmul", 0): "padded",
        ("embedding", 0): "rows",
    }
