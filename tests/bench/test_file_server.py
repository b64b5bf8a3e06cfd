"""The server of a folder: what it answers, how slow its link is, what it counts, and how it ends."""

import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from bench.watching import assert_all_end, open_pids, wait_for
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.file_server import Limits, Pace, etag_of, span_of
from benchmarks.served_folder import ServedFolder, ServerAddress
from benchmarks.server_process import ServerError, ServerProcess, free_port, listen

BODY = bytes(range(256)) * 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    (folder / "inner").mkdir()
    (folder / "inner" / "a file").write_bytes(BODY)
    (folder / "large").write_bytes(BODY * 100)
    (folder / "empty").write_bytes(b"")
    (folder.parent / "outside").write_bytes(BODY)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ServedFolder]:
    with ServedFolder(folder) as server:
        yield server


def connect(url: str) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", urlsplit(url).port, timeout=30)


def ask(
    connection: http.client.HTTPConnection, path: str, method: str = "GET", **headers: str
) -> tuple[int, bytes, dict[str, str]]:
    """Returns status, body and headers; underscores in names of headers stand for dashes."""
    connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    return answer.status, answer.read(), dict(answer.getheaders())


@pytest.fixture
def connection(server: ServedFolder) -> Iterator[http.client.HTTPConnection]:
    server.forget()
    connection = connect(server.url)
    yield connection
    connection.close()


