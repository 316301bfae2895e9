"""Faults of what is read, added up, drawn and kept: indices, reductions, dropout, infinities, and layers as one op."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from benchmarks.judging.planting import OpCall, OpFault, first, floats, with_first

_aten = torch.ops.aten


def data_faults() -> Iterator[OpFault]:
    """All of them."""
    yield from _of_indices()
    yield from _of_reductions()
    yield from _of_dropout()
    yield from _of_classes()
    yield from _of_layers()


# indices

LOOKUPS = {"embedding": "indices", "index_select": "index", "gather": "index", "index": "indices"}
SCATTERS = {"index_add": "index", "scatter_add": "index", "index_copy": "index", "index_copy_": "index"}


def _indices(call: OpCall) -> Tensor:
    found = call.argument({**LOOKUPS, **SCATTERS}[call.name])
    index: Tensor = next(one for one in found if one is not None) if isinstance(found, (list, tuple)) else found
    return index


def _indexed(call: OpCall) -> bool:
    found = call.argument({**LOOKUPS, **SCATTERS}[call.name])
    if isinstance(found, (list, tuple)):
        given = [one for one in found if one is not None]
        return len(found) == len(given) == 1 and given[0].dtype == torch.long
    return True


def _range(call: OpCall) -> int:
    if call.name in ("embedding", "index"):
        return int(call.args[0].shape[0])
    return int(call.args[0].shape[call.argument("dim")])


def _with_indices(call: OpCall, index: Tensor) -> Any:
    name = {**LOOKUPS, **SCATTERS}[call.name]
    return call.instead(**{name: [index] if call.name == "index" else index})


def _next_index(call: OpCall) -> Any:
    return _with_indices(call, (_indices(call) + 1) % _range(call))


def _last_index_off(call: OpCall) -> Any:
    index = _indices(call).contiguous().clone()
    index.view(-1)[-1] = (index.view(-1)[-1] + 1) % _range(call)
    return _with_indices(call, index)


def _duplicates_lost(call: OpCall) -> Any:
    if call.name == "index_put":
        return call.instead(accumulate=False)
    if call.name == "scatter_add":
        return _aten.scatter(*call.args)
    if call.name == "index_add":
        return _aten.index_copy(*call.args)
    gradient, index, count = call.args[:3]
    lost = gradient.new_zeros(count, gradient.shape[-1])
    lost[index.reshape(-1)] = gradient.reshape(-1, gradient.shape[-1])
    return lost


def _adds(call: OpCall) -> bool:
    return call.name != "index_put" or bool(call.argument("accumulate"))


def _second_best(call: OpCall) -> Any:
    more = call.instead(k=call.argument("k") + 1)
    return tuple(one.narrow(call.argument("dim"), 1, call.argument("k")).contiguous() for one in more)


def _of_indices() -> Iterator[OpFault]:
    yield OpFault("index off by one", tuple(LOOKUPS), _next_index, _indexed)
    yield OpFault("last index off by one", tuple(LOOKUPS), _last_index_off, _indexed)
    yield OpFault("written one place on", tuple(SCATTERS), _next_index)
    yield OpFault("index rounded down", ("round",), lambda call: call.args[0].floor())
    yield OpFault("index cut off", ("round",), lambda call: call.args[0].trunc())
    yield OpFault(
        "duplicates lost",
        ("index_put", "scatter_add", "index_add", "embedding_dense_backward"),
        _duplicates_lost,
        _adds,
    )
    yield OpFault(
        "row of padding trained", ("embedding_dense_backward",), lambda call: call.instead(padding_idx=-1),
        lambda call: call.argument("padding_idx") >= 0,
    )  # fmt: skip
    yield OpFault(
        "second best chosen", ("topk",), _second_best, lambda call: call.args[0].shape[-1] > call.argument("k")
    )


# reductions


def _other_axis(call: OpCall) -> Any:
    dim = call.argument("dim") % call.args[0].dim()
    return call.instead(dim=(dim - 1) % call.args[0].dim())


def _without_last_column(call: OpCall) -> Any:
    dim, x = call.argument("dim"), call.args[0]
    short = call.given((x.narrow(dim, 0, x.shape[dim] - 1), *call.args[1:]))
    return torch.cat([short, torch.zeros_like(x.narrow(dim, 0, 1), dtype=short.dtype)], dim)


def _columns(call: OpCall) -> bool:
    return bool(call.args[0].shape[call.argument("dim")] > 1)


def _without_last_sample(call: OpCall) -> Any:
    return call.given((call.args[0][:-1], *call.args[1:]))


def _over_batch(call: OpCall) -> bool:
    dims = call.args[1] if len(call.args) > 1 else None
    return floats(call) and isinstance(dims, (list, tuple)) and 0 in dims and call.args[0].shape[0] > 1


def _over_fewer(call: OpCall) -> Any:
    dims = call.args[1] if len(call.args) > 1 and call.args[1] else list(range(call.args[0].dim()))
    count = 1
    for dim in dims:
        count *= call.args[0].shape[dim]
    found: Tensor = call.right()
    return (found.double() * count / (count - 1)).to(found.dtype)


def _other_correction(call: OpCall) -> Any:
    now = call.argument("correction")
    return call.instead(correction=0 if now in (None, 1) else 1)


def _maximum_without_last(call: OpCall) -> Any:
    dim = call.args[1][0] if isinstance(call.args[1], (list, tuple)) else call.args[1]
    x = call.args[0]
    return call.given((x.narrow(dim, 0, x.shape[dim] - 1), *call.args[1:]))


def _of_reductions() -> Iterator[OpFault]:
    yield OpFault(
        "softmax over another axis", ("_softmax", "_log_softmax"), _other_axis, lambda call: call.args[0].dim() > 1
    )
    yield OpFault("softmax without its last column", ("_softmax",), _without_last_column, _columns)
    yield OpFault(
        "gradient of a softmax over another axis", ("_softmax_backward_data", "_log_softmax_backward_data"),
        lambda call: call.instead(dim=(call.argument("dim") % call.args[0].dim()) - 1), lambda call: call.args[0].dim() > 1,
    )  # fmt: skip
    yield OpFault("not reduced over the last sample", ("sum",), _without_last_sample, _over_batch)
    yield OpFault("mean over one too few", ("mean",), _over_fewer)
    yield OpFault("variance with the other correction", ("var", "std", "var_mean"), _other_correction)
    yield OpFault(
        "maximum without the last element", ("amax", "max"), _maximum_without_last, lambda call: len(call.args) > 1
    )
    yield OpFault(
        "running sum without the element itself", ("cumsum",), lambda call: call.right() - call.args[0], floats
    )


# dropout


def _other_rate(call: OpCall) -> Any:
    return call.instead(p=call.argument("p") - 0.1)


def _same_mask(call: OpCall) -> Any:
    key = tuple(call.args[0].shape)
    if key in call.memory:
        return call.args[0].copy_(call.memory[key])
    found = call.right()
    call.memory[key] = found.clone()
    return found


def _of_dropout() -> Iterator[OpFault]:
    yield OpFault("dropout at another rate", ("bernoulli_",), _other_rate)
    yield OpFault("same dropout mask twice", ("bernoulli_",), _same_mask, everywhere=True)
    yield OpFault("dropout not scaled", ("div_",), lambda call: call.args[0])
    yield OpFault("dropout left out", ("bernoulli_",), lambda call: call.args[0].fill_(1))


# infinities and NaN

SPECIAL = ("log", "where", "div", "masked_fill", "exp", "pow", "mul", "add")


def _nan_for_infinity(found: Tensor) -> Tensor:
    return torch.where(found.isinf(), float("nan"), found)


def _of_classes() -> Iterator[OpFault]:
    yield OpFault(
        "NaN for infinity", SPECIAL, lambda call: with_first(call, _nan_for_infinity),
        lambda call: bool(first(call).isinf().any()),
    )  # fmt: skip
    yield OpFault(
        "largest number for infinity", SPECIAL, lambda call: with_first(call, lambda found: found.nan_to_num(nan=float("nan"))),
        lambda call: bool(first(call).isinf().any()),
    )  # fmt: skip
    yield OpFault(
        "zero for NaN", SPECIAL, lambda call: with_first(call, lambda found: torch.where(found.isnan(), 0.0, found)),
        lambda call: bool(first(call).isnan().any()),
    )  # fmt: skip


# layers that are one op


def _other_labels(call: OpCall) -> Any:
    return call.instead(target=call.argument("target").roll(1))


def _by_running(call: OpCall) -> Any:
    x, weight, bias, mean, var = call.args[:5]
    shape = (1, -1, *(1,) * (x.dim() - 2))
    found = call.right()
    scaled = (x - mean.view(shape)) * (var.view(shape) + call.argument("eps")).rsqrt() * weight.view(shape)
    return ((scaled + bias.view(shape)).to(found[0].dtype), *found[1:])


def _not_centred(call: OpCall) -> Any:
    found = call.right()
    x, mean, rstd = call.args[0], found[1], found[2]
    weight = call.argument("weight")
    shift = mean.to(x.dtype) * rstd.to(x.dtype) * (1 if weight is None else weight)
    return (found[0] + shift, *found[1:])


def _of_layers() -> Iterator[OpFault]:
    yield OpFault(
        "ignored labels counted", ("nll_loss_forward", "nll_loss_backward"), lambda call: call.instead(ignore_index=-100),
        lambda call: call.argument("ignore_index") >= 0 and call.argument("target").min() >= 0, everywhere=True,
    )  # fmt: skip
    yield OpFault("label of the row before", ("nll_loss_forward",), _other_labels)
    yield OpFault(
        "batch norm by its running statistics",
        ("native_batch_norm",),
        _by_running,
        lambda call: bool(call.argument("training")),
    )
    yield OpFault("layer norm not centred", ("native_layer_norm",), _not_centred)
    yield OpFault(
        "kernel turned round", ("convolution",), lambda call: call.instead(weight=call.args[1].flip(-1)),
        lambda call: call.args[1].shape[-1] > 1,
    )  # fmt: skip
    yield OpFault(
        "padding counted otherwise", ("avg_pool2d",),
        lambda call: call.instead(count_include_pad=not call.argument("count_include_pad")),
    )  # fmt: skip
    yield OpFault(
        "gradient of a maximum to its neighbour", ("max_pool2d_with_indices_backward",),
        lambda call: call.instead(indices=(call.argument("indices") + 1) % call.args[1][0, 0].numel()),
    )  # fmt: skip
