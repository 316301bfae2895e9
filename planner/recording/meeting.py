"""What happens where a program is met: it is written down, its calls are counted, and sizes that are new are noted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fuseplan.capture.dynamo.computing import computes
from fuseplan.capture.dynamo.names import name_of
from fuseplan.capture.dynamo.settled import settled
from fuseplan.capture.trace.format import Trace
from fuseplan.capture.trace.write import write_trace
from fuseplan.log import logger
from fuseplan.recording.book import RecordedProgram, Recording
from fuseplan.recording.counting import Counted, SizeReader, Sizes, Tally
from fuseplan.runtime.compiler import devices_of
from fuseplan.tuning.queue.boxes import at_sizes
from fuseplan.tuning.traces import box_of


def meet(recording: Recording, gm: Any, example_inputs: Sequence[Any]) -> Callable[[Any], Any]:
    """Write a program down, unless it is known, or computes nothing; what is returned has the calls of what a backend makes of it counted."""
    if not computes(gm):
        return lambda compiled: compiled
    program = settled(gm, example_inputs)
    trace = write_trace(program.gm, program.example_inputs, recording.called(name_of(gm)))
    on_cuda = any(device.type == "cuda" for device in devices_of(gm, example_inputs))
    entry_of(recording, trace)
    reader, arranged = SizeReader.of(trace.fields), program.arranged
    tallies: dict[Sizes, Tally] = {}

    def tally_of(args: Sequence[Any]) -> Tally | None:
        if not recording.open:
            return None
        args = arranged(args)
        sizes = reader.read(args)
        known = tallies.get(sizes)
        if known is None:
            known = tallies[sizes] = _tally(recording, trace, sizes, args)
        recording.write_now_and_then()
        return known

    def count(compiled: Any) -> Any:
        if not callable(compiled) or hasattr(compiled, "serialize_compile_artifacts"):
            return compiled  # of what is to be pickled, Dynamo wants the very object
        counted = Counted(compiled, tally_of, on_cuda)
        recording.settle_at_end(counted.clock)
        return counted.call

    return count


def entry_of(recording: Recording, trace: Trace) -> RecordedProgram:
    """Where a program in its box of sizes is kept."""
    return recording.entry(box_of(trace), trace, SizeReader.names(trace.fields))


def _tally(recording: Recording, first: Trace, sizes: Sizes, args: Sequence[Any]) -> Tally:
    """The count for these sizes; sizes outside every box so far are another trace of the program."""
    try:
        names = SizeReader.names(first.fields)
        seen = dict(zip(names, sizes, strict=True))
        hints = {symbol["name"]: symbol["hint"] for symbol in first.fields["symbols"] if symbol["name"] in names}
        trace = first if seen == hints else at_sizes(first, seen, args)
        return entry_of(recording, trace).tallies.setdefault(sizes, Tally())
    except Exception as error:  # noqa: BLE001 – whatever goes wrong is no concern of the script
        logger.warning("sizes could not be recorded", exc_info=True)
        recording.note(f"{first.name} with the sizes {sizes}: {type(error).__name__}: {error}")
        return Tally()
