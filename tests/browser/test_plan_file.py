"""The dashboard gives the database as an export, by the rules by which it gives its pages: FUSEPLAN_SHARED reads it from there."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from browsing import Server, serving
from dashboards import key, program, raced, write
from fuseplan.tuning_db import Hit, Miss, Query, Store
from fuseplan.tuning_db.columns import Row
from fuseplan.tuning_db.exchange import export
from fuseplan.tuning_db.files import Database
from fuseplan.tuning_db.layers import places
from fuseplan.tuning_db.shared_notes import Fetched
from fuseplan.tuning_db.tables import RowWriter, Table
from stored import HERE


def one_program(path: Path) -> Path:
    return write(path, program(1, "only"), raced(1, (300.0, 150.0, 200.0), 100.0))


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return one_program(tmp_path / "tuning.db")


@pytest.fixture
def server(database: Path) -> Iterator[Server]:
    with serving(database) as started:
        yield started
    assert started.errors == [""]


def exported(database: Path) -> bytes:
    path = database.with_name("all.jsonl.gz")
    with closing(Database(database, readonly=True)) as opened:
        export(opened, path)
    return path.read_bytes()


def store(home: Path, url: str) -> Store:
    return Store(places({"HOME": str(home), "FUSEPLAN_SHARED": url}))


def add_program(database: Path, number: int) -> None:
    def put(connection: object) -> None:
        writer = RowWriter(connection)  # type: ignore[arg-type]
        for table, row in [*program(number), *raced(number, (300.0, 150.0, 200.0), 100.0)]:
            writer.put(table, row)

    with closing(Database(database)) as opened:
        opened.write(put)


def test_it_is_what_db_export_writes_and_asked_for_again_costs_nothing(server: Server, database: Path) -> None:
    got = httpx.get(f"{server.url}/plans.jsonl.gz")
    assert (got.status_code, got.headers["content-type"]) == (200, "application/gzip")
    assert got.content == exported(database)
    assert got.headers["etag"] == f'"{hashlib.sha256(got.content).hexdigest()}"'
    head = httpx.head(f"{server.url}/plans.jsonl.gz")
    assert (head.headers["etag"], head.headers["content-length"]) == (got.headers["etag"], str(len(got.content)))
    again = httpx.get(f"{server.url}/plans.jsonl.gz", headers={"If-None-Match": got.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    other = httpx.get(f"{server.url}/plans.jsonl.gz", headers={"If-None-Match": '"other"'})
    assert other.status_code == 200


def test_equal_contents_have_one_digest(server: Server, database: Path, tmp_path: Path) -> None:
    with serving(one_program(tmp_path / "made anew.db")) as other:
        tags = [httpx.head(f"{one.url}/plans.jsonl.gz").headers["etag"] for one in (server, other)]
    assert tags[0] == tags[1]


def test_shared_plans_come_from_a_dashboard(server: Server, database: Path, tmp_path: Path) -> None:
    opened = store(tmp_path / "home", f"{server.url}/plans.jsonl.gz")
    answer = opened.find_plan(Query(key(1), HERE))
    assert isinstance(answer, Hit)
    assert answer.layer == "shared"
    assert answer.plan.wall_us == 100.0
    (made,) = (tmp_path / "home/.cache/fuseplan/shared").glob("*.db")
    assert Fetched.beside(made).etag == f'"{Fetched.beside(made).digest}"'
    pinned = store(tmp_path / "other", f"{server.url}/plans.jsonl.gz#sha256={Fetched.beside(made).digest}")
    assert isinstance(pinned.find_plan(Query(key(1), HERE)), Hit)


def test_with_a_token_they_come_to_who_has_it(database: Path, tmp_path: Path) -> None:
    with serving(database, options=("--host", "0.0.0.0")) as started:
        link = urlsplit(started.url)
        here = f"http://127.0.0.1:{link.port}/plans.jsonl.gz"
        assert isinstance(store(tmp_path / "one", f"{here}?{link.query}").find_plan(Query(key(1), HERE)), Hit)
        with pytest.warns(UserWarning, match="the server answers 401; there are no plans from there") as heard:
            assert isinstance(store(tmp_path / "two", f"{here}?token=guess").find_plan(Query(key(1), HERE)), Miss)
        assert "guess" not in str(heard[0].message)
        bearer = {"Authorization": f"Bearer {link.query.removeprefix('token=')}"}
        assert httpx.get(here, headers=bearer).content == exported(database)


@pytest.mark.parametrize(
    ("target", "headers", "status"),
    [
        ("/plans.jsonl.gz", {"Host": "evil.example"}, 400), ("/plans.jsonl.gz", {"Origin": "http://evil.example"}, 403),
        ("/plans.jsonl.gz?db=other.db", {}, 404), ("/plans.jsonl.gz?gpu=NVIDIA+H200", {}, 400), ("/plans.jsonl.gz?x=1", {}, 400),
        ("/plans.jsonl%2Egz", {}, 404), ("/plans.jsonl", {}, 404),
    ],
)  # fmt: skip
def test_what_no_page_gives_it_does_not_give(target: str, headers: dict[str, str], status: int, server: Server) -> None:
    answer = httpx.get(f"{server.url}{target}", headers=headers)
    assert answer.status_code == status
    assert answer.text.count("\n") == 1


def test_of_several_databases_the_one_that_is_named(database: Path, tmp_path: Path) -> None:
    second = one_program(tmp_path / "second.db")
    add_program(second, 2)
    with serving(database, second) as started:
        assert httpx.get(f"{started.url}/plans.jsonl.gz").content == exported(database)
        assert httpx.get(f"{started.url}/plans.jsonl.gz?db=second.db").content == exported(second)


def test_a_database_that_cannot_be_read_says_so(tmp_path: Path, database: Path) -> None:
    broken = tmp_path / "broken.db"
    broken.write_bytes(database.read_bytes()[:5000])
    with serving(database, broken) as started:
        answer = httpx.get(f"{started.url}/plans.jsonl.gz?db=broken.db")
        assert answer.status_code == 409
        assert "damaged" in answer.text
        assert str(tmp_path) not in answer.text


def test_fifty_ask_at_once_and_one_breaks_off(server: Server, database: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def one(number: int) -> bytes:
        if number % 5:
            return httpx.get(f"{server.url}/plans.jsonl.gz", timeout=60).content
        with httpx.stream("GET", f"{server.url}/plans.jsonl.gz", timeout=60):
            return b""

    with ThreadPoolExecutor(50) as pool:
        assert set(pool.map(one, range(50))) == {b"", exported(database)}


def test_what_was_written_since_is_in_the_next_one(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fuseplan.tuning_db.dashboard import plan_file
    from fuseplan.tuning_db.dashboard.reader import readers

    kept = plan_file.KeptPlanFile(next(iter(readers([database]).values())))
    first = kept.now()
    assert kept.now() is first
    add_program(database, 2)
    assert kept.now() is first, "not more often than once in a while"
    monkeypatch.setattr(plan_file, "KEPT_S", 0.0)
    second = kept.now()
    assert b"".join(second.chunks()) == exported(database)
    assert second.etag != first.etag
    assert hashlib.sha256(b"".join(first.chunks())).hexdigest() == first.etag.strip('"'), "who is reading it reads on"


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_a_large_database_takes_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "large.db"
    large(path)
    assert path.stat().st_size > 100 * 2**20
    with serving(path) as started:
        size = sum(len(chunk) for chunk in _streamed(f"{started.url}/plans.jsonl.gz"))
        assert size > 2**20
        status = Path(f"/proc/{started.process.pid}/status").read_text()
        most = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    assert most < 250 * 1024, "KiB at most, of which the libraries are half"


def large(path: Path) -> None:
    """Sixty programs with traces of two megabytes each."""
    draw = random.Random(7)
    rows: list[tuple[Table, Row]] = []
    for number in range(60):
        rows += program(number, calls=1)
        table, row = rows[-1]
        rows[-1] = table, {**row, "json": json.dumps({"number": number, "words": draw.randbytes(2**20).hex()})}
    write(path, rows)


def _streamed(url: str) -> Iterator[bytes]:
    with httpx.stream("GET", url, timeout=300) as answer:
        yield from answer.iter_raw()
