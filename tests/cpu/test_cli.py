"""The command line as a person meets it: in a process of its own, but for what is about the answer alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import fuseplan
from fuseplan.cli import main
from fuseplan.models.shipped import keep
from fuseplan.tuning_db.exchange import export
from fuseplan.tuning_db.files import Unwritable
from fuseplan.tuning_db.together import Together
from plan_server import serving
from stored import fill, store_at


def fuseplan_cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fuseplan", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_doctor_says_which_executors_run_here_and_why_others_do_not() -> None:
    shown = fuseplan_cli("doctor")
    assert shown.returncode == 0, shown.stderr
    assert torch.__version__ in shown.stdout
    for name in ("aten", "inductor", "nvfuser"):
        assert name in shown.stdout
    assert "available" in shown.stdout


def test_doctor_as_json() -> None:
    found = json.loads(CliRunner().invoke(main, ["doctor", "--json"]).stdout)
    states = {state["name"]: state["unavailable"] for state in found["executors"]}
    assert states["aten"] is None
    assert found["torch"] == torch.__version__
    if not torch.cuda.is_available():
        assert states["nvfuser"]
        assert found["nvfuser_install"] is None


def test_doctor_says_whether_shared_plans_can_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_at(tmp_path / "all.db")
    fill(store)
    export(store.file, tmp_path / "all.jsonl.gz")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def said(address: str) -> str:
        monkeypatch.setenv("FUSEPLAN_SHARED", address)
        shown = CliRunner().invoke(main, ["doctor"])
        assert shown.exit_code == 0, shown.output
        (line,) = [one for one in shown.stdout.splitlines() if one.startswith("Shared plans: ")]
        assert "secret" not in shown.stdout + shown.stderr
        return line.removeprefix("Shared plans: ")

    with serving() as served:
        served.body = (tmp_path / "all.jsonl.gz").read_bytes()
        digest = sha256(served.body).hexdigest()
        address = f"{served.url.replace('//', '//ada:secret@')}?token=secret#sha256="
        got = rf"{served.url}: it can be had; 19 rows, fetched \d s ago, SHA-256 {digest}, as pinned"
        assert re.fullmatch(got, said(f"{address}{digest}"))
        wrong = f"its SHA-256 is {digest}, where {'0' * 64} is expected; there are no plans from there"
        assert said(f"{address}{'0' * 64}") == f"{served.url}: {wrong}"
        served.status = 500
        kept = rf"{served.url}: the server answers 500; what was there before serves: 19 rows, fetched \d+ s ago, .*"
        assert re.fullmatch(kept, said(f"{address}{digest}"))
    assert said(str(tmp_path / "all.db")) == f"{tmp_path / 'all.db'}: it can be had, and is read where it is"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "all.db"))
    assert said("http://127.0.0.1:9/a").endswith(
        "/a: it cannot be kept: Not a directory; there are no plans from there"
    )
    assert said(str(tmp_path / "no.db")) == f"{tmp_path / 'no.db'}: it is not there; there are no plans from there"
    assert said("http://[::1/secret") == "the address: it is no address; there are no plans from there"


def test_help_needs_no_torch_and_shows_an_example() -> None:
    script = "import sys; from fuseplan.cli import main\ntry: main(['doctor', '--help'])\nfinally: print('torch' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False).stdout
    assert "Example: fuseplan doctor --json" in shown
    assert shown.strip().endswith("False")


def test_version_and_wrong_calls() -> None:
    assert fuseplan.__version__ in fuseplan_cli("--version").stdout
    wrong = fuseplan_cli("doctr")
    assert wrong.returncode == 2
    assert "No such command" in wrong.stderr
    assert "Traceback" not in wrong.stderr


@pytest.mark.parametrize("verb", [("show",), ("doctor",), ("db", "info")])
def test_output_that_has_no_room_is_one_line(verb: tuple[str, ...], tmp_path: Path) -> None:
    fill(store_at(tmp_path / "plans.db"))
    environment = {**os.environ, "FUSEPLAN_DB": str(tmp_path / "plans.db")}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "fuseplan", *verb],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=environment,
        )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == "Error: No space left on device"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("word", ["pin", "disable", "unpin", "retune"])
def test_a_word_that_cannot_be_kept_is_an_error(word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be gone with the process that says it is done."""
    path = tmp_path / "plans.db"
    fill(store_at(path))
    key = next(one.key for one in store_at(path).plans() if one.status != "quarantined")

    def refused(*_: object) -> None:
        raise Unwritable(f"{path}: attempt to write a readonly database")

    monkeypatch.setattr(Together, "write", refused)
    done = CliRunner().invoke(main, ["plan", word, key, "--db", str(path)])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == f"Error: {path}: attempt to write a readonly database\n"


def test_a_fit_that_cannot_be_kept_is_told(tmp_path: Path) -> None:
    (tmp_path / "models").write_text("no folder")
    why = keep(Kept(), tmp_path / "models" / "own.npz")
    assert why is not None
    assert "models" in why


class Kept:
    """What a fit is written as."""

    def dump(self) -> bytes:
        return b""
