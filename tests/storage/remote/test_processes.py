"""Processes that share a fetcher, and what is left when one of them is forked, killed or interrupted."""

import contextlib
import fcntl
import gc
import json
import os
import pickle
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psutil
import pytest
from storage.remote import reading_process
from storage.remote.object_server import ObjectServer
from zygote import Zygote

from tfds_torch.errors import ConfigError, StallError
from tfds_torch.storage.remote import fetcher_socket
from tfds_torch.storage.remote.fetcher_process import MODULE
from tfds_torch.storage.remote.files import RemoteFiles
from tfds_torch.storage.remote.store import ObjectStore

MakeStore = Callable[..., ObjectStore]
BLOCK, SIZE, NUM_OBJECTS = 256 << 10, 4 << 20, 6
CONTENT = random.Random(0).randbytes(20 << 20)


def wait_until(is_true: Callable[[], bool], limit_s: float = 20.0) -> None:
    ends_at = time.monotonic() + limit_s
    while not is_true():
        assert time.monotonic() < ends_at, "it did not happen in time"
        time.sleep(0.01)


_others: set[int] = set()
"""Fetchers of stores that other tests of this process have left to the garbage collector."""


@pytest.fixture
def forked_fetchers() -> None:
    """How fetchers start and end is asked here: each is a child of the process that starts it."""


@pytest.fixture(autouse=True)
def look_at_others() -> None:
    gc.collect()
    _others.clear()
    _others.update(one.pid for one in fetchers())


def fetchers(of: int | None = None) -> list[psutil.Process]:
    """The fetchers below a process, or all that were started from this test's process tree."""
    found = []
    for process in psutil.Process(of).children(recursive=True):
        try:
            if process.pid in _others:
                continue
            if MODULE in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


def files_of(store: ObjectStore, url: str) -> RemoteFiles:
    return RemoteFiles(store, [url], [store.look([url])[0].stamp])


def read_and_exit(store: ObjectStore, files: RemoteFiles) -> None:
    assert files.read(0, 12 << 20, 1000) == CONTENT[12 << 20 : (12 << 20) + 1000]
    assert store.stats()["requests"] > 0


def read_in_copy(copied: bytes, url: str, stamp: Any) -> None:
    store = pickle.loads(copied)
    assert RemoteFiles(store, [url], [stamp]).read(0, 12 << 20, 1000) == CONTENT[12 << 20 : (12 << 20) + 1000]


def test_a_forked_process_goes_on_with_the_same_fetcher(server, make_store: MakeStore) -> None:
    url = server.put("shard", CONTENT)
    store = make_store()
    files = files_of(store, url)
    assert files.read(0, 0, 10) == CONTENT[:10]
    before = [one.pid for one in fetchers()]
    children = [get_context("fork").Process(target=read_and_exit, args=(store, files)) for _ in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join(20)
        assert child.exitcode == 0
    assert [one.pid for one in fetchers()] == before, "the end of a child is not the end of its parent's fetcher"
    assert files.read(0, 17 << 20, 10) == CONTENT[17 << 20 : (17 << 20) + 10]


def test_a_spawned_process_asks_the_same_fetcher_without_secrets(server, make_store: MakeStore) -> None:
    url = server.put("shard", CONTENT)
    store = make_store(storage_options={"default_headers": {"Authorization": "Bearer very-secret-token"}})
    stamp = store.look([url])[0].stamp
    child = get_context("spawn").Process(target=read_in_copy, args=(pickle.dumps(store), url, stamp))
    child.start()
    child.join(30)
    assert child.exitcode == 0
    assert {one["authorization"] for one in server.headers} == {"Bearer very-secret-token"}
    assert len(fetchers()) == 1


def test_a_killed_fetcher_is_replaced(server, make_store: MakeStore) -> None:
    url = server.put("shard", CONTENT)
    store = make_store()
    files = files_of(store, url)
    assert files.read(0, 0, 10) == CONTENT[:10]
    fetchers()[0].kill()
    assert files.read(0, 9 << 20, 10) == CONTENT[9 << 20 : (9 << 20) + 10]
    assert len(fetchers()) == 1


def test_a_killed_fetcher_is_replaced_also_for_many_threads(server, make_store: MakeStore) -> None:
    """Each of them has left a connection to the one that was killed."""
    url = server.put("shard", CONTENT[:1000])
    store = make_store()
    store.start()
    server.delay_s = 0.2
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(store.read_small, [url] * 16))
    assert len(store._connections._idle) >= 8
    (fetcher,) = fetchers()
    fetcher.kill()
    fetcher.wait()
    server.delay_s = 0.0
    assert store.read_small(url) == CONTENT[:1000]


