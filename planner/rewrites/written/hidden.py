"""What hides scores, as one bias, and rows that are hidden as a whole.

Where each column of a row is hidden by an infinity, softmax is NaN, and kernels give zeros; where each is hidden by so low a
number that no score shows beside it, all columns weigh the same, and some kernels give zeros there, too. So the bias of the first
becomes NaN, and the second has no bias and a query of zeros: then its scores are the same without it. Its query has no gradient
then, as it has none where scores are replaced; where a bias is added, it has one, and such a site stays out of fused kernels in
training.
"""

from __future__ import annotations

import math

import torch
from torch.fx import Node

from fuseplan.rewrites.written.layouts import Location
from fuseplan.rewrites.written.lowest import ABSORBS
from fuseplan.rewrites.written.scores import Added
from fuseplan.rewrites.written.versions import fake_of
from fuseplan.rewrites.written.writer import Named, Writer
from fuseplan.rewrites.written.written import Written, arranged_at, term_at


def hiding(written: Written, writer: Writer) -> Node | None:
    """What hides scores, with the axes of its frame; None where nothing does."""
    found: Node | None = None
    for bias in written.hiding:
        step = bias.term.step
        if isinstance(step, Added):
            term = term_at(written, writer, bias.term, written.frame)
            found = term if found is None else writer.call(torch.add, found, term)
            continue
        mask = arranged_at(written, writer, step.mask, bias.term.location, written.frame)
        low = -math.inf if bias.range[0] == -math.inf else torch.finfo(written.dtype).min
        filled = _number(written, writer, low)
        left = _number(written, writer, 0.0) if found is None else found
        found = writer.call(torch.where, mask, *((filled, left) if step.where else (left, filled)))
    return found


def _number(written: Written, writer: Writer, number: float) -> Node:
    device = fake_of(written.match.result).device
    return writer.call(torch.full, (), number, dtype=written.dtype, device=device)


def guarded(written: Written, writer: Writer, hidden: Node) -> tuple[Node, Node | None]:
    """What hides, and the rows of the frame whose queries become zeros, so that a kernel gives what softmax does. Where something
    stands beside the scores, these are rows of which that takes the whole.
    """
    if not written.guarded or not (written.may_be_infinite or written.evens_out):
        return hidden, None
    rows: Node | None = None
    highest = writer.call("amax", hidden, -1, True)
    if written.match.sinks is not None:
        rows = writer.call(torch.eq, highest, -math.inf)
        return writer.call("masked_fill", hidden, rows, 0.0), rows
    if written.evens_out:
        lowest = max(ABSORBS, torch.finfo(written.dtype).min)
        rows = writer.call(torch.le, highest, lowest)
        alike = writer.call(
            "masked_fill", writer.call(torch.zeros_like, hidden), writer.call(torch.ne, hidden, highest), -math.inf
        )
        hidden = writer.call(torch.where, rows, alike, hidden)
    if written.may_be_infinite:
        hidden = writer.call("masked_fill", hidden, writer.call(torch.eq, highest, -math.inf), math.nan)
    return hidden, rows


def rows_at(written: Written, writer: Writer, rows: Node, goal: Location) -> Node:
    """Booleans for rows of the frame as they are for scores elsewhere, with one column."""
    axes = written.axes_at(goal)
    tensor: Named = writer.named(writer.call("squeeze", rows, -1), written.axes_at(written.frame)[:-1])
    return writer.arranged(writer.moved(tensor, written.frame, goal), axes)


def bias_at(written: Written, writer: Writer, bias: Node, start: Location, goal: Location) -> Node:
    """A bias with the axes of scores at one place, with those of another."""
    if start is goal:
        return bias
    tensor = writer.named(bias, written.axes_at(start))
    return writer.arranged(writer.moved(tensor, start, goal), written.axes_at(goal))
