"""A training loop under option reload, to whose program a plan comes while it runs: what its steps take, and whether the losses are those
of a loop that keeps what it has.

The plan is another launch of the program on a GPU, and each op by itself on a CPU: it stands for what a tuning elsewhere has found.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import torch

import fuseplan
from benchmarks.harness import options
from benchmarks.zoo import EVERY, case_of, fresh, load, step_of
from fuseplan.backend import programs_of
from fuseplan.explain import compiled_by
from fuseplan.measure.environment import environment
from fuseplan.plan import Plan
from fuseplan.tuning_db import Places, Store, StoredPlan

BEFORE, AFTER = 30, 30
"""Steps before the plan is there, and once it runs."""
MOST_S = 300.0


@dataclass
class Loop:
    """One training loop, always from the same weights and on the same batch."""

    model: str
    device: str
    asked: dict[str, Any]
    losses: list[float] = field(default_factory=list)
    steps_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        torch._dynamo.reset()
        case = case_of(self.model)
        model, inputs = load(case, self.device)
        self.optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        self.call = fuseplan.compile(fresh(model), **self.asked)
        self._step = step_of(self.call, model, inputs, train=True)

    def step(self) -> None:
        begin = perf_counter()
        loss = self._step()
        self.optimizer.step()
        self.losses.append(float(loss.detach()))
        self.steps_s.append(perf_counter() - begin)

    @property
    def plans(self) -> list[Plan]:
        """What its programs run under."""
        return [program.plan for program in programs_of(compiled_by(self.call))]


def measure(arguments: list[str]) -> dict[str, Any]:
    """Each model that is named, else a small one."""
    chosen = options("reloading", __doc__, [name for name in EVERY if case_of(name).train]).parse_args(arguments)
    return {name: _measured(name, chosen.device) for name in chosen.only or ["tiny gpt2 train"]}


def _measured(name: str, device: str) -> dict[str, Any]:
    new = Plan("inductor", launch="cudagraph") if device.startswith("cuda") else Plan("aten")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "tuning.db"
        follows = Loop(name, device, {"db": path, "tune": "later", "reload": 0.5})
        for _ in range(BEFORE):
            follows.step()
        began, there = perf_counter(), len(follows.steps_s)
        store_plan(path, compiled_by(follows.call), new, device)
        waited = sum(1 for _ in _until(follows, new))
        changed_s = perf_counter() - began
        for _ in range(AFTER):
            follows.step()
        alone = Loop(name, device, {"db": path.with_name("none.db")})
        while len(alone.losses) < len(follows.losses):
            alone.step()
    return {
        "first_s": follows.steps_s[0], "step_s": median(follows.steps_s[1:there]), "after_s": median(follows.steps_s[-AFTER // 2 :]),
        "changed_over_s": changed_s, "steps_meanwhile": waited,
        "slowest_of_these_s": max(follows.steps_s[1:there], default=0.0), "slowest_since_s": max(follows.steps_s[there:]),
        "losses_apart": max(abs(a - b) / abs(b) for a, b in zip(follows.losses, alone.losses, strict=True)),
    }  # fmt: skip


def store_plan(path: Path, compiled: Any, plan: Plan, device: str) -> None:
    """Keep a plan for each program of what was compiled, as tuning it elsewhere would have."""
    here = environment(torch.device(device))
    store = Store(Places(path))
    for program in programs_of(compiled):
        assert program.key is not None
        if not store.add_plan(StoredPlan(program.key, here, plan, wall_us=1.0)):
            raise SystemExit(f"{path} takes no plan")
    store.close()


def _until(loop: Loop, plan: Plan) -> Iterator[None]:
    """Steps of a loop that goes on until all of it runs under a plan."""
    deadline = perf_counter() + MOST_S
    while any(each.identity != plan.identity for each in loop.plans):
        if perf_counter() > deadline:
            raise SystemExit(f"it had not changed over after {MOST_S:.0f} s")
        loop.step()
        yield
