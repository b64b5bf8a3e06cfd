"""The server of a folder: what it answers, how slow its link is, what it counts, and that it ends."""

import http.client
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from bench.watching import assert_all_end, open_pids, wait_for

from benchmarks.file_server import Limits, Pace
from benchmarks.served_folder import ServedFolder
from benchmarks.server_process import ServerError, ServerProcess, free_port

BODY = bytes(range(256)) * 40


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedFolder]:
    folder = tmp_path_factory.mktemp("served")
    (folder / "a file").write_bytes(BODY)
    (folder.parent / "outside").write_bytes(BODY)
    with ServedFolder(folder) as server:
        yield server


def ask(url: str, path: str, method: str = "GET", **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", urlsplit(url).port, timeout=30)
    connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found


@pytest.mark.parametrize(
    ("method", "path", "headers", "status", "body"),
    [
        ("GET", "/a%20file", {}, 200, BODY),
        ("GET", "/a%20file", {"Range": "bytes=100-199"}, 206, BODY[100:200]),
        ("GET", "/a%20file", {"Range": "bytes=10000-99999"}, 206, BODY[10000:]),
        ("GET", "/a%20file", {"Range": "bytes=-40"}, 206, BODY[-40:]),
        ("GET", "/a%20file", {"Range": "bytes=99999-"}, 416, b""),
        ("GET", "/a%20file", {"If_Match": '"another"'}, 412, b'If-Match: "another"'),
        ("HEAD", "/a%20file", {}, 200, b""),
        ("PUT", "/a%20file", {}, 405, b""),
        ("GET", "/%2e%2e/outside", {}, 404, b""),
    ],
)
def test_a_request_has_its_answer_and_its_line_in_the_ledger(
    server: ServedFolder, method: str, path: str, headers: dict[str, str], status: int, body: bytes
) -> None:
    server.forget()
    assert ask(server.url, path, method, **headers) == (status, body)
    (line,) = server.ledger().requests
    assert (line.method, line.status, line.range, line.bytes) == (method, status, headers.get("Range"), len(body))


@pytest.mark.parametrize(
    ("limits", "least_s"),
    [
        (Limits(latency_s=0.05), 0.05),
        (Limits(connection_bytes_per_s=10e6), 0.1),
        (Limits(link_bytes_per_s=10e6), 0.2),
    ],
)
def test_no_client_is_faster_than_the_link(limits: Limits, least_s: float, tmp_path: Path) -> None:
    """Two clients at once ask for 1 MB each."""
    (tmp_path / "large").write_bytes(BODY * 100)
    with ServedFolder(tmp_path, limits) as server:
        clients = [threading.Thread(target=ask, args=(server.url, "/large")) for _ in range(2)]
        began_s = time.monotonic()
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        assert time.monotonic() - began_s >= least_s - 0.03  # What a pace may catch up is 0.02.
        assert server.ledger().num_bytes == 2 * len(BODY) * 100


def test_a_pace_deals_times_in_the_order_of_asking() -> None:
    pace = Pace(1000.0)
    assert [pace.reserve(500, 10.0), pace.reserve(500, 10.0)] == pytest.approx([10.48, 10.98])
    assert Pace(None).reserve(500, 10.0) == 10.0


def test_a_server_that_cannot_start_says_why() -> None:
    with pytest.raises(ServerError, match=r"ended with exit code 3"):
        ServerProcess([sys.executable, "-c", "raise SystemExit(3)"], port=free_port())


def test_a_server_ends_with_the_process_that_started_it_also_after_sigkill(root: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from benchmarks.served_folder import ServedFolder\n"
        "server = ServedFolder(Path.cwd()); print(server.process.pid, flush=True); time.sleep(60)"
    )
    starting = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=root, text=True)
    assert starting.stdout is not None
    guard = int(starting.stdout.readline())
    children = Path(f"/proc/{guard}/task/{guard}/children")
    handles = open_pids([guard, *map(int, wait_for(children.read_text).split())])
    starting.kill()
    starting.wait()
    assert_all_end(handles)
    starting.stdout.close()
