"""FUSEPLAN_SHARED: plans of an organisation, from a file or a server, which may be slow, damaged or hostile."""

from __future__ import annotations

import gzip
import hashlib
import json
import signal
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from fuseplan.cli.main import main
from fuseplan.tuning_db import Miss, fetching, shared, shared_fetch, shared_notes
from fuseplan.tuning_db.exchange import export
from fuseplan.tuning_db.shared_notes import Fetched
from plan_server import Open, Served, cached, found, refused, settle, started
from stored import plan, question, store_at


def test_a_file_is_a_layer_that_is_only_read(plans: Path, open_store: Open) -> None:
    before = (plans / "plans.db").read_bytes()
    store = open_store(plans / "plans.db")
    assert found(store) == "shared"
    assert store.quarantine(plan().key, "it failed here")
    assert found(store) == "miss: quarantined"
    assert (plans / "plans.db").read_bytes() == before


def test_a_file_that_is_not_there_is_said(tmp_path: Path, open_store: Open) -> None:
    with pytest.warns(UserWarning, match="FUSEPLAN_SHARED, .*no.db: it is not there; there are no plans"):
        store = open_store(tmp_path / "no.db")
    assert found(store) == "miss: no such program"


@pytest.mark.parametrize("name", ["plans.db", "plans.jsonl", "plans.jsonl.gz"])
def test_what_a_server_gives_is_checked_and_kept(
    name: str, plans: Path, served: Served, open_store: Open, tmp_path: Path
) -> None:
    served.body = (plans / name).read_bytes()
    store = open_store(served.url)
    assert found(store) == "shared"
    assert store.find_plan(question()).plan.status == "tuned"  # type: ignore[union-attr]
    (database,) = cached(tmp_path)
    noted = Fetched.beside(database)
    assert noted.digest == hashlib.sha256(served.body).hexdigest()
    assert noted.rows == 19
    assert noted.problem == ""
    assert found(open_store(served.url)) == "shared"
    assert len(served.asked) == 1, "it is not old"


def test_an_old_one_serves_while_a_new_one_is_looked_for(
    plans: Path, served: Served, open_store: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.body, served.etag = (plans / "plans.jsonl").read_bytes(), '"one"'
    assert found(open_store(served.url)) == "shared"
    monkeypatch.setattr(shared_notes, "AGE_S", 0.0)
    assert found(open_store(served.url)) == "shared"
    settle()
    assert served.asked[-1]["if-none-match"] == '"one"'
    (database,) = cached(tmp_path)
    first = Fetched.beside(database)
    assert first.problem == ""
    store = store_at(tmp_path / "fewer.db")
    store.add_plan(plan(wall_us=77.0))
    export(store.file, tmp_path / "fewer.jsonl")
    served.body, served.etag = (tmp_path / "fewer.jsonl").read_bytes(), '"two"'
    open_store(served.url)
    settle()
    assert open_store(served.url).find_plan(question()).plan.wall_us == 77.0  # type: ignore[union-attr]
    assert Fetched.beside(database).etag == '"two"'
    settle()


def test_off_line_it_serves_what_it_has(
    plans: Path, served: Served, open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.body = (plans / "plans.jsonl").read_bytes()
    assert found(open_store(served.url)) == "shared"
    monkeypatch.setattr(shared_notes, "AGE_S", 0.0)
    served.status, served.body = 500, b""
    assert found(open_store(served.url)) == "shared"
    settle()
    assert found(open_store(served.url)) == "shared"
    settle()


def test_who_is_off_line_waits_once_in_a_while(open_store: Open) -> None:
    address = "http://127.0.0.1:9/plans.jsonl"
    refused(open_store, address, "it cannot be had: .*refused")
    begin = time.monotonic()
    refused(open_store, address, "it cannot be had: .*refused")
    assert time.monotonic() - begin < 1.0


def test_a_pinned_file_is_that_file(plans: Path, served: Served, open_store: Open) -> None:
    served.body = (plans / "plans.jsonl.gz").read_bytes()
    right = hashlib.sha256(served.body).hexdigest()
    assert found(open_store(f"{served.url}#sha256={right}")) == "shared"
    refused(open_store, f"{served.url}#sha256={'0' * 64}", f"its SHA-256 is {right}, where {'0' * 64} is expected")


def damaged(plans: Path) -> bytes:
    lines = (plans / "plans.jsonl").read_text().splitlines()
    return "\n".join(line.replace("100.0", "1.0") for line in lines).encode()


def other_schema(plans: Path) -> bytes:
    header, *lines = (plans / "plans.jsonl").read_text().splitlines()
    return "\n".join([json.dumps({**json.loads(header), "schema": 99}), *lines]).encode()


def with_views(plans: Path) -> bytes:
    path = plans / "views.db"
    path.write_bytes((plans / "plans.db").read_bytes())
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("ALTER TABLE plan RENAME TO old_plan")
    connection.execute("CREATE VIEW plan AS SELECT * FROM old_plan, (WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n)")  # fmt: skip
    connection.execute("CREATE TRIGGER t AFTER INSERT ON program BEGIN DELETE FROM program; END")
    connection.close()
    return path.read_bytes()


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (damaged, "it is damaged, or was changed: .*its digest does not fit"),
        (other_schema, "schema 99"),
        (with_views, "it is damaged, or was changed: plan: there is no such table"),
        (lambda _: b"<html>please log in</html>", "it"),
        (lambda _: b"", "it"),
        (lambda plans: (plans / "plans.jsonl.gz").read_bytes()[:-40], "the rest cannot be unpacked"),
        (lambda plans: (plans / "plans.db").read_bytes()[:5000], "it"),
    ],
    ids=["changed", "other schema", "views and triggers", "no plans", "empty", "cut short", "cut database"],
)
def test_what_is_no_plan_file_is_refused_in_one_line(
    body: Callable[[Path], bytes], why: str, plans: Path, served: Served, open_store: Open, tmp_path: Path
) -> None:
    served.body = body(plans)
    refused(open_store, served.url, f"FUSEPLAN_SHARED, {served.url}: .*{why}")
    assert cached(tmp_path) == []


