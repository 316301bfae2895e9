"""What a caller may ask of the backend, checked before anything is compiled."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from fuseplan.durations import seconds
from fuseplan.errors import OptionError, PlanError
from fuseplan.graph import Graph
from fuseplan.objective import Objective
from fuseplan.plan import LAUNCHES, SETTINGS, Plan, Rewrite
from fuseplan.sizes import memory_amount

ATTENTION = ("as-is", "proven")
FIXED = "fixed"
WEIGHTS = ("free", FIXED)
AT_ONCE = ("instant", "quick", "full")
"""The values of option `tune` by which a program is tuned when it is compiled."""
TUNE = ("off", "later", *AT_ONCE)
VERIFY = ("off", "sampled")
_KIND = re.compile(r"[a-z0-9][a-z0-9._-]*")


@dataclass(frozen=True)
class Fusion:
    """One fusion as it was applied: a region of a graph, or a whole program (then there is no graph); or a rewrite, or padding."""

    role: str
    executor: str
    variant: str
    ops: tuple[int, ...] = ()
    graph: Graph | None = None
    rewrite: Rewrite | None = None
    """What was written in another way, before anything was traced."""
    padding: str = ""
    """The box from which calls were filled up, and to what."""


@dataclass
class Fuel:
    """How many more rewrites, paddings and fusions may be applied; whoever shares it draws on it in the order of compiling.

    >>> fuel = Fuel(1)
    >>> first, second = Fusion("inference", "inductor", "default", (0,)), Fusion("inference", "inductor", "default", (1,))
    >>> fuel.take(first), fuel.take(second), fuel.applied == [first]
    (True, False, True)
    """

    left: int
    applied: list[Fusion] = field(default_factory=list)

    def take(self, fusion: Fusion) -> bool:
        """Whether this one may still be applied."""
        if self.left <= 0:
            return False
        self.left -= 1
        self.applied.append(fusion)
        return True


@dataclass(frozen=True)
class Options:
    """The options of ``torch.compile(…, backend="fuseplan", options={…})``.

    >>> Options.parse({"plan": "eager"}).plan
    Plan(host='eager', rewrites=(), carve_outs=(), saving='min-cut', settings='default', launch='plain', name=None, padded=())
    """

    plan: Plan | None = None
    """A plan, or the name of one, for every program; None takes the best that is known of each."""
    mode: str = "default"
    """The settings that Inductor has where a program runs under torch.compile's own path."""
    launch: str | None = None
    """How calls reach the GPU: plain, or cudagraph, which never overwrites what a caller still holds. None leaves it
    to the plan that is stored, and is plain where there is none."""

    attention: str = "as-is"
    """`proven`: calls of attention lose a mask that is proven to change nothing, and stay whole. Works with any plan
    but a stored one, whose attention was part of what was tuned."""

    rewrites: tuple[str, ...] | None = None
    """The kinds of rewrite that plans may have: `all`, which is None here, `none`, or some by name. One that is stored and has
    others doesn't fit, and tuning proposes no others."""
    weights: str = "free"
    """`fixed`: a promise that weights seldom change, by which plans may read them merged, beside the program's own. What torch sees of a
    change is merged anew at the next call; for what it cannot see there is `fuseplan.refresh`."""
    merged_memory: int | float | None = None
    """`4GB`, say: so much memory of a device merged weights may take, in bytes or, as a float, as a share of all that there is. Plans that
    need more are not run. None: at most half of what is free when they are made."""
    objective: str = "time"
    """What the plan of a program is chosen by: the least `time`, or the least `memory` at its peak, at whatever cost in time. Plans are
    tuned, stored and looked up for one objective: a program without a plan for this one runs under the default."""
    max_memory: int | float | None = None
    """`20GB`, say: the fastest plan that takes no more at its peak, beside weights and inputs, in bytes or, as a float, as a share of all
    memory that a device has; where none does, the one that takes the least. None: there is no bound."""
    tune: str = "off"
    """A program without a plan is tuned when it is compiled: `instant` takes seconds beyond what torch.compile takes, `quick` and
    `full` take minutes. `later`: it waits in the database for `fuseplan tune --queue`, and runs under the default meanwhile."""
    db: Path | None = None
    """The tuning database; None is the user's own."""
    unverified: bool = False
    """Whether plans are used that were predicted or imported, and have not raced on this machine."""
    fuel: int | Fuel | None = None
    """Only so many rewrites and fusions of each plan are applied; a `Fuel` is shared by all programs that get it."""
    reload: float | None = None
    """`60s`, say: so often a running process looks for a new plan of each of its programs, and changes over between two calls, once a
    process beside it has compiled and checked that plan. None: what is compiled stays."""
    verify: str = "off"
    """`sampled`: a few calls of a program under a stored plan run the default instead, and both are timed; a plan that has become
    slower is taken back."""
    counters: bool = False
    """Whether hits, misses and fallbacks are added up in the database too, for the dashboard."""
    cuda_graph_memory: int | float | None = None
    """`4GB`, say: so much memory of a device the CUDA graphs of this process may hold, in bytes or, as a float, as a share of all
    that there is. The least recently used programs run without theirs beyond that. None: there is no bound."""

    @staticmethod
    def parse(options: Mapping[str, Any] | None, mode: str | None = None) -> Options:
        """Return checked options; OptionError names what is wrong and what is known."""
        try:
            given = dict(options or {})
        except (TypeError, ValueError):
            told = f'options are a dictionary, such as {{"tune": "instant"}}, not {type(options).__name__}'
            raise OptionError(told) from None
        known = [field.name for field in fields(Options)]
        unknown = sorted(set(given) - set(known))
        if unknown:
            raise OptionError(f"fuseplan has no option {', '.join(map(repr, unknown))}; known are {', '.join(known)}")
        chosen = given.get("mode") or mode or "default"
        if chosen not in SETTINGS:
            raise OptionError(f"fuseplan has no mode {chosen!r}; known are {', '.join(SETTINGS)}")
        launch = given.get("launch")
        if launch is not None and launch not in LAUNCHES:
            raise OptionError(f"fuseplan has no launch {launch!r}; known are {', '.join(LAUNCHES)}")
        plan = _plan(given.get("plan", "auto"))
        kinds = allowed_kinds(given.get("rewrites", "all"))
        _check_allowed(kinds, plan, given.get("attention"))
        wanted = Objective.asked(given.get("objective", "time"), given.get("max_memory"))
        return Options(
            None if plan is None else _adapted(plan, chosen, launch),
            chosen,
            launch,
            word("attention", given.get("attention", "as-is"), ATTENTION),
            kinds,
            word("weights", given.get("weights", "free"), WEIGHTS),
            _amount("merged_memory", given.get("merged_memory")),
            wanted.least,
            wanted.within,
            word("tune", given.get("tune", "off"), TUNE),
            _path(given.get("db")),
            _flag("unverified", given.get("unverified", False)),
            _fuel(given.get("fuel")),
            _time("reload", given.get("reload")),
            word("verify", given.get("verify", "off"), VERIFY),
            _flag("counters", given.get("counters", False)),
            _amount("cuda_graph_memory", given.get("cuda_graph_memory")),
        )

    def default(self) -> Plan:
        """The plan of a program for which none is stored: what torch.compile does, in the mode and launch asked for."""
        return _adapted(Plan("inductor"), self.mode, self.launch)

    @property
    def wanted(self) -> Objective:
        """What plans are chosen by, whose bound may be a share of a device's memory."""
        return Objective(self.objective, self.max_memory)

    def fuel_for_one(self) -> Fuel | None:
        """What one program may spend: its own where a number was given."""
        return Fuel(self.fuel) if isinstance(self.fuel, int) else self.fuel


