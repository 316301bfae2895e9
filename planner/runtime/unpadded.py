"""Calls that a padded plan does not take, since their sizes are outside of its box, or since another thread has its CUDA graph.

They run under torch.compile's default: under the one that stands beside the plan in a program that runs by size, else under one that is
compiled here, for sizes that vary, when the first such call comes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

import torch
from torch.fx import GraphModule

from fuseplan.capture.dynamo.compilations import compiles_nothing_anew, compiling_alone, is_computed_again
from fuseplan.capture.dynamo.modes import modes_kept
from fuseplan.capture.dynamo.own_sizes import OwnSizes, SizeReading, copied_program, with_own_sizes
from fuseplan.capture.dynamo.symbols import symbols_of
from fuseplan.runtime.compiler import missing_compiler
from fuseplan.runtime.eager_host import run_eagerly
from fuseplan.runtime.padding import Sizes
from fuseplan.runtime.record import Program
from fuseplan.stats import count, waited

Callee = Callable[..., Any]
MOST_SIZES = 4096
"""Of so many choices of sizes it is kept what runs them."""
MOST_COMPILED = 4
"""How often it is compiled: anew for sizes that the compiler has ruled out."""


class UnpaddedCalls:
    """What runs such calls of one program; eagerly, where nothing may be compiled now, or nothing can be."""

    def __init__(
        self,
        gm: GraphModule,
        reading: SizeReading,
        program: Program,
        compiled: Callable[[GraphModule, Sequence[Any]], Callee] | None,
    ) -> None:
        """`compiled` is how torch.compile's default compiles it; None where the plan is one that compiles nothing."""
        self._gm, self._reading, self._program = copied_program(gm), reading, program
        inputs = [node.meta["example_value"] for node in self._gm.graph.find_nodes(op="placeholder")]
        self._symbols = symbols_of(inputs)
        self._compiled = None if compiled is None or missing_compiler(gm, inputs) is not None else compiled
        self._on_gpu = any(isinstance(one, torch.Tensor) and one.is_cuda for one in inputs)
        self._eager = run_eagerly(gm)
        self._known: list[tuple[OwnSizes, Callee]] = []
        self._runs: dict[Sizes, Callee] = {}

    def run(self, sizes: Sizes, args: Sequence[Any]) -> Any:
        """Run one call, whose sizes were read."""
        call = self._program.unpadded or self._runs.get(sizes) or self._found(sizes)
        return call(*args)

    def _found(self, sizes: Sizes) -> Callee:
        named = self._reading.by_name(sizes)
        found = self._suited(named) or self._compile_now(named)
        if found is None:
            return self._eager
        if len(self._runs) >= MOST_SIZES:
            self._runs.clear()
        self._runs[sizes] = found
        return found

    def _suited(self, sizes: Mapping[str, int]) -> Callee | None:
        return next((call for own, call in self._known if own.why_not(sizes) is None), None)

    def _compile_now(self, sizes: Mapping[str, int]) -> Callee | None:
        if self._compiled is None or len(self._known) >= MOST_COMPILED or self._must_not_compile():
            return None
        with compiling_alone() as alone:
            if not alone:
                return None
            return self._suited(sizes) or self._compile(self._compiled, sizes)

    def _must_not_compile(self) -> bool:
        """Whether a compiler would be in the way of what this call is part of."""
        captured = self._on_gpu and torch.cuda.is_current_stream_capturing()
        return captured or compiles_nothing_anew() or is_computed_again()

    def _compile(
        self, compiled: Callable[[GraphModule, Sequence[Any]], Callee], sizes: Mapping[str, int]
    ) -> Callee | None:
        begin = perf_counter()
        try:
            own = with_own_sizes(self._gm, self._symbols, sizes)
            with own.traced(), modes_kept():
                call = compiled(own.gm, own.inputs)
        except Exception as error:  # noqa: BLE001 -- a compiler fails with anything, and eager serves all the same
            self._compiled = None
            told = f"{type(error).__name__}: {error}".splitlines()[0]
            self._program.remarks.append(f"calls that are not padded run eagerly: {told}")
            return None
        count("compilations")
        waited(begin)
        self._known.append((own, call))
        return call
