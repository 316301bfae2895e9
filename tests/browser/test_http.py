"""What is asked of the server by whoever should not: it is refused with 4xx, and no answer tells where or what it is."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote, urlsplit

import httpx
import pytest

from browsing import COMMAND, Server, serving
from dashboards import hostile, one_row

PAGES = ("/", "/programs", "/programs.csv", "/programs.json")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    path = one_row(tmp_path_factory.mktemp("secret-folder") / "tuning.db")
    with serving(path) as started:
        yield started, path
    assert started.errors == [""], "no request may end in a traceback"


def ask(server: Server, method: str = "GET", target: str = "/", **headers: str) -> tuple[int, dict[str, str], str]:
    """A request as it is spelled: a client library would tidy it up first."""
    address = urlsplit(server.url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=20)
    connection.putrequest(method, target, skip_host="Host" in headers or "host" in headers, skip_accept_encoding=True)
    for name, value in headers.items():
        connection.putheader(name.replace("_", "-"), value.encode("utf-8"))
    connection.endheaders()
    answer = connection.getresponse()
    text = answer.read().decode("utf-8", "replace")
    connection.close()
    return answer.status, {name.lower(): value for name, value in answer.getheaders()}, text


def leaks(headers: dict[str, str], text: str) -> list[str]:
    """What an answer to a stranger must not hold."""
    whole = text + repr(headers)
    return [
        word
        for word in ("Traceback", "secret-folder", "site-packages", ".py", "sqlite", "uvicorn", "starlette")
        if word in whole
    ]


@pytest.mark.parametrize("page", PAGES)
def test_what_is_asked_properly_is_answered(server: tuple[Server, Path], page: str) -> None:
    status, headers, text = ask(server[0], target=page)
    assert status == 200
    assert "only" in text
    assert leaks(headers, text) == []
    assert headers["x-content-type-options"] == "nosniff"
    assert "server" not in headers
    assert not [name for name in headers if name.startswith("access-control")]
    policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == "'self'"
    assert "unsafe" not in headers["content-security-policy"]


def test_no_page_holds_a_script_or_a_style_of_its_own(server: tuple[Server, Path]) -> None:
    for page in ("/", "/programs"):
        text = ask(server[0], target=page)[2]
        assert {re.sub(r'id="[^"]*"', "", found) for found in re.findall(r"<script(?![^>]*src=)[^>]*>", text)} <= {
            '<script type="application/json" >'
        }
        assert "<style" not in text
        assert re.findall(r"<[^>]+\s(?:style|on[a-z]+)=", text) == []


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1.evil.example", "127.0.0.2", "0.0.0.0", "", "127.0.0.1@evil.example",
     "[::1", "localhost:99999999", "127.0.0.1 evil.example", "127.0.0.1/x", "münchen.example", "127.1", "2130706433"],
)  # fmt: skip
def test_a_foreign_host(server: tuple[Server, Path], host: str) -> None:
    status, headers, text = ask(server[0], Host=host)
    assert status == 400
    assert text == "this server does not go by that name\n" or "Invalid HTTP" in text
    assert leaks(headers, text) == []


@pytest.mark.parametrize("host", ["127.0.0.1", "LOCALHOST", "[::1]:1234", "localhost:8765"])
def test_hosts_that_are_this_machine(server: tuple[Server, Path], host: str) -> None:
    assert ask(server[0], Host=host)[0] == 200


def test_a_host_twice_or_not_at_all(server: tuple[Server, Path]) -> None:
    address = urlsplit(server[0].url)
    for lines in ("", "Host: 127.0.0.1\r\nHost: evil.example\r\n"):
        with socket.create_connection((address.hostname, address.port or 0), timeout=20) as connection:
            connection.sendall(f"GET / HTTP/1.1\r\n{lines}Connection: close\r\n\r\n".encode())
            assert connection.recv(100).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"}, {"Origin": "null"}, {"Origin": "https://127.0.0.1:1"}, {"Origin": "http://localhost"},
        {"Sec_Fetch_Site": "cross-site"}, {"Sec_Fetch_Site": "same-site"}, {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors"},
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "iframe"},
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "cors", "Sec_Fetch_Dest": "document"},
    ],
)  # fmt: skip
def test_from_another_origin(server: tuple[Server, Path], headers: dict[str, str]) -> None:
    status, answered, text = ask(server[0], target="/programs.json", **headers)
    assert status == 403
    assert "only" not in text
    assert leaks(answered, text) == []


def test_from_its_own_origin(server: tuple[Server, Path]) -> None:
    assert ask(server[0], Origin=server[0].url, Sec_Fetch_Site="same-origin")[0] == 200


@pytest.mark.parametrize(
    "method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "PROPFIND", "get", "GETT"]
)
def test_another_method(server: tuple[Server, Path], method: str) -> None:
    status, headers, text = ask(server[0], method)
    assert status == 405
    assert headers["allow"] == "GET, HEAD"
    assert leaks(headers, text) == []
    assert not [name for name in headers if name.startswith("access-control")]


@pytest.mark.parametrize("target", ["/", "/programs", "/programs.json", "/static/dashboard.css", "/nowhere"])
def test_the_head_of_what_a_get_gives(server: tuple[Server, Path], target: str) -> None:
    status, headers, text = ask(server[0], "HEAD", target)
    known, got, body = ask(server[0], "GET", target)
    assert (status, text) == (known, "")
    assert {**headers, "date": ""} == {**got, "date": ""}
    assert int(headers["content-length"]) == len(body.encode()) > 0


def test_a_body_or_an_upgrade(server: tuple[Server, Path]) -> None:
    assert ask(server[0], Content_Length="5")[0] == 400
    assert ask(server[0], Transfer_Encoding="chunked")[0] == 400
    assert (
        ask(server[0], Connection="Upgrade", Upgrade="websocket", Sec_WebSocket_Key="x", Sec_WebSocket_Version="13")[0]
        == 200
    )


@pytest.mark.parametrize(
    "path",
    ["/../../etc/passwd", "/static/../app.py", "/static/..%2f..%2fapp.py", "/static/%2e%2e/app.py", "/static/frame.js", "/static/", "/static",
     "//etc/passwd", "//evil.example/", "/\\..\\..", "/programs/", "/programs//", "/%70rograms", "/programs%00.json", "/programs;x", "/.git/config",
     "/tuning.db", "/secret-folder/tuning.db", "/static/frame.js%00.css", "/etc/passwd", "/%2e%2e%2f%2e%2e%2fetc/passwd", "/" + "a" * 3000,
     "/programs.exe", "/openapi.json", "/docs", "/*", "/..", "/%", "/%zz", "/programs%3Fq=1", "/é".encode().decode("latin-1")],
)  # fmt: skip
def test_tricks_with_paths(server: tuple[Server, Path], path: str) -> None:
    status, headers, text = ask(server[0], target=quote(path, safe="/%;?=*.\\"))
    assert status in (400, 404)
    assert "root:" not in text
    assert leaks(headers, text) == []
    assert "location" not in headers


@pytest.mark.parametrize(
    "query",
    ["x=1", "sort=bogus", "sort=plan_us;DROP TABLE plan", "sort=speedup&sort=noise", "page=0", "page=-1", "page=99999999999", "page=1e3",
     "order=sideways", "since=yesterday", "since=2026-11-20' OR 1=1", "launch=other", "q=%00", "q=%ff", "q=%C3%28", "q", "=", "&&&", "gpu=%ED%A0%80",
     "q=" + "a" * 401, "&".join(f"a{i}=1" for i in range(2000)), "q=1&q=2", "db=/etc/passwd", "db=..%2f..%2fetc%2fpasswd", "db=other.db",
     "q[]=1", "__proto__=1", "token=guess"],
)  # fmt: skip
def test_hostile_query_strings(server: tuple[Server, Path], query: str) -> None:
    for page in ("/programs", "/programs.csv"):
        status, headers, text = ask(server[0], target=f"{page}?{quote(query, safe='%&=;')}")
        assert 400 <= status < 500
        assert leaks(headers, text) == []
        assert "DROP" not in text


@pytest.mark.parametrize("length", [8_001, 15_000])
def test_oversized_query_strings(server: tuple[Server, Path], length: int) -> None:
    status, headers, text = ask(server[0], target="/programs?q=" + "a" * length)
    assert status == 414
    assert leaks(headers, text) == []


@pytest.mark.parametrize("request_", ["GET /" + "a" * 300_000, "GET / HTTP/1.1\r\nX-Long: " + "a" * 300_000])
def test_requests_without_an_end(server: tuple[Server, Path], request_: str) -> None:
    """They are answered before all of it is read."""
    address = urlsplit(server[0].url)
    with socket.create_connection((address.hostname, address.port or 0), timeout=20) as connection:
        connection.sendall(request_[:100_000].encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize(
    "wanted", ["' OR 1=1 --", "%' OR '1'='1", "\"", "\\", "%", "_", "only' UNION SELECT json FROM plan --", "${7*7}", "{{7*7}}", "<script>alert(1)</script>"]
)  # fmt: skip
def test_values_stay_values(server: tuple[Server, Path], wanted: str) -> None:
    for name in ("q", "model", "gpu", "torch", "nvfuser"):
        status, _, text = ask(server[0], target=f"/programs.csv?{name}={quote(wanted)}")
        assert status == 200
        assert len(text.splitlines()) == 1, "nothing of that name is there"
        assert "<script>alert" not in ask(server[0], target=f"/programs?{name}={quote(wanted)}")[2]


def test_nothing_of_it_has_changed_the_database(server: tuple[Server, Path]) -> None:
    started, path = server
    before = (
        sha256(path.read_bytes()).digest(),
        path.stat().st_mtime_ns,
        sorted(one.name for one in path.parent.iterdir()),
    )
    for page in PAGES:
        assert ask(started, target=page)[0] == 200
    assert before == (
        sha256(path.read_bytes()).digest(),
        path.stat().st_mtime_ns,
        sorted(one.name for one in path.parent.iterdir()),
    )


def test_a_database_that_nobody_may_write(tmp_path: Path) -> None:
    path = hostile(tmp_path / "tuning.db")
    path.chmod(0o400)
    tmp_path.chmod(0o500)
    try:
        with serving(path) as started:
            assert httpx.get(f"{started.url}/programs.json").status_code == 200
    finally:
        tmp_path.chmod(0o700)


def test_a_token_where_others_can_connect(tmp_path: Path) -> None:
    path = one_row(tmp_path / "tuning.db")
    with serving(path, options=("--host", "0.0.0.0", "--allow-host", "box.example")) as started:
        link = urlsplit(started.url)
        token = link.query.removeprefix("token=")
        assert len(token) >= 32
        here = f"http://127.0.0.1:{link.port}"
        for headers in (
            {},
            {"Cookie": "fuseplan=guess"},
            {"Cookie": "fuseplan="},
            {"Authorization": "Bearer guess"},
            {"Cookie": ";;;=\x01"},
        ):
            answer = httpx.get(f"{here}/programs.json", headers=headers)
            assert answer.status_code == 401
            assert token not in answer.text
        assert httpx.get(f"{here}/?token=guess").status_code == 401
        first = httpx.get(f"{here}/programs?q=only&token={token}")
        assert first.status_code == 303
        assert first.headers["location"] == "/programs?q=only"
        cookie = first.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert httpx.get(f"{here}/", headers={"Cookie": cookie.split(";")[0]}).status_code == 200
        assert httpx.get(f"{here}/", headers={"Authorization": f"Bearer {token}"}).status_code == 200
        named = {"Authorization": f"Bearer {token}", "Host": "box.example"}
        assert httpx.get(f"{here}/", headers=named).status_code == 200
        assert httpx.get(f"{here}/", headers={**named, "Host": "evil.example"}).status_code == 400


def test_fifty_at_once(server: tuple[Server, Path]) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def one(number: int) -> int:
        return ask(server[0], target=PAGES[number % len(PAGES)])[0]

    with ThreadPoolExecutor(50) as pool:
        assert list(pool.map(one, range(50))) == [200] * 50


def test_a_token_that_is_too_short(tmp_path: Path) -> None:
    command = [*COMMAND, "--db", str(one_row(tmp_path / "tuning.db")), "--host", "0.0.0.0", "--token", "short"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "at least 16" in ran.stderr


def test_a_port_that_is_taken(server: tuple[Server, Path], tmp_path: Path) -> None:
    port = str(urlsplit(server[0].url).port)
    ran = subprocess.run(
        [*COMMAND[:4], "--port", port, "--db", str(server[1])], capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 2
    assert (
        ran.stderr.strip()
        == f"Error: port {port} of 127.0.0.1 cannot be used: Address already in use; name another with --port"
    )


def test_where_it_is_as_json_and_how_it_ends(tmp_path: Path) -> None:
    command = [*COMMAND, "--json", "--db", str(one_row(tmp_path / "tuning.db"))]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    url = json.loads(process.stdout.readline())["url"]
    assert httpx.get(url).status_code == 200
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=20)[1] == ""
    assert process.returncode == 0
