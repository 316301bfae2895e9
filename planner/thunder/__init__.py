"""Lightning Thunder: a fusion executor whose regions run under plans, forward and backward.

Read in this order: `fusion` (the executor and its pass), `groups` (what a trace consists of), `lone` (where a single op goes), `asked` (what is
measured of it), `region` (from ops of a trace to what torch.compile is given), `report` (which region each op went to). Thunder is
imported with the first call of a function here: nothing else of fuseplan needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fuseplan.errors import ExecutorError
from fuseplan.options import Options

if TYPE_CHECKING:
    from fuseplan.thunder.fusion import FuseplanExecutor
    from fuseplan.thunder.report import OpPlace

__all__ = ["executor", "explain", "places"]


def executor(**options: Any) -> FuseplanExecutor:
    """Return a fusion executor for ``thunder.jit(model, executors=[…])``; `options` are those of ``torch.compile(backend="fuseplan")``.

    It takes the regions of a trace that Thunder's own torch.compile executor takes. Each is a program with a key, which runs under the
    plan that is stored for it, and else as under torch.compile. ExecutorError says in one line why Thunder cannot be imported here.
    """
    Options.parse(options)
    _need_thunder()
    from fuseplan.thunder.fusion import FuseplanExecutor

    return FuseplanExecutor(options)


def places(jitted: Any) -> tuple[OpPlace, ...]:
    """Return where each op of what ``thunder.jit`` returned went, that fuseplan's executor may take, and by what evidence."""
    _need_thunder()
    from fuseplan.thunder.report import places_of

    return places_of(jitted)


def explain(jitted: Any, *, graphs: bool = True) -> str:
    """Return a text about what ``thunder.jit`` returned: its regions, the program and plan of each, and the ops that are in none."""
    _need_thunder()
    from fuseplan.thunder.report import explained

    return explained(jitted, graphs=graphs)


def _need_thunder() -> None:
    try:
        import thunder  # noqa: F401
    except (
        ImportError,
        AttributeError,
        RuntimeError,
    ) as error:  # AttributeError: it names what a newer torch has removed
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ExecutorError(
            f"Thunder cannot be imported: {why}; docs/thunder.md says which versions go together"
        ) from None
