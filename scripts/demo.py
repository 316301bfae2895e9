"""The main job, run by scripts/demo: small programs under every plan that needs no tuning, compared with eager."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

from fuseplan.plan import NAMED


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
    """A program to show, and how to make the inputs it is called with."""

    name: str
    module: nn.Module
    make_input: Callable[[], Tensor]


def programs(device: str) -> list[Program]:
    """The two programs, at the sizes of the original reports where there is a GPU, and smaller where there is none."""
    rows, columns = (8192, 3072) if device == "cuda" else (512, 192)
    return [
        Program("transformer block", Block(64, 4).to(device), lambda: torch.randn(2, 32, 64, device=device)),
        Program("gelu between views", GeluBetweenViews(), lambda: torch.randn(rows, columns, device=device)),
    ]


def run(call: Callable[[Tensor], Tensor], module: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """The output of a call, and the gradients of its input and of all parameters."""
    x = x.clone().requires_grad_()
    module.zero_grad()
    output = call(x)
    output.square().sum().backward()
    gradients = {f"gradient of {name}": each.grad for name, each in [("input", x), *module.named_parameters()]}
    return {"output": output.detach(), **{name: grad for name, grad in gradients.items() if grad is not None}}


def difference(found: dict[str, Tensor], expected: dict[str, Tensor]) -> tuple[float, str]:
    """The largest difference, and what does not agree ("" if all does)."""
    largest = max(float((found[name] - tensor).abs().max()) for name, tensor in expected.items() if name in found)
    try:
        # A gradient sums many terms in an order of the plan's own: 1e-4 is what fp32 leaves of them.
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    except AssertionError as error:
        return largest, str(error)
    return largest, ""


def main() -> int:
    """Run all programs under all plans, print the table, and return 1 if any result differs from eager's."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    console = Console()
    table = Table(
        "program", "plan", "compared", "largest difference", "agrees with eager", title=f"fuseplan on {device}"
    )
    complaints = []
    for program in programs(device):
        x = program.make_input()
        expected = run(program.module, program.module, x)
        for plan in NAMED:
            compiled = torch.compile(program.module, backend="fuseplan", options={"plan": plan})
            found = run(compiled, program.module, x)
            largest, complaint = difference(found, expected)
            table.add_row(program.name, plan, f"{len(found)} tensors", f"{largest:.1e}", "no" if complaint else "yes")
            complaints += [f"{program.name}, {plan}: {complaint}"] if complaint else []
    console.print(table)
    for complaint in complaints:
        console.print(complaint, markup=False)
    return bool(complaints)


if __name__ == "__main__":
    sys.exit(main())
