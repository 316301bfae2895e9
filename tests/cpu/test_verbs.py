"""All verbs alike: help with examples, --json that parses, and bad input that is one line and exit code 2."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
import torch
from click.shell_completion import BashComplete
from click.testing import CliRunner, Result

import fuseplan
from checks.project import ROOT
from fuseplan.cli import main
from fuseplan.show import show
from stored import store_at


def leaves(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from leaves(command, (*path, name))
        else:
            yield (*path, name), command


VERBS = dict(leaves(main))
IDS = [" ".join(path) for path in VERBS]
GROUPS = [command for command in main.commands.values() if isinstance(command, click.Group)]
KEYED = [path for path in VERBS if path[0] == "plan" and path != ("plan", "list")]
FILED: dict[str, list[str]] = {
    "show": [], "explain": ["a"], "diff": ["a", "b"], "graph": ["a"], "bench": ["a"], "judge": ["a"], "plan list": [], "plan show": ["a"],
    "db info": [], "db check": [], "db export": ["rows.jsonl"], "db verify": [], "db prune": ["--dry-run"], "db vacuum": [],
    "dashboard": ["--export", "report.html"], "model evaluate": [], "bisect": ["case.py:case", "--plan", "3f2c"],
}  # fmt: skip
"""Verbs that need a database that is there, so that one that is none is bad input."""
NO_DATABASE: dict[str, tuple[Callable[[Path], object], str]] = {
    "nothing": (lambda path: None, "there is no file {path}"),
    "empty": (Path.touch, "{path} is empty: there is no tuning database in it"),
    "folder": (Path.mkdir, "{path} is a folder, and no tuning database; name a file"),
    "photo": (lambda path: path.write_bytes(b"\xff\xd8\xff\xe0 a photo" * 99), "{path} is not a tuning database; name another file"),
    "begun": (lambda path: path.write_bytes(b"SQLite format 3\0 and no more"), "{path} is not a tuning database; name another file"),
    "other": (lambda path: sqlite3.connect(path).execute("CREATE TABLE t (a)"), "{path} is not a tuning database; name another file"),
}  # fmt: skip
"""What a person may name by mistake, and what every verb says of it."""

BAD: dict[str, list[str]] = {
    "bench": ["nothing-of-this-name"],
    "bisect": ["nothing.py:case"],
    "completion": ["tcsh"],
    "dashboard": ["--port", "99999"],
    "diff": ["nothing", "of-this-name"],
    "doctor": ["--no-such-option"],
    "explain": ["nothing-of-this-name"],
    "graph": ["nothing-of-this-name"],
    "judge": ["nothing-of-this-name"],
    "record": ["nothing.py"],
    "run": ["nothing.py"],
    "show": ["--status", "splendid"],
    "tune": ["nothing.json"],
    "db export": ["/no/such/folder/rows.jsonl"],
    "db import": ["nothing.jsonl"],
    "db info": ["--no-such-option"],
    "db check": ["--no-such-option"],
    "db merge": ["nothing.db"],
    "db prune": ["--older-than", "soon"],
    "db vacuum": ["--no-such-option"],
    "db verify": ["nothing-of-this-name"],
    "model info": ["--no-such-option"],
    "model evaluate": ["--rows", "nothing.jsonl.xz"],
    "model fit": ["--rows", "nothing.jsonl.xz"],
    "plan list": ["--no-such-option"],
    **{" ".join(path): ["nothing-of-this-name"] for path in KEYED},
}
GOOD: dict[str, list[str]] = {
    "completion": ["bash"],
    "diff": ["{db}", "{db}"],
    "explain": ["BERT"],
    "graph": ["BERT", "--svg", "{folder}/plan.svg"],
    "show": [],
    "tune": ["{folder}/ramp.json", "--dry-run"],
    "db export": ["{folder}/rows.jsonl"],
    "db import": ["{folder}/again.jsonl"],
    "db info": [],
    "db check": [],
    "db merge": ["{folder}/other.db"],
    "db prune": ["--dry-run"],
    "db vacuum": [],
    "db verify": [],
    "plan list": [],
    "doctor": [],
    "model info": [],
    **{" ".join(path): ["{key}"] for path in KEYED},
}
SLOW = {"bench", "bisect", "dashboard", "judge", "model evaluate", "model fit", "record", "run"}
"""Whose JSON their own tests parse: they start workers, servers or scripts."""


def call(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments), catch_exceptions=True)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory, tuned_database: Path) -> Path:
    """Two databases, an export, and a trace."""
    folder = tmp_path_factory.mktemp("filled")
    shutil.copy(tuned_database, folder / "t.db")
    shutil.copy(folder / "t.db", folder / "other.db")
    assert call("db", "export", str(folder / "again.jsonl"), "--db", str(folder / "t.db")).exit_code == 0
    (trace,) = fuseplan.traces_of(lambda x: x.relu() + 1, torch.ones(3), name="ramp")
    (folder / "ramp.json").write_text(trace.to_json())
    return folder


@pytest.fixture
def folder(filled: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(filled, tmp_path / "own"))


@pytest.mark.parametrize("path", VERBS, ids=IDS)
def test_help_says_what_it_does_and_shows_examples(path: tuple[str, ...]) -> None:
    told = call(*path, "--help")
    assert told.exit_code == 0
    examples = told.output.partition("Example")[2]
    assert f"fuseplan {' '.join(path)}" in " ".join(examples.split())
    assert VERBS[path].get_short_help_str()


@pytest.mark.parametrize("path", VERBS, ids=IDS)
def test_json_is_an_option_of_every_verb(path: tuple[str, ...]) -> None:
    assert any("--json" in parameter.opts for parameter in VERBS[path].params)


@pytest.mark.parametrize("path", [path for path in VERBS if " ".join(path) not in SLOW], ids=str)
def test_what_json_prints_parses(path: tuple[str, ...], folder: Path) -> None:
    key = show("BERT", db=folder / "t.db")[0].stored.key
    words = {"db": str(folder / "t.db"), "folder": str(folder), "key": key}
    arguments = [word.format(**words) for word in GOOD[" ".join(path)]]
    db = [] if path in (("completion",), ("doctor",)) else ["--db", words["db"]]
    told = call(*path, *arguments, *db, "--json")
    assert told.exit_code in (0, 1), told.output  # 1: a check or a comparison has found something
    json.loads(told.stdout)


@pytest.mark.parametrize("path", VERBS, ids=IDS)
def test_bad_input_is_exit_code_2_and_one_line(
    path: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told = call(*path, *BAD[" ".join(path)])
    assert told.exit_code == 2, (told.output, told.exception)
    lines = [line for line in told.stderr.splitlines() if line.strip()]
    assert len(lines) == 1, told.stderr
    assert lines[0].startswith("Error: ")
    assert "Traceback" not in told.output
    assert not list(tmp_path.iterdir())  # and nothing is written


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--nope"], "No such option '--nope'. See fuseplan --help."),
        (["nope"], "No such command 'nope'. See fuseplan --help."),
        (["diff"], "Missing argument 'A'. See fuseplan diff --help."),
        (["tune"], "name a TRACE, or give --queue or --stale. See fuseplan tune --help."),
        (["db", "check", "--nope"], "No such option '--nope'. See fuseplan db check --help."),
        (["show", "--db"], "Option '--db' requires an argument."),
    ],
)
def test_what_click_itself_refuses_is_one_line_too(words: list[str], says: str) -> None:
    told = CliRunner().invoke(main, words, prog_name="fuseplan")
    assert (told.exit_code, told.output) == (2, f"Error: {says}\n")


def test_a_group_alone_shows_its_verbs() -> None:
    for words in ([], ["plan"]):
        assert "Usage:" in CliRunner().invoke(main, words).output


@pytest.mark.parametrize("known", [True, False])
def test_a_picture_that_does_not_fit_the_disk(folder: Path, monkeypatch: pytest.MonkeyPatch, known: bool) -> None:
    picture = folder / "e.svg"
    if known:
        picture.write_text("of yesterday")
    before = sorted(folder.iterdir())

    def write_text(path: Path, text: str, **options: object) -> int:
        path.touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(Path, "write_text", write_text)
        told = call("graph", "BERT", "--svg", str(picture), "--db", str(folder / "t.db"))
    assert (told.exit_code, told.output) == (2, f"Error: {picture} cannot be written: No space left on device\n")
    assert sorted(folder.iterdir()) == before
    assert not known or picture.read_text() == "of yesterday"


def test_a_picture_never_goes_over_the_database(folder: Path) -> None:
    before = (folder / "t.db").read_bytes()
    told = call("graph", "BERT", "--svg", str(folder / "t.db"), "--db", str(folder / "t.db"))
    assert told.exit_code == 2
    assert "is the database itself" in told.output
    assert (folder / "t.db").read_bytes() == before


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("verb", FILED)
@pytest.mark.parametrize("kind", NO_DATABASE)
def test_a_database_that_is_none(verb: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make, said = NO_DATABASE[kind]
    path = tmp_path / "some.db"
    make(path)
    before = path.read_bytes() if path.is_file() else None
    told = call(*verb.split(), *FILED[verb], "--db", str(path))
    assert (told.exit_code, told.output) == (2, f"Error: {said.format(path=path)}\n")
    assert [one.name for one in tmp_path.iterdir()] == ([] if kind == "nothing" else ["some.db"])
    assert before is None or path.read_bytes() == before


@pytest.mark.parametrize("kind", NO_DATABASE)
def test_a_side_of_a_comparison_that_is_no_database(kind: str, folder: Path, tmp_path: Path) -> None:
    make, said = NO_DATABASE[kind]
    make(tmp_path / "some.db")
    told = call("diff", str(folder / "t.db"), str(tmp_path / "some.db"), "--db", str(folder / "t.db"))
    assert told.exit_code == 2
    assert kind == "nothing" or told.output == f"Error: {said.format(path=tmp_path / 'some.db')}\n"


def test_verbs_of_a_group_are_listed_with_their_group() -> None:
    for group in GROUPS:
        assert all(name in (group.get_help(click.Context(group))) for name in group.commands)


def test_exit_codes_are_told_in_the_help_and_in_the_docs() -> None:
    told = call("--help").output
    page = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    for code in ("0", "1", "2", "130"):
        assert f"  {code} " in told
        assert f"| {code} |" in page


def test_every_verb_has_its_place_in_the_how_to() -> None:
    page = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    missing = [" ".join(path) for path in VERBS if f"fuseplan {' '.join(path)}" not in page]
    assert not missing


# completion


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_one_that_it_reads(shell: str) -> None:
    script = call("completion", shell).output
    assert "_FUSEPLAN_COMPLETE" in script
    program = shutil.which(shell)
    if program is not None:  # bash is everywhere; the others where somebody has them
        subprocess.run([program, "-n"], input=script, text=True, check=True)


def test_bash_completes_verbs_and_keys(folder: Path, tmp_path: Path) -> None:
    key = show("BERT", db=folder / "t.db")[0].stored.key
    store = store_at(folder / "t.db")
    store.add_program(show("GPT-2", db=folder / "t.db")[0].stored.program, "GPT-2")
    (tmp_path / "fuseplan").write_text(
        f'#!/bin/sh\nexec {sys.executable} -c \'from fuseplan.cli import main; main(prog_name="fuseplan")\' "$@"\n'
    )
    (tmp_path / "fuseplan").chmod(0o755)
    script = call("completion", "bash").output

    def completed(words: str) -> list[str]:
        asked = (
            f"{script}\nCOMP_WORDS=({words})\nCOMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))\n"
            "_fuseplan_completion fuseplan\nprintf '%s\\n' \"${COMPREPLY[@]}\"\n"
        )
        path = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "FUSEPLAN_DB": str(folder / "t.db")}
        told = subprocess.run(
            ["bash", "-c", asked], env={**os.environ, **path}, capture_output=True, text=True, check=True
        )
        return told.stdout.split("\n")[:-1]

    assert completed("fuseplan exp") == ["explain"]
    assert completed(f"fuseplan show {key[:10]}") == [key[:12]]
    assert completed("fuseplan explain GP") == ["GPT-2"]
    assert "BERT, graph 0" not in completed("fuseplan explain BE")  # no word: a shell would take it for three


def test_completion_needs_no_torch() -> None:
    assert BashComplete(main, {}, "fuseplan", "_FUSEPLAN_COMPLETE").get_completions(["plan"], "pi")[0].value == "pin"
    script = (
        "import sys\nfrom fuseplan.cli import main\nfrom click.shell_completion import BashComplete\n"
        "BashComplete(main, {}, 'fuseplan', 'X').get_completions(['show'], 'a')\nassert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
