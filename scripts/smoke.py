"""Run by scripts/wheel where fuseplan is installed from the wheel: is all of it there, and does PyTorch find it?"""

from __future__ import annotations

import sys
from collections import Counter
from importlib import import_module
from importlib.resources import files
from pathlib import Path

import fuseplan

WANTED = {"fuseplan.kernels.": "triton", "fuseplan.thunder.": "thunder"}
"""What only some of our modules need: Triton comes with torch for a GPU."""


def main(modules: list[str]) -> None:
    """Import each module, then compile through the entry point, as a user would."""
    assert Path(fuseplan.__file__).is_relative_to(sys.prefix), f"{fuseplan.__file__} is not the wheel's"
    lacking = Counter(wanted for name in modules if (wanted := _lacks(name)) is not None)
    assert files("fuseplan").joinpath("py.typed").is_file(), "the wheel has no py.typed"

    import torch

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x).sum(-1)

    x = torch.randn(8, 16)
    torch.testing.assert_close(torch.compile(f, backend="fuseplan", options={"plan": "aten"})(x), f(x))
    torch.testing.assert_close(torch.compile(f, backend="fuseplan")(x), f(x))
    left = "".join(
        f", {count} of which want {wanted}, which cannot be imported here" for wanted, count in lacking.items()
    )
    print(
        f"The wheel of fuseplan {fuseplan.__version__} works: {len(modules)} modules{left}, torch.compile finds the backend."
    )


def _lacks(name: str) -> str | None:
    """Import a module; the library that it stands on, where that cannot be imported here."""
    try:
        import_module(name)
    except (ImportError, AttributeError):
        wanted = next((library for within, library in WANTED.items() if name.startswith(within)), None)
        if wanted is None or _can_be_imported(wanted):
            raise
        return wanted
    return None


def _can_be_imported(library: str) -> bool:
    try:
        import_module(library)
    except (ImportError, AttributeError):  # the latter where it names what a newer torch has removed, as Thunder does
        return False
    return True


if __name__ == "__main__":
    main(sys.argv[1:])