def test_a_copy_without_secrets_says_that_it_cannot_start_a_fetcher(server, make_store: MakeStore) -> None:
    url = server.put("shard", CONTENT)
    store = make_store(storage_options={"default_headers": {"Authorization": "Bearer very-secret-token"}})
    store.start()
    copied = pickle.loads(pickle.dumps(store))
    fetchers()[0].kill()
    begin = time.monotonic()
    with pytest.raises(ConfigError, match=r"this process cannot start one.*secrets are not handed on.*environment"):
        copied.look([url])
    assert time.monotonic() - begin < 1.0
    assert store.look([url])[0].size == len(CONTENT)
    assert copied.look([url])[0].size == len(CONTENT), "the owner's new fetcher answers it"


def test_a_copy_without_secrets_starts_a_fetcher_of_its_own(server, make_store: MakeStore) -> None:
    url = server.put("shard", CONTENT)
    store = make_store()
    store.start()
    copied = pickle.loads(pickle.dumps(store))
    fetchers()[0].kill()
    assert copied.look([url])[0].size == len(CONTENT)
    assert store.look([url])[0].size == len(CONTENT)
    assert len(fetchers()) == 1
    copied.close()


def test_a_fetcher_that_may_open_few_files_reads_many_blocks_at_a_time(server, tmp_path: Path) -> None:
    url = server.put("shard", CONTENT)
    server.delay_s = 0.01
    program = f"""
import resource
import numpy as np
from tfds_torch import RemoteOptions
from tfds_torch.storage.remote.files import RemoteFiles
from tfds_torch.storage.remote.store import ObjectStore
resource.setrlimit(resource.RLIMIT_NOFILE, (80, 80))
store = ObjectStore(RemoteOptions(cache_dir={str(tmp_path / "cache")!r}, connections=4))
cuts = np.linspace(0, {len(CONTENT)}, 161).astype(np.int64)
files = RemoteFiles(store, [{url!r}], [store.look([{url!r}])[0].stamp], lambda _: cuts)
found = files.read_all([(0, start, 1000) for start in cuts[:-1].tolist()])
print(sum(map(len, found)))
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert found.stdout == "160000\n", found.stderr


def test_a_fetcher_that_many_connect_to_at_a_time_is_waited_for(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening, contextlib.ExitStack() as opened:
        address = str(tmp_path / "socket")
        listening.bind(address)
        listening.listen(0)

        def connect(patience_s: float) -> None:
            connection = fetcher_socket.try_connect(address, patience_s)
            assert connection is not None
            opened.enter_context(connection)

        connect(0.0)
        with pytest.raises(StallError, match=r"no sign of life for 0 s .*Is its process stopped\?"):
            connect(0.0)
        accepting = threading.Timer(0.2, lambda: opened.enter_context(listening.accept()[0]))
        accepting.start()
        connect(10.0)
        accepting.join()


def is_free(lock: str) -> bool:
    with open(lock, "rb") as file, contextlib.suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def test_a_forked_process_does_not_keep_the_lock_under_which_a_fetcher_is_started(tmp_path: Path) -> None:
    address = str(tmp_path / "sockets" / "socket")
    with fetcher_socket.start_lock(address):
        child = get_context("fork").Process(target=time.sleep, args=(60,))
        child.start()
    try:
        wait_until(lambda: is_free(f"{address}.lock"))
    finally:
        child.kill()
        child.join()


def test_a_fetcher_that_begins_in_the_background_is_the_one_that_answers(server, make_store: MakeStore) -> None:
    url = server.put("shard", CONTENT)
    store = make_store()
    store.begin()
    wait_until(lambda: bool(fetchers()))
    (begun,) = fetchers()
    assert files_of(store, url).read(0, 0, 10) == CONTENT[:10]
    assert [one.pid for one in fetchers()] == [begun.pid]
    store.close()
    assert not fetchers()
    store.begin()
    store.close()
    assert not fetchers(), "one that is closed at once is ended, too"


def test_a_process_is_not_forked_while_a_fetcher_starts(server, make_store: MakeStore) -> None:
    """It would keep the pipe open by whose end the start knows that the fetcher runs, and locks of that thread."""
    store = make_store()
    for _ in range(2):
        store.begin()
        child = get_context("fork").Process(target=time.sleep, args=(60,))
        child.start()
        try:
            assert len(fetchers()) == 1
            assert store._connections._beginning is not None
            assert not store._connections._beginning.is_alive()
        finally:
            child.kill()
            child.join()
            store.close()


def test_what_a_fetcher_says_that_cannot_begin_is_raised_by_the_first_request(
    make_store: MakeStore, tmp_path: Path
) -> None:
    (tmp_path / "cache").write_bytes(b"")
    store = make_store()
    store.begin()
    with pytest.raises(ConfigError, match="cannot be written to"):
        store.look(["http://127.0.0.1:9/a"])


def test_what_killed_processes_left_beside_sockets_is_removed(server, make_store: MakeStore) -> None:
    folder = Path(make_store()._connections.address).parent
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    left = [folder / f"{dead.pid}-0123.sock.lock", folder / f"{dead.pid}-0123.sock"]
    for path in left:
        path.touch()
    living = folder / f"{os.getpid()}-0123.sock.lock"
    living.touch()
    starting = folder / f"{dead.pid}-4567.sock.lock"
    with starting.open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # A worker that has outlived its parent starts a fetcher.
        make_store()
        assert not any(path.exists() for path in left)
        assert living.exists()
        assert starting.exists()
    living.unlink()
    make_store()
    assert not starting.exists()


@pytest.fixture
def slow_server(server: ObjectServer) -> ObjectServer:
    server.bytes_s = 4e6
    for number in range(NUM_OBJECTS):
        server.put(f"shard-{number}", reading_process.content_of(number, SIZE))
    return server


class Reader:
    """A process that reads; it is forked from one that has its modules, and its fetcher is a fresh process below it."""

    def __init__(self, zygote: Zygote, setup: dict[str, Any]) -> None:
        self._zygote, self.is_waited_for = zygote, False
        self.pid, link = zygote.fork(reading_process.run, setup)
        self.stdout = os.fdopen(os.dup(link.fileno()))
        link.close()

    def kill(self) -> None:
        """Kills it, where it has not ended, and waits for its end."""
        if not self.is_waited_for:
            os.kill(self.pid, signal.SIGKILL)
            self.wait()

    def wait(self) -> int:
        self.is_waited_for = True
        return self._zygote.wait(self.pid)


class Reading:
    """Processes that read the same objects into one cache."""

    def __init__(self, server: ObjectServer, cache: Path, zygote: Zygote) -> None:
        urls = [f"{server.root}/shard-{number}" for number in range(NUM_OBJECTS)]
        self.setup: dict[str, Any] = {"cache": str(cache), "urls": urls, "block": BLOCK, "size": SIZE}
        self.started: list[Reader] = []
        self._zygote = zygote

    def start(self, seed: int) -> Reader:
        reader = Reader(self._zygote, self.setup | {"seed": seed})
        self.started.append(reader)
        assert reader.stdout.readline() == "started\n"
        return reader

    def start_command(self) -> "subprocess.Popen[str]":
        """Starts one as a command in a terminal's foreground."""
        tests = str(Path(__file__).parents[2])
        process = subprocess.Popen(
            [sys.executable, reading_process.__file__, json.dumps(self.setup | {"seed": 0})],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([tests, str(Path(tests).parent)])},
            start_new_session=True,
        )
        assert process.stdout.readline() == "started\n"
        return process

    def finish(self, reader: Reader) -> dict[str, float]:
        line = reader.stdout.readline()
        assert reader.wait() == 0
        counts: dict[str, float] = json.loads(line)
        return counts


