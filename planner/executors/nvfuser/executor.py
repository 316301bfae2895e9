"""The nvFuser executor: what it accepts, and how a region of it becomes a callable."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from fuseplan.errors import ExecutorError, UnsupportedError
from fuseplan.executors.aten.executor import AtenExecutor
from fuseplan.executors.base import Compiled, refuse_unsupported
from fuseplan.executors.nvfuser import available, layout, table
from fuseplan.executors.nvfuser.fusion import RegionFusion, define
from fuseplan.executors.nvfuser.kept import FITS, KnownRegions
from fuseplan.executors.nvfuser.traits import NVFUSER
from fuseplan.executors.nvfuser.trial import MIN_OPS, Trials
from fuseplan.graph import Graph, Op, Ref, TensorType
from fuseplan.graph.words import counted
from fuseplan.judge.inputs import make_inputs

MAX_OPS = 128
"""The most ops in one region: nvFuser's segmenter takes minutes for some longer ones. The largest islands have 85."""

MAX_TENSORS = 200
"""The most inputs and outputs of one region: beyond, the arguments of a kernel do not fit."""


class NvfuserExecutor:
    """Runs regions of CUDA tensors as nvFuser fusions."""

    name = NVFUSER.name
    traits = NVFUSER

    def version(self) -> str:
        """The version of nvFuser; "none" where it is not installed."""
        return available.version()

    def version_on(self, device: str) -> str | None:
        """Read from its files: whether it runs here is found out when it has to, in seconds."""
        found = available.version()
        return None if found == "none" or not NVFUSER.runs_on(device) else found

    def available(self) -> str | None:
        """None where nvFuser works here, else one line that says why not."""
        return available.misfit()

    def supports(self, op: Op, graph: Graph) -> str | None:
        """None if the op is in the lowering table and may stand in a fusion, else why not."""
        return table.supports(op, graph)

    def variants(self, region: Graph) -> tuple[str, ...]:
        """nvFuser chooses its own schedule, so there is one way only."""
        return ("default",)

    def refuses(self, region: Graph) -> str | None:
        """Why the region as a whole cannot be a fusion, though each of its ops may; None if it can."""
        tensors = len(region.inputs) + len(region.outputs)
        if len(region.ops) > MAX_OPS or tensors > MAX_TENSORS:
            return f"{counted(len(region.ops), 'op')} with {tensors} inputs and outputs (at most {MAX_OPS} with {MAX_TENSORS})"
        if not any(isinstance(v.type, TensorType) for op in region.ops for v in op.outputs):
            return "there is nothing to compute"
        return layout.refusal(region)

    def compile(self, region: Graph, variant: str = "default") -> Compiled:
        """The region as a callable, its kernels built and tried once for the sizes that were recorded."""
        if variant not in self.variants(region):
            raise UnsupportedError(f"nvfuser has no variant {variant!r}; it has {', '.join(self.variants(region))}")
        refuse_unsupported(self, region)
        if _is_empty(region):
            return AtenExecutor().compile(region)  # no kernel has anything to do
        if len(region.ops) > MIN_OPS:
            reason = _trials().refusal(region.key, region.to_json())
            if reason is not None:
                raise ExecutorError(f"nvfuser is not let compile a region of {len(region.ops)} ops: {reason}")
        return build(region)


def build(region: Graph) -> Compiled:
    """Compile and try out a region that has been accepted, however long that takes."""
    with _disable_current_modes():
        try:
            return _compiled(region, cautious=False)
        except ExecutorError:
            return _compiled(region, cautious=True)


@cache
def _trials() -> Trials:
    return Trials(kept=KnownRegions.here())


def _compiled(region: Graph, *, cautious: bool) -> Compiled:
    try:
        compiled = _callable(region, define(region, cautious=cautious))
        _try_out(region, compiled)
    except ImportError as error:
        KnownRegions.here().drop(FITS)  # the next process had better look again
        raise ExecutorError(f"nvfuser cannot be imported: {_first_line(error)}") from error
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise ExecutorError(f"nvfuser cannot compile the region: {_first_line(error)}") from error
    return compiled


