"""What tuning a program takes, by its trace and the effort alone: so the same on every machine that splits the same traces.

Nothing is run for it, on no device and not on torch's meta device either. The calls of a trace are cut before each product,
convolution and attention into *stretches*; equal ones, as equal layers have them, are measured once. What it says is right for
weighing programs against each other, and no promise of seconds.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fuseplan.capture.trace.format import Trace
from fuseplan.tuning.effort import PREDICTED_S, Effort
from fuseplan.tuning_db.sizes import Box

STARTING_SHARE = 0.4
"""Of the time that an effort grants, what starting, judging and racing take of the smallest program: on GPUs none of those that
`scripts/bench models` tuned with quick took less than 42 s."""
CALL_MS = 30
"""What each call of a trace takes to be compiled, in each of the whole plans."""
BACKWARD = 3
"""So many times the calls of the forward has a program that is trained."""
STRETCH_MS = 3000
"""What measuring the regions of a stretch takes, whatever its size, …"""
STRETCH_CALL_MS = 250
"""… and more for each call in it."""
DEFAULTS = 2
"""Whole plans that are compiled whatever the effort: eager needs nothing."""
_ANCHORS = frozenset({
    "linear", "bilinear", "matmul", "bmm", "mm", "mv", "addmm", "addbmm", "baddbmm", "addmv", "einsum", "tensordot",
    "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "convolution",
    "scaled_dot_product_attention", "multi_head_attention_forward", "flex_attention", "lstm", "gru",
})  # fmt: skip
"""The last words of targets before which a stretch begins."""
_DEVICE = re.compile(r"[a-z]+:\d{1,4}", re.ASCII)


@dataclass(frozen=True)
class TuningWork:
    """The predicted work of one program. Milliseconds are whole numbers: their sums are the same in any order."""

    key: str
    """What tells it from others: a digest of what is weighed, then the program's own key, which another torch may give otherwise."""
    own_ms: int
    """What it takes whatever was tuned before it."""
    stretches: Mapping[str, int]
    """What each distinct stretch takes that nobody has measured yet, by its digest."""

    @property
    def alone_ms(self) -> int:
        """What it takes where nothing was tuned before it."""
        return self.own_ms + sum(self.stretches.values())


def tuning_work(trace: Trace, box: Box, effort: Effort, numerics: str = "") -> TuningWork:
    """The work of one program at the sizes of a box, never more than the effort grants. Traces that are one program say the same.

    >>> node = {"op": "function", "target": "torch.relu", "args": [{"ref": 0}]}
    >>> fields = {"modes": {"autocast": {}, "grad": False, "default": "float32"}, "inputs": [{"kind": "size"}], "nodes": [node]}
    >>> work = tuning_work(Trace("ab", "", fields), Box(), Effort.named("quick"))
    >>> work.own_ms, list(work.stretches.values()), work.alone_ms
    (32180, [3250], 35430)
    """
    trains = _trains(trace.fields)
    context = _context(trace, [box.text, numerics, trains])
    found: dict[str, int] = {}
    every, calls = list[str](), 0
    for stretch in _stretches(trace.fields["nodes"], [_told(item) for item in trace.fields["inputs"]]):
        every.append(_digest([context, stretch]))
        calls += len(stretch)
        found[every[-1]] = STRETCH_MS + STRETCH_CALL_MS * len(stretch)
    times = BACKWARD if trains else 1
    compiled = CALL_MS * calls * times * (DEFAULTS + effort.plans)
    most = round(effort.wall_s * 1000)
    starting = round(STARTING_SHARE * most if effort.measures else PREDICTED_S * 1000)
    own = min(most, starting + compiled)
    key = f"{_digest([context, every])} {trace.key}"
    return TuningWork(key, own, _measured(found, times, most - own) if effort.rounds else {})


def _measured(stretches: Mapping[str, int], times: int, left_ms: int) -> dict[str, int]:
    """Those that there is time to measure, the dear ones first: on these a plan turns."""
    found: dict[str, int] = {}
    for digest, ms in sorted(stretches.items(), key=lambda one: (-one[1], one[0])):
        if ms * times > left_ms:
            break
        found[digest] = ms * times
        left_ms -= ms * times
    return found


def _trains(fields: Mapping[str, Any]) -> bool:
    return bool(fields["modes"]["grad"]) and any(item.get("grad") for item in fields["inputs"])


def _context(trace: Trace, more: Sequence[Any]) -> str:
    """All that makes regions of equal calls unequal: how large and of which type what comes in is, and how it is computed."""
    given = sorted(_told(item) for item in trace.fields["inputs"] if item["kind"] == "input")
    modes = trace.fields["modes"]
    return _text([given, modes["autocast"], modes["default"], *more])


def _told(item: Mapping[str, Any]) -> str:
    """What an input is, but for its values and the number of its device: ranks and runs of one program differ in these."""
    return _text([_unnumbered(item.get(part)) for part in ("kind", "dtype", "shape", "stride", "device", "size")])


def _unnumbered(word: Any) -> Any:
    """A device without its number; anything else as it is."""
    return word.partition(":")[0] if isinstance(word, str) and _DEVICE.fullmatch(word) else word


def _stretches(nodes: Sequence[Mapping[str, Any]], inputs: Sequence[str]) -> Iterator[list[str]]:
    """The calls of a program, or of a checkpointed block in it, cut before its anchors; each as a text."""
    stretch: list[str] = []
    first = 0
    for i, node in enumerate(nodes):
        if node["op"] == "block":
            if stretch:
                yield stretch
            yield from _stretches(node["nodes"], ["block"] * int(node["inputs"]))
            stretch, first = [], i + 1
            continue
        if stretch and node.get("target", "").rpartition(".")[2] in _ANCHORS:
            yield stretch
            stretch, first = [], i
        seen = {part: _placed(node[part], inputs, first, i) for part in ("args", "kwargs") if part in node}
        stretch.append(_text({**node, **seen}))
    if stretch:
        yield stretch


def _placed(arg: Any, inputs: Sequence[str], first: int, at: int) -> Any:
    """An argument with what it refers to told from where it stands, so that equal layers read the same."""
    if isinstance(arg, list):
        return [_placed(item, inputs, first, at) for item in arg]
    if not isinstance(arg, dict):
        return _unnumbered(arg)
    if arg.keys() != {"ref"}:
        return {name: _placed(item, inputs, first, at) for name, item in arg.items()}
    number = arg["ref"] - len(inputs)
    if number < 0:
        return {"input": inputs[arg["ref"]]}
    return {"before": at - number} if number >= first else {"before": "it"}


def _text(data: Any) -> str:
    return json.dumps(data, sort_keys=True, separators=(",", ":"))


def _digest(data: Any) -> str:
    return hashlib.sha256(_text(data).encode()).hexdigest()[:32]
