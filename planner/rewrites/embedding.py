"""Embeddings, of whose table the gradient is a sum over equal tokens: of large tables, few rows are touched, of small ones, all.

As a compiler writes it, the whole table is cleared in float32, filled, rounded, and, where the table is a head's matrix as well, added
to that gradient: the table goes through memory again and again. Where a step reads few of the rows, those of equal tokens are summed first,
in a place as large as what was read; the sums then go to their rows of a table that is only cleared, or that is there already, as the
gradient of the head. Where thousands of tokens meet in a few rows, as types of tokens and distances between them do, they wait for each
other: there it is a matmul with ones and zeros.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from fuseplan.rewrites.base import Draft, Kind, Site, digest_of
from fuseplan.rewrites.reading import argument, name_of
from fuseplan.rewrites.special import example, memory_of, rounds_float32
from fuseplan.rewrites.writes import written_by

LEAST_ELEMENTS = 2**22
"""By rows: of a smaller table there is not much to save."""
ROWS_EACH = 3
"""The table has at least so many rows for each token: what is summed apart is written and read in float32, too."""
FEW_ROWS = 64
"""A table of so many rows at most meets its tokens in a matmul …"""
TOKENS_EACH = 256
"""… if there are at least so many for each row."""
OWN = "fuseplan.rewrites."
_READERS = ("linear", "matmul", "mm", "addmm", "t", "T", "transpose", "embedding")
"""Who may read the table behind an embedding, to have its gradient go into the same place: of what else reads it, nothing is known."""
_ARGUMENTS = {"max_norm": 3, "scale_grad_by_freq": 5, "sparse": 6}
_MEANING = "1"
"""Another one, should the function ever do something else: torch counts it in."""


def _flat(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """The tokens, and the gradient of each; padding has none."""
    (ids,) = ctx.saved_tensors
    ids, gradient = ids.reshape(-1), gradient.reshape(-1, gradient.shape[-1])
    if ctx.padding is not None:
        gradient = gradient.masked_fill((ids == ctx.padding % ctx.rows)[:, None], 0.0)
    return ids, gradient


class _OfRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ids: Tensor, table: Tensor, padding: int | None, again: bool) -> Any:
        ctx.save_for_backward(ids)
        ctx.set_materialize_grads(False)
        ctx.rows, ctx.padding = table.shape[0], padding
        rows = F.embedding(ids, table, padding)
        return (rows, table.view_as(table)) if again else rows

    @staticmethod
    def backward(ctx: Any, *given: Any) -> tuple[Tensor | None, ...]:
        gradient, *others = given
        of_table = others[0] if others else None
        if gradient is None:
            return None, of_table, None, None
        ids, gradient = _flat(ctx, gradient)
        # of equal tokens one stands for all: whichever is written last
        places = torch.arange(ids.shape[0], device=ids.device)
        place = places.new_zeros(ctx.rows).index_put((ids,), places)[ids]
        precise = gradient.float() if gradient.dtype.itemsize < 4 else gradient
        sums = torch.zeros_like(precise).index_add(0, place, precise).to(gradient.dtype)[place]
        if of_table is None:
            of_table = gradient.new_zeros((ctx.rows, gradient.shape[-1]))
        else:
            sums = sums + of_table[ids]
        return None, of_table.index_put((ids,), sums), None, None  # equal tokens write the same


class _OneHot(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ids: Tensor, table: Tensor, padding: int | None) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.rows, ctx.padding = table.shape[0], padding
        return F.embedding(ids, table, padding)

    @staticmethod
    def backward(ctx: Any, *given: Any) -> tuple[Tensor | None, ...]:
        ids, gradient = _flat(ctx, given[0])
        hot = ids[:, None] == torch.arange(ctx.rows, device=ids.device)
        with torch.autocast(ids.device.type, enabled=False):  # it may be on around a backward that is compiled
            return None, hot.to(gradient.dtype).t() @ gradient, None


def embedding_of_few(ids: Tensor, table: Tensor, padding: int | None = None) -> Tensor:
    """The embedding; in its backward, tokens meet the rows of a small table in a matmul. There a gradient that is infinite or no number
    is so for all rows, and not for its token's alone.

    >>> table = torch.zeros(2, 3, requires_grad=True)
    >>> embedding_of_few(torch.tensor([1, 1, 0, 1]), table).sum().backward()
    >>> table.grad.tolist()
    [[1.0, 1.0, 1.0], [3.0, 3.0, 3.0]]
    """
    found: Tensor = _OneHot.apply(ids, table, padding)  # type: ignore[no-untyped-call]
    return found


def embedding_of_rows(ids: Tensor, table: Tensor, padding: int | None = None) -> Tensor:
    """The embedding; in its backward, the rows that were read are touched alone.

    >>> table = torch.zeros(4, 2, requires_grad=True)
    >>> embedding_of_rows(torch.tensor([1, 3, 1]), table).sum().backward()
    >>> table.grad.tolist()
    [[0.0, 0.0], [2.0, 2.0], [0.0, 0.0], [1.0, 1.0]]
    """
    found: Tensor = _OfRows.apply(ids, table, padding, False)  # type: ignore[no-untyped-call]
    return found


def embedding_and_table(ids: Tensor, table: Tensor, padding: int | None = None) -> tuple[Tensor, Tensor]:
    """The same, and the table again, for who reads it later: its gradient goes into the same place."""
    found: tuple[Tensor, Tensor] = _OfRows.apply(ids, table, padding, True)  # type: ignore[no-untyped-call]
    return found


@dataclass(frozen=True, eq=False)
class EmbeddingSite(Site):
    """A look-up of rows in a table that takes a gradient."""

    call: Node = field(repr=False)

    @property
    def ids(self) -> Any:
        """Of tokens."""
        return example(_ids(self.call))

    @property
    def table(self) -> Any:
        """It has a row for each token that there could be."""
        return example(_table(self.call))


class Embedding(Kind[EmbeddingSite]):
    """Embeddings of which the gradient is mostly zeros."""

    noun = "embedding"
    doubtful = False
    has_own_gradients = True
    functions: Mapping[str, str] = {
        f"{one.__module__}.{one.__name__}": _MEANING
        for one in (embedding_of_rows, embedding_and_table, embedding_of_few)
    }

    def find(self, gm: GraphModule) -> Sequence[EmbeddingSite]:
        """Those that take a gradient."""
        found = list[EmbeddingSite]()
        for place, node in enumerate(gm.graph.nodes):
            if node.target is F.embedding and all(isinstance(one, Node) for one in (_ids(node), _table(node))):
                site = EmbeddingSite(len(found), digest_of("embedding", {place: node}), node)
                found += [site] if _trained(site) else []
        return found

    def nodes(self, site: EmbeddingSite) -> Collection[Node]:
        """Its call."""
        return (site.call,)

    def ways(self, site: EmbeddingSite) -> Sequence[str]:
        """By the rows that were read, or by all."""
        return ("rows", "one-hot")

    def refusal(self, site: EmbeddingSite, way: str) -> str | None:
        """What changes the table or its gradient, or where as much would go through memory."""
        if way not in self.ways(site):
            return f"there is no embedding variant {way!r}"
        for name, place in _ARGUMENTS.items():
            given = argument(site.call, place, name, default=None)
            if given is not None and given is not False:
                return f"it has {name}"
        rows, width = site.table.shape
        if way == "one-hot":
            return _no_matmul(site, rows)
        if rows * width < LEAST_ELEMENTS:
            return f"its table has {rows * width:,} elements: it pays from {LEAST_ELEMENTS:,} on"
        if not statically_known_true(site.ids.numel() * ROWS_EACH <= rows):
            return f"its table is not known to have {ROWS_EACH} rows for each token"
        return None

    def preferred(self, site: EmbeddingSite) -> str | None:
        """On a GPU; elsewhere nobody has seen it pay. No table has both."""
        return super().preferred(site) if site.table.device.type == "cuda" else None

    def rivals(self, site: EmbeddingSite) -> Mapping[str, str]:
        """None: there is one way for each."""
        return {}

    def forbidden(self, site: EmbeddingSite, way: str) -> str | None:
        """Sums of equal tokens are added in whatever order they come."""
        deterministic = way == "rows" and torch.are_deterministic_algorithms_enabled()
        return "it is not deterministic, which the caller asks for" if deterministic else None

    def apply(self, draft: Draft, chosen: Mapping[EmbeddingSite, str]) -> None:
        """Call the function that has other gradients, and have the table read from what that gives."""
        order = {node: place for place, node in enumerate(draft.copies)}
        for site in sorted(chosen, key=lambda one: order[one.call]):
            if chosen[site] == "rows":
                _write_rows(draft, site)
                continue
            call = draft.copies[site.call]
            call.target, call.args, call.kwargs = embedding_of_few, _given(call), {}

    def about(self, site: EmbeddingSite) -> str:
        """How much there is of it."""
        rows, width = site.table.shape
        return f"{site.ids.numel()} of {rows} rows of {width}"


def _ids(call: Node) -> Any:
    return argument(call, 0, "input")


def _table(call: Node) -> Any:
    return argument(call, 1, "weight")


def _given(call: Node) -> tuple[Any, ...]:
    return _ids(call), _table(call), argument(call, 2, "padding_idx")


def _no_matmul(site: EmbeddingSite, rows: int) -> str | None:
    """Why its tokens do not meet its rows in a matmul."""
    if rows > FEW_ROWS:
        return f"its table has more than {FEW_ROWS} rows"
    if not statically_known_true(site.ids.numel() >= TOKENS_EACH * rows):
        return f"it is not known to have {TOKENS_EACH} tokens for each row"
    if site.table.dtype == torch.float32 and rounds_float32():
        return "matmuls in float32 may be rounded, and sums may not"
    return None


def _trained(site: EmbeddingSite) -> bool:
    """Whether the table takes a gradient, and its size is known."""
    ids, table = site.ids, site.table
    if not (isinstance(ids, Tensor) and isinstance(table, Tensor) and table.requires_grad and table.dim() == 2):
        return False
    if not example(site.call).requires_grad:  # it is read where no gradients are taken
        return False
    return all(type(size) is int and size > 0 for size in table.shape) and table.dtype.is_floating_point


def _write_rows(draft: Draft, site: EmbeddingSite) -> None:
    call, like = draft.copies[site.call], example(site.call)
    table = _table(call)
    behind = [] if _is_written(site) else [user for user in table.users if user > call and _reads(user)]
    if not behind:
        call.target, call.args, call.kwargs = embedding_of_rows, _given(call), {}
        return
    with draft.graph.inserting_before(call):
        both = draft.call(embedding_and_table, _given(call), {}, like)
    with draft.graph.inserting_after(both):
        rest = draft.call(operator.getitem, (both, 1), {}, like)
    call.target, call.args, call.kwargs = operator.getitem, (both, 0), {}
    for user in behind:
        user.replace_input_with(table, rest)


def _is_written(site: EmbeddingSite) -> bool:
    """Whether something in the program may write to the table: then it has to be read where it is."""
    memory = memory_of(site.table)
    return any(
        not memory.isdisjoint(memory_of(example(one))) for node in site.call.graph.nodes for one in written_by(node)
    )


def _reads(node: Node) -> bool:
    name = name_of(node)
    if name == "embedding":
        return not any(argument(node, place, which) for which, place in _ARGUMENTS.items())
    return name in _READERS or name.startswith(OWN)
