"""`draw`: the graphs of a program as pictures, cut as its plan cuts them."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from fuseplan.capture.trace.format import Trace
from fuseplan.drawing import svg
from fuseplan.errors import FuseplanError, OptionError
from fuseplan.explain import explained
from fuseplan.looking.explained import Explained
from fuseplan.looking.subject import cut_of, opened
from fuseplan.looking.words import describe, us
from fuseplan.tuning_db.whole_files import refuse_database, written_whole

ROLES = ("inference", "forward", "backward")


def draw(
    what: Trace | str | Path,
    to: str | Path | None = None,
    *,
    role: str | None = None,
    db: str | Path | None = None,
) -> dict[str, str]:
    """Return the graphs of a program as SVG by role: inference, or forward and backward; and write them to files.

    `what` is a trace, the path of one, or the beginning of a plan's or a program's key, or its name. Regions are hulls in
    the colour of their executor, with what they take; without a plan that cuts the graph, the islands are shown. `to` is
    a file: of several graphs, each goes to one of its own, whose name ends in its role. `role` draws that one only.

    >>> import torch
    >>> import fuseplan
    >>> (trace,) = fuseplan.traces_of(lambda x: x.relu() + 1, torch.ones(3))
    >>> drawn = fuseplan.draw(trace)
    >>> drawn["inference"][:4]
    '<svg'
    """
    if role is not None and role not in ROLES:
        raise OptionError(f"no graph has the role {role!r}; known are {', '.join(ROLES)}")
    found = explained(what, db=db)
    if len(found) != 1:
        names = ", ".join(f"{one.program[:12]} ({one.name})" for one in found[:5])
        raise OptionError(f"{what} means {len(found)} programs, and one is drawn: {names}")
    (one,) = found
    drawn = {its: _drawn(one, its) for its, _ in one.graphs if role in (None, its)}
    if not drawn:
        why = f"it has no {role} graph" if one.graphs else "; ".join(one.remarks) or "no graph of it is stored"
        raise FuseplanError(f"program {one.program[:12]} cannot be drawn: {why}")
    if to is not None:
        with opened(db) as store:
            own = store.file.path
        _write({path_of(Path(to), its, len(drawn)): text for its, text in drawn.items()}, own)
    return drawn


def path_of(to: Path, role: str, graphs: int) -> Path:
    """Where the drawing of one graph goes.

    >>> path_of(Path("plan.svg"), "forward", 2).name
    'plan-forward.svg'
    """
    return to if graphs == 1 else to.with_name(f"{to.stem}-{role}{to.suffix or '.svg'}")


def _drawn(one: Explained, role: str) -> str:
    graph = dict(one.graphs)[role]
    regions = one.stored.evidence.regions if one.stored is not None else ()
    labels = {each.region: us(each.known_us) for each in regions if each.role == role and each.region >= 0}
    plan = "" if one.plan is None else f": {describe(one.plan)}"
    return svg(
        graph, cut_of(one.plan, role, graph), title=f"{one.name or one.program[:12]}, {role}{plan}", labels=labels
    )


def _write(texts: dict[Path, str], database: Path | None) -> None:
    """Write all of them, or none."""
    with ExitStack() as stack:
        for path, text in texts.items():
            refuse_database(path, database)
            stack.enter_context(written_whole(path)).write_text(text, encoding="utf-8")
