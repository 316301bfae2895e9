"""The kinds of rewrite that there are: a new one is a file or a folder here, and one line of this list."""

from __future__ import annotations

from collections.abc import Mapping
from pkgutil import resolve_name
from typing import Any

from fuseplan.errors import OptionError
from fuseplan.options import FIXED
from fuseplan.rewrites.attention.kind import Attention
from fuseplan.rewrites.base import Kind
from fuseplan.rewrites.convolution import Convolution
from fuseplan.rewrites.depthwise import Depthwise
from fuseplan.rewrites.embedding import Embedding
from fuseplan.rewrites.few_rows import FewRows
from fuseplan.rewrites.loss.kind import Loss
from fuseplan.rewrites.matmul import Matmul
from fuseplan.rewrites.siblings import Siblings
from fuseplan.rewrites.written.kind import WrittenOut

KINDS: dict[str, Kind[Any]] = {
    "attention": Attention(),
    "written-attention": WrittenOut(),
    "matmul": Matmul(),
    "loss": Loss(),
    "embedding": Embedding(),
    "convolution": Convolution(),
    "depthwise": Depthwise(),
    "few-rows": FewRows(),
    "siblings": Siblings(),
}
"""By the names that plans have for them. Of two that cannot both have a site, the first is preferred."""
_OWN = frozenset(KINDS)


def known_kinds(names: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """The names that were given; OptionError where one is that of no kind."""
    for name in names or ():
        if name not in KINDS:
            raise OptionError(f"there is no kind of rewrite {name!r}; known are {', '.join(KINDS)}")
    return names


def unpromised(weights: str) -> tuple[str, ...]:
    """The kinds that no plan may have under this value of option `weights`.

    >>> unpromised("fixed"), unpromised("free")
    ((), ('siblings',))
    """
    return () if weights == FIXED else tuple(name for name, kind in KINDS.items() if kind.on_fixed_weights)


def usable_kinds(names: tuple[str, ...] | None, weights: str) -> tuple[str, ...] | None:
    """The kinds that plans may have: those that option `rewrites` names, but for those that rest on a promise which was not
    given; None for all.

    >>> usable_kinds(None, "fixed"), "siblings" in usable_kinds(None, "free"), usable_kinds(("matmul",), "free")
    (None, False, ('matmul',))
    """
    without, known = unpromised(weights), known_kinds(names)
    return tuple(name for name in (KINDS if known is None else known) if name not in without) if without else known


def from_outside() -> Mapping[str, str]:
    """Where the classes of the kinds are that somebody has added to the list, each as `module:Class`."""
    return {
        name: f"{type(kind).__module__}:{type(kind).__qualname__}" for name, kind in KINDS.items() if name not in _OWN
    }


def add(kinds: Mapping[str, str]) -> None:
    """Add kinds from outside, as `from_outside` tells of them in another process."""
    KINDS.update({name: resolve_name(place)() for name, place in kinds.items()})