def allowed_kinds(value: object) -> tuple[str, ...] | None:
    """The kinds of rewrite that a value of option `rewrites` allows, sorted; None for all of them.

    >>> allowed_kinds("all"), allowed_kinds("none"), allowed_kinds("attention"), allowed_kinds(["product", "attention"])
    (None, (), ('attention',), ('attention', 'product'))
    """
    if value is None or value == "all":
        return None
    if value == "none":
        return ()
    names = value.split(",") if isinstance(value, str) else list(value) if isinstance(value, Iterable) else [value]
    if not names or not all(isinstance(name, str) and _KIND.fullmatch(name) for name in names):
        raise OptionError(f"option rewrites is all, none, or names of kinds of rewrite, not {value!r}")
    return tuple(sorted(set(names)))


def _check_allowed(kinds: tuple[str, ...] | None, plan: Plan | None, attention: object) -> None:
    """What is asked for beside it must not need what option `rewrites` forbids."""
    needed = {one.kind for one in plan.rewrites} if plan is not None else set()
    needed |= {"attention"} if attention == "proven" else set()
    forbidden = sorted(needed - set(needed if kinds is None else kinds))
    if forbidden:
        raise OptionError(f"option rewrites forbids {', '.join(forbidden)}, which is asked for beside it")


def _adapted(plan: Plan, mode: str, launch: str | None) -> Plan:
    """The plan with the mode and the launch that were asked for beside it."""
    try:
        if plan.host == "inductor" and mode != "default":
            plan = replace(plan, settings=mode)
        if launch is not None and launch != "plain":
            plan = replace(plan, launch=launch)
    except PlanError as error:
        raise OptionError(str(error)) from None
    return plan


def _plan(value: object) -> Plan | None:
    if value is None or value == "auto":
        return None
    if isinstance(value, Plan):
        return value
    if not isinstance(value, str):
        raise OptionError(f"option plan takes a Plan or the name of one, not a {type(value).__name__}")
    try:
        return Plan.named(value)
    except PlanError as error:
        raise OptionError(f"{error}, or auto") from None


def word(name: str, value: object, known: tuple[str, ...]) -> str:
    """The value of an option that takes one of a few words; OptionError for any other.

    >>> word("verify", "sampled", VERIFY)
    'sampled'
    """
    if value not in known:
        raise OptionError(f"option {name} is {' or '.join(known)}, not {value!r}")
    return str(value)


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise OptionError(f"option {name} is True or False, not {value!r}")
    return value


def _path(value: object) -> Path | None:
    if value is None:
        return None
    if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
        raise OptionError(f"option db is the path of a tuning database, not {value!r}")
    return Path(value).absolute()


def _time(name: str, value: object) -> float | None:
    """Seconds; None for never.

    >>> _time("reload", "1m"), _time("reload", 5), _time("reload", None)
    (60.0, 5.0, None)
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise OptionError(f"option {name} is a time such as 60s or 10m, not {value!r}")
    return seconds(str(value), f"option {name}")


def _amount(name: str, value: object) -> int | float | None:
    """Bytes, or a share; None for no bound."""
    return None if value is None else memory_amount(value, f"option {name}")


def _fuel(value: object) -> int | Fuel | None:
    if value is None or isinstance(value, Fuel):
        return value
    if type(value) is not int or value < 0:
        raise OptionError(f"option fuel is the number of fusions to apply, not {value!r}")
    return value
