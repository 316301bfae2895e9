"""`bisect`: which rewrite, padding or fusion of a plan makes a result wrong. It applies the first half of them, then a quarter, and so on."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils._pytree import tree_leaves, tree_map

from fuseplan.backend import compile
from fuseplan.capture.gradients import goes_back
from fuseplan.errors import FuseplanError, PlanError
from fuseplan.options import Fuel, Fusion
from fuseplan.tuning_db.programs import title

Check = Callable[[Any, Any], None]
"""Takes what a run gave and what eager gave; raises AssertionError where the former is wrong."""


@dataclass(frozen=True)
class Culprit:
    """The rewrite, padding or fusion that makes the difference. None where the result is wrong without any: then none is to blame."""

    number: int
    """Which one it is, in the order of compiling, beginning with 1."""
    total: int
    fusion: Fusion | None
    difference: str
    """How the result is wrong, in one line."""

    def __str__(self) -> str:
        if self.fusion is None:
            return f"the result is wrong without any fusion, so none is to blame: {self.difference}"
        what = "padding" if self.fusion.padding else "fusion" if self.fusion.rewrite is None else "rewrite"
        return (
            f"{what} {self.number} of {self.total} makes the result wrong: {_spelled(self.fusion)}: {self.difference}"
        )


def bisect(
    model: Callable[..., Any],
    inputs: Sequence[Any] = (),
    *,
    check: Check | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    **options: Any,
) -> Culprit | None:
    """Return the rewrite, padding or fusion that makes ``fuseplan.compile(model, **options)(*inputs)`` wrong, or None if all is well.

    Wrong is what differs from eager: an output, a gradient of the sum of the outputs, or what is written to an input or
    a buffer. `rtol` and `atol` are those of `torch.testing.assert_close`; `check` judges in its place. Each attempt
    compiles anew, with all random numbers from one seed; what else this process had compiled is compiled again when
    it is next called.

    >>> import fuseplan
    >>> print(fuseplan.bisect(lambda x: (x * 2).relu(), [torch.ones(3)], plan="aten"))
    None
    """
    trials = _Trials(model, tuple(inputs), check or _close_within(rtol, atol), options)
    total, difference = trials.run(sys.maxsize)
    if difference is None:
        return None
    none, without = trials.run(0)
    if without is not None:
        return Culprit(0, len(total), None, without)
    good, bad, last = len(none), len(total), total
    while bad - good > 1:
        middle = (good + bad) // 2
        applied, found = trials.run(middle)
        if found is None:
            good = middle
        else:
            bad, last, difference = middle, applied, found
    if not last:
        raise PlanError("the result is wrong at times, also without a change: it cannot be bisected")
    return Culprit(bad, len(total), last[bad - 1], difference)


class _Trials:
    """Runs of one program with more or fewer fusions, each from the same state."""

    def __init__(
        self, model: Callable[..., Any], inputs: tuple[Any, ...], check: Check, options: dict[str, Any]
    ) -> None:
        self.model = model
        self.inputs = inputs
        self.check = check
        self.options = options
        self.eager = self._eager()

    def run(self, fusions: int) -> tuple[list[Fusion], str | None]:
        """The fusions that were applied, and what is wrong with the result."""
        torch._dynamo.reset()  # Dynamo compiles one function only so many times
        fuel = Fuel(fusions)
        try:
            self.check(self._outcome(fuel), self.eager)
        except (AssertionError, RuntimeError) as error:  # a kernel that fails is as wrong as one that errs
            lines = [line for line in str(error).splitlines() if line.strip()]
            return fuel.applied, "; ".join(lines)[:500] or type(error).__name__
        finally:
            torch._dynamo.reset()
        return fuel.applied, None

    def _eager(self) -> Any:
        try:
            return self._outcome(None)
        except FuseplanError:
            raise
        except Exception as error:
            raise PlanError(f"it fails without fuseplan too, run eagerly: {type(error).__name__}: {error}") from error

    def _outcome(self, fuel: Fuel | None) -> Any:
        model = copy.deepcopy(self.model) if isinstance(self.model, nn.Module) else self.model
        inputs = tree_map(_own, self.inputs)
        call = model if fuel is None else compile(model, fuel=fuel, **self.options)
        torch.manual_seed(0)
        outputs = call(*inputs)
        floats = [leaf for leaf in tree_leaves(outputs) if goes_back(leaf)]
        if floats:
            torch.stack(
                [leaf.abs().sum().float() if leaf.is_complex() else leaf.sum().float() for leaf in floats]
            ).sum().backward()
        state = list(model.buffers()) if isinstance(model, nn.Module) else []
        held = [*tree_leaves(inputs), *(model.parameters() if isinstance(model, nn.Module) else ())]
        gradients = [leaf.grad for leaf in held if isinstance(leaf, Tensor) and leaf.is_leaf]
        return tree_map(_detached, {"outputs": outputs, "inputs": inputs, "buffers": state, "gradients": gradients})


def _own(leaf: Any) -> Any:
    """A copy that a run may write to, laid out like the original."""
    if not isinstance(leaf, Tensor):
        return leaf
    copied = leaf.detach().clone()
    if leaf.requires_grad and not leaf.is_leaf:
        raise PlanError("an input is the result of another computation; give its detached value")
    return copied.requires_grad_(leaf.requires_grad)


def _detached(leaf: Any) -> Any:
    return leaf.detach() if isinstance(leaf, Tensor) else leaf


def _close_within(rtol: float | None, atol: float | None) -> Check:
    def check(got: Any, eager: Any) -> None:
        for what in eager:
            for i, (mine, theirs) in enumerate(zip(tree_leaves(got[what]), tree_leaves(eager[what]), strict=True)):
                _same_or_close(f"{what}[{i}]", mine, theirs, rtol, atol)

    return check


def _same_or_close(where: str, mine: Any, theirs: Any, rtol: float | None, atol: float | None) -> None:
    if isinstance(theirs, Tensor):
        try:
            assert_close(mine, theirs, rtol=rtol, atol=atol, equal_nan=True)
        except AssertionError as error:
            raise AssertionError(f"{where}: {error}") from None
    elif mine != theirs:
        raise AssertionError(f"{where} is {mine!r} instead of {theirs!r}")


def _spelled(fusion: Fusion) -> str:
    if fusion.rewrite is not None:
        return f"the rewrite of {fusion.rewrite.kind} {fusion.rewrite.site} as {fusion.rewrite.way}"
    if fusion.padding:
        return f"each call padded from {fusion.padding}"
    variant = f" ({fusion.variant})" if fusion.variant != "default" else ""
    if fusion.graph is None:
        return f"the whole program under {fusion.executor}{variant}"
    where = ", ".join(map(str, fusion.ops[:8])) + (" …" if len(fusion.ops) > 8 else "")
    return f"{fusion.executor}{variant} over ops {where} of the {fusion.role} graph ({title(fusion.graph)})"
