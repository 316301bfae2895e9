"""Rounding at random where eager rounds, in a run of the reference: how far an element moves is what that explains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._decomp import get_decompositions
from torch.utils._python_dispatch import TorchDispatchMode

from fuseplan.graph import Graph, Op, TensorType, Type, Value
from fuseplan.judge.memory import is_float, like, storage

_EPS = {
    str(dtype).removeprefix("torch."): torch.finfo(dtype).eps
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128)
}
INNER = _EPS["float32"]
"""What ATen and all others compute in, or finer."""


class Rounding:
    """Rounds the result of each op to its dtype, and what the op reads and makes on the way more finely.

    What is read is rounded at each reading anew, so that two terms which cancel were rounded apart from each other. The
    graph that runs may be a wider one: the dtypes that count are those of `region`.
    """

    def __init__(self, region: Graph, seed: int) -> None:
        self.types = region.types
        self.noise = Noise(seed)

    def read(self, op: Op, name: str, value: Any) -> Any:
        """What the op works on."""
        return self._rounded(op, value, min(INNER, _eps(self.types[name])))

    def made(self, op: Op, value: Value, got: Any) -> Any:
        """What the op gives, rounded to its dtype."""
        return self._rounded(op, got, _eps(self.types[value.name]))

    @contextmanager
    def inside(self, op: Op) -> Iterator[None]:
        """Around the op itself: rounds between its steps."""
        if op.mutates or op.aliases:
            yield
            return
        eps = min([INNER, *(e for value in op.outputs if (e := _eps(self.types[value.name])))])
        with _Steps(self.noise, eps):
            yield

    def _rounded(self, op: Op, value: Any, eps: float) -> Any:
        if op.aliases or op.mutates or not op.reads or not eps or not is_float(value):
            return value
        return like(value, self.noise(storage(value), eps))


def _eps(kind: Type) -> float:
    return _EPS.get(kind.dtype, 0.0) if isinstance(kind, TensorType) else 0.0


class Noise:
    """Moves each element by half a unit in the last place of some precision, up or down."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.generators: dict[torch.device, torch.Generator] = {}

    def __call__(self, flat: Tensor, eps: float) -> Tensor:
        generator = self.generators.get(flat.device)
        if generator is None:
            generator = self.generators[flat.device] = torch.Generator(flat.device).manual_seed(self.seed)
        sign = torch.randint(0, 2, flat.shape, generator=generator, device=flat.device, dtype=torch.int8)
        return flat + flat * ((sign.to(flat.dtype.to_real()) - 0.5) * eps)


class _Steps(TorchDispatchMode):
    """Runs an op in the steps that it is defined by, rounding after each: gelu's tail is `1 + erf(x)`, and cancels."""

    def __init__(self, noise: Noise, eps: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.noise, self.eps = noise, eps

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        steps = _in_steps().get(func)
        if steps is not None:
            with self:
                return steps(*args, **kwargs)
        result = func(*args, **kwargs)
        plain = isinstance(result, Tensor) and is_float(result) and func._schema.returns[0].alias_info is None
        return like(result, self.noise(storage(result), self.eps)) if plain and args else result


@cache
def _in_steps() -> Mapping[Any, Any]:
    """The operators whose inner steps can cancel, and what these steps are."""
    names = (
        "gelu gelu_backward silu silu_backward tanh_backward sigmoid_backward softplus softplus_backward mish "
        "mish_backward elu elu_backward log_sigmoid_forward log_sigmoid_backward hardswish logaddexp logsumexp "
        "native_layer_norm native_layer_norm_backward native_group_norm native_group_norm_backward "
        "_native_batch_norm_legit_functional _native_batch_norm_legit_no_training native_batch_norm_backward "
        "_fused_rms_norm _fused_rms_norm_backward _softmax _log_softmax _softmax_backward_data "
        "_log_softmax_backward_data var var_mean std std_mean huber_loss smooth_l1_loss mse_loss "
        "binary_cross_entropy addcmul addcdiv lerp addmm"
    ).split()
    table: Mapping[Any, Any] = get_decompositions([getattr(torch.ops.aten, name) for name in names])
    return table
