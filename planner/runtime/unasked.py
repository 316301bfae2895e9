"""Gradients that nobody asks for: of a large output of which the loss is not made, such as the logits beside a model's own loss.

Autograd would fill memory with zeros for each at every step, and PyTorch's trees would copy them to where their graph reads
them. Here the zeros are made once, and its graph reads them where they are. Where somebody asks after all, what is given is
copied there, and there are zeros again after it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fuseplan.capture.dynamo.symbols import is_symbolic
from fuseplan.executors.flat import Boxed
from fuseplan.runtime.in_place import LEAST, ReadInPlace

_BACKWARD = "CompiledFunctionBackward"
"""What AOTAutograd's outputs have as their grad_fn: one for all of them."""


@dataclass(frozen=True)
class Form:
    """How a gradient lies in memory."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    is_large: bool

    @staticmethod
    def of(tensor: Tensor) -> Form:
        """That of the gradient of an output, which is its own."""
        return Form(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device, tensor.nbytes >= LEAST)

    def zeros(self) -> Tensor:
        """Zeros that lie so."""
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=self.device).zero_()


@dataclass(eq=False)
class Unasked:
    """The gradients of one program that nobody asks for."""

    zeros: dict[int, Tensor] = field(default_factory=dict)
    """Of each output whose gradient was missing. Nobody ever writes to them but for `lying`, which makes them zeros again."""
    wanted: set[int] = field(default_factory=set)
    """The outputs whose gradient somebody has asked for after all: of these nobody but the graph reads zeros any more."""
    lends: bool = True
    """The program is captured, so that zeros are read where they lie."""

    def watching(self, compiled: Callable[..., Any], example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """The program, of whose backward it is known at each step which large gradients nobody asks for. One of sizes that vary
        would have zeros for each size, and none are lent to it.
        """
        if any(map(is_symbolic, example_inputs)):
            return compiled

        def call(*args: Any) -> Any:
            outputs = compiled(*args)
            return self.watched(outputs, args) if self.lends and torch.is_grad_enabled() else outputs

        return call

    def watched(self, outputs: Sequence[Any], args: Sequence[Any]) -> Sequence[Any]:
        """The same outputs, passed on by what sees their gradients first. What is a view, or an argument, stays what it is."""
        if not any(type(one) is Tensor and one.layout is torch.strided and one.nbytes >= LEAST for one in outputs):
            return outputs  # looked at first: in training, the GPU waits for the backward
        inputs = set(map(id, args))
        nodes = {
            i: node
            for i, one in enumerate(outputs)
            if type(one) is Tensor and one.layout is torch.strided and not one._is_view() and id(one) not in inputs
            if (node := compiled_backward(one)) is not None
        }
        large = next((node for i, node in nodes.items() if outputs[i].nbytes >= LEAST), None)
        passed = [i for i, node in nodes.items() if node is large]
        if len(passed) < 2:  # of one alone the backward runs where its gradient is there
            return outputs
        found = list(outputs)
        same: Any = _Passed.apply(self, *(outputs[i] for i in passed))  # type: ignore[no-untyped-call]
        for i, one in zip(passed, same, strict=True):
            found[i] = one
        return found

    def given(self, forms: Sequence[Form], gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """The gradients, with zeros in the place of large ones that nobody asks for."""
        if torch.compiler.is_compiling():  # of all the backward together, where autograd makes none
            return [one if one is not None else form.zeros() for form, one in zip(forms, gradients, strict=True)]
        from fuseplan.runtime.capture_place import is_capturing  # it brings Inductor, which a recording does without

        self.wanted |= {i for i in self.zeros if gradients[i] is not None}
        if is_capturing():  # what is made in a capture of the caller's is in that one's memory
            return gradients
        try:
            return [
                self._of(i, form) if one is None and form.is_large and i not in self.wanted else one
                for i, (form, one) in enumerate(zip(forms, gradients, strict=True))
            ]
        except torch.OutOfMemoryError:  # autograd may find it, for as long as it takes
            return gradients

    def _of(self, output: int, form: Form) -> Tensor:
        if output not in self.zeros:
            made = self.zeros[output] = form.zeros()
            if made.is_cuda:  # another stream may read them next
                torch.cuda.current_stream(made.device).synchronize()
        return self.zeros[output]

    def among(self, args: Sequence[Any]) -> dict[int, Tensor]:
        """Those of the zeros that are arguments of a backward, by their places."""
        known = {zeros.data_ptr(): zeros for zeros in self.zeros.values()}
        if not known:
            return {}
        return {
            i: known[at] for i, one in enumerate(args) if isinstance(one, Tensor) and (at := one.data_ptr()) in known
        }

    def on_copies(self, plain: Boxed) -> Boxed:
        """A backward that runs plain, with zeros of its own: what it makes of them is its caller's, on whichever stream it is."""

        def call(args: list[Any]) -> Any:
            for i in self.among(args):
                args[i] = args[i].clone()
            return plain(args)

        call._boxed_call = True  # type: ignore[attr-defined]
        return call

    def apart(self, gradients: Sequence[Any]) -> list[Any]:
        """What a backward has made, without what lies in the zeros: autograd would keep that, and add to it."""
        from fuseplan.runtime.capture_place import copied

        known = {zeros.untyped_storage().data_ptr() for zeros in self.zeros.values()}
        return [
            copied(one) if isinstance(one, Tensor) and one.untyped_storage().data_ptr() in known else one
            for one in gradients
        ]


