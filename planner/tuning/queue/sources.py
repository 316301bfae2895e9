"""Reading the programs that a run of tuning is for: out of files, folders and the database, each once."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fuseplan.capture.dynamo.numerics import Numerics
from fuseplan.capture.nvfuser_script import read_scripts
from fuseplan.capture.trace.calls import larger
from fuseplan.capture.trace.format import Trace
from fuseplan.capture.trace.key import at_home
from fuseplan.errors import GraphError, OptionError, StoreError
from fuseplan.graph.limits import MAX_DOCUMENT
from fuseplan.graph.words import counted
from fuseplan.tuning.effort import Effort
from fuseplan.tuning.queue.boxes import at_sizes, boxes_that_matter
from fuseplan.tuning.queue.predicted_work import tuning_work
from fuseplan.tuning.queue.shards import ChosenShard, Shard, split
from fuseplan.tuning.traces import box_of
from fuseplan.tuning_db import Box, Store
from fuseplan.tuning_db.notify import notify
from fuseplan.tuning_db.words import traces_of

Source = Trace | str | Path
"""A trace, a file or folder of such, or a name or key that the database knows."""


@dataclass(frozen=True)
class Sources:
    """The distinct programs of a run, and how many files and rows they came from."""

    traces: tuple[Trace, ...]
    read: int
    chosen: ChosenShard | None = None
    """The shard that these are, where they are not all."""


def read_programs(programs: Source | Iterable[Source], store: Store) -> Sources:
    """Read all programs that are asked for. A program that stands in several files is one, with the larger count of its calls.

    A dynamic program whose calls were counted is one for each box of sizes that a plan is made for.

    >>> read_programs([], Store.open({"HOME": "/home/ada"})).traces
    ()
    """
    found: dict[tuple[str, Box, Numerics], Trace] = {}
    read = 0
    for trace in _each(_several(programs), store):
        read += 1
        for one in by_box(trace):
            place = one.key, box_of(one), Numerics.of(one.numerics)
            known = found.get(place)
            found[place] = one if known is None else replace(known, calls=larger(known.calls, one.calls))
    return Sources(tuple(found.values()), read)


def _several(programs: Source | Iterable[Source]) -> list[Source]:
    """The sources, each of which is one."""
    one = isinstance(programs, (Trace, str, Path)) or not isinstance(programs, Iterable)
    several: list[Any] = [programs] if one else [*programs]  # type: ignore[misc]
    wrong = [each for each in several if not isinstance(each, (Trace, str, Path))]
    if wrong:
        raise OptionError(
            f"what is tuned is a trace, a file or a folder of such, or several, not {type(wrong[0]).__name__}: fuseplan.traces_of makes"
            ' traces of a model, and torch.compile with options={"tune": "instant"} tunes it when it is called'
        )
    return several


def that_matter(found: Sources) -> Sources:
    """The programs without those boxes of sizes that hold next to nothing of a program's time; a line says how many these are."""
    of_program: dict[tuple[str, Numerics], list[Trace]] = {}
    for trace in found.traces:
        of_program.setdefault((trace.key, Numerics.of(trace.numerics)), []).append(trace)
    left: set[int] = set()
    for same in of_program.values():
        matter = boxes_that_matter(same)
        others = [id(trace) for trace in same if box_of(trace) not in matter]
        left.update(others)
        if others:
            notify(
                f"{same[0].name or same[0].key[:12]} is called in {len(same)} boxes of sizes, of which {len(same) - len(others)} hold"
                " most of its time: the others stay under the default"
            )
    return replace(found, traces=tuple(trace for trace in found.traces if id(trace) not in left))


def shard_of(found: Sources, shard: Shard, effort: Effort) -> Sources:
    """The programs of one shard, in the order in which they were given."""
    works = [tuning_work(one, box_of(one), effort, repr(Numerics.of(one.numerics))) for one in found.traces]
    chosen = ChosenShard(shard, split(works, shard.of))
    return replace(found, traces=tuple(found.traces[i] for i in chosen.work.programs), chosen=chosen)


