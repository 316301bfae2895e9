"""The main job, run by scripts/demo: two small programs are tuned here, compared with eager, and replayed by a second process."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

import fuseplan
from fuseplan.tuning.program.result import Tuned

BUDGET_S = 100.0
"""For both programs; compilers that have seen nothing yet may take a little longer."""
console = Console(highlight=False)


class Block(nn.Module):
    """A transformer block: attention and a feed-forward part, each after a layer norm and around a residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        fed: Tensor = self.down(F.gelu(self.up(self.norm2(x))))
        return x + fed


class GeluBetweenViews(nn.Module):
    """The case that started fuseplan: do the views belong inside the fusion, or outside?"""

    def forward(self, x: Tensor) -> Tensor:
        rows, columns = x.shape
        return F.gelu(x.view(64, rows // 64, columns)).view(rows, columns)


@dataclass(frozen=True)
class Program:
    """A program to show, and the input it is called with."""

    name: str
    module: nn.Module
    x: Tensor


def programs(device: str) -> list[Program]:
    """The two programs, at the sizes of the original reports where there is a GPU, and smaller where there is none."""
    torch.manual_seed(0)
    rows, columns = (8192, 3072) if device == "cuda" else (1024, 768)
    x = torch.randn(2, 64, 64, device=device)
    return [
        Program("gelu between views", GeluBetweenViews(), torch.randn(rows, columns, device=device)),
        Program("transformer block", Block(64, 4).to(device), x),
    ]


def run(call: Callable[[Tensor], Tensor], program: Program) -> dict[str, Tensor]:
    """The output of a call, and the gradients of its input and of all parameters."""
    x = program.x.clone().requires_grad_()
    program.module.zero_grad()
    output = call(x)
    output.square().sum().backward()
    named = [("input", x), *program.module.named_parameters()]
    gradients = {f"gradient of {name}": each.grad for name, each in named}
    return {"output": output.detach(), **{name: grad for name, grad in gradients.items() if grad is not None}}


def tuned(device: str, database: Path) -> list[Tuned]:
    """Tune both programs, forward and backward together."""
    traces = []
    for program in programs(device):
        traces += fuseplan.traces_of(program.module, program.x.clone().requires_grad_(), name=program.name)
        torch._dynamo.reset()
    return fuseplan.tune(traces, effort="quick", budget=BUDGET_S, db=database)


def show(one: Tuned) -> None:
    """What was raced, what came of it, and by which moves."""
    table = Table("plan", "µs a step", "against the best default", "", title=f"{one.name}, forward and backward")
    for each in sorted(one.timed, key=lambda each: each.wall_us or float("inf")):
        ratio = "" if each.wall_us is None or not one.best_default_us else f"{one.best_default_us / each.wall_us:.2f}×"
        said = "kept" if each.name == one.winner else "" if each.status == "ok" else f"{each.status}: {each.detail}"
        kind = "default" if each.default else "tuned"
        table.add_row(f"{each.name} ({kind})", "-" if each.wall_us is None else f"{each.wall_us:,.1f}", ratio, said)
    console.print(table)
    noise = f"noise {one.noise:.1%}" if one.noise is not None else "noise unknown"
    if one.status == "tuned":
        console.print(
            f"{one.winner} is {one.speedup:.2f} times as fast as {one.best_default}, beyond the noise ({noise}):"
        )
    elif one.status == "default":
        console.print(f"{one.winner} stands: nothing is faster beyond the noise ({noise})")
    for move in one.moves:
        console.print(f"  {move.line}", markup=False)
    console.print(f"{one.measured} regions timed, {one.seconds:.0f} s\n{one.detail}", markup=False)


def replay(device: str, database: Path) -> dict[str, object]:
    """Run both programs with the plans that are stored: what `fuseplan.stats` counts, and what differs from eager."""
    complaints = []
    for program in programs(device):
        expected = run(program.module, program)
        found = run(fuseplan.compile(program.module, db=database), program)
        try:
            # A gradient sums many terms in an order of the plan's own: 1e-4 is what fp32 leaves of them.
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        except AssertionError as error:
            complaints.append(f"{program.name}: {error}")
    return {"stats": fuseplan.stats(), "complaints": complaints}


def main(arguments: list[str]) -> int:
    """Tune here, replay in a process of its own; 1 if a result differs from eager's, or a plan is not found."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if arguments:
        print(json.dumps(replay(device, Path(arguments[0]))))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder) / "tuning.db"
        console.print(f"fuseplan tunes two programs on {device}: about two minutes …")
        verdicts = tuned(device, database)
        for one in verdicts:
            show(one)
        again = subprocess.run([sys.executable, __file__, str(database)], stdout=subprocess.PIPE, check=True)
    second = json.loads(again.stdout.splitlines()[-1])
    hits = second["stats"].get("plan hits", 0)
    console.print(f"A second process finds {hits} of {len(verdicts)} plans in the database: {second['stats']}")
    console.print(
        "Results equal eager's." if not second["complaints"] else "\n".join(second["complaints"]), markup=False
    )
    return int(bool(second["complaints"]) or hits != len(verdicts) or any(one.status == "failed" for one in verdicts))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
