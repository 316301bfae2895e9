"""What is tuned: where the program of a trace runs, which sizes it was seen with, and the box that its plan holds for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from fuseplan.capture.dynamo.computing import computes
from fuseplan.capture.trace.calls import Calls
from fuseplan.capture.trace.format import Trace
from fuseplan.capture.trace.write import write_trace
from fuseplan.errors import OptionError
from fuseplan.graph.words import counted
from fuseplan.objective import TIME, Objective
from fuseplan.plan import LAUNCHES
from fuseplan.tuning_db import Box, Environment, Query
from fuseplan.tuning_db.sizes import next_power


def traces_of(call: Callable[..., Any], *args: Any, name: str = "", **kwargs: Any) -> list[Trace]:
    """Run `call` once, eagerly, and return the trace of each program that Dynamo finds in it, and that computes something.

    A trace holds no weights and no data. It is tuned for what the call did: with gradients, unless under
    `torch.no_grad()`, in its autocast mode, and at these sizes. `trace.to_json()` is a text for a file.

    >>> import torch
    >>> import fuseplan
    >>> traces = fuseplan.traces_of(lambda x: x.relu() + 1, torch.ones(3), name="ramp")
    >>> [trace.name for trace in traces]
    ['ramp']
    """
    found: list[Trace] = []

    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        if computes(gm):
            found.append(write_trace(gm, example_inputs, name))
        return gm.forward

    torch.compile(call, backend=backend)(*args, **kwargs)
    return found


def check_device(device: str) -> None:
    """OptionError unless programs can be tuned on this device, here.

    >>> check_device("cpu")
    """
    try:
        wanted = torch.device(device)
    except RuntimeError:
        raise OptionError(f"there is no device {device!r}: known are cpu, cuda and cuda:0, cuda:1 …") from None
    if wanted.type not in ("cpu", "cuda"):
        raise OptionError(f"plans are tuned on cpu and cuda, not on {device}")
    here = torch.cuda.device_count()
    if (wanted.index or 0) >= (here if wanted.type == "cuda" else 1):
        seen = counted(here, "GPU") if here else "no GPUs"
        raise OptionError(f"there is no device {device} here: torch sees one CPU and {seen}")


EITHER = "either"
"""In the place of a launch: all that there are race together, and the fastest plan of any is kept."""


def launches_on(device: str, launches: Sequence[str]) -> tuple[str, ...]:
    """Those of the launches that a type of device has.

    >>> launches_on("cpu", ("plain", "cudagraph")), launches_on("cpu", (EITHER,)), launches_on("cuda", (EITHER,))
    (('plain',), ('plain',), ('either',))
    """
    if device != "cpu":
        return tuple(launches)
    return tuple("plain" for launch in launches if launch in ("plain", EITHER))


def query_of(
    trace: Trace, program: str, here: Environment, launch: str, kinds: tuple[str, ...] | None = None, objective: Objective = TIME
) -> Query:  # fmt: skip
    """What a program of this key looks up: under a launch, or under either, with these kinds of rewrite, else with any."""
    return Query(program, here, None if launch == EITHER else launch, sizes_of(trace), kinds=kinds, objective=objective)


def launches_of(launch: str, trace: Trace) -> tuple[tuple[str, ...], str]:
    """The launches that race for a program, the one that ties go to first; and why another is left out."""
    if launch != EITHER:
        return (launch,), ""
    if box_of(trace) != Box():
        return ("plain",), "its sizes vary, and a CUDA graph is of one size alone"
    return LAUNCHES, ""


def may_train(trace: Trace) -> bool:
    """Whether a program may have a backward, as far as is known before it is captured."""
    return bool(trace.fields["modes"]["grad"]) and any(item.get("grad") for item in trace.fields["inputs"])


def device_of(trace: Trace) -> str:
    """Where a program spends its time: on its first accelerator, if it uses one.

    >>> device_of(traces_of(lambda x: x.relu(), torch.ones(3))[0])
    'cpu'
    """
    return next((device for device in _devices(trace) if device != "cpu"), "cpu")


def _devices(trace: Trace) -> Iterator[str]:
    for item in trace.fields["inputs"]:
        if "device" in item:
            yield item["device"]
    for node in trace.fields["nodes"]:
        for arg in (*node.get("args", ()), *node.get("kwargs", {}).values()):
            if isinstance(arg, dict) and isinstance(arg.get("device"), str):
                yield arg["device"]


def sizes_of(trace: Trace) -> dict[str, int]:
    """The dynamic sizes that the program was seen with, without what only counts."""
    return {
        one["name"]: one["hint"] for one in trace.fields["symbols"] if one["hint"] is not None and not one.get("counts")
    }


def title(program: str, name: str, sizes: Box) -> str:
    """What people know a program by, which may be tuned for several boxes of sizes.

    >>> title("ab" * 32, "", Box.of({"s0": (33, 64)})), title("ab" * 32, "gelu", Box())
    ('abababababab s0=33..64', 'gelu')
    """
    return f"{name or program[:12]} {sizes.short}".strip()


def title_of(trace: Trace) -> str:
    """What people know the program of a trace by."""
    return title(trace.key, trace.name, box_of(trace))


def box_of(trace: Trace) -> Box:
    """The sizes that a plan of this program is for: of each, from half to the whole of the next power of two.

    The best plan changes with the size; one that was raced at 48 is taken for 33 to 64, and not beyond. Of numbers that only count it is for
    all there are.
    """
    varying = sizes_of(trace)
    return Box.of({one["name"]: _span(one) for one in trace.fields["symbols"] if one["name"] in varying})


def calls_that_came(trace: Trace) -> list[Calls]:
    """The calls of a program in its box, by their sizes, where these were counted; none where no size varies."""
    box = box_of(trace)
    return [one for one in trace.calls if one.sizes and box.why_not(one.sizes) is None]


def _span(symbol: dict[str, Any]) -> tuple[int, int]:
    """From where to where, within what the program allows; of numbers below zero, as far below as of others above.

    >>> [_span({"hint": hint, "low": -100, "high": None}) for hint in (48, 1, 0, -1, -5, -99)]
    [(33, 64), (1, 1), (0, 1), (-1, -1), (-8, -5), (-100, -65)]
    """
    hint = int(symbol["hint"])
    high = next_power(abs(hint))
    low = min(abs(hint), high // 2 + 1)
    if hint < 0:
        low, high = -high, -low
    most = symbol["high"] if symbol["high"] is not None else high
    return max(int(symbol["low"]), low), min(int(most), high)
