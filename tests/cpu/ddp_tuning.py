"""One process of test_tuning_online: trains under DistributedDataParallel with tuning asked for, and tells which plans ran.

Called as ``python ddp_tuning.py RANK WORLD_SIZE STORE_FILE DATABASE``.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from agreement import assert_same
from fuseplan import lookup
from fuseplan.executors import executors
from fuseplan.measure.pool import Workers
from fuseplan.stats import stats
from fuseplan.tuning import effort
from fuseplan.tuning.program import problem
from stored import having

tuning = import_module("fuseplan.tune")
here = import_module("fuseplan.measure.environment")


@contextmanager
def pool(device: str, *_: object) -> Iterator[Workers]:
    """Workers, of which one vets."""
    with Workers(device) as workers:
        yield workers


class Net(nn.Module):
    """A module of one's own: the forward of torch's containers is not compiled inside of DistributedDataParallel."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.gelu(self.linear(x))


def step(net: DistributedDataParallel, call: nn.Module, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """The gradients of one step, averaged over all processes."""
    call(x).square().mean().backward()
    found = {name: value.grad.clone() for name, value in net.named_parameters() if value.grad is not None}
    net.zero_grad()
    return found


def main(rank: int, world: int, meet: str, db: str) -> None:
    """Train one step, wait for the first process to have tuned, and compile once more."""
    torch.set_num_threads(1)
    without = here.environment
    tuner = import_module("fuseplan.tuning.program.tuner")
    tuner.environment = here.environment = lambda device: having(without(device), inductor=None)  # it takes long
    lookup.missing_compiler = lambda *_: "no compiler in this test"  # type: ignore[assignment]
    problem.executors = lambda: {"aten": executors()["aten"]}
    effort.EFFORTS = (replace(effort.QUICK, rounds=1, plans=1, plan_blocks=7, device_s=5.0),)
    tuning.staying_workers = pool
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=world)
    torch.manual_seed(0)
    net = Net()
    eager, wrapped = (DistributedDataParallel(copy.deepcopy(net)) for _ in range(2))
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(rank))
    expected = step(eager, eager, x)
    known = []
    for _ in range(2):
        hits = stats().get("plan hits", 0)
        torch._dynamo.reset()
        call = torch.compile(wrapped, backend="fuseplan", options={"tune": "quick", "db": db})
        assert_same(step(wrapped, call, x), expected)
        known.append(stats().get("plan hits", 0) - hits)
        dist.barrier()  # by now the first has stored what it found
    print(json.dumps({"from the database": known, "tuned": stats().get("programs tuned when compiled", 0)}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:5])