class CapturedBackward:
    """A backward that is captured at its first call, since it is known then which of its arguments are zeros that stay."""

    def __init__(self, capture: partial[Any], plain: Boxed, unasked: Unasked, copied: Collection[int]) -> None:
        self.capture, self.plain, self.unasked, self.copied = capture, plain, unasked, copied
        self.captured: Boxed | None = None
        self.zeros: Mapping[int, Tensor] = {}

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        if self.captured is None:
            self.zeros = self.unasked.among(args)
            static = (*self.capture.keywords["static_input_idxs"], *self.zeros)
            self.captured = ReadInPlace(partial(self.capture, static_input_idxs=static), self.plain, self.copied)
        if not self.zeros:
            found = self.captured(args)
            return self.unasked.apart(found) if self.unasked.zeros else found  # there may be zeros since
        with lying(args, self.zeros):
            return self.unasked.apart(self.captured(args))


@contextmanager
def lying(args: list[Any], places: Mapping[int, Tensor]) -> Iterator[None]:
    """While it lasts, what is given at these places lies where the zeros lie, which a graph reads at each call."""
    lent = []
    try:
        with torch.no_grad():
            for i, zeros in places.items():
                if args[i].data_ptr() != zeros.data_ptr():
                    lent.append(zeros)
                    args[i] = zeros.copy_(args[i])
        yield
    finally:
        for zeros in lent:
            zeros.zero_()


class _Passed(torch.autograd.Function):
    """Outputs as they are. Autograd makes zeros of a gradient that is missing only further on."""

    @staticmethod
    def forward(ctx: Any, unasked: Unasked, *outputs: Tensor) -> tuple[Tensor, ...]:
        """Each in the memory that it has."""
        ctx.set_materialize_grads(False)
        ctx.unasked = unasked
        ctx.forms = [Form.of(one) for one in outputs]
        return tuple(one.detach() for one in outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """The gradients that there are, and zeros."""
        return (None, *ctx.unasked.given(ctx.forms, gradients))


def compiled_backward(output: Any) -> Any:
    """The backward that AOTAutograd has compiled for an output; None where it has another, or none."""
    node: Any = output.grad_fn if isinstance(output, Tensor) else None
    if type(node).__name__ == f"{_Passed.__name__}Backward":
        node = next((before for before, _ in node.next_functions if type(before).__name__ == _BACKWARD), None)
    return node if type(node).__name__ == _BACKWARD else None
