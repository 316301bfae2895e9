"""What every test that compiles starts from, on the CPU and on the GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from unnoted import leave_unnoted

leave_unnoted()


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    """Nothing is compiled or counted yet; one thread adds up, so that sums have one order; and random numbers are those of the last run,
    whatever other tests have drawn in this process.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()
