"""Bad input to `fuseplan tune`: one line that says what is wrong, exit code 2, and nothing written, not even a database."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from fuseplan.capture.trace.format import Trace
from fuseplan.cli import main
from fuseplan.tuning.traces import traces_of

JPEG = bytes.fromhex("ffd8ffe000104a46494600010100000100010000ffdb004300") + bytes(range(256))
NOBODY = 65534


@pytest.fixture(scope="module")
def trace() -> Trace:
    with torch.no_grad():
        return traces_of(lambda x: x.relu() + 1, torch.ones(3), name="ramp")[0]


@pytest.fixture
def good(trace: Trace, tmp_path: Path) -> Path:
    path = tmp_path / "good.json"
    path.write_text(trace.to_text())
    return path


def refused(*arguments: str | Path, rights: AbstractContextManager[None] | None = None) -> str:
    """The one line that is said."""
    before = sorted(Path(os.environ["FUSEPLAN_DB"]).parent.iterdir())
    with rights or nullcontext():
        ran: Result = CliRunner().invoke(main, ["tune", *map(str, arguments)])
    assert ran.exit_code == 2, ran.output
    assert ran.stdout == ""
    (line,) = ran.stderr.splitlines()
    assert line.startswith("Error: ")
    assert sorted(Path(os.environ["FUSEPLAN_DB"]).parent.iterdir()) == before
    return line


def newer(text: str) -> bytes:
    return json.dumps({**json.loads(text), "format": "fuseplan trace 7"}).encode()


FILES: dict[str, tuple[Callable[[str], bytes], str]] = {
    "empty": (lambda text: b"", "is no trace"),
    "jpeg": (lambda text: JPEG, "it is no text"),
    "truncated": (lambda text: text[: len(text) // 2].encode(), "is no trace"),
    "newer": (newer, "fuseplan trace 7"),
    "other JSON": (lambda text: b'{"a": 1}', "it has no 'format'"),
    "deep": (lambda text: b"[" * 100_000, "is no trace"),
    "NUL": (lambda text: b"\0" * 4096, "is no trace"),
}


@pytest.mark.parametrize("kind", FILES)
def test_files_that_are_no_traces(kind: str, trace: Trace, tmp_path: Path) -> None:
    make, said = FILES[kind]
    path = tmp_path / "bad.json"
    path.write_bytes(make(trace.to_text()))
    line = refused(path)
    assert str(path) in line
    assert said in line


def test_a_bad_file_in_a_folder_is_left_out_and_named(good: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("")
    (tmp_path / "photo.json").write_bytes(JPEG)
    (tmp_path / "folder.json").mkdir()
    ran = CliRunner().invoke(main, ["tune", str(tmp_path), "--effort", "none", "--json"])
    assert ran.exit_code == 0, ran.output
    assert [one["name"] for one in json.loads(ran.stdout)] == ["ramp"]
    left_out = [line for line in ran.stderr.splitlines() if line.startswith("Warning: ")]
    assert len(left_out) == 3
    for name, line in zip(("bad", "folder", "photo"), left_out, strict=True):
        assert f"{tmp_path / name}.json is no" in line
        assert line.endswith("; it is left out")


def test_a_bad_file_that_is_named_itself_is_refused_beside_a_folder(good: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("")
    assert "bad.json is no trace" in refused(good, tmp_path / "bad.json")


def test_a_folder_in_which_no_file_is_a_trace(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.json").write_text("{}")
    line = refused(tmp_path)
    assert f"there is no trace in {tmp_path}: {tmp_path / '0.json'} is no trace" in line
    assert line.endswith("and 2 other files alike")


def test_a_script_that_imports_os_is_not_run(tmp_path: Path) -> None:
    path, mark = tmp_path / "repro.py", tmp_path / "mark"
    path.write_text(f"import os\nos.mkdir({str(mark)!r})\n")
    assert str(path) in refused(path)
    assert not mark.exists()


def test_a_file_of_200_megabytes_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.truncate(200 * 2**20)
    monkeypatch.setattr(Trace, "from_json", lambda text: pytest.fail("it was parsed"))
    assert "it is larger than 64 MiB" in refused(path)


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null", "/proc/self/mem"])
def test_what_is_no_plain_file_or_cannot_be_read(path: str) -> None:
    assert path in refused(path)


def test_a_folder_without_traces(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    assert "there is no trace in" in refused(tmp_path)


@contextmanager
def without_rights() -> Iterator[None]:
    """As somebody to whom the rights of files apply, which to root they don't."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("what", ["folder", "file"])
def test_what_may_not_be_read(what: str, trace: Trace, good: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    CliRunner().invoke(main, ["tune", str(good), "--dry-run"])  # all that is imported is imported as who we are
    folder = tmp_path_factory.mktemp("shut")
    path = folder / "a.json"
    path.write_text(trace.to_text())
    for parent in (*folder.parents, Path(os.environ["FUSEPLAN_DB"]).parent):
        if parent.stat().st_uid == os.getuid() and parent.name.startswith(("pytest-", "popen-", "databases")):
            parent.chmod(parent.stat().st_mode | 0o011)
    path.chmod(0o000 if what == "file" else 0o644)
    folder.chmod(0o000 if what == "folder" else 0o755)
    try:
        line = refused(folder, rights=without_rights())
    finally:
        folder.chmod(0o755)
    assert str(folder) in line
    assert "Permission denied" in line


def test_names_that_nobody_knows() -> None:
    assert "there is no file no-such-model" in refused("no-such-model")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--device", "banana"], "there is no device 'banana'"),
        (["--device", "mps"], "plans are tuned on cpu and cuda"),
        (["--device", "cuda:99"], "there is no device cuda:99"),
        (["--device", "cpu,cpu"], "named twice"),
        (["--device", ""], "there is no device ''"),
        (["--device", "cpu,"], "there is no device ''"),
        (["--budget", "banana"], "not 'banana'"),
        (["--budget", "0s"], "more than nothing"),
        (["--budget", "-5m"], "not '-5m'"),
        (["--dry-run", "--budget", "banana"], "not 'banana'"),
    ],
)
def test_bad_options(arguments: list[str], said: str, good: Path) -> None:
    assert said in refused(good, *arguments)


@pytest.mark.parametrize(
    "arguments", [["--effort", "much"], ["--launch", "fast"], ["--top", "0"], ["--top", "many"], []]
)
def test_words_that_there_are_not(arguments: list[str], good: Path) -> None:
    """These click refuses itself, with a line on how to ask for help."""
    ran = CliRunner().invoke(main, ["tune", *([str(good)] if arguments else []), *arguments])
    assert ran.exit_code == 2
    assert "Error: " in ran.stderr.splitlines()[-1]
    assert not Path(os.environ["FUSEPLAN_DB"]).exists()


def test_a_database_that_cannot_be_written_is_found_out_before_anything_is_measured(good: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("Dear Ada, " * 100)
    for more in ([], ["--dry-run"]):
        assert "is a folder, and no tuning database" in refused(good, "--db", tmp_path, *more)
        assert "is not a tuning database" in refused(good, "--db", tmp_path / "notes.txt", *more)
