"""`fuseplan record`: run a script, and write a trace of every program that it compiles."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fuseplan.cli.options import tell
from fuseplan.cli.text import misplaced
from fuseplan.graph.words import counted

if TYPE_CHECKING:
    from fuseplan.capture.trace.format import Trace
    from fuseplan.recording.book import Recording

SCRIPT = {"allow_interspersed_args": False, "help_option_names": ["-h", "--help"]}
"""What stands behind the script is the script's."""


@click.command(
    context_settings=SCRIPT,
    epilog="Examples: fuseplan record train.py --steps 10; fuseplan record -o gpt2/ --compile GPT2Block generate.py; "
    "fuseplan record --retarget cuda -m myproject.train",
)
@click.option(
    "-o", "--output", "folder", type=click.Path(path_type=Path), default=Path("traces"), show_default=True,
    metavar="DIR", help="Where to write the traces, one file each.",
)  # fmt: skip
@click.option(
    "--compile", "classes", multiple=True, metavar="CLASS",
    help="Also record modules of this class, which run eagerly: GPT2Block, or longer, modeling_gpt2.GPT2Block.",
)  # fmt: skip
@click.option("--retarget", metavar="DEVICE", help="Where the traces are to be tuned, if not here: cuda or cpu.")
@click.option("--from-nvfuser", is_flag=True, help="The script holds nvFuser fusions; it is read, and not run.")
@click.option("-m", "module", is_flag=True, help="SCRIPT is the name of a module, as with python -m.")
@click.option("--json", "as_json", is_flag=True, help="End with one line of JSON on stderr.")
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]…")
def record(
    folder: Path, classes: tuple[str, ...], retarget: str | None, from_nvfuser: bool, module: bool, as_json: bool,
    words: tuple[str, ...],
) -> None:  # fmt: skip
    """Run SCRIPT, unmodified, and write a trace of each program that torch.compile meets in it, with any backend.

    Each program is written when it is met, with its calls at the end. A trace holds no weights and no data. What the
    script prints, computes and exits with is its own; at the end, stderr says what was recorded, and what not and why.
    """
    if from_nvfuser:
        _read_nvfuser(words, folder, retarget, as_json)
        return
    from fuseplan.following.processes import followed
    from fuseplan.record import record as recorded
    from fuseplan.recording.script import Script, run_to_end

    script = Script(words[0], words[1:], module).found()
    script.check()
    process, place = os.getpid(), folder.absolute()
    alike = {"folder": str(place), "compile": classes, "retarget": retarget, "name": script.name}
    with followed("record", **alike) as reports:
        with recorded(folder, compile=classes, retarget=retarget, name=script.name) as recording:
            ended = run_to_end(script)
            code = ended.tell()
            if os.getpid() != process:  # a child that the script forked, and that left by its own way
                raise SystemExit(code)
        found = _together(recording, reports(), place)
    tell(_fields(found, code), lambda: _lines(found, words), as_json, indent=None, err=True)
    raise SystemExit(code)


@dataclass(frozen=True)
class _Found:
    """What a script and all that it has started have met."""

    folder: Path | None
    programs: Sequence[Trace]
    notes: Sequence[str]
    came: bool
    processes: int = 0
    """How many of those that it has started met a program."""


def _together(recording: Recording, reports: Sequence[Mapping[str, Any]], folder: Path) -> _Found:
    """What this process has recorded, and what those that it has started have: both may have written to the same file."""
    from fuseplan.following.processes import agreed
    from fuseplan.recording.folder import file_name, known

    own = {file_name(trace): trace for trace in recording.programs}
    theirs = {name: known(folder / name) for report in reports for name in report["files"]}
    found = own | {name: trace for name, trace in theirs.items() if trace is not None}
    programs = [found[name] for name in sorted(found)] if theirs else list(own.values())
    notes = agreed([(recording.came, recording.notes), *((report["came"], report["notes"]) for report in reports)])
    came = sum(bool(report["came"]) for report in reports)
    return _Found(recording.folder, programs, notes, recording.came or came > 0, came)


def _read_nvfuser(words: tuple[str, ...], folder: Path, retarget: str | None, as_json: bool) -> None:
    from fuseplan.record import read_nvfuser

    found = _together(read_nvfuser(words, folder, retarget=retarget), (), folder)
    tell(_fields(found, 0), lambda: _lines(found, words), as_json, indent=None, err=True)


def _fields(found: _Found, code: int) -> dict[str, Any]:
    programs = [_program(trace) for trace in found.programs]
    rest = {"notes": list(found.notes), "processes": found.processes, "exit_code": code}
    return {"folder": str(found.folder), "programs": programs, **rest}


def _program(trace: Trace) -> dict[str, Any]:
    from fuseplan.recording.folder import file_name

    return {
        "name": trace.name,
        "key": trace.key,
        "file": file_name(trace),
        "training": _trains(trace),
        "calls": sum(one.calls for one in trace.calls),
        "seconds": sum(one.seconds for one in trace.calls),
        "sizes": [dict(one.sizes) for one in trace.calls if one.sizes],
    }


def _trains(trace: Trace) -> bool:
    return bool(trace.fields["modes"]["grad"]) and any(item.get("grad") for item in trace.fields["inputs"])


def _calls(calls: int, seconds: float) -> str:
    return f"{counted(calls, 'call')}, {seconds:.2f} s" if calls else "not called"


def _lines(recording: _Found, words: Sequence[str]) -> list[str]:
    programs = recording.programs
    lines = []
    for trace in programs:
        found = _program(trace)
        kind = "training" if found["training"] else "inference"
        calls = _calls(found["calls"], found["seconds"])
        sizes = f", {counted(len(found['sizes']), 'choice')} of sizes" if found["sizes"] else ""
        lines.append(f"  {found['file']}: {kind}, {calls}{sizes}")
    if programs:
        by = f", met by {counted(recording.processes, 'process')} that it started" if recording.processes else ""
        lines.insert(0, f"fuseplan recorded {counted(len(programs), 'program')} in {recording.folder}{by}:")
    elif recording.came:
        lines.append(f"fuseplan recorded nothing in {recording.folder}")
    else:
        lines.append(
            "fuseplan recorded nothing: no program came to torch.compile; --compile CLASS records modules that run eagerly"
        )
        lines += misplaced(words)
    lines += [f"  not recorded: {note}" for note in recording.notes]
    if programs:
        lines.append(f"Tune them with: fuseplan tune {recording.folder}")
    return lines
