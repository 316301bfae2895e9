"""Where Dynamo hands a program to the backend of a torch.compile, whatever that backend is.

torch has no public place for this. The two classes that stand behind every call of torch.compile are private; what is
taken from them is their `__call__`, here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

WRAPPERS = ("_TorchCompileInductorWrapper", "_TorchCompileWrapper")
"""The classes whose objects Dynamo calls with each graph and its inputs."""

Compiled = Callable[..., Any]


class Observer(Protocol):
    """Sees each program, before its backend does, and what the backend made of it."""

    def met(self, wrapper: object, gm: Any, example_inputs: Sequence[Any]) -> Callable[[Compiled], Compiled] | None:
        """See a program; what is returned is given what the backend made of it, and gives what Dynamo gets."""
        ...

    def note(self, text: str) -> None:
        """One line on what cannot be seen."""
        ...


@contextmanager
def hooked(torch: Any, observer: Observer) -> Iterator[None]:
    """Have `observer` see all that is compiled, also by what torch.compile returned before.

    It tells where torch has moved its classes: this is called while a script imports torch, which must not fail.
    """
    classes = [getattr(torch, name) for name in WRAPPERS if hasattr(torch, name)]
    if len(classes) < len(WRAPPERS):
        observer.note(f"torch {torch.__version__} has another torch.compile than this fuseplan knows")
    originals = {each: each.__call__ for each in classes}
    for each, original in originals.items():
        each.__call__ = _observed(original, observer)
    try:
        yield
    finally:
        for each, original in originals.items():
            each.__call__ = original


def _observed(original: Callable[..., Any], observer: Observer) -> Callable[..., Any]:
    def __call__(self: Any, model_: Any, inputs_: Any, **kwargs: Any) -> Any:  # noqa: N807 – in the place of one
        then = observer.met(self, model_, inputs_)
        compiled = original(self, model_, inputs_, **kwargs)
        return compiled if then is None else then(compiled)

    return __call__
