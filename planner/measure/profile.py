"""The profile of a program: what each kernel takes in a step, and of which ops of the program it was made."""

from __future__ import annotations

from dataclasses import dataclass

from fuseplan.graph import Graph


@dataclass(frozen=True)
class KernelTime:
    """One call of a kernel, or of a library, in a step."""

    role: str
    """That of the compiled graph which calls it; nothing where none does."""
    name: str
    us: float
    ops: tuple[int, ...] = ()
    """Those of the program's graph of which it was made; none where nobody knows."""
    is_library: bool = False


@dataclass(frozen=True)
class Profile:
    """What the device does in a step, in the order in which it is called."""

    graphs: tuple[tuple[str, Graph], ...]
    """The graph that `ops` are places in, by its role: `joint`, or `inference`."""
    kernels: tuple[KernelTime, ...]
    parts: tuple[tuple[int, ...], ...] = ()
    """Of each op of each graph a number: those of one may be carved out together."""

    @property
    def device_us(self) -> float:
        """All of it."""
        return sum(one.us for one in self.kernels)
