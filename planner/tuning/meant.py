"""Traces that a person means, by a file, a folder, or a key or name that the database knows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fuseplan.capture.trace.format import Trace
from fuseplan.errors import StoreError
from fuseplan.looking.subject import subjects
from fuseplan.tuning.queue.sources import read_programs
from fuseplan.tuning.untuned import is_file
from fuseplan.tuning_db import Store, StoredPlan


def meant(store: Store, what: Trace | str | Path) -> Iterator[tuple[Trace, StoredPlan | None]]:
    """The traces to run, each with the plan that was named, if one was.

    >>> list(meant(Store.open({"HOME": "/home/ada"}), "gelu"))
    Traceback (most recent call last):
    ...
    fuseplan.errors.StoreError: there is no plan and no program that begins with 'gelu': see fuseplan show
    """
    if not isinstance(what, str) or is_file(what):
        yield from ((trace, None) for trace in read_programs(what, store).traces)
        return
    for subject in subjects(store, what):
        chosen = None if subject.chosen is None else subject.chosen.stored
        named = chosen is not None and chosen.key.startswith(what)
        texts = (
            [store.find_trace(subject.program, chosen.sizes)] if chosen is not None else store.traces(subject.program)
        )
        traces = [Trace.from_json(text) for text in texts if text is not None]
        if not traces:
            raise StoreError(f"the database holds no trace of program {subject.called}: name the file of one")
        yield from ((trace, chosen if named else None) for trace in traces)
