"""nvFuser scripts on a GPU: nvFuser itself gives what the programs that they are read as give, and those can be tuned."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from fuseplan.capture.nvfuser_script import read_script
from fuseplan.capture.trace.load import load_trace
from fuseplan.capture.trace.write import write_trace
from fuseplan.tune import tune
from script_references import ON_GPUS, REFERENCES, SCRIPTS, THEN_AND_NOW, graph_key, text_of

TODAY = [name for name in REFERENCES if name.startswith("today/")] + [f"today/{name}" for name in THEN_AND_NOW]
RANDOM = {"today/softmax_dropout"}
"""Scripts that draw random numbers, which are nvFuser's own."""


@pytest.mark.parametrize("script", TODAY)
def test_nvfuser_gives_what_the_program_gives(script: str) -> None:
    text, names = text_of(script), dict[str, Any]()
    exec(compile(text, script, "exec"), names)  # our own corpus
    torch.manual_seed(0)
    inputs = names["inputs"]
    given, ours = copy.deepcopy(inputs), [one for one in copy.deepcopy(inputs) if isinstance(one, Tensor)]
    theirs = names["fd"].execute(given)
    found = load_trace(read_script(text), "cuda").step(args=ours)
    assert [(out.shape, out.dtype) for out in found] == [(out.shape, out.dtype) for out in theirs]
    if script in RANDOM:
        kept = [float(out[1].float().mean()) for out in (found, theirs)]
        assert kept == pytest.approx([0.9, 0.9], abs=0.02)
        return
    written = [one for one in given if isinstance(one, Tensor)]
    for got, want in zip([*found, *ours], [*theirs, *written], strict=True):
        assert_close(got, want, equal_nan=True, check_stride=False, **_tolerance(want))


def _tolerance(want: Tensor) -> dict[str, float]:
    """A part of the largest number there is: two orders of a sum differ by that, however small their result."""
    if not (want.is_floating_point() or want.is_complex()):
        return {"rtol": 0.0, "atol": 0.0}
    part = 1e-4 if want.dtype in (torch.float32, torch.complex64) else 1e-2
    finite = want.abs()[want.isfinite()]
    return {"rtol": part, "atol": part * float(finite.max()) if finite.numel() else 0.0}


def test_attention_backward_is_that_of_torch() -> None:
    loaded = load_trace(read_script(ON_GPUS["sdpfa_bwd"]), "cuda")
    q, k, v, grad = (one.detach() for one in loaded.inputs())
    leaves = [one.clone().requires_grad_() for one in (q, k, v)]
    F.scaled_dot_product_attention(*leaves).backward(grad)
    found = loaded.step(args=[q, k, v, grad])
    assert_close(found, [leaf.grad for leaf in leaves], rtol=1e-2, atol=1e-2, check_stride=False)


@pytest.mark.parametrize("name", THEN_AND_NOW)
def test_the_key_is_the_one_of_the_program_on_the_gpu(name: str) -> None:
    trace = read_script(text_of(f"today/{name}"))
    loaded, found = load_trace(trace, "cuda"), list[str]()

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        found.append(write_trace(gm, inputs).key)
        return gm.forward

    with loaded.modes():
        torch.compile(loaded.module, backend=backend)(*loaded.inputs())
    assert found == [trace.key]


@pytest.mark.parametrize("name", THEN_AND_NOW)
def test_the_graph_is_the_one_of_the_program_in_pytorch(name: str) -> None:
    function, shapes = THEN_AND_NOW[name]
    loaded = load_trace(read_script(text_of(f"today/{name}")), "cuda")
    same = graph_key(function, *(torch.zeros(shape, device="cuda") for shape in shapes))
    assert graph_key(loaded.module, *loaded.inputs()) == same


@pytest.mark.parametrize("name", THEN_AND_NOW)
@pytest.mark.filterwarnings("ignore:fuseplan:UserWarning")
def test_the_cases_of_the_beginning_are_tuned(name: str, tmp_path: Path) -> None:
    plans = tmp_path / "plans.sqlite3"
    (tuned,) = tune(SCRIPTS / "today" / f"{name}.py", effort="quick", budget=60, db=plans)
    assert tuned.status in ("tuned", "default"), tuned.detail
    assert any(timed.default and timed.wall_us for timed in tuned.timed)
    # the old spelling is the same program: there is nothing to measure
    (again,) = tune(SCRIPTS / "old" / f"{name}.py", effort="quick", budget=60, db=plans)
    assert (again.program, again.plan, again.measured) == (tuned.program, tuned.plan, 0)