@pytest.fixture(scope="module")
def reading_zygote() -> Iterator[Zygote]:
    zygote = Zygote("storage.remote.reading_process", "tfds_torch.storage.remote.connections")
    yield zygote
    zygote.close()


@pytest.fixture
def reading(slow_server: ObjectServer, tmp_path: Path, reading_zygote: Zygote) -> Iterator[Reading]:
    found = Reading(slow_server, tmp_path / "cache", reading_zygote)
    yield found
    for reader in found.started:
        reader.kill()
        reader.stdout.close()


def fetchers_of_cache(reading: Reading) -> list[int]:
    """Fetchers whose socket or files lie where these readings do: also of parents that are gone."""
    cache, found = reading.setup["cache"], []
    for process in psutil.process_iter():
        try:
            if MODULE in process.cmdline() and any(one.path.startswith(cache) for one in process.open_files()):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def test_ranks_of_a_machine_fetch_each_byte_once(reading: Reading, slow_server: ObjectServer) -> None:
    counts = [reading.finish(reader) for reader in [reading.start(seed) for seed in range(4)]]
    assert sum(slow_server.sent.values()) <= 1.01 * SIZE * NUM_OBJECTS
    assert sum(one["bytes_fetched"] for one in counts) <= 1.01 * SIZE * NUM_OBJECTS
    assert not fetchers_of_cache(reading)


