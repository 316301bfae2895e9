"""Attention that leaves out what no query sees, as an operator of fuseplan's own: flex_attention with a block mask, compiled inside.

A graph that called flex_attention itself would hold functions, which nobody can write down. This operator is given numbers
alone: how far each query sees, and where documents end. Inductor compiles it at its first call for each shape, and never
while a CUDA graph is captured: the trees run everything once before they capture it, so that it is compiled by then.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import FunctionType
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.exc import TorchDynamoException
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from fuseplan.capture.fx.composites import LIBRARY, gradients
from fuseplan.log import logger

T = TypeVar("T")
BLOCK = 128
"""So many queries and keys make a block, as is flex_attention's default."""
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""What flex_attention takes on all devices; in any other dtype the operator computes with a mask, such as to judge it."""

LIBRARY.define(
    "sdpa_in_sight(Tensor query, Tensor key, Tensor value, int? left, int? right, int[] documents, float? scale) -> Tensor"
)
LIBRARY.define(
    "sdpa_in_sight_backward(Tensor grad, Tensor query, Tensor key, Tensor value, int? left, int? right, int[] documents,"
    " float? scale) -> (Tensor, Tensor, Tensor)"
)


@dataclass(frozen=True)
class Sight:
    """Which keys each query sees, as many of each: those of its own document, so many before and behind its own place.

    >>> Sight(4, 1, 0).mask("cpu").int().tolist()
    [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
    >>> Sight(4, None, 0, (3, 1)).mask("cpu").int().tolist()
    [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 0, 1]]
    """

    length: int
    left: int | None
    """All before, where there is no number."""
    right: int | None
    documents: tuple[int, ...] = ()
    """Their lengths, in order; empty where all is one."""

    def ends(self) -> tuple[list[int], list[int]]:
        """The first key and the last one that each query sees. Neither goes back from one query to the next."""
        first, last, begin = list[int](), list[int](), 0
        for length in self.documents or (self.length,):
            end = begin + length
            places = range(begin, end)
            first += [begin if self.left is None else max(begin, at - self.left) for at in places]
            last += [end - 1 if self.right is None else min(end - 1, at + self.right) for at in places]
            begin = end
        return first, last

    def blocks(self) -> tuple[list[list[int]], list[list[int]]]:
        """For each block of queries, the blocks of keys of which it sees a part, and those of which all of it sees all."""
        first, last = self.ends()
        parts, wholes = list[list[int]](), list[list[int]]()
        for start in range(0, self.length, BLOCK):
            end = min(start + BLOCK, self.length) - 1
            seen = range(first[start] // BLOCK, last[end] // BLOCK + 1)
            whole = range(-(-first[end] // BLOCK), (last[start] + 1) // BLOCK) if end + 1 == start + BLOCK else range(0)
            wholes.append(list(whole))
            parts.append([block for block in seen if block not in whole])
        return parts, wholes

    def hides_blocks(self) -> bool:
        """Whether there is a block of keys that no query of some block sees: something to leave out."""
        parts, wholes = self.blocks()
        return any(len(part) + len(whole) < len(parts) for part, whole in zip(parts, wholes, strict=True))

    def mask(self, device: str | torch.device) -> Tensor:
        """The same as a mask."""
        first, last = (torch.tensor(each, device=device) for each in self.ends())
        keys = torch.arange(self.length, device=device)
        return (keys >= first[:, None]) & (keys <= last[:, None])

    def block_mask(self, device: torch.device) -> BlockMask:
        """The same as flex_attention wants it."""
        (counts, parts), (whole_counts, wholes) = (_ordered(listed, device) for listed in self.blocks())
        return BlockMask.from_kv_blocks(
            counts, parts, whole_counts, wholes,
            BLOCK_SIZE=BLOCK, mask_mod=self._condition(device), seq_lengths=(self.length, self.length),
        )  # fmt: skip

    def _condition(self, device: torch.device) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
        """What says of one query and one key whether it sees it."""
        left = self.length if self.left is None else self.left
        right = self.length if self.right is None else self.right
        if not self.documents:
            return lambda batch, head, query, key: (query - key <= left) & (key - query <= right)
        numbers = [number for number, length in enumerate(self.documents) for _ in range(length)]
        document = torch.tensor(numbers, dtype=torch.int32, device=device)
        return lambda batch, head, query, key: (
            (document[query] == document[key]) & (query - key <= left) & (key - query <= right)
        )


def _ordered(listed: list[list[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """How many blocks there are for each block of queries, and which: as many places as there may be, the first ones used."""
    padded = [row + [0] * (len(listed) - len(row)) for row in listed]
    counts = torch.tensor([[[len(row) for row in listed]]], dtype=torch.int32, device=device)
    return counts, torch.tensor([[padded]], dtype=torch.int32, device=device)


# what is compiled


@dataclass(frozen=True)
class _Shapes:
    """All that attention is compiled for. Dynamo by itself would give up after a few of one function."""

    sight: Sight
    scale: float | None
    given: tuple[Any, ...]
    """Of query, key and value the sizes, strides, dtype and device."""
    trains: bool


_Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
_COMPILED: dict[_Shapes, _Attention] = {}
"""Kept for good: a captured CUDA graph reads a block mask where it lies."""
_RAN: set[_Shapes] = set()
_FAILED: set[_Shapes] = set()
_lock = threading.RLock()


def _attending(
    run: Callable[[_Attention], T], tensors: Sequence[Tensor], sight: Sight, scale: float | None, trains: bool
) -> T:
    """What `run` makes of attention under flex_attention where that takes these tensors, and else of attention with a mask."""
    query = tensors[0]
    given = tuple((tuple(one.shape), one.stride(), one.dtype, one.device) for one in tensors)
    shapes, masked = _Shapes(sight, scale, given, trains), partial(_with_mask, sight, scale)
    takes = query.dtype in DTYPES and not (trains and query.device.type == "cpu")
    if not takes or shapes in _FAILED:
        return run(masked)
    if shapes not in _RAN and query.is_cuda and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            f"attention over {sight.length} keys is not compiled yet, and a CUDA graph is being captured: call the program once"
            " before"
        )
    try:
        found = run(_compiled(shapes))
    except TorchDynamoException as error:
        _FAILED.add(shapes)
        text = f"attention that skips what no query sees runs with a mask instead: {_first_line(error)}"
        logger.warning(text)
        warnings.warn(f"fuseplan: {text}", stacklevel=2)
        return run(masked)
    _RAN.add(shapes)
    return found


def _with_mask(sight: Sight, scale: float | None, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    mask, shared = sight.mask(query.device), query.shape[1] != key.shape[1]
    return F.scaled_dot_product_attention(query, key, value, mask, scale=scale, enable_gqa=shared)


def _compiled(shapes: _Shapes) -> _Attention:
    with _lock:
        if shapes not in _COMPILED:
            _COMPILED[shapes] = _compile(shapes)
        return _COMPILED[shapes]


def _compile(shapes: _Shapes) -> _Attention:
    """What Inductor compiles when it is called first. It has code of its own, by which Dynamo tells functions apart."""
    (sizes, *_, device), (others, *_), _ = shapes.given
    block_mask, scale, shared = (
        _apart(lambda: shapes.sight.block_mask(device), device),
        shapes.scale,
        sizes[1] != others[1],
    )

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Any:
        return flex_attention(query, key, value, block_mask=block_mask, scale=scale, enable_gqa=shared)

    own = FunctionType(attend.__code__.replace(), attend.__globals__, attend.__name__, None, attend.__closure__)
    made: _Attention = torch.compile(own, fullgraph=True, dynamic=False, options={"triton.cudagraphs": False})
    return made


def _apart(make: Callable[[], BlockMask], device: torch.device) -> BlockMask:
    """Made in a thread of its own: what lasts may not lie in the memory of a CUDA graph that this thread is about to capture,
    nor be made as the program around would make it, such as in inference mode.
    """
    made: list[BlockMask | Exception] = []

    def run() -> None:
        try:
            made.append(make())
            if device.type == "cuda":
                torch.cuda.synchronize(device)
        except Exception as error:  # noqa: BLE001 -- raised again below, in the thread that has asked
            made.append(error)

    thread = threading.Thread(target=run, name="fuseplan block mask")
    thread.start()
    thread.join()
    (found,) = made
    if isinstance(found, Exception):
        raise found
    return found


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


# the operator


def _sight(query: Tensor, left: int | None, right: int | None, documents: Any) -> Sight:
    return Sight(query.shape[2], left, right, tuple(documents))


def _in_sight(
    query: Tensor, key: Tensor, value: Tensor, left: int | None, right: int | None, documents: Any, scale: float | None
) -> Tensor:
    sight, tensors = _sight(query, left, right, documents), [one.detach() for one in (query, key, value)]
    with torch.no_grad():
        return _rows_first(_attending(lambda attention: attention(*tensors), tensors, sight, scale, trains=False))


def _in_sight_fake(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> Tensor:
    return _laid_out(query, (*query.shape[:-1], value.shape[-1]))


def _backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, left: int | None, right: int | None, documents: Any,
    scale: float | None,
) -> Any:  # fmt: skip
    """Gradients through what flex_attention compiles for training, which computes the forward once more."""
    sight, tensors = _sight(query, left, right, documents), (query, key, value)

    def run(attention: _Attention) -> Any:
        return gradients(attention, tensors, 3, grad)

    return tuple(map(_rows_first, _attending(run, tensors, sight, scale, trains=True)))


def _backward_fake(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> Any:
    return tuple(_laid_out(one, one.shape) for one in (query, key, value))


def _laid_out(like: Tensor, sizes: Any) -> Tensor:
    """Heads behind rows, whatever is given: as most programs read the result of attention."""
    batch, heads, rows, features = sizes
    return like.new_empty((batch, rows, heads, features)).transpose(1, 2)


def _rows_first(result: Tensor) -> Tensor:
    wanted = _laid_out(result, result.shape)
    return result if result.stride() == wanted.stride() else wanted.copy_(result)


for _name, _body, _fake in (
    ("sdpa_in_sight", _in_sight, _in_sight_fake),
    ("sdpa_in_sight_backward", _backward, _backward_fake),
):
    LIBRARY.impl(_name, _body, "CompositeExplicitAutograd")
    torch.library.register_fake(f"fuseplan::{_name}", _fake, lib=LIBRARY)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:3])
    ctx.rest = inputs[3:]


def _gradients_of(ctx: Any, grad: Tensor) -> Any:
    found = torch.ops.fuseplan.sdpa_in_sight_backward(grad, *ctx.saved_tensors, *ctx.rest)
    return *found, None, None, None, None


torch.library.register_autograd("fuseplan::sdpa_in_sight", _gradients_of, setup_context=_save, lib=LIBRARY)
