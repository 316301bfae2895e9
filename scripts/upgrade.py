"""What an upgrade of torch does to programs that were tuned before it: five small ones, tuned by one Python and raced again by another.

    python scripts/upgrade.py OLD_PYTHON NEW_PYTHON FOLDER

Each is a Python that has fuseplan and its own version of torch. Everything that is made goes into FOLDER.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

EFFORT = "instant"


def programs() -> Iterator[tuple[str, Callable[..., object], tuple[object, ...]]]:
    """The programs by name, with what they are called with."""
    import torch
    import torch.nn.functional as F

    torch.manual_seed(0)
    w1, w2 = torch.randn(256, 1024) / 16, torch.randn(1024, 256) / 32
    images = torch.nn.Sequential(torch.nn.Conv2d(8, 16, 3, padding=1), torch.nn.BatchNorm2d(16), torch.nn.ReLU()).eval()

    def mlp(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(F.gelu(x @ w1) @ w2 + x, (256,))

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def pooled(x: torch.Tensor) -> torch.Tensor:
        return images(x).mean((2, 3))

    def loss(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(x * 0.5, target)

    def gated(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (F.silu(x) * y).square().mean(-1, keepdim=True).rsqrt() * x

    heads = [torch.randn(2, 4, 128, 32) for _ in range(3)]
    yield "mlp", mlp, (torch.randn(512, 256),)
    yield "attention", attention, tuple(heads)
    yield "pooled", pooled, (torch.randn(4, 8, 56, 56),)
    yield "loss", loss, (torch.randn(512, 2000), torch.randint(2000, (512,)))
    yield "gated", gated, (torch.randn(512, 1024), torch.randn(512, 1024))


def record(folder: Path) -> None:
    """Write a trace of each program."""
    import torch

    import fuseplan

    folder.mkdir(parents=True, exist_ok=True)
    with torch.no_grad():
        for name, call, given in programs():
            (trace,) = fuseplan.traces_of(call, *given, name=name)
            (folder / f"{name}.json").write_text(trace.to_json())


def version_of(python: str) -> str:
    """The version of torch that a Python has."""
    return subprocess.run(
        [python, "-c", "import torch; print(torch.__version__)"], check=True, capture_output=True, text=True
    ).stdout.strip()


def main(old: str, new: str, folder: Path) -> None:
    """Tune under the old torch, race what is stale under the new one, and compare."""
    traces, database = folder / "traces", folder / "upgrade.db"

    def run(python: str, *arguments: str, codes: tuple[int, ...] = (0,)) -> None:
        print(f"$ {' '.join(arguments)}", flush=True)
        done = subprocess.run(
            [python, "-c", "from fuseplan.cli.main import main; main()", *arguments, "--db", str(database)], check=False
        )
        if done.returncode not in codes:
            raise SystemExit(f"{' '.join(arguments)} ended with {done.returncode}")

    subprocess.run([old, __file__, "record", str(traces)], check=True)
    run(old, "tune", str(traces), "--effort", EFFORT, "--profile")
    run(new, "tune", "--stale", "--dry-run")
    run(new, "tune", "--stale")
    run(new, "diff", f"torch=={version_of(old)}", f"torch=={version_of(new)}", "--kernels", codes=(0, 1))


if __name__ == "__main__":
    if sys.argv[1] == "record":
        record(Path(sys.argv[2]))
    else:
        main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