@pytest.mark.parametrize(
    ("asked", "status", "start", "end"),
    [
        (None, 200, 0, 10240),
        ("bytes=0-0", 206, 0, 1),
        ("bytes=100-199", 206, 100, 200),
        ("bytes=10000-", 206, 10000, 10240),
        ("bytes=10000-99999", 206, 10000, 10240),
        ("bytes=-40", 206, 10200, 10240),
    ],
)
def test_a_range_is_answered_with_its_bytes(
    connection: http.client.HTTPConnection, folder: Path, asked: str | None, status: int, start: int, end: int
) -> None:
    found, body, headers = ask(connection, "/inner/a%20file", **({"Range": asked} if asked else {}))
    assert (found, body) == (status, BODY[start:end])
    assert headers["ETag"] == etag_of((folder / "inner" / "a file").stat())
    assert headers.get("Content-Range") == (f"bytes {start}-{end - 1}/10240" if asked else None)


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/missing", {}, 404),
        ("GET", "/inner", {}, 404),
        ("GET", "/../outside", {}, 404),
        ("GET", "/inner/%2e%2e/%2e%2e/outside", {}, 404),
        ("GET", "/large", {"Range": "bytes=9999999-"}, 416),
        ("GET", "/large", {"If_Match": '"another"'}, 412),
        ("PUT", "/large", {}, 405),
        ("GET", "/empty", {}, 200),
        ("GET", "/empty", {"Range": "bytes=0-"}, 416),
    ],
)
def test_what_cannot_be_answered_has_its_status(
    connection: http.client.HTTPConnection, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    assert ask(connection, path, method, **headers)[0] == status
    assert ask(connection, "/large", Range="bytes=0-9")[1] == BODY[:10]  # The connection goes on.


def test_a_head_has_the_length_and_no_body(connection: http.client.HTTPConnection) -> None:
    status, body, headers = ask(connection, "/large", "HEAD")
    assert (status, body, headers["Content-Length"]) == (200, b"", str(len(BODY) * 100))


def test_a_file_that_was_written_anew_has_another_etag(server: ServedFolder, folder: Path) -> None:
    path, connection = folder / "changes", connect(server.url)
    path.write_bytes(b"old")
    etag = ask(connection, "/changes")[2]["ETag"]
    assert ask(connection, "/changes", If_Match=etag)[0] == 200
    path.write_bytes(b"new!")
    assert ask(connection, "/changes", If_Match=etag)[0] == 412
    connection.close()


def test_the_ledger_counts_requests_and_bytes_by_path(
    connection: http.client.HTTPConnection, server: ServedFolder
) -> None:
    ask(connection, "/large", Range="bytes=5-14")
    ask(connection, "/large", "HEAD")
    ask(connection, "/inner/a%20file", If_Match="*")
    ask(connection, "/missing")
    ledger = ServerAddress(server.url).ledger()
    assert [(line.method, line.status, line.range, line.if_match, line.bytes) for line in ledger.requests] == [
        ("GET", 206, "bytes=5-14", None, 10),
        ("HEAD", 200, None, None, 0),
        ("GET", 200, None, "*", len(BODY)),
        ("GET", 404, None, None, 0),
    ]
    assert len({line.connection for line in ledger.requests}) == 1
    assert ledger.requests_by_path == {"/large": 2, "/inner/a file": 1, "/missing": 1}
    assert ledger.bytes_by_path == {"/large": 10, "/inner/a file": len(BODY), "/missing": 0}
    assert ledger.num_bytes == 10 + len(BODY)
    assert ledger.cpu_s > 0
    server.forget()
    assert server.ledger().requests == []


@pytest.mark.parametrize(
    ("limits", "least_s"),
    [
        (Limits(latency_s=0.05), 0.1),
        (Limits(connection_bytes_per_s=10e6), 0.2),
        (Limits(link_bytes_per_s=10e6), 0.4),
    ],
)
def test_no_client_is_faster_than_the_link(folder: Path, limits: Limits, least_s: float) -> None:
    """Two clients at once ask for 1 MB twice each: 2 MB a connection."""

    def read(url: str) -> None:
        connection = connect(url)
        for _ in range(2):
            assert len(ask(connection, "/large")[1]) == len(BODY) * 100
        connection.close()

    with ServedFolder(folder, limits) as server:
        clients = [threading.Thread(target=read, args=(server.url,)) for _ in range(2)]
        began_s = time.monotonic()
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        assert time.monotonic() - began_s >= least_s - 0.05  # What a pace may catch up is 0.02.
        assert server.ledger().num_bytes == 4 * len(BODY) * 100


@given(st.lists(st.tuples(st.integers(1, 10**6), st.floats(0, 10)), min_size=1), st.floats(1e3, 1e9))
def test_a_pace_never_lets_more_through_than_its_rate(asked: list[tuple[int, float]], bytes_per_s: float) -> None:
    pace, now, total, began_s = Pace(bytes_per_s), 100.0, 0, 100.0
    for num_bytes, pause_s in asked:
        total += num_bytes
        now = max(now + pause_s, pace.reserve(num_bytes, now + pause_s))
        assert total / bytes_per_s <= now - began_s + 0.02 * len(asked) + 1e-6


@given(st.integers(0, 99), st.integers(0, 120), st.integers(1, 99))
def test_a_span_is_that_of_a_slice(first: int, last: int, size: int) -> None:
    expected = list(range(size))[first : last + 1]
    span = span_of(f"bytes={first}-{last}", size)
    assert (list(range(*span)) if span else []) == expected
    assert span_of(f"bytes=-{first}", size) == ((max(0, size - first), size) if first else None)
    assert span_of("lines=1-2", size) == span_of(None, size) == (0, size)


def test_a_server_that_cannot_start_says_why(folder: Path) -> None:
    with pytest.raises(ServerError, match=r"(?s)ended with exit code 1: .*FileNotFoundError"):
        ServedFolder(folder, certificate=folder / "missing")
    with pytest.raises(ServerError, match=r"ended with exit code 3"):
        ServerProcess([sys.executable, "-c", "raise SystemExit(3)"], port=free_port())


def test_an_ended_server_leaves_no_process_and_no_port(folder: Path) -> None:
    with ServedFolder(folder) as server:
        handles = open_pids(members(server.process.pid))
    assert len(handles) == 2
    assert_all_end(handles)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.process.port))


def test_a_server_ends_with_the_process_that_started_it_also_after_sigkill(folder: Path, root: Path) -> None:
    """Also where a process that was forked from it lives on and holds its pipes."""
    code = (
        "import os, sys, time; from pathlib import Path; from benchmarks.served_folder import ServedFolder\n"
        "server = ServedFolder(Path(sys.argv[1]))\n"
        "forked = os.fork() or time.sleep(60) or os._exit(0)\n"
        "print(server.process.pid, forked, flush=True); time.sleep(60)"
    )
    starting = subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, cwd=root, text=True)
    assert starting.stdout is not None
    guard, forked = map(int, starting.stdout.readline().split())
    handles = open_pids(members(guard))
    assert len(handles) == 2
    starting.kill()
    starting.wait()
    assert_all_end(handles)
    os.kill(forked, signal.SIGKILL)
    starting.stdout.close()


def members(group: int) -> list[int]:
    """Returns the processes of a group, the guard and its server."""

    def look() -> list[int]:
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                found += [int(name)] if os.getpgid(int(name)) == group else []
            except ProcessLookupError:
                continue
        return found if len(found) == 2 else []

    return wait_for(look)


def test_a_listener_keeps_who_comes_before_the_server() -> None:
    with listen() as listener:
        waiting = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
        accepted.close()
        waiting.close()
