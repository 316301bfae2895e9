"""A fault as a script: Python that runs a few ops on numbers that it draws, under eager and under torch.compile, beside double precision."""

from __future__ import annotations

import base64
import io
import logging
import re
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from types import ModuleType, NoneType
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from fuseplan.judge.memory import is_float

logger = logging.getLogger(__name__)

SHOWS = "the fault shows"
"""How a script ends where it does."""
MOST_PLACES = 4000
"""Characters for where a tensor is infinite, or true. What takes more is drawn."""

_SCRIPT = '''{imports}


class Program(torch.nn.Module):
    {code}


def placed(x, value, places):
    """The same with another value at some places."""
    bits = torch.frombuffer(bytearray(zlib.decompress(base64.b64decode(places))), dtype=torch.uint8)
    at = (bits.unsqueeze(1) >> torch.arange(8, dtype=torch.uint8)) & 1
    return x.masked_fill(at.flatten()[: x.numel()].bool().view(x.shape).to(x.device), value)


def inputs():
    torch.manual_seed(0)
    return [
{inputs}    ]


def laid(x, strides):
    return torch.empty_strided(x.shape, strides, dtype=x.dtype, device=x.device).copy_(x)


def run(call, inputs, *modes):
    """What the program gives and writes, and the gradients of the inputs that have any."""
    given = [x.detach().clone().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x for x in inputs]
    with contextlib.ExitStack() as stack:
        for mode in modes:
            stack.enter_context(mode)
        found = [out for out in call(*given) if isinstance(out, torch.Tensor) and out.is_floating_point()]
    torch.manual_seed(1)
    starts = [torch.randn(out.shape, device=out.device).to(out.dtype) for out in found]
    pairs = [(out, start) for out, start in zip(found, starts) if out.requires_grad]
    if pairs:
        torch.autograd.backward(*map(list, zip(*pairs)))
    floats = [x for x in given if isinstance(x, torch.Tensor) and x.is_floating_point()]
    return [x.detach() for x in found] + [x.detach() if not x.is_leaf or x.grad is None else x.grad for x in floats]


def wide(x):
    return x.detach().double().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) and x.is_floating_point() else x


def off(got, right):
    """The largest error, and how much of that rounding once would be; where one of the two is not finite, the other has to be alike."""
    if not got.numel():
        return 0.0, 0.0
    same = (got.double() == right) | (got.isnan() & right.isnan())
    error = torch.where(same, 0.0, (got.double() - right).abs()).nan_to_num(float("inf")).max()
    return float(error), torch.finfo(got.dtype).eps * float(right.nan_to_num(0.0, 0.0, 0.0).abs().max())


exact = run(Program(), [wide(x) for x in inputs()]{modes})
errors = []
for name, call in [("eager", Program()), ("torch.compile", torch.compile(Program()))]:
    found = run(call, inputs(){modes}{precision})
    errors.append([off(got, right) for got, right in zip(found, exact)])
    print(name, "is off by at most", ", ".join(f"{{x:.3g}}" for x, _ in errors[-1]), "(results, then gradients or what became of inputs)")
shows = any(theirs > 4 * (eagers + unit) for (eagers, unit), (theirs, _) in zip(*errors))
print("{shows}" if shows else "the fault does not show here")
'''


def script(module: GraphModule, values: Sequence[Any], modes: Mapping[str, Any]) -> str:
    """Python that runs these ops on numbers that are drawn, in the modes of a trace, and says whether the fault shows."""
    lines = "".join(f"        {_input(value)},\n" for value in values)
    code = module.code.strip().replace("\n", "\n    ")
    autocast = [f", torch.autocast({device!r}, torch.{dtype})" for device, dtype in modes["autocast"].items() if dtype]
    return _SCRIPT.format(
        imports="\n".join(_imports(module)), code=code, inputs=lines, shows=SHOWS,
        modes="" if modes["grad"] else ", torch.no_grad()", precision="".join(autocast),
    )  # fmt: skip


