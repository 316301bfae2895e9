"""FUSEPLAN_SHARED: who fetches, how long it may take, what is left behind, and when it is seen; files of this machine."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
import signal
import socket
import sqlite3
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from fuseplan.cli.main import main
from fuseplan.tuning_db import Hit, Miss, Store, shared, shared_fetch, shared_notes
from fuseplan.tuning_db.exchange import Bounds, export, import_lines
from fuseplan.tuning_db.files import Database
from fuseplan.tuning_db.layers import places
from fuseplan.tuning_db.shared_notes import Fetched
from plan_server import Open, Served, cached, found, refused, serving, settle, started
from stored import killed_over_a_write, plan, question, store_at


def left_over(tmp_path: Path) -> list[str]:
    return [path.name for path in (tmp_path / ".cache/fuseplan/shared").glob("*.part")]


@pytest.fixture
def dripping(plans: Path) -> Iterator[str]:
    """A server that gives the right file, and takes ten seconds for each header."""
    listening = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        asker, _ = listening.accept()
        body = (plans / "plans.jsonl").read_bytes()
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nX-Long: {'x' * 200}\r\n\r\n"
        try:
            asker.recv(10_000)
            for letter in head:
                asker.sendall(letter.encode())
                time.sleep(0.05)
            asker.sendall(body)
        except OSError:
            pass
        asker.close()

    threading.Thread(target=answer, daemon=True).start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}/plans.jsonl"
    listening.close()


def test_headers_that_drip_do_not_stretch_the_limit(
    dripping: str, open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "WAIT_S", 60.0)
    monkeypatch.setattr(shared_fetch, "FETCH_S", 1.0)
    refused(open_store, dripping, "it did not come within 1 s")


def test_the_import_of_lines_has_its_time_too(plans: Path) -> None:
    report = import_lines(Database(None), io.BytesIO((plans / "plans.jsonl").read_bytes()), bounds=Bounds(-1.0))
    assert report.refused == ["reading was given up after -1 s"]
    assert not report.taken


def test_a_line_that_is_too_long_is_refused(plans: Path, served: Served, open_store: Open) -> None:
    header = (plans / "plans.jsonl").read_bytes().splitlines()[0]
    served.body = gzip.compress(header + b'\n{"table":"plan","row":{"json":[' + b"[]," * 2**22 + b"[]]}}\n")
    refused(open_store, served.url, "a line is longer than 8 MiB; nothing behind it was read")


@pytest.mark.parametrize("body", [b"", gzip.compress(b"")], ids=["file", "packed"])
def test_nothing_at_all_is_no_export(body: bytes, tmp_path: Path, open_store: Open) -> None:
    (tmp_path / "plans.jsonl").write_bytes(body)
    refused(open_store, tmp_path / "plans.jsonl", "it is no export of fuseplan")


def test_what_it_says_is_told_in_one_line_of_plain_letters(plans: Path, served: Served, open_store: Open) -> None:
    header, *_ = (plans / "plans.jsonl").read_text().splitlines()
    served.body = f'{header}\n{{"table":"plan","row":{{"\\u001b[2J\\n":1}},"digest":""}}\n'.encode()
    with pytest.warns(UserWarning, match="columns that are missing or unknown") as heard:
        open_store(served.url)
    assert str(heard[0].message).isprintable()


def test_what_a_killed_fetch_has_left_is_deleted_by_the_next(plans: Path, served: Served, tmp_path: Path) -> None:
    served.body, served.slowly_s = (plans / "plans.jsonl").read_bytes(), 0.01
    victim = started(tmp_path, served.url)
    while not left_over(tmp_path):
        time.sleep(0.02)
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    assert len(left_over(tmp_path)) == 1
    served.slowly_s = 0.0
    assert started(tmp_path, f"{served.url}?another=address").communicate()[0] == "Hit\n"
    assert left_over(tmp_path) == []
    assert len(cached(tmp_path)) == 1


def test_what_another_is_fetching_is_left_to_it(plans: Path, served: Served, open_store: Open, tmp_path: Path) -> None:
    with serving() as slow:
        slow.body = served.body = (plans / "plans.jsonl").read_bytes()
        slow.slowly_s = 4.0 / len(slow.body)
        other = started(tmp_path, slow.url)
        while not left_over(tmp_path):
            time.sleep(0.02)
        assert found(open_store(served.url)) == "shared"
        assert len(left_over(tmp_path)) == 1
        slow.slowly_s = 0.0001
        assert other.communicate()[0] == "Hit\n"
    assert len(cached(tmp_path)) == 2


@pytest.mark.parametrize(("status", "said"), [(200, "Hit\n"), (500, "Miss\n")])
def test_of_processes_that_start_together_one_fetches(
    status: int, said: str, plans: Path, served: Served, tmp_path: Path
) -> None:
    served.body, served.status, served.slowly_s = (plans / "plans.jsonl.gz").read_bytes(), status, 0.0003
    processes = [started(tmp_path, served.url, 60.0 if status == 200 else 0.0) for _ in range(4)]
    assert [process.communicate()[0] for process in processes] == [said] * 4
    assert len(served.asked) == 1
    assert left_over(tmp_path) == []


def test_what_comes_late_is_seen_by_the_process_that_waited(
    plans: Path, served: Served, open_store: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "WAIT_S", 0.1)
    served.body = (plans / "plans.jsonl").read_bytes()
    served.slowly_s = 1.5 / len(served.body)
    with pytest.warns(UserWarning, match="it did not come within 0.1 s"):
        store = open_store(served.url)
    assert isinstance(store.find_plan(question()), Miss)
    with pytest.warns(UserWarning, match="it did not come within 0.1 s"):
        again = open_store(served.url)  # another process, which waits for nothing that was waited for just now
    settle()
    assert found(store) == found(again) == "shared"
    assert len(served.asked) == 1
    (database,) = cached(tmp_path)
    assert Fetched.beside(database).problem == ""


def test_a_process_that_was_forked_meanwhile_sees_it_come(
    plans: Path, served: Served, open_store: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.body = (plans / "plans.jsonl").read_bytes()
    served.slowly_s = 2.0 / len(served.body)
    store = Store(places({"HOME": str(tmp_path), "FUSEPLAN_SHARED": served.url}))
    waiting = threading.Thread(target=store.find_plan, args=(question(),))
    waiting.start()
    while not left_over(tmp_path):
        time.sleep(0.02)
    child = os.fork()
    if not child:
        answer = None
        try:
            monkeypatch.setattr(shared, "WAIT_S", -1.0)  # nobody here lets the other thread go on
            until = time.monotonic() + 60.0
            while not isinstance(answer := store.find_plan(question()), Hit) and time.monotonic() < until:
                time.sleep(0.05)
        finally:
            os._exit(0 if isinstance(answer, Hit) else 1)
    waiting.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_process_that_goes_on_sees_what_is_new(
    plans: Path, served: Served, open_store: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "AGAIN_S", 0.0)
    served.body = (plans / "plans.jsonl").read_bytes()
    store = open_store(served.url)
    assert found(store) == "shared"
    served.body = fewer(tmp_path)
    monkeypatch.setattr(shared_notes, "AGE_S", 0.0)
    found(store)
    settle()
    assert store.find_plan(question()).plan.wall_us == 77.0  # type: ignore[union-attr]
    settle()


def fewer(tmp_path: Path) -> bytes:
    store = store_at(tmp_path / "fewer.db")
    store.add_plan(plan(wall_us=77.0))
    export(store.file, tmp_path / "fewer.jsonl")
    store.close()
    return (tmp_path / "fewer.jsonl").read_bytes()


def test_nothing_is_fetched_before_something_is_looked_up(
    plans: Path, served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("FUSEPLAN_SHARED", served.url.replace("http://", "http://ada:secret@"))
    told = CliRunner().invoke(main, ["db", "info", "--db", str(plans / "plans.db")])
    assert f"shared: {served.url}, nothing was fetched yet\n" in told.output
    assert CliRunner().invoke(main, ["db", "check", "--db", str(plans / "plans.db")]).exit_code == 0
    settle()
    assert served.asked == []
    assert not (tmp_path / ".cache/fuseplan/shared").exists()


@pytest.mark.parametrize("name", ["plans.jsonl", "plans.jsonl.gz"])
def test_an_export_of_this_machine_serves_as_a_fetched_one_does(
    name: str, plans: Path, tmp_path: Path, open_store: Open
) -> None:
    path = tmp_path / name
    shutil.copy(plans / name, path)
    assert found(open_store(path)) == "shared"
    (database,) = cached(tmp_path)
    known = Fetched.beside(database)
    assert (known.rows, known.digest) == (19, hashlib.sha256(path.read_bytes()).hexdigest())
    assert found(open_store(path)) == "shared"
    assert Fetched.beside(database) == known, "it is read once"
    path.write_bytes(fewer(tmp_path))
    open_store(path)
    settle()
    assert open_store(path).find_plan(question()).plan.wall_us == 77.0  # type: ignore[union-attr]
    path.unlink()
    assert found(open_store(path)) == "shared", "as from a server that cannot be reached"


def with_trigger(path: Path) -> None:
    with sqlite3.connect(path, isolation_level=None) as connection:
        connection.execute("CREATE TRIGGER t AFTER INSERT ON program BEGIN DELETE FROM program; END")


def with_view(path: Path) -> None:
    with sqlite3.connect(path, isolation_level=None) as connection:
        connection.execute("ALTER TABLE plan RENAME TO old_plan")
        connection.execute("CREATE VIEW plan AS SELECT * FROM old_plan")


def newer(path: Path) -> None:
    with sqlite3.connect(path, isolation_level=None) as connection:
        connection.execute("PRAGMA user_version = 99")


def of_others(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path, isolation_level=None) as connection:
        connection.execute("CREATE TABLE plan (id)")


def no_database(path: Path) -> None:
    path.write_bytes(b"SQLite format 3\0" + b"x" * 5000)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (with_trigger, "trigger t"), (with_view, "plan is not as fuseplan makes it"), (newer, "schema 99"),
        (of_others, "it is not a tuning database"), (no_database, "file is not a database"), (killed_over_a_write, "a write to it was cut short"),
    ],
)  # fmt: skip
def test_a_database_of_this_machine_that_is_refused_says_so(
    change: object, why: str, plans: Path, tmp_path: Path, open_store: Open
) -> None:
    path = tmp_path / "all.db"
    shutil.copy(plans / "plans.db", path)
    change(path)  # type: ignore[operator]
    refused(open_store, path, f"FUSEPLAN_SHARED, {path}: .*({why})")


def test_an_export_of_this_machine_that_is_damaged_says_so(plans: Path, tmp_path: Path, open_store: Open) -> None:
    path = tmp_path / "plans.jsonl"
    path.write_text((plans / "plans.jsonl").read_text().replace("100.0", "1.0"))
    refused(
        open_store, path, f"FUSEPLAN_SHARED, {path}: it is damaged, or was changed: line .* its digest does not fit"
    )
    refused(open_store, path, "it is damaged, or was changed")
    shutil.copy(plans / "plans.jsonl", path)
    assert found(open_store(path)) == "shared", "another file is looked at at once"


def test_a_pipe_is_no_file(tmp_path: Path, open_store: Open) -> None:
    os.mkfifo(tmp_path / "pipe")
    refused(open_store, tmp_path / "pipe", "it is not there")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="a certificate is made with openssl")
def test_an_https_address(plans: Path, tmp_path: Path, open_store: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate, "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with serving(context) as served:
        served.body = (plans / "plans.jsonl").read_bytes()
        refused(open_store, served.url, "CERTIFICATE_VERIFY_FAILED")
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert found(open_store(f"{served.url}?trusted")) == "shared"


def test_notes_of_another_version_are_nothing(plans: Path, served: Served, open_store: Open, tmp_path: Path) -> None:
    served.body = (plans / "plans.jsonl").read_bytes()
    open_store(served.url)
    (database,) = cached(tmp_path)
    database.with_suffix(".json").write_text(json.dumps({"address": 3}))
    assert found(open_store(served.url)) == "shared"
    settle()
    assert len(served.asked) == 2
