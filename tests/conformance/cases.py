"""The regions that every executor is tried on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from conformance.build import dynamic_region_of, meta, region_of
from fuseplan.graph import Graph

aten = torch.ops.aten


@dataclass(frozen=True)
class Case:
    """One region: how to build it for a device, and who may say no to it, or to one of its ops."""

    name: str
    build: Callable[[str], Graph]
    may_refuse: frozenset[str] = frozenset()
    sizes: tuple[dict[str, int], ...] = ()
    random: bool = False

    def __str__(self) -> str:
        return self.name


def case(function: Callable[..., Any], *inputs: torch.Tensor, name: str = "", may_refuse: str = "") -> Case:
    """A case of fixed sizes."""
    return Case(
        name or function.__name__, lambda device: region_of(function, *inputs, device=device), _names(may_refuse)
    )


def dynamic(
    function: Callable[..., Any],
    seen: Sequence[int],
    *shapes: Sequence[int | str],
    sizes: Sequence[Sequence[int]],
    may_refuse: str = "",
) -> Case:
    """A case of symbolic sizes, with other sizes to call the same callable with."""
    every = tuple({f"s{i}": size for i, size in enumerate(chosen)} for chosen in (seen, *sizes))
    return Case(
        function.__name__,
        lambda device: dynamic_region_of(function, seen, *shapes, device=device),
        _names(may_refuse),
        every,
    )


def _names(may_refuse: str) -> frozenset[str]:
    return frozenset(may_refuse.split())


def gelu_scaled(x: Any, y: Any) -> Any:
    return F.gelu(x * 2.5 + y)


def integers(x: Any, y: Any) -> Any:
    return x * 3 + y, (x - y).clamp(min=-2), x.abs().to(torch.int32)


def booleans(x: Any, y: Any, mask: Any) -> Any:
    return (x > y) & mask, mask.logical_not(), torch.where(mask, x, 0.0)


def broadcast(x: Any, y: Any, z: Any) -> Any:
    return x + y, (x * z).tanh()


def reductions(x: Any) -> Any:
    return x.sum(-1), x.mean(0, keepdim=True), x.amax((0, 2)), x.sum()


def var_mean(x: Any) -> Any:
    return torch.var_mean(x, -1, correction=1)


def softmax_masked(x: Any, mask: Any) -> Any:
    return F.softmax(x.masked_fill(mask, float("-inf")), -1)


def normalized(x: Any, weight: Any, bias: Any) -> Any:
    return aten.native_layer_norm(x, [x.shape[-1]], weight, bias, 1e-5)


def normalized_backward(grad: Any, x: Any, mean: Any, rstd: Any, weight: Any) -> Any:
    first, second, _ = aten.native_layer_norm_backward(
        grad, x, [x.shape[-1]], mean, rstd, weight, None, [True, True, False]
    )
    return first, second


def pointwise_backward(grad: Any, x: Any) -> Any:
    return aten.gelu_backward(grad, x), aten.threshold_backward(grad, x, 0)


def zero_dim(x: Any, scale: Any) -> Any:
    return x * scale, scale + 1


def empty_rows(x: Any) -> Any:
    return x + 1, x.sum(0)


def input_given_back(x: Any) -> Any:
    return x + 1, x, x * 2


def inside_and_outside(x: Any) -> Any:
    y = x.exp()
    z = y * y
    return y, z, z + y


def given_twice(x: Any) -> Any:
    y = x.sin()
    return y, y


def keeps_strides(x: Any, y: Any) -> Any:
    return x + y, (x * 2).clone(memory_format=torch.contiguous_format)


def channels_last(x: Any) -> Any:
    return x.relu(), x.clone(memory_format=torch.channels_last)


def views_inside(x: Any) -> Any:
    heads = x.view(4, 8, 2, 8).permute(0, 2, 1, 3)
    return (heads * 2).clone(memory_format=torch.contiguous_format), heads.sum(-1)


def slices_inside(x: Any) -> Any:
    left, right = x[..., :8], x[..., 8:]
    return torch.cat([-right, left], -1) * x


def split_inside(x: Any) -> Any:
    a, b, c = x.split(4, dim=-1)
    return a + b, b * c


def view_given_back(x: Any) -> Any:
    return (x + 1).t()


def view_of_input(x: Any) -> Any:
    return x[1:], x * 2


def rows_by_index(table: Any, index: Any) -> Any:
    return F.embedding(index, table) * 2


def gathered(x: Any, index: Any, rows: Any) -> Any:
    return x.gather(1, index) + 1, x[rows]


def made_from_nothing(x: Any) -> Any:
    steps = torch.arange(16, device=x.device)
    return x + steps, torch.full((3,), 2.5, device=x.device), (steps[None, :] <= steps[:, None])


def matmul_epilogue(x: Any, weight: Any, bias: Any) -> Any:
    return F.gelu(torch.addmm(bias, x, weight))


def casts(x: Any) -> Any:
    return x.to(torch.bfloat16), x.to(torch.bfloat16).to(torch.float32) * 3, x.to(torch.int32)


def dropped(x: Any) -> Any:
    return aten.native_dropout(x, 0.25, True)


def dropped_twice(x: Any) -> Any:
    y, mask = aten.native_dropout(x + 1, 0.5, True)
    z, _ = aten.native_dropout(y, 0.25, True)
    return mask, z


def written_in_place(x: Any, y: Any) -> Any:
    total = x + y
    aten.copy_.default(x, total)
    return total * 2


def convolution(x: Any, weight: Any) -> Any:
    return F.relu(F.conv2d(x, weight, padding=1))


def logsumexp_backward(grad: Any, out: Any) -> Any:
    return aten._log_softmax_backward_data(grad, out, -1, torch.float32)


def dynamic_pointwise(n: Any, x: Any) -> Any:
    return F.gelu(x) + 1


def dynamic_reduction(n: Any, m: Any, x: Any) -> Any:
    return F.softmax(x, -1), x.sum(0)


def dynamic_views(n: Any, m: Any, x: Any) -> Any:
    return (x.view(n * m, 8) * 2).sum(0), x.expand(n, m, 8).transpose(0, 1).clone(memory_format=torch.contiguous_format)


def dynamic_number(n: Any, x: Any) -> Any:
    return x * 2, n * 2


FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)

CASES: tuple[Case, ...] = (
    *(
        case(
            gelu_scaled, meta(8, 16, dtype=d), meta(8, 16, dtype=d), name=f"gelu_scaled-{str(d).removeprefix('torch.')}"
        )
        for d in FLOATS
    ),
    case(integers, meta(8, 16, dtype=torch.int64), meta(8, 16, dtype=torch.int64)),
    case(booleans, meta(8, 16), meta(8, 16), meta(8, 16, dtype=torch.bool)),
    case(broadcast, meta(4, 8, 16), meta(8, 1), meta(16)),
    case(broadcast, meta(4, 1, 16), meta(8, 1), meta(1, 8, 16), name="broadcast-both_ways"),
    case(reductions, meta(4, 8, 16)),
    case(reductions, meta(4, 8, 16, dtype=torch.bfloat16), name="reductions-bfloat16"),
    case(var_mean, meta(8, 33)),
    case(softmax_masked, meta(8, 33), meta(8, 33, dtype=torch.bool)),
    case(normalized, meta(8, 16), meta(16), meta(16)),
    case(normalized_backward, meta(8, 16), meta(8, 16), meta(8, 1), meta(8, 1), meta(16)),
    case(pointwise_backward, meta(8, 16), meta(8, 16)),
    case(logsumexp_backward, meta(8, 16), meta(8, 16)),
    case(zero_dim, meta(8, 16), meta()),
    case(empty_rows, meta(0, 16)),
    case(input_given_back, meta(8, 16)),
    case(inside_and_outside, meta(8, 16)),
    case(given_twice, meta(8, 16)),
    case(keeps_strides, meta(8, 16, stride=(1, 8)), meta(8, 16, stride=(1, 8)), name="keeps_strides-transposed"),
    case(
        keeps_strides, meta(8, 16, stride=(0, 1)), meta(8, 16, stride=(40, 2)), name="keeps_strides-expanded_and_gaps"
    ),
    case(channels_last, meta(2, 4, 8, 8, stride=(256, 1, 32, 4)), name="channels_last-given"),
    case(channels_last, meta(2, 4, 8, 8), name="channels_last-made"),
    case(views_inside, meta(4, 8, 16)),
    case(slices_inside, meta(4, 8, 16)),
    case(split_inside, meta(8, 12)),
    case(view_given_back, meta(8, 16), may_refuse="inductor nvfuser"),
    case(view_of_input, meta(8, 16), may_refuse="inductor nvfuser"),
    case(rows_by_index, meta(32, 16), meta(4, 6, dtype=torch.int64), may_refuse="nvfuser"),
    case(gathered, meta(8, 16), meta(8, 4, dtype=torch.int64), meta(5, dtype=torch.int64), may_refuse="nvfuser"),
    case(made_from_nothing, meta(8, 16)),
    case(matmul_epilogue, meta(8, 16), meta(16, 24), meta(24), may_refuse="nvfuser"),
    case(convolution, meta(2, 4, 8, 8), meta(6, 4, 3, 3), may_refuse="nvfuser"),
    case(casts, meta(8, 16)),
    case(dropped, meta(64, 64)),
    case(dropped_twice, meta(64, 64)),
    case(written_in_place, meta(8, 16), meta(8, 16), may_refuse="inductor"),
    dynamic(dynamic_pointwise, [8], ["0", 16], sizes=[[3], [2], [65]]),
    dynamic(dynamic_reduction, [8, 12], ["0", "1"], sizes=[[3, 5], [12, 8], [2, 257]]),
    dynamic(dynamic_views, [6, 4], ["0", "1", 8], sizes=[[3, 5], [4, 4]]),
    dynamic(dynamic_number, [8], ["0", 16], sizes=[[5]], may_refuse="nvfuser"),
)