def test_a_fetcher_ends_with_a_killed_parent_and_another_takes_over(
    reading: Reading, slow_server: ObjectServer
) -> None:
    slow_server.bytes_s = 1.2e7  # One of them reads alone in the end, block after block.
    killed, other = reading.start(0), reading.start(1)
    wait_until(lambda: sum(slow_server.sent.values()) > SIZE)
    killed.kill()
    reading.finish(other)
    wait_until(lambda: not fetchers_of_cache(reading))
    assert not list(Path(reading.setup["cache"]).glob("objects/*/*.part"))
    # What was in flight is fetched again, what was finished is not.
    assert sum(slow_server.sent.values()) <= SIZE * NUM_OBJECTS + 30 * BLOCK


def test_ctrl_c_in_the_terminal_ends_the_parent_and_then_its_fetcher(
    reading: Reading, slow_server: ObjectServer
) -> None:
    process = reading.start_command()
    wait_until(lambda: sum(slow_server.sent.values()) > SIZE)
    fetcher = fetchers(process.pid)[0]
    assert os.getpgid(fetcher.pid) != os.getpgid(process.pid)
    fetcher.send_signal(signal.SIGINT)
    time.sleep(0.2)
    assert fetcher.is_running(), "it leaves the signal to its parent"
    os.killpg(process.pid, signal.SIGINT)
    with process:
        assert process.wait(20) in (130, 1, -signal.SIGINT)
    wait_until(lambda: not fetchers_of_cache(reading))


def kill_some(reading: Reading, server: ObjectServer, num_kills: int, seed: int) -> None:
    """Kills readers and fetchers while they fetch, and lets one reader finish."""
    draw = random.Random(seed)
    running = [reading.start(number) for number in range(3)]
    for number in range(num_kills):
        time.sleep(draw.uniform(0.0, 0.1))
        victim = draw.choice(running)
        below = fetchers(victim.pid)
        if below and draw.random() < 0.5:
            below[0].kill()
            continue
        victim.kill()
        running.remove(victim)
        running.append(reading.start(number + 3))
    for reader in running:
        reading.finish(reader)
    wait_until(lambda: not fetchers_of_cache(reading))
    num_sent = sum(server.sent.values())
    reading.finish(reading.start(99))
    assert sum(server.sent.values()) == num_sent, "the cache is whole"
    assert num_sent <= SIZE * NUM_OBJECTS + (num_kills + 1) * 26 * BLOCK
    assert not list(Path(reading.setup["cache"]).glob("objects/*/*.part"))


def test_a_handful_of_kills_leaves_the_cache_whole(reading: Reading, slow_server: ObjectServer) -> None:
    kill_some(reading, slow_server, 4, seed=0)


@pytest.mark.campaign
def test_forty_kills_leave_the_cache_whole(reading: Reading, slow_server: ObjectServer) -> None:
    slow_server.bytes_s = 4e5
    kill_some(reading, slow_server, 40, seed=1)
