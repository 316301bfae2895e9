"""The main job, run by scripts/demo: three programs are tuned here, compared with eager, and replayed by a second process."""

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
from fuseplan.noise import faster
from fuseplan.tuning.program.result import Tuned

BUDGETS_S = {True: 100.0, False: 70.0}
"""For the programs that train, together, and for those that don't; compilers that have seen nothing yet may take a little longer."""
WRITTEN_OUT = "block with written-out attention"
WANTED = 1.15
"""How many times as fast as the best default attention that is written out is meant to become, beyond the noise."""
console = Console(highlight=False)


class Block(nn.Module):
    """A transformer block: attention and a feed-forward part, each after a layer norm and around a residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, kept: Tensor | None) -> Tensor:
        """One call that does it all."""
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def forward(self, x: Tensor, kept: Tensor | None = None) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        attended = self.attend(q, k, v, kept)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        fed: Tensor = self.down(F.gelu(self.up(self.norm2(x))))
        return x + fed


class WrittenOut(Block):
    """The same, with attention as many models write it: a learned bias by relative position, and sequences that are padded."""

    def __init__(self, width: int, heads: int, tokens: int) -> None:
        super().__init__(width, heads)
        self.bias = nn.Parameter(torch.randn(2 * tokens - 1, heads))
        place = torch.arange(tokens)
        self.register_buffer("distance", place[:, None] - place[None, :] + tokens - 1)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, kept: Tensor | None) -> Tensor:
        """Each step by itself, as one reads it in a paper."""
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        scores = scores + self.bias[self.distance].permute(2, 0, 1)
        if kept is not None:
            scores = scores.masked_fill(~kept[:, None, None, :], float("-inf"))
        return scores.softmax(-1) @ v


class GeluBetweenViews(nn.Module):
    """The case that started fuseplan: do the views belong inside the fusion, or outside?"""

    def forward(self, x: Tensor) -> Tensor:
        rows, columns = x.shape
        return F.gelu(x.view(64, rows // 64, columns)).view(rows, columns)


@dataclass(frozen=True)
class Program:
    """A program to show, and what it is called with."""

    name: str
    module: nn.Module
    inputs: tuple[Tensor, ...]
    """A gradient is taken for the first, where the program trains."""
    trains: bool = True

    @property
    def kind(self) -> str:
        """What is timed of it."""
        return "forward and backward" if self.trains else "forward alone"


def programs(device: str) -> list[Program]:
    """The programs, at the sizes of the original reports where there is a GPU, and smaller where there is none; the last one is a
    block of a small model of 512 tokens, of two sequences.
    """
    torch.manual_seed(0)
    rows, columns = (8192, 3072) if device == "cuda" else (1024, 768)
    tokens = 512
    kept = torch.arange(tokens) < torch.tensor([[tokens], [390]])
    inputs = [(rows, columns), (2, 64, 64), (2, tokens, 256)]
    first, second, third = (torch.randn(shape, device=device) for shape in inputs)
    return [
        Program("gelu between views", GeluBetweenViews(), (first,)),
        Program("transformer block", Block(64, 4).to(device), (second,)),
        Program(WRITTEN_OUT, WrittenOut(256, 8, tokens).to(device), (third, kept.to(device)), trains=False),
    ]


def run(call: Callable[..., Tensor], program: Program) -> dict[str, Tensor]:
    """The output of a call, and the gradients of its input and of all parameters where it trains."""
    x, *rest = program.inputs
    if not program.trains:
        with torch.no_grad():
            return {"output": call(x, *rest)}
    x = x.clone().requires_grad_()
    program.module.zero_grad()
    output = call(x, *rest)
    output.square().sum().backward()
    named = [("input", x), *program.module.named_parameters()]
    gradients = {f"gradient of {name}": each.grad for name, each in named}
    return {"output": output.detach(), **{name: grad for name, grad in gradients.items() if grad is not None}}


def tuned(device: str, database: Path) -> list[Tuned]:
    """Tune all programs, forward and backward together where there is a backward; on a slow machine no program takes the time of
    all others.
    """
    verdicts = []
    for trains, budget in BUDGETS_S.items():
        traces = []
        for program in programs(device):
            if program.trains == trains:
                x, *rest = program.inputs
                with torch.set_grad_enabled(trains):
                    inputs = (x.clone().requires_grad_(trains), *rest)
                    traces += fuseplan.traces_of(program.module, *inputs, name=program.name)
                torch._dynamo.reset()
        verdicts += fuseplan.tune(traces, effort="quick", budget=budget, db=database)
    return verdicts


def show(one: Tuned, kind: str) -> None:
    """What was raced, what came of it, and by which moves."""
    table = Table("plan", "µs a step", "against the best default", "", title=f"{one.name}, {kind}")
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


def said_of_attention(one: Tuned) -> str:
    """Whether attention that was written out gained what it is meant to, in one line: that is told, and decides nothing."""
    rewrites = () if one.plan is None else one.plan.rewrites
    ways = ", ".join(sorted({each.way for each in rewrites if each.kind == "written-attention"}))
    became = f"Written-out attention became one call ({ways})" if ways else "Written-out attention stayed as it is"
    if one.speedup is None or one.noise is None or all(each.default for each in one.timed):
        return f"{became}: there was no time here to race anything but the defaults."
    if one.status == "tuned" and ways and faster(WANTED / one.speedup, 1.0, one.noise):  # in steps of the default
        return f"{became}: more than {WANTED} times as fast as the best default, beyond the noise."
    short = "" if one.speedup < WANTED else ", and this is within it"
    return f"{became}: it is {one.speedup:.2f} times as fast as the best default here; the goal is {WANTED} beyond the noise{short}."


def replay(device: str, database: Path) -> dict[str, object]:
    """Run all programs with the plans that are stored: what `fuseplan.stats` counts, and what differs from eager."""
    complaints = []
    for program in programs(device):
        torch._dynamo.reset()  # else the sizes of two blocks, which share their code, would be one that varies
        expected = run(program.module, program)
        found = run(fuseplan.compile(program.module, db=database), program)
        try:
            # A gradient sums many terms in an order of the plan's own: 1e-4 is what fp32 leaves of them.
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        except AssertionError as error:
            complaints.append(f"{program.name}: {error}")
    return {"stats": fuseplan.stats(), "complaints": complaints}


def main(arguments: list[str]) -> int:
    """Tune here, replay in a process of its own; 1 if a result differs from eager's, or a plan that is kept is not found."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if arguments:
        print(json.dumps(replay(device, Path(arguments[0]))))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder) / "tuning.db"
        console.print(f"fuseplan tunes three programs on {device}: about three minutes …")
        verdicts = tuned(device, database)
        kinds = {program.name: program.kind for program in programs(device)}
        for one in verdicts:
            show(one, kinds[one.name])
            if one.name == WRITTEN_OUT:
                console.print(said_of_attention(one), markup=False)
        again = subprocess.run([sys.executable, __file__, str(database)], stdout=subprocess.PIPE, check=True)
    second = json.loads(again.stdout.splitlines()[-1])
    hits, kept = second["stats"].get("plan hits", 0), [one for one in verdicts if one.status in ("tuned", "default")]
    console.print(f"A second process finds {hits} of {len(kept)} plans in the database: {second['stats']}")
    console.print(
        "Results equal eager's." if not second["complaints"] else "\n".join(second["complaints"]), markup=False
    )
    failed = not kept or any(one.status == "failed" for one in verdicts)  # that no time was left for one is no fault
    return int(bool(second["complaints"]) or hits != len(kept) or failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
