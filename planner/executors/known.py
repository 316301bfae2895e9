"""Executors that this process knows by their Traits: those of fuseplan, and those that were registered from outside."""

from __future__ import annotations

import re
from pkgutil import resolve_name
from typing import Any

from fuseplan.errors import OptionError
from fuseplan.executors.aten.traits import ATEN
from fuseplan.executors.inductor.traits import INDUCTOR
from fuseplan.executors.nvfuser.traits import NVFUSER
from fuseplan.executors.traits import Traits

EXECUTORS = (ATEN, INDUCTOR, NVFUSER)
"""In the order in which they are asked. A new executor is one more here, and its class one more in `own.py`."""

_registered: dict[str, Traits] = {}


def register(traits: Traits) -> None:
    """Add an executor from outside to this process, and to the workers that it starts from now on.

    Its module has to be found by `import`; `traits.executor` says where its class is, which has these as `traits`.
    """
    if not re.fullmatch("[a-z][a-z0-9_]*", traits.name):
        raise OptionError(f"an executor is called by a word in lower case, not {traits.name!r}")
    if traits.name in _BY_NAME:
        raise OptionError(f"fuseplan has an executor {traits.name!r} of its own")
    _registered[traits.name] = traits


def registered() -> tuple[Traits, ...]:
    """Those from outside, in the order in which they came."""
    return tuple(_registered.values())


def known_executors() -> tuple[Traits, ...]:
    """All that can be asked, whether or not they can run here.

    >>> [traits.name for traits in known_executors()]
    ['aten', 'inductor', 'nvfuser']
    """
    return EXECUTORS + registered()


def traits_of(name: str) -> Traits:
    """The Traits of an executor; neutral ones where this process has never heard of it, as of a row that others stored.

    >>> traits_of("nvfuser").devices, traits_of("unheard-of").measuring_s
    (('cuda',), 2.0)
    """
    return _BY_NAME.get(name) or _registered.get(name) or Traits(name)


def greedy_names(*, defaults: bool = False) -> tuple[str, ...]:
    """Names of the plans in which one executor fuses all that it takes: of all that fuse, or of those whose plan is a default.

    >>> greedy_names(), greedy_names(defaults=True)
    (('inductor-greedy', 'nvfuser-greedy'), ('nvfuser-greedy',))
    """
    meant = (one for one in known_executors() if (one.greedy_default if defaults else one.fuses))
    return tuple(f"{one.name}-greedy" for one in meant)


def load(place: str) -> Any:
    """What stands at `module:Name`: the class of an executor from outside."""
    return resolve_name(place)


_BY_NAME = {traits.name: traits for traits in EXECUTORS}