def test_what_is_too_long_is_refused(
    plans: Path, served: Served, open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "MOST_BYTES", 2**20)
    served.body = b"x" * (2**20 + 1)
    refused(open_store, served.url, "it is longer than 1 MiB")


def test_what_unpacks_to_too_much_is_refused(
    plans: Path, served: Served, open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_fetch, "MOST_UNPACKED", 2**20)
    rows = (plans / "plans.jsonl").read_bytes()
    last = rows.splitlines(keepends=True)[-1]
    served.body = gzip.compress(rows + last * (2**21 // len(last)))
    refused(open_store, served.url, "it unpacks to more than 1 MiB")


def test_a_slow_server_is_waited_for_as_long_as_is_said(
    served: Served, open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "WAIT_S", 1.0)
    monkeypatch.setattr(shared_fetch, "FETCH_S", 2.0)
    served.body, served.slowly_s = b"x" * 10_000, 0.05
    begin = time.monotonic()
    refused(open_store, served.url, "it did not come within 1 s")
    assert time.monotonic() - begin < 5.0
    settle()


@pytest.mark.parametrize(
    ("location", "why"),
    [("file:///etc/passwd", "it leads from http to file"), ("ftp://127.0.0.1/a", "it leads from http to ftp")],
)
def test_it_is_led_nowhere_else(location: str, why: str, served: Served, open_store: Open) -> None:
    served.status, served.location = 302, location
    refused(open_store, served.url, why)


def test_a_circle_of_redirects_ends(served: Served, open_store: Open) -> None:
    served.status, served.location = 302, served.url
    refused(open_store, served.url, "it leads on more than 5 times")
    assert len(served.asked) == 5


@pytest.mark.parametrize(
    "value",
    ["http://[::1/plans", "https://ada:se/cret@host/", "ftp://ada:secret@host/a", "HTTPS://ada:se cret@h/", "http://h/a?token=se cret",
     "http://h/a#SHA256=00", "http://h/a#sha512=00", "http:///a"],
)  # fmt: skip
def test_what_is_no_address_is_said_without_its_words(value: str, open_store: Open) -> None:
    with pytest.warns(UserWarning, match="FUSEPLAN_SHARED: .*; there are no plans from there") as heard:
        store = open_store(value)
    assert "cret" not in str(heard[0].message)
    assert isinstance(store.find_plan(question()), Miss)


def test_a_damaged_cache_is_fetched_anew(plans: Path, served: Served, open_store: Open, tmp_path: Path) -> None:
    served.body, served.etag = (plans / "plans.jsonl").read_bytes(), '"one"'
    assert found(open_store(served.url)) == "shared"
    (database,) = cached(tmp_path)
    database.write_bytes(b"x" * 5000)
    assert found(open_store(served.url)) == "shared"
    assert "if-none-match" not in served.asked[-1]


def test_a_server_that_says_no_is_told(served: Served, open_store: Open) -> None:
    served.status = 403
    refused(open_store, served.url, "the server answers 403")


def test_a_password_is_sent_and_never_shown(plans: Path, served: Served, open_store: Open, tmp_path: Path) -> None:
    served.body = (plans / "plans.jsonl").read_bytes()
    address = served.url.replace("http://", "http://ada:s%3Acret@") + "?token=t0ken"
    assert found(open_store(address)) == "shared"
    assert served.asked[-1]["authorization"].startswith("Basic ")
    served.status = 500
    with pytest.warns(UserWarning, match="the server answers 500") as heard:
        open_store(address.replace("t0ken", "other"))
    kept = "".join(path.read_text() for path in (tmp_path / ".cache/fuseplan/shared").glob("*.json"))
    for secret in ("cret", "t0ken", "other", "YWRh"):
        assert secret not in str(heard[0].message) + kept


def test_info_says_what_was_fetched_and_what_was_wrong(
    plans: Path, served: Served, open_store: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.body = (plans / "plans.jsonl").read_bytes()
    open_store(served.url)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("FUSEPLAN_SHARED", served.url)
    told = CliRunner().invoke(main, ["db", "info", "--db", str(plans / "plans.db")])
    assert f"shared: {served.url}, 19 rows, fetched 20" in told.output
    assert hashlib.sha256(served.body).hexdigest() in told.output
    monkeypatch.setenv("FUSEPLAN_SHARED", str(tmp_path / "no.db"))
    told = CliRunner().invoke(main, ["db", "info", "--json", "--db", str(plans / "plans.db")])
    assert json.loads(told.stdout)["shared"]["problem"] == "it is not there"


def test_several_processes_at_once_and_one_that_is_killed(plans: Path, served: Served, tmp_path: Path) -> None:
    served.body, served.slowly_s = (plans / "plans.jsonl").read_bytes(), 0.01
    victim = started(tmp_path, served.url)
    while not served.asked:
        time.sleep(0.05)
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    assert cached(tmp_path) == []
    served.slowly_s = 0.0
    both = [started(tmp_path, served.url) for _ in range(2)]
    assert [process.communicate()[0] for process in both] == ["Hit\n"] * 2
    assert len(cached(tmp_path)) == 1