def refuse_what_differs(programs: Source | Iterable[Source] | None) -> list[Source]:
    """OptionError unless these are the same on every machine that has the files, as what is split into shards has to be."""
    if programs is None:
        raise OptionError(
            "shards are of traces in files and folders: what waits in a database is another on each machine"
        )
    given = [programs] if isinstance(programs, (Trace, str, Path)) else list(programs)
    for one in given:
        if isinstance(one, str) and not os.path.lexists(one):
            raise OptionError(f"there is no file {one}, and shards are of traces in files and folders")
    return given


def by_box(trace: Trace) -> list[Trace]:
    """The program at the sizes that it was called with most often, for each box that plans are made for."""
    boxes: dict[Box, Trace] = {}
    for one in sorted(trace.calls, key=lambda one: -one.calls):
        there = replace(at_sizes(trace, one.sizes), calls=(one,))
        box = box_of(there)
        known = boxes.get(box)
        boxes[box] = there if known is None else replace(known, calls=(*known.calls, one))
    return list(boxes.values()) or [trace]


def _each(programs: Iterable[Source], store: Store) -> Iterator[Trace]:
    seen: set[Path] = set()
    for one in programs:
        if isinstance(one, Trace):
            yield one
        elif isinstance(one, Path) or os.path.lexists(one):
            for file, traces in _read(Path(one)):
                if (place := file.resolve()) not in seen:
                    seen.add(place)
                    yield from traces
        else:
            texts = traces_of(store, one)
            if not texts:
                raise StoreError(f"there is no file {one}, and no trace of such a program in the database")
            yield from map(Trace.from_json, texts)


def _read(path: Path) -> list[tuple[Path, list[Trace]]]:
    """What is in each file. Of a folder, those that are no traces are left out with a warning; one that holds none is an error."""
    found, refused = [], list[str]()
    for file in files(path):
        try:
            found.append((file, read_traces(file)))
        except (GraphError, OptionError) as error:  # noqa: PERF203  # what is wrong with one file is no reason to leave the others
            if file == path:
                raise
            refused.append(str(error))
    if not found:
        more = f"; and {counted(len(refused) - 1, 'other file')} alike" if refused[1:] else ""
        raise OptionError(f"there is no trace in {path}: {refused[0]}{more}")
    for why in refused:
        notify(f"{why}; it is left out")
    return found


def files(path: Path) -> list[Path]:
    """The file itself, or those of a folder whose names end in .json, sorted."""
    try:
        if not stat.S_ISDIR(path.stat().st_mode):
            return [path]
        found = sorted(path / name for name in os.listdir(path) if name.endswith(".json") and not name.startswith("."))
    except OSError as error:
        raise _unreadable(path, error) from None
    if not found:
        raise OptionError(f"there is no trace in {path}: their names end in .json")
    return found


def read_traces(file: Path) -> list[Trace]:
    """The trace in a file, or those of the fusions in an nvFuser script; an error of one line names what is neither."""
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            raise OptionError(f"{file} is no file")
        with file.open("rb") as opened:
            content = opened.read(MAX_DOCUMENT + 1)
    except OSError as error:
        raise _unreadable(file, error) from None
    if len(content) > MAX_DOCUMENT:
        raise GraphError(f"{file} is no trace: it is larger than {MAX_DOCUMENT // 2**20} MiB")
    is_script = file.suffix == ".py"
    try:
        text = content.decode()
        return read_scripts(text, file.stem) if is_script else [at_home(Trace.from_json(text))]
    except UnicodeDecodeError as error:
        raise GraphError(f"{file} is no trace: it is no text, at byte {error.start}") from None
    except GraphError as error:
        raise GraphError(f"{file}: {error}" if is_script else f"{file} is no trace: {error}") from None


def _unreadable(path: Path, error: OSError) -> OptionError:
    return OptionError(f"{error.filename or path} cannot be read: {error.strerror or error}")
