"""Cases by the judge of programs: what torch.compile and host aten make of them, beside eager, moved and in higher precision.

    PYTHONPATH=tests:. python -m opinfo.judged float32 0 6

judges the first six ops of a fixed shuffle, forward and backward, and prints a line of JSON for each case.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch

from fuseplan.judge.expect import MORE, Spreads
from fuseplan.judge.fused import RoundedAttention
from fuseplan.judge.moved import MovedRun
from fuseplan.judge.output import WIDER
from fuseplan.judge.programs import JudgedRun, Layout, judge
from opinfo.cases import Case, Group, directions, groups, order, samples
from opinfo.inputs import tensors, widened
from opinfo.outcome import Outcome, attempt, function
from opinfo.verdict import NO_VALUES, Subject, compiled
from opinfo.worker import Settings, prepare

SAMPLES = 5
"""Of each op and dtype, among which one is chosen for each direction."""
SIDES: Mapping[str, tuple[Subject, Layout, float]] = {
    "torch.compile": (Subject("inductor", None), "any", WIDER),
    "aten": (Subject(), "eager", 1.0),
}
"""The backends, how their outputs may lie, and by which factor they may widen what is allowed: as tuning has it."""
PLAIN = (False, False, True)
"""The moved runs of eager: whether in another order of summation."""


def sample(dtype: str) -> list[Group]:
    """All ops in one dtype, in an order that is the same on every machine and has nothing to do with their names."""
    return sorted(groups("cpu", None, [dtype]), key=lambda group: order(group.key))


def chosen(group: Group) -> list[tuple[Case, Any]]:
    """One case of each direction."""
    found = []
    for direction in directions(group, "cpu"):
        given = samples(group, "cpu", SAMPLES, requires_grad=direction == "backward")
        known = [(Case(group.op, "function", group.dtype, i, direction), one) for i, one in enumerate(given)]
        found += sorted(known, key=lambda pair: order(pair[0].key))[:1]
    return found


def judged(case: Case, given: Any) -> dict[str, Any]:
    """The verdicts on one case, or why there is none."""
    eager = attempt(case, given, function(case))
    why = _unjudged(case, eager)
    if why is not None:
        return {"case": case.key, "left out": why}
    exact = attempt(case, given, function(case), widened)
    right = _named(eager)
    spreads = Spreads({0: right}, {0: _named(exact)} if exact.error is None else None)
    numbers = iter(range(sum(MORE) + len(PLAIN)))

    def learn(reordered: bool) -> None:
        found = _moved(case, given, next(numbers), reordered)
        if found.error is None:
            spreads.learn(0, _named(found))

    for reordered in PLAIN:
        learn(reordered)
    steps, sides = [*MORE], {}
    for name, (subject, layout, wider) in SIDES.items():
        outcome, graphs = compiled(case, given, subject)
        if outcome.error is not None:
            sides[name] = {"raises": " ".join(outcome.error.split())[:300]}
            continue
        while True:
            found = judge(_named(outcome), spreads.leaves[0], layout, wider)
            if not found.doubtful or not steps:
                break
            for number in range(steps.pop(0)):
                learn(bool(number % 2))
        sides[name] = {**_said(found), **({} if graphs else {"compiled": False})}
    how = "float64" if exact.error is None else "eager"
    return {"case": case.key, "exact": how, "sides": sides}


def _unjudged(case: Case, eager: Outcome) -> str | None:
    if eager.error is not None:
        return f"eager: {' '.join(eager.error.split())[:100]}"
    if eager.random:
        return "draws random numbers"
    if case.op in NO_VALUES:
        return "gives memory that nobody has written to"
    every = tensors([eager.outputs, eager.inputs, eager.grads])
    if any(one.layout != torch.strided or one.is_quantized or type(one) is not torch.Tensor for one in every):
        return "has tensors that are not dense"
    return None


def _named(outcome: Outcome) -> dict[str, Any]:
    """What a run gave and wrote, by name."""
    found = {f"output {i}": _plain(one) for i, one in enumerate(outcome.outputs)}
    found |= {f"gradient of {i}": one for i, one in enumerate(outcome.grads) if one is not None}
    return found | {f"input {i} after": _plain(one) for i, one in enumerate(outcome.inputs)}


def _plain(one: Any) -> Any:
    return one.detach() if isinstance(one, torch.Tensor) else one


def _moved(case: Case, given: Any, seed: int, reordered: bool) -> Outcome:
    mode, call = MovedRun((), seed, reordered=reordered), function(case)

    def known(*args: Any) -> Any:
        for one in tensors(args):
            mode.know(one)
        with RoundedAttention() if reordered else nullcontext():
            return call(*args)

    with mode:
        return attempt(case, given, known)


def _said(found: JudgedRun) -> dict[str, Any]:
    worst = found.evidence[0] if found.evidence else None
    told: dict[str, Any] = {"problem": found.problem}
    return told if worst is None else told | {"share": float(f"{worst.share:.3g}"), "of": worst.name}


def main(arguments: list[str]) -> None:
    """Judge some ops, from one place in the shuffle to another."""
    dtype, first, last = arguments[0], *map(int, arguments[1:])
    prepare(Settings())
    for group in sample(dtype)[first:last]:
        for case, given in chosen(group):
            print(json.dumps({"at": case.key}), flush=True)
            print(json.dumps(judged(case, given)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
