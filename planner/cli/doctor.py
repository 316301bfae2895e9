"""`fuseplan doctor`: one screen about this machine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from fuseplan.durations import spelled
from fuseplan.graph.words import counted, printable

if TYPE_CHECKING:
    from fuseplan.doctor import Diagnosis
    from fuseplan.tuning_db.shared_state import SharedState


@click.command(epilog="Example: fuseplan doctor --json")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def doctor(as_json: bool) -> None:
    """Show torch, GPU, compilers and executors, and how to get what is missing."""
    from fuseplan.doctor import doctor as diagnose  # brings torch, which --help does not need

    found = diagnose()
    if as_json:
        click.echo(json.dumps(found.as_dict(), indent=2))
    else:
        _show(found)


def _show(found: Diagnosis) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    machine = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    machine.add_row("Python", found.python)
    machine.add_row("torch", found.torch)
    machine.add_row("CUDA", found.cuda or "none: this torch is built for the CPU")
    for gpu in found.gpus or ("none",):
        machine.add_row("GPU", gpu)
    machine.add_row("Triton", found.triton or "none")
    machine.add_row("C++ compiler", found.compiler or "none: install g++ or clang++")
    console.print(machine)
    table = Table("executor", "version", "here")
    for state in found.executors:
        here = "[green]available[/]" if state.unavailable is None else f"[yellow]no:[/] {state.unavailable}"
        table.add_row(state.name, state.version, here)
    console.print(table)
    if found.shared is not None:
        console.print(f"Shared plans: {escape(printable(_shared(found.shared)))}", soft_wrap=True)
    if found.nvfuser_install is not None:
        console.print(f"To make nvFuser work here: [bold]{found.nvfuser_install}[/]", soft_wrap=True)


def _shared(found: SharedState) -> str:
    """Whether the plans of an organisation can be had, and what there is of them."""
    told = f"{found.named}: {found.problem or 'it can be had'}"
    if not found.serves:
        return f"{told}; there are no plans from there"
    if found.rows is None:
        return f"{told}, and is read where it is"
    ago = f"fetched {spelled(found.age_s or 0.0)} ago"
    there = f"{counted(found.rows, 'row')}, {ago}, SHA-256 {found.sha256}{', as pinned' if found.pinned else ''}"
    return f"{told}; what was there before serves: {there}" if found.problem else f"{told}; {there}"