def _is_empty(region: Graph) -> bool:
    """Whether some tensor that is read or given has no elements."""
    names = {name for op in region.ops for name in op.reads} | {a.name for a in region.outputs if isinstance(a, Ref)}
    return any(isinstance(kind, TensorType) and 0 in kind.shape for kind in map(region.types.__getitem__, names))


def _callable(region: Graph, fusion: RegionFusion) -> Compiled:
    """nvFuser's own `execute` where the region's outputs are the fusion's; else the least that puts them in order."""
    run = fusion.cache.execute
    if not any(_on_gpu(value.type) for value in region.inputs):
        run = partial(run, device=_device_index(region))
    if fusion.extra_inputs:
        run = partial(_with_extra, run, fusion.extra_inputs)
    if tuple(arg.name if isinstance(arg, Ref) else None for arg in region.outputs) == fusion.outputs:
        return run  # type: ignore[no-any-return]
    return _reordered(region, fusion, run)


def _reordered(region: Graph, fusion: RegionFusion, run: Any) -> Compiled:
    inputs = {value.name: i for i, value in enumerate(region.inputs)}
    written = {op.outputs[0].name: inputs[op.mutates[0]] for op in region.ops if op.mutates}
    inputs = {**inputs, **written}
    picks: list[tuple[int, Any]] = []
    for arg in region.outputs:
        if not isinstance(arg, Ref):
            picks.append((2, arg))
        else:
            picks.append((1, inputs[arg.name]) if arg.name in inputs else (0, fusion.outputs.index(arg.name)))

    def call(args: list[Any]) -> Sequence[Any]:
        results = run(args)
        return [results[what] if kind == 0 else args[what] if kind == 1 else what for kind, what in picks]

    return call


def _with_extra(run: Any, extra: tuple[torch.Tensor, ...], args: list[Any]) -> Sequence[Any]:
    return run([*args, *extra])  # type: ignore[no-any-return]


def _on_gpu(kind: object) -> bool:
    return isinstance(kind, TensorType) and kind.device.startswith("cuda")


def _device_index(region: Graph) -> int:
    devices = [v.type.device for op in region.ops for v in op.outputs if isinstance(v.type, TensorType)]
    return int(devices[0].partition(":")[2] or torch.cuda.current_device())


def _try_out(region: Graph, compiled: Compiled) -> None:
    """Run once: that builds the kernels, outside any CUDA graph, and shows whether the outputs lie as declared."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count()), device_type="cuda"):
        inputs = make_inputs(region, seed=0)
        outputs = compiled(list(inputs))
    storages = {_storage(x): v.name for x, v in zip(inputs, region.inputs, strict=True) if isinstance(x, torch.Tensor)}
    for arg, output in zip(region.outputs, outputs, strict=True):
        if not isinstance(arg, Ref) or arg.name not in region.producer or region.ops[region.producer[arg.name]].mutates:
            continue
        other = storages.setdefault(_storage(output), arg.name)
        if other != arg.name:
            raise ExecutorError(f"nvfuser gave {arg.name} in the storage of {other}")
        _check_layout(region, arg.name, output)


def _storage(tensor: torch.Tensor) -> tuple[str, int]:
    return str(tensor.device), tensor.untyped_storage().data_ptr()


def _check_layout(region: Graph, name: str, output: torch.Tensor) -> None:
    kind = region.types[name]
    assert isinstance(kind, TensorType)
    if any(isinstance(d, str) for d in (*kind.shape, *kind.stride)):
        return  # the order of dimensions was asked for; sizes are those of the inputs
    strides = [(s, t) for n, s, t in zip(kind.shape, kind.stride, output.stride(), strict=True) if n != 1]
    if tuple(output.shape) != kind.shape or any(s != t for s, t in strides):
        got = f"{tuple(output.shape)} with strides {tuple(output.stride())}"
        raise ExecutorError(f"nvfuser gave {name} as {got}, not {kind.shape} with strides {kind.stride}")


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
