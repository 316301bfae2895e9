"""Compiles the modules of named classes when they are called, without a word in the script that has them.

A name is the class as Python prints it, or the end of that: `GPT2Block`, `modeling_gpt2.GPT2Block`. Classes that the
script defines, or imports later, are found when they are made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from fuseplan.errors import OptionError

Compile = Callable[[Any], Callable[..., Any]]
"""From what a module does when it is called to what is to be called instead."""

_SLOT = "_compiled_call_impl"
"""The attribute that torch.nn.Module looks at, when it is called, for what its method `compile` has made."""


class NamedModules:
    """The classes that somebody named, and which of the names were met."""

    def __init__(self, names: Sequence[str], compile: Compile) -> None:
        for name in names:
            if not all(part.isidentifier() for part in name.split(".")):
                raise OptionError(f"--compile takes the name of a class of modules, such as GPT2Block, not {name!r}")
        self.names = tuple(names)
        self.compile = compile
        self.called: set[str] = set()
        self.classes: list[type] = []

    def names_of(self, cls: type) -> list[str]:
        """Which of the names this class has."""
        whole = f".{cls.__module__}.{cls.__qualname__}"
        return [name for name in self.names if whole.endswith(f".{name}")]

    def take(self, cls: type) -> None:
        """Have a class compiled, if it was named."""
        if self.names_of(cls) and _SLOT not in vars(cls):
            setattr(cls, _SLOT, _CompiledWhenCalled(self, cls))
            self.classes.append(cls)

    def complaints(self) -> list[str]:
        """A line for each name under which nothing was called."""
        missing = [name for name in self.names if name not in self.called]
        return [f"--compile {name}: no module of such a class was called" for name in missing]


class _CompiledWhenCalled:
    """Stands in the class at the place of what `Module.compile` sets on a module."""

    def __init__(self, named: NamedModules, cls: type) -> None:
        self.named, self.cls = named, cls
        self.compiled: WeakKeyDictionary[Any, Callable[..., Any]] = WeakKeyDictionary()

    def __get__(self, module: Any, owner: Any) -> Callable[..., Any] | None:
        import torch

        # inside another compiled module it is part of that one's graph, as it would be without us
        if module is None or not self._is_one(module) or torch.compiler.is_compiling():
            return None
        known = self.compiled.get(module)
        if known is None:
            self.named.called.update(self.named.names_of(self.cls))
            known = self.compiled[module] = self.named.compile(_callable(module))
        return known

    def _is_one(self, module: object) -> bool:
        """A subclass has a name of its own."""
        return type(module) is self.cls


def _callable(module: Any) -> Callable[..., Any]:
    """What to hand to torch.compile: what `Module.compile` takes; Dynamo skips that of torch's own modules, alone."""
    from torch._dynamo import external_utils, trace_rules

    call: Callable[..., Any] = module._call_impl
    return external_utils.wrap_inline(call) if trace_rules.check(module.forward) else call


@contextmanager
def compiling(torch: Any, named: NamedModules) -> Iterator[None]:
    """Compile the named modules for as long as the context lasts."""
    base = torch.nn.Module
    for cls in _below(base):
        named.take(cls)

    def __init_subclass__(cls: Any, **kwargs: Any) -> None:  # noqa: N807 – in the place of one
        super(base, cls).__init_subclass__(**kwargs)
        named.take(cls)

    base.__init_subclass__ = classmethod(__init_subclass__)  # type: ignore[arg-type]
    try:
        yield
    finally:
        del base.__init_subclass__
        for cls in named.classes:
            delattr(cls, _SLOT)


def _below(cls: Any) -> Iterator[type]:
    for one in cls.__subclasses__():
        yield one
        yield from _below(one)
