"""One process of test_semantics_distributed: trains under DistributedDataParallel, compiled and eager, and compares.

Called as ``python ddp_worker.py RANK WORLD_SIZE STORE_FILE PLAN...``.
"""

from __future__ import annotations

import copy
import faulthandler
import os
import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from agreement import assert_same
from carving import every_second
from plans import compile_under

WIDTH = 384
CARVED = "carved"
"""Instead of a plan: Inductor is the host, and every second op is carved out."""


class Net(nn.Module):
    """Larger than a few of DDP's smallest buckets (1 MiB), at whose borders Dynamo cuts the graph."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.blocks = nn.Sequential(
            *(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.GELU()) for _ in range(blocks))
        )
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.blocks(x))
        return logits


def train(net: DistributedDataParallel, call: nn.Module, rank: int) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Three steps on data of this rank's own; the last gradients come back with the losses."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = call(torch.randn(4, WIDTH, generator=generator)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses, {name: value.grad.clone() for name, value in net.named_parameters() if value.grad is not None}


def compare(rank: int, world: int, plan: str) -> None:
    """Train both ways; what differs is an assertion that fails."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch.manual_seed(0)
    net = Net(2 if plan == CARVED else 4)  # at a border or at several: Inductor compiles each part
    eager, wrapped = (DistributedDataParallel(copy.deepcopy(net), bucket_cap_mb=1) for _ in range(2))
    expected = train(eager, eager, rank)
    call = torch.compile(wrapped, backend=every_second) if plan == CARVED else compile_under(plan, wrapped)
    actual = train(wrapped, call, rank)
    bitwise = plan != CARVED  # Inductor adds up in another order
    assert_same(actual, expected, bitwise=bitwise)
    assert_same(dict(wrapped.state_dict()), dict(eager.state_dict()), bitwise=bitwise)
    gathered = [torch.empty_like(wrapped.module.head.weight) for _ in range(world)]
    dist.all_gather(gathered, wrapped.module.head.weight.detach())
    assert_same(gathered[0], gathered[-1])
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert graphs >= 1, "nothing was compiled"


def main(rank: int, world: int, store: str, *plans: str) -> None:
    """Compare under each plan and leave; an assertion that fails is the exit status."""
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(120, exit=True)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    for plan in plans:
        compare(rank, world, plan)
        print(plan)
    dist.destroy_process_group()
    sys.stdout.flush()
    # All was compared: to let go of what is left of DDP may wait for ever for the other process, which has gone.
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
