"""Where a cross-entropy is, however it is written, whose logits come from one matmul and are read by nothing else."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from fuseplan.rewrites.base import Site, digest_of
from fuseplan.rewrites.matmul import are_tensors, operands_of
from fuseplan.rewrites.reading import argument, between, changes_recording, first, name_of, number_of
from fuseplan.rewrites.special import example
from fuseplan.rewrites.writes import may_write, memory, written_by

_CASTS = ("float", "double", "to", "type")
_RESHAPED = ("view", "reshape", "flatten")
_USUAL = {
    "input": None, "target": None, "weight": None, "size_average": None, "ignore_index": -100, "reduce": None, "reduction": "mean",
    "label_smoothing": 0.0,
}  # fmt: skip
"""The arguments of a cross-entropy in their order, those of a likelihood among them, and what they are where they are not given."""
_TURNED = ("transpose", "permute", "mT")


class NoLossError(Exception):
    """Something looks like the loss of a head and is not; the message says why."""


@dataclass(frozen=True, eq=False)
class LossSite(Site):
    """A cross-entropy of what a matmul gives."""

    result: Node = field(repr=False)
    """The loss."""
    logits: Node = field(repr=False)
    """What the matmul gives."""
    steps: tuple[Node, ...] = field(repr=False)
    """What is done to the logits before the loss reads them: casts, slices of rows, other shapes."""
    inside: tuple[Node, ...] = field(repr=False)
    """What the loss itself consists of, where it is written out; `result` among them."""
    targets: Node = field(repr=False)
    class_weights: Node | None = field(repr=False)
    reduction: str
    ignored: int | None
    smoothing: float

    @property
    def columns(self) -> Any:
        """How many classes there are."""
        return example(self.logits).shape[-1]

    @property
    def read(self) -> Any:
        """What is known of the logits as the loss reads them."""
        return example(self.steps[-1] if self.steps else self.logits)

    @property
    def of_logits(self) -> torch.dtype:
        """The dtype to which the program casts logits before their loss is computed."""
        found: torch.dtype = torch.promote_types(self.read.dtype, example(self.result).dtype)
        return found

    @property
    def rows(self) -> Any:
        """How many targets there are."""
        return example(self.targets).numel()


@dataclass(frozen=True)
class _Loss:
    """A cross-entropy: the nodes that it consists of, and what it reads."""

    inside: tuple[Node, ...]
    read: Node
    targets: Any
    class_weights: Any = None
    reduction: Any = "mean"
    ignored: Any = None
    smoothing: Any = 0.0
    axis: int = -1
    """Of the logits as it reads them, that of the classes."""


def find_losses(gm: GraphModule) -> Iterator[LossSite | tuple[Node, str]]:
    """The sites of a graph in their order; and each loss that is none, with the reason."""
    places = {node: place for place, node in enumerate(gm.graph.nodes)}
    number = 0
    for node in places:
        loss = _loss_at(node)
        if loss is None:
            continue
        try:
            site = _site(loss, node, number, places)
        except NoLossError as error:
            yield node, str(error)
            continue
        number += 1
        yield site


def _loss_at(node: Node) -> _Loss | None:
    """The cross-entropy that a node gives; None where it gives something else."""
    of_logarithms = node.target is torch.nn.functional.nll_loss
    if not of_logarithms and node.target is not torch.nn.functional.cross_entropy:
        return _written_out(node)
    given = {name: argument(node, place, name, default=usual) for place, (name, usual) in enumerate(_USUAL.items())}
    read = given["input"]
    if given["size_average"] is not None or given["reduce"] is not None or not are_tensors(read):
        return None
    axis = 1 if example(read).dim() > 1 else 0
    asked: dict[str, Any] = {
        "targets": given["target"], "class_weights": given["weight"], "reduction": given["reduction"],
        "ignored": given["ignore_index"], "smoothing": given["label_smoothing"], "axis": axis,
    }  # fmt: skip
    if not of_logarithms:
        return _Loss((node,), read, **asked)
    logits, dims = _of_log_softmax(read), example(read).dim()
    if logits is None or _positive(_dim_of(read), dims) != axis:
        return None
    return _Loss((node, read), logits, **asked)


def _written_out(node: Node) -> _Loss | None:
    """The mean or the sum of a logarithm of a sum less what is picked, or of a logarithm of a softmax that is picked."""
    outer: list[Node] = []
    if name_of(node) == "neg" and are_tensors(first(node)):
        outer, node = [node], first(node)
    reduction = name_of(node)
    if reduction not in ("mean", "sum") or len(node.args) != 1 or node.kwargs or not are_tensors(first(node)):
        return None
    outer, inner = [*outer, node], first(node)
    if len(outer) == 1 and name_of(inner) == "neg" and are_tensors(first(inner)):
        outer, inner = [*outer, inner], first(inner)
    if len(outer) == 2:
        picked = _picked(inner)
        logits = None if picked is None else _of_log_softmax(picked[1])
        if picked is None or logits is None or not _is_last(_dim_of(picked[1]), picked[1]):
            return None
        return _Loss((*outer, *picked[0], picked[1]), logits, picked[2], reduction=reduction)
    return _less_picked(outer[0], inner, reduction)


def _less_picked(outer: Node, inner: Node, reduction: str) -> _Loss | None:
    """The same where a logarithm of a sum of exponentials stands before what is picked of the logits."""
    if name_of(inner) != "sub" or len(inner.args) != 2 or inner.kwargs:
        return None
    whole, other = inner.args
    picked = _picked(other)
    if picked is None or not isinstance(whole, Node) or not isinstance(other, Node) or name_of(whole) != "logsumexp":
        return None
    dim = argument(whole, 1, "dim")
    dim = dim[0] if isinstance(dim, list | tuple) and len(dim) == 1 else dim
    alike = example(whole).shape == example(other).shape == example(inner).shape
    if first(whole) is not picked[1] or not alike or not _is_last(dim, picked[1]):
        return None
    return _Loss((outer, inner, whole, *picked[0]), picked[1], picked[2], reduction=reduction)


def _picked(node: Any) -> tuple[tuple[Node, ...], Node, Any] | None:
    """What picks one class of each row, of which logits or logarithms, and by which targets."""
    inside: tuple[Node, ...] = ()
    if are_tensors(node) and name_of(node) == "squeeze":
        if not _is_last(argument(node, 1, "dim"), first(node)):
            return None
        inside, node = (node,), first(node)
    if not are_tensors(node) or name_of(node) != "gather":
        return None
    source, dim, index = first(node), argument(node, 1, "dim"), argument(node, 2, "index")
    if not are_tensors(source) or not are_tensors(index) or not _is_last(dim, source):
        return None
    by_dim = name_of(index) == "unsqueeze" and _is_last(argument(index, 1, "dim"), index)
    by_index = index.target is operator.getitem and _adds_last(index.args[1], first(index))
    if not by_dim and not by_index:
        return None
    if not _same(example(index).shape[:-1], example(source).shape[:-1]):
        return None
    return (*inside, node), source, first(index)


def _site(loss: _Loss, result: Node, number: int, places: dict[Node, int]) -> LossSite:
    """The site; NoLossError says why there is none."""
    _check_asked(loss)
    logits, steps = _climbed(loss)
    inside = dict.fromkeys([*loss.inside, *steps, logits])
    for node in (*loss.inside, *steps, logits):
        others = [user for user in node.users if user not in inside]
        if node is not result and others:
            read = "a result of the program" if others[0].op == "output" else f"read by {others[0].name}, too"
            raise NoLossError(f"{node.name} is {read}")
    if (writer := next(filter(may_write, inside), None)) is not None:
        raise NoLossError(f"{writer.name} may write in place")
    if example(logits).requires_grad and not _is_recorded(logits, result, inside):
        raise NoLossError("which gradients are recorded changes between its logits and it")
    operands = operands_of(logits)
    assert operands is not None
    given = [one for one in operands[:3] if one is not None]
    if operands[2] is not None and example(operands[2]).shape[0] != example(logits).shape[-1]:
        raise NoLossError("its bias is no number a column")
    own = {each for one in given for each in memory(one)}
    asked = {each for one in (loss.targets, loss.class_weights) if one is not None for each in memory(one)}
    reads = min(places[node] for node in loss.inside)  # what is written out reads its targets before its end
    for node, place in places.items():
        meanwhile = places[logits] < place < places[result]
        touched = own | asked if place > reads else own
        if meanwhile and any(not touched.isdisjoint(memory(one)) for one in written_by(node)):
            raise NoLossError(f"{node.name} may write to what it is computed of")
    found = {places[node]: node for node in sorted(inside, key=places.__getitem__)}
    ignored = None if loss.ignored is None else int(loss.ignored)
    return LossSite(
        number, digest_of("loss", found), result, logits, steps, loss.inside, loss.targets, loss.class_weights,
        loss.reduction, ignored, float(loss.smoothing),
    )  # fmt: skip


def _is_recorded(logits: Node, result: Node, inside: Collection[Node]) -> bool:
    """Whether gradients are recorded at all that a loss consists of, as they are at its logits."""
    recorded = True
    for node in between(logits, result):
        if node.target is torch._C._set_grad_enabled:
            recorded = node.args[0] is True
        elif changes_recording(node):
            return False
        if node in inside and not recorded:
            return False
    return recorded


def _check_asked(loss: _Loss) -> None:
    """NoLossError where it is asked for something that no way knows."""
    if not are_tensors(loss.targets) or not (loss.class_weights is None or are_tensors(loss.class_weights)):
        raise NoLossError("its targets are no tensor")
    if example(loss.targets).dtype.is_floating_point:
        raise NoLossError("its targets are probabilities")
    if example(loss.targets).dtype != torch.int64:
        raise NoLossError("its targets are not in int64")
    if loss.reduction not in ("mean", "sum", "none") or number_of(loss.smoothing) is None:
        raise NoLossError("what it is asked for is known at run time only")
    if loss.ignored is not None and type(loss.ignored) is not int:
        raise NoLossError("what it is asked for is known at run time only")
    shape = list(example(loss.read).shape)
    if len(shape) < 2:
        raise NoLossError("it is of one row")
    shape.pop(loss.axis)
    if not _same(shape, example(loss.targets).shape):
        raise NoLossError("its targets are not one for each row")


def _climbed(loss: _Loss) -> tuple[Node, tuple[Node, ...]]:
    """The matmul that a loss reads from, and the steps between the two in their order."""
    node, steps = loss.read, list[Node]()
    if _positive(loss.axis, example(node).dim()) != example(node).dim() - 1:
        if not _turns_last_to_second(node):
            raise NoLossError("its classes are not the columns of a matmul")
        steps, node = [node], first(node)
    columns = example(node).shape[-1]
    while operands_of(node) is None:
        name, source = name_of(node), first(node) if node.op in ("call_function", "call_method") else None
        if not isinstance(source, Node) or not are_tensors(source):
            raise NoLossError(f"its logits come from {node.name}, which is no matmul")
        _check_step(name, node, source, columns)
        steps.append(node)
        node = source
    if type(columns) is not int:
        raise NoLossError("how many classes there are is known at run time only")
    return node, tuple(reversed(steps))


def _check_step(name: str, node: Node, source: Node, columns: Any) -> None:
    """NoLossError where a step does more than cast, and than rearrange or leave out rows."""
    was, now = example(source), example(node)
    if name in _CASTS:
        if (
            now.device != was.device
            or min(was.dtype.itemsize, now.dtype.itemsize) < 2
            or torch.promote_types(was.dtype, now.dtype) != now.dtype
        ):
            raise NoLossError(f"its logits are rounded by {node.name}")
        return
    kept = (
        now.dim() > 0 and was.dim() > 0 and statically_known_true(was.shape[-1] == columns) and now.dtype == was.dtype
    )
    if name in _RESHAPED and kept and node.args and sizes_of(node) is not None:
        return
    if name == "contiguous" and kept:
        return
    if node.target is operator.getitem and kept and now.dim() == was.dim() and _slices_rows(node.args[1], was.dim()):
        return
    raise NoLossError(f"its logits come from {node.name}, which is no matmul")


def sizes_of(step: Node) -> Sequence[Any] | None:
    """The sizes that a value gets by a call of `view` or `reshape`, nothing where it is another call; None where that is no shape."""
    if name_of(step) not in ("view", "reshape"):
        return ()
    given = step.args[1:]
    sizes: Any = given[0] if len(given) == 1 and isinstance(given[0], list | tuple) else given
    return sizes if sizes and not step.kwargs and all(isinstance(one, int | Node) for one in sizes) else None


def _slices_rows(index: Any, dims: int) -> bool:
    """Whether an index leaves out rows alone: what it says of columns, it could not say of what they were made of."""
    each = index if isinstance(index, tuple) else (index,)
    if not all(one is Ellipsis or isinstance(one, slice) for one in each):
        return False
    if Ellipsis in each and len(each) > dims:
        return False  # it stands for nothing, and what stands behind it may be the columns
    reaches = len(each) == dims if Ellipsis not in each else each[-1] is not Ellipsis
    return not reaches or each[-1] == slice(None)


def _adds_last(index: Any, source: Any) -> bool:
    """Whether an index keeps all of a tensor, and adds a dimension at its end."""
    if not isinstance(index, tuple) or not index or not are_tensors(source) or index[-1] is not None:
        return False
    return index[:-1] == (Ellipsis,) or index[:-1] == (slice(None),) * example(source).dim()


def _turns_last_to_second(node: Node) -> bool:
    """Whether it makes the columns of a batch of rows what stands behind the batch."""
    if name_of(node) not in _TURNED or not are_tensors(first(node)) or example(node).dim() != 3:
        return False
    if name_of(node) == "mT":
        return True
    given = node.args[1:]
    dims: Any = given[0] if len(given) == 1 and isinstance(given[0], list | tuple) else given
    if node.kwargs or not all(type(one) is int for one in dims):
        return False
    positive = tuple(one % 3 for one in dims)
    return positive == (0, 2, 1) if name_of(node) == "permute" else sorted(positive) == [1, 2]


def _of_log_softmax(node: Any) -> Node | None:
    """What a logarithm of a softmax is of."""
    if not are_tensors(node) or name_of(node) != "log_softmax":
        return None
    source = first(node)
    widens = (
        are_tensors(source) and torch.promote_types(example(source).dtype, example(node).dtype) == example(node).dtype
    )
    return source if widens else None


def _dim_of(log_softmax: Node) -> Any:
    return argument(log_softmax, 1, "dim")


def _positive(dim: Any, dims: int) -> int | None:
    return dim % dims if type(dim) is int and -dims <= dim < dims else None


def _is_last(dim: Any, node: Any) -> bool:
    return are_tensors(node) and _positive(dim, example(node).dim()) == example(node).dim() - 1


def _same(sizes: Collection[Any], others: Collection[Any]) -> bool:
    pairs = zip(sizes, others, strict=False)
    return len(sizes) == len(others) and all(statically_known_true(one == other) for one, other in pairs)
