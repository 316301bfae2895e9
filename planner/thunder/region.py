"""From ops of a Thunder trace to a function of torch, and to what torch.compile makes of it with backend fuseplan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from thunder.core import prims
from thunder.core.codeutils import SigInfo
from thunder.core.compile_data import get_compile_option, using_symbolic_values
from thunder.core.proxies import Proxy
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, tracectx
from thunder.executors.passes import transform_for_execution
from thunder.executors.torchex import ex as torch_executor
from thunder.executors.torchex import no_autocast

from fuseplan.backend import programs_of
from fuseplan.explain import compiled_by
from fuseplan.runtime import Program

Call = Callable[..., Any]


class FusedRegion:
    """What a trace calls in the place of some of its ops."""

    def __init__(self, name: str, call: Call, options: Mapping[str, Any]) -> None:
        self.name = name
        self.compiled = torch.compile(
            call,
            backend="fuseplan",
            options=dict(options) or None,
            fullgraph=_whole(),
            dynamic=None if using_symbolic_values() else False,
        )
        self._run = outside(self.compiled)

    def __call__(self, *args: Any) -> Any:
        return self._run(*args)

    @property
    def programs(self) -> list[Program]:
        """What was compiled for it so far."""
        wrapper = compiled_by(self.compiled)
        return [] if wrapper is None else programs_of(wrapper)


def outside(compiled: Call) -> Call:
    """What is compiled, without gradients and autocast, which Thunder's trace has seen to.

    Both stand around it: Dynamo would compile anew for each context manager that was made inside of it.
    """
    return torch.no_grad()(no_autocast(compiled))  # type: ignore[no-any-return]


def torch_call(name: str, ops: Sequence[BoundSymbol], inputs: Sequence[Proxy], outputs: Sequence[Proxy]) -> Call:
    """These ops as a function of torch, as Thunder's own executor writes it for torch.compile."""
    trace = TraceCtx(None)
    trace.args, trace.kwargs, trace.names = list(inputs), {}, {one.name for one in inputs}
    with tracectx(trace):
        for one in inputs:
            prims.unpack_trivial(one, name=one.name)
    trace.bound_symbols += [*ops, prims.python_return.bind(list(outputs), output=None)]
    trace.names |= {name for op in trace.bound_symbols for name in _made(op)}
    trace._siginfo = SigInfo(name)
    trace._siginfo.args = [(one.name, None) for one in inputs]
    found = transform_for_execution(trace, executors_list=(torch_executor,))
    return found.python_callable(include_decorators=False)  # type: ignore[no-any-return]


def _made(op: BoundSymbol) -> list[str]:
    """The names of all that an op, or one that it is made of, gives out."""
    inner = [name for each in op.subsymbols for name in _made(each)]
    return [out.name for out in op.flat_outs if isinstance(out, Proxy)] + inner


def _whole() -> bool:
    asked = get_compile_option("torch_compile_fullgraph", "Whether a region has to be one graph. Defaults to `True`.")
    return True if asked is None else bool(asked)
