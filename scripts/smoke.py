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
    without_triton = [name for name in modules if not _imports(name)]
    assert files("fuseplan").joinpath("py.typed").is_file(), "the wheel has no py.typed"

    import torch

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x).sum(-1)

    x = torch.randn(8, 16)
    torch.testing.assert_close(torch.compile(f, backend="fuseplan", options={"plan": "aten"})(x), f(x))
    torch.testing.assert_close(torch.compile(f, backend="fuseplan")(x), f(x))
    left = f" ({len(without_triton)} want Triton, which is not installed here)" if without_triton else ""
    print(
        f"The wheel of fuseplan {fuseplan.__version__} works: {len(modules)} modules{left}, torch.compile finds the backend."
    )


def _imports(name: str) -> bool:
    """Import a module; False where it is one of our kernels, and all that it lacks is Triton, which comes with torch for a GPU."""
    try:
        import_module(name)
    except ModuleNotFoundError as error:
        if error.name != "triton" or not name.startswith("fuseplan.kernels."):
            raise
        return False
    return True


if __name__ == "__main__":
    main(sys.argv[1:])
