"""The ops that torch.compile gets wrong: the fewest that show it, and the script that does."""

from __future__ import annotations

import copy
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.utils._python_dispatch import TorchDispatchMode

from cpu.test_judge import Small, loaded
from fuseplan.capture.trace.format import Trace
from fuseplan.capture.trace.load import Loaded, load_trace
from fuseplan.judge import culprit
from fuseplan.judge.culprit import find_fault, inquire
from fuseplan.judge.expect import expect
from fuseplan.judge.output import ROUNDING_MOST, WIDER
from fuseplan.judge.parts import Parts
from fuseplan.judge.shown import reproduces, script


def test_the_ops_are_found_that_are_compiled_to_something_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whichever compiler it is: this one takes a gelu for a relu where a sine has gone before."""

    def compiles(module: nn.Module) -> Callable[..., Any]:
        assert isinstance(module, GraphModule)
        changed = GraphModule(module, copy.deepcopy(module.graph))
        for node in changed.graph.nodes:
            if node.target is F.gelu and any(one.target == "sin" for one in changed.graph.nodes):
                node.target = F.relu
        changed.recompile()
        return changed

    def program(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        hidden = (x @ w).tanh() + 1
        hidden = F.gelu(hidden.sin() * 2)
        return F.layer_norm(hidden.exp() @ w, (16,)), (x @ w).sum()

    fault = find_fault(loaded(program, torch.randn(8, 16), torch.randn(16, 16, requires_grad=True)), compiled=compiles)
    assert fault is not None
    assert (fault.op, fault.ops) == ("gelu", 3)
    assert "off by" in fault.problem
    assert load_trace(Trace.from_json(fault.trace)).run()
    script = tmp_path / "shows.py"
    script.write_text(fault.script)
    capsys.readouterr()
    runpy.run_path(str(script), run_name="__main__")
    *told, last = capsys.readouterr().out.splitlines()
    assert [line.split(" is off")[0] for line in told] == ["eager", "torch.compile"]
    assert last == "the fault does not show here"  # which torch.compile itself does not have
    assert not fault.reproduced
    assert fault.told == "3 ops that end in gelu (not reproduced by its script)"


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    program = loaded(Small(), torch.randn(16, 32))
    assert find_fault(program, compiled=lambda module: module) is None
    assert find_fault(program, compiled=lambda module: lambda *args: (module(*args)[0] + 1,), seconds=0.0) is None


# in place, with masks, in lower precision


def replacing(method: str, **kwargs: Any) -> Callable[[nn.Module], Callable[..., Any]]:
    """A compiler that calls a method with other arguments."""

    def compiled(module: nn.Module) -> Callable[..., Any]:
        assert isinstance(module, GraphModule)
        changed = GraphModule(module, copy.deepcopy(module.graph))
        for node in changed.graph.nodes:
            if node.target == method:
                node.kwargs = kwargs
        changed.recompile()
        return changed

    return compiled


@pytest.mark.parametrize("gradients", [False, True])
def test_an_op_in_the_middle_that_works_in_place_is_found(gradients: bool) -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        hidden = x @ w
        more = hidden.tanh()
        hidden.add_(more)
        return hidden.softmax(-1) * 2

    fault = find_fault(
        loaded(program, torch.randn(8, 16), torch.randn(16, 8, requires_grad=gradients)),
        compiled=replacing("add_", alpha=2),
    )
    assert fault is not None
    assert fault.op == "add_"
    assert fault.ops <= 2


def test_what_is_written_to_a_buffer_is_an_end_too() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(16))
            self.layer = nn.Linear(16, 16)

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.layer(x)
            self.seen.add_(hidden.detach().mean(0))
            return hidden.relu()

    fault = find_fault(loaded(Counting(), torch.randn(8, 16)), compiled=replacing("add_", alpha=2))
    assert fault is not None
    assert fault.op == "add_"


def test_a_script_has_masks_names_and_autocast_of_its_part(tmp_path: Path) -> None:
    """Where a mask hides everything, nothing could be compared: infinities stand where they stood."""
    hidden = torch.ones(8, 8).triu(1).bool()
    mask = torch.zeros(8, 8).masked_fill(hidden, float("-inf"))

    def program(x: Tensor, w: Tensor, mask: Tensor, hidden: Tensor) -> Tensor:
        scores = (x @ w).clamp(-float("inf"), 30.0) + mask
        return scores.masked_fill(hidden, -float("inf")).softmax(-1).to(device=torch.device("cpu"))

    with torch.autocast("cpu", torch.bfloat16):
        whole = loaded(program, torch.randn(8, 16), torch.randn(16, 8), mask, hidden)
    parts = Parts(whole)
    part = parts.part(parts.needed(parts.outputs, parts.ops), parts.outputs)
    text = script(part.module, part.values, whole.trace.fields["modes"])
    assert not reproduces(text)  # torch.compile is right
    assert "torch.autocast('cpu', torch.bfloat16)" in text
    own = {"__name__": "shown"}
    exec(compile(text.split("exact = ")[0], "shown", "exec"), own)
    given = own["inputs"]()  # type: ignore[operator]
    for number, value in ((2, part.values[2]), (3, part.values[3])):
        assert value.isinf().any() or value.dtype is torch.bool
        assert torch.equal(given[number].double(), value.double())
    broken = text.replace("torch.compile(Program())", "lambda *given: [out + 100 for out in Program()(*given)]")
    assert reproduces(broken)
    assert not reproduces(broken.replace("from math import inf", ""))


# rounding everywhere, or a fault that is small


class Biased(TorchDispatchMode):
    """Rounds a share of all products away from zero; and one op besides is off by some share."""

    def __init__(self, share: float, off: float) -> None:
        super().__init__()
        self.share, self.off = share, off
        self.generator = torch.Generator().manual_seed(1)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.neg.default:
            return out * (1 + self.off)
        if func is not torch.ops.aten.mul.Tensor:
            return out
        drawn = torch.rand(out.shape, generator=self.generator)
        return torch.where(drawn < self.share, torch.nextafter(out, 2 * out), out)


def biased(share: float, off: float = 0.0) -> Callable[[nn.Module], Callable[..., Any]]:
    def compiled(module: nn.Module) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            with Biased(share, off):
                return module(*args)

        return run

    return compiled


@pytest.fixture(scope="module")
def long() -> Loaded:
    def program(x: Tensor) -> Tensor:
        for number in range(56):
            x = -x if number == 20 else x * (1.3 if number % 2 else 1 / 1.3)
        return x

    torch.manual_seed(0)
    return loaded(program, torch.rand(8, 8) + 1)


@pytest.mark.parametrize(("share", "off", "is_fault"), [(0.26, 0.0, False), (0.0, 1.6e-6, True)])
def test_rounding_everywhere_is_told_from_a_fault_that_is_as_far_off(
    long: Loaded, monkeypatch: pytest.MonkeyPatch, share: float, off: float, is_fault: bool
) -> None:
    monkeypatch.setattr(culprit, "COARSELY", 0.0)  # for fewer parts
    compiled = biased(share, off)
    judged = expect(long).judge(long.run(compiled(long.module), 0), 0, "any", wider=WIDER)
    assert 1 < judged.beyond <= ROUNDING_MOST
    found = inquire(long, near=True, compiled=compiled)
    assert (found.fault is not None) is is_fault
    assert bool(found.rounding) is not is_fault
    if found.fault is not None:
        assert found.fault.op == "neg"
    hasty = inquire(long, near=True, compiled=compiled, seconds=0.0)
    assert (hasty.fault, hasty.rounding) == (None, 0)
    assert "no time" in hasty.detail


class Stepping(TorchDispatchMode):
    """Gets the second of what one op of lists writes to wrong, by some share."""

    def __init__(self, off: float) -> None:
        super().__init__()
        self.off = off

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._foreach_addcdiv_.Scalar:
            args[0][1].mul_(1 + self.off)
        return out


@pytest.mark.parametrize("off", [0.0, 4e-6])
def test_ops_that_take_lists_are_judged_as_others_are(off: float) -> None:
    """As the step of an optimizer has them: what one gives is a list, what another writes to has been taken out of one."""

    def step(one: Tensor, other: Tensor, first: Tensor, second: Tensor) -> None:
        moments, weights = [first, second], [one, other]
        for _ in range(3):
            torch._foreach_mul_(moments, 0.9)
            powers = torch._foreach_pow(moments, 2)
            torch._foreach_neg_(powers)
            torch._foreach_exp_(powers)
            torch._foreach_mul_(powers, 2.0)
            torch._foreach_sqrt_(powers)
        torch._foreach_addcdiv_(weights, moments, powers, 0.1)

    def compiled(module: nn.Module) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            with Stepping(off):
                return module(*args)

        return run

    torch.manual_seed(0)
    found = inquire(loaded(step, *(torch.rand(8, 8) + 1 for _ in range(4))), near=True, compiled=compiled)
    assert bool(found.rounding) is (not off), found.detail
    assert (found.fault is not None) is bool(off), found.detail
    if found.fault is not None:
        assert found.fault.op == "_foreach_addcdiv_"
        assert found.fault.ops == 1


# a fault of torch's own


def ascending(x: Tensor, y: Tensor) -> Tensor:
    """With torch 2.13 on a CPU its gradient is wrong."""
    return (x * y).softmax(-1).cumsum(-1)


@pytest.mark.slow
def test_a_fault_of_torchs_own_is_found_and_shown() -> None:
    program = loaded(ascending, *(torch.randn(8, 16, requires_grad=True) for _ in range(2)))
    problem = expect(program).judge(program.run(torch.compile(program.module)), 0, "any", wider=WIDER).problem
    fault = find_fault(program)
    assert (problem is None) == (fault is None)  # a torch that has mended it computes what it should
    if fault is None:
        return
    assert fault.op == "cumsum"
    assert fault.ops <= 5
    assert fault.reproduced
