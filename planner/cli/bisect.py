"""`fuseplan bisect`: the rewrite, padding or fusion behind a wrong result."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fuseplan.cli.options import as_json as json_option
from fuseplan.cli.options import database as file_option
from fuseplan.cli.options import look_into, tell
from fuseplan.errors import OptionError, PlanError
from fuseplan.options import FIXED

if TYPE_CHECKING:
    from fuseplan.plan import Plan


@click.command(epilog="Example: fuseplan bisect case.py:case --plan 3f2c")
@click.argument("case")
@click.option(
    "--plan", "plan", default="auto", show_default=True, help="A name, a file of JSON, or a stored plan's key."
)
@file_option
@click.option("--unverified", is_flag=True, help="Also take a plan that has not raced here.")
@click.option("--rtol", type=click.FloatRange(0), help="How far a result may be off, as a share of it …")
@click.option("--atol", type=click.FloatRange(0), help="… and on top.")
@json_option
def bisect(
    case: str, plan: str, file: Path | None, unverified: bool, rtol: float | None, atol: float | None, as_json: bool
) -> None:
    """Find the rewrite, padding or fusion of a plan that makes a result wrong. Exit code 1 if the result is wrong.

    CASE is FILE.py:FUNCTION. The function takes nothing and returns a model and its inputs: `return model, (x,)`.
    """
    if (rtol is None) != (atol is None):
        raise OptionError("--rtol and --atol come together")
    chosen = _plan(plan, file)
    model, inputs = _case(case)
    from fuseplan.bisect import bisect as search

    options: dict[str, Any] = {"plan": chosen, "unverified": unverified, "weights": FIXED}  # each run is of a copy
    if file is not None:
        options["db"] = file
    found = search(model, inputs, rtol=rtol, atol=atol, **options)
    if found is None:
        tell(None, lambda: "the result is that of eager", as_json)
        return
    fusion = found.fusion
    fields = None if fusion is None else {
        "role": fusion.role, "executor": fusion.executor, "variant": fusion.variant, "ops": list(fusion.ops),
        "rewrite": None if fusion.rewrite is None else vars(fusion.rewrite),
        "region": fusion.graph.key if fusion.graph is not None else None,
    }  # fmt: skip
    graph = [] if fusion is None or fusion.graph is None else str(fusion.graph).splitlines()
    tell(vars(found) | {"fusion": fields}, lambda: [str(found), *graph], as_json)
    raise SystemExit(1)


def _plan(text: str, file: Path | None) -> str | Plan:
    """The plan that is meant: a name is tried first, then a file, then a key."""
    from fuseplan.plan import Plan, named_plans
    from fuseplan.tuning_db.words import plan_named

    if text in (*named_plans(), "auto"):
        return text
    path = Path(text)
    if path.is_file():
        try:
            return Plan.from_json(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise PlanError(f"{text} cannot be read: {error}") from None
    return plan_named(look_into(file), text).plan


def _case(text: str) -> tuple[Any, Any]:
    """Run the function that FILE.py:FUNCTION names."""
    path, _, name = text.rpartition(":")
    if Path(text).is_file() or (not name and Path(path).is_file()):
        file = text if Path(text).is_file() else path
        raise OptionError(f"a case is given as FILE.py:FUNCTION, and the function is missing: {file}:FUNCTION")
    spec = importlib.util.spec_from_file_location("fuseplan_case", path) if Path(path).is_file() else None
    if spec is None or spec.loader is None:
        raise OptionError(f"a case is given as FILE.py:FUNCTION, and there is no Python file {path or text!r}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # Dynamo looks functions up in their module
    sys.path.insert(0, str(Path(path).resolve().parent))
    _of_the_case(f"{path} cannot be imported", partial(spec.loader.exec_module, module))
    function = getattr(module, name, None)
    if not callable(function):
        raise OptionError(f"{path} has no function {name!r}")
    made = _of_the_case(f"{name} of {path} failed", function)
    if not isinstance(made, tuple) or len(made) != 2 or not callable(made[0]) or not isinstance(made[1], (list, tuple)):
        raise OptionError(f"{name} must return a model and a tuple of its inputs")
    return made


def _of_the_case(what: str, call: Callable[[], Any]) -> Any:
    """What the user's own code gives. Where it raises, nothing is known of any fusion, and that is a bad case."""
    try:
        return call()
    except (Exception, SystemExit) as error:  # a script without a main guard may exit, even with code 0
        raise OptionError(f"{what}: {type(error).__name__}: {error}") from error
