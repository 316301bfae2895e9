"""Run by scripts/wheel where fuseplan is installed from the wheel: is all of it there, and does PyTorch find it?"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.resources import files
from pathlib import Path

import fuseplan


def main(modules: list[str]) -> None:
    """Import each module, then compile through the entry point, as a user would."""
    assert Path(fuseplan.__file__).is_relative_to(sys.prefix), f"{fuseplan.__file__} is not the wheel's"
    for name in modules:
        import_module(name)
    assert files("fuseplan").joinpath("py.typed").is_file(), "the wheel has no py.typed"

    import torch

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x).sum(-1)

    x = torch.randn(8, 16)
    torch.testing.assert_close(torch.compile(f, backend="fuseplan", options={"plan": "aten"})(x), f(x))
    torch.testing.assert_close(torch.compile(f, backend="fuseplan")(x), f(x))
    print(
        f"The wheel of fuseplan {fuseplan.__version__} works: {len(modules)} modules, torch.compile finds the backend."
    )


if __name__ == "__main__":
    main(sys.argv[1:])