def reproduces(text: str) -> bool:
    """Whether a script shows its fault here: it is run, by itself."""
    said, module = io.StringIO(), ModuleType("fuseplan_script_of_a_fault")
    sys.modules[module.__name__] = module  # torch.compile finds what a function calls by its module's name
    torch._dynamo.reset()
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    try:
        with torch.random.fork_rng(devices), torch.inference_mode(False), torch.enable_grad(), redirect_stdout(said):
            exec(compile(text, "<script>", "exec"), vars(module))
    except Exception as error:  # noqa: BLE001 -- whatever is wrong with a script, it shows nothing
        logger.warning("a script that should show a fault of torch.compile does not run: %.500r", error)
    finally:
        del sys.modules[module.__name__]
        torch._dynamo.reset()
    return said.getvalue().rstrip().endswith(SHOWS)


def _imports(module: GraphModule) -> Iterator[str]:
    """What the code needs: torch, and names that torch.fx takes for granted."""
    code = module.graph.python_code("self")
    needed = {name: what for name, what in code.globals.items() if re.search(rf"\b{name}\b", code.src)}
    yield from ("import base64", "import contextlib", "import zlib")
    for name, what in sorted(needed.items()):
        if sys.modules.get(name) is what:
            yield from () if name == "torch" else (f"import {name}",)
        elif name in ("inf", "nan"):
            yield f"from math import {name}"
        elif hasattr(what, "__name__"):
            home = "types" if what is NoneType else what.__module__
            yield f"from {home} import {what.__name__}" + (f" as {name}" if name != what.__name__ else "")
    yield from ("", "import torch")


def _input(value: Any) -> str:
    if not isinstance(value, Tensor):
        return repr(value)
    shape, on = tuple(value.shape), f", device={str(value.device)!r}" if value.device.type != "cpu" else ""
    if value.is_floating_point():
        return _floats(value.detach(), shape, on) + (".requires_grad_()" if value.requires_grad else "")
    if is_float(value):
        return f"torch.randn({shape}, dtype={value.dtype}{on})" + (".requires_grad_()" if value.requires_grad else "")
    if value.dtype is torch.bool:
        exact = _placed(f"torch.zeros({shape}, dtype=torch.bool{on})", "True", value)
        return exact or f"torch.rand({shape}{on}) < {float(value.double().mean()) if value.numel() else 0:.3g}"
    low, high = (int(value.min()), int(value.max())) if value.numel() else (0, 0)
    return f"torch.randint({low}, {high + 1}, {shape}{on}).to({value.dtype})"


def _floats(value: Tensor, shape: tuple[int, ...], on: str) -> str:
    """Drawn as the finite elements lie, the others where they were."""
    finite = value[value.isfinite()].double()
    deviation, mean = (float(one) for one in torch.std_mean(finite, correction=0)) if finite.numel() else (0.0, 0.0)
    drawn = f"torch.randn({shape}{on}).mul({deviation:.4g}).add({mean:.4g}).to({value.dtype})"
    for which, spelled in ((value == float("inf"), "inf"), (value == float("-inf"), "-inf"), (value.isnan(), "nan")):
        if bool(which.any()):
            share = float(which.double().mean())
            some = f"{drawn}.masked_fill(torch.rand({shape}{on}) < {share:.3g}, float({spelled!r}))"
            drawn = _placed(drawn, f"float({spelled!r})", which) or some
    return f"laid({drawn}, {value.stride()})" if not value.is_contiguous() and _fits(value) else drawn


def _placed(base: str, value: str, which: Tensor) -> str | None:
    """What stands for `base` with a value at the places that are true; None if it takes too much room to say which."""
    bits = which.flatten().cpu().to(torch.uint8)
    bits = torch.nn.functional.pad(bits, (0, -bits.numel() % 8)).view(-1, 8)
    packed = (bits << torch.arange(8, dtype=torch.uint8)).sum(1).to(torch.uint8)
    text = base64.b64encode(zlib.compress(bytes(packed.tolist()), 9)).decode()
    return f"placed({base}, {value}, {text!r})" if len(text) <= MOST_PLACES else None


def _fits(value: Tensor) -> bool:
    """Whether the elements fill their memory, so that others may be laid out alike."""
    return sum((size - 1) * step for size, step in zip(value.shape, value.stride(), strict=True)) + 1 == value.numel()
