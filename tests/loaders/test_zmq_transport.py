"""Whoever else writes to the sockets of a MultiLoader is rejected, counted, and can do nothing."""

import logging
import multiprocessing
import os
import pickle
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

from loaders import sources
from loaders.sources import NUM_ITEMS
from tfds_torch import MultiLoader
from tfds_torch.loaders import zmq_transport
from tfds_torch.loaders.transport import ITEM, Message, ProtocolError, pack_numbers
from tfds_torch.loaders.wire import ItemCodec, Outgoing
from tfds_torch.loaders.wire_items import MOST_BYTES, Part
from tfds_torch.loaders.zmq_transport import ZmqTransport, _open, _sign


class Bomb:
    """Creates a file when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.canary,)


def hostile(canary: Path) -> dict[str, list[bytes]]:
    """Name -> frames that a peer might send."""
    bomb, numbers = pickle.dumps(Bomb(canary)), pack_numbers(Message(ITEM, 0, 0, 0, 1, 0.0, None))
    header = Outgoing("item", 666).encode_header([])
    return {
        "a pickle bomb": [bomb],
        "a pickle bomb as numbers": [bytes(32), bomb, header],
        "a pickle bomb as a header": [bytes(32), numbers, bomb],
        "a pickle bomb as a buffer": [bytes(32), numbers, header, bomb],
        "garbage": [os.urandom(100), os.urandom(100), os.urandom(1000)],
        "nothing": [b""],
        "a message that nobody has signed": [bytes(32), numbers, header],
        "a message signed with another key": [_sign(bytes(32), [numbers, header]), numbers, header],
        "many frames": [b"x"] * 1000,
        "a header that is too long": [bytes(32), numbers, b" " * (1 << 17)],
    }


NAMES = list(hostile(Path()))


def send_all(address: str, frames: list[bytes], times: int = 1) -> None:
    with zmq.Context() as context, context.socket(zmq.PUSH) as peer:
        peer.connect(address)
        for _ in range(times):
            peer.send_multipart(frames)
        peer.setsockopt(zmq.LINGER, 10_000)


@contextmanager
def open_after_rejections(loader: MultiLoader, gate: Path, number: int) -> Iterator[None]:
    """Makes a file once so many messages were rejected, which happens while an item is waited for."""

    def watch() -> None:
        deadline = time.monotonic() + 60
        while loader.num_rejected < number and time.monotonic() < deadline:
            time.sleep(0.01)
        gate.touch()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        watcher.join()


def addresses(folder: Path) -> list[str]:
    return [f"ipc://{found}" for found in sorted(folder.glob("*/*"))]


@pytest.mark.parametrize("name", NAMES)
def test_a_hostile_peer_is_rejected_and_counted(
    name: str, sockets: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    canary = tmp_path / "canary"
    source = partial(sources.numbers_after, tmp_path / "gate")
    with MultiLoader(source, 2, transport="zmq", socket_dir=sockets, timeout_s=120.0) as loader:
        iteration = iter(loader)
        assert next(iteration) == 0
        assert len(addresses(sockets)) == 2
        send_all(addresses(sockets)[1], hostile(canary)[name], times=3)
        with open_after_rejections(loader, tmp_path / "gate", 3):
            assert [next(iteration) for _ in range(NUM_ITEMS - 1)] == list(range(1, NUM_ITEMS))
        assert loader.num_rejected >= 3
    assert loader.num_rejected >= 3, "they stay counted"
    assert not canary.exists()
    messages = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert any(text.startswith("The socket of worker 1 has rejected ") for text in messages)


def test_what_was_rejected_stays_counted_when_everything_is_killed(sockets: Path, tmp_path: Path) -> None:
    source = partial(sources.numbers_after, tmp_path / "gate")
    with MultiLoader(source, 1, transport="zmq", socket_dir=sockets, timeout_s=120.0) as loader:
        iteration = iter(loader)
        assert next(iteration) == 0
        send_all(addresses(sockets)[0], hostile(tmp_path)["garbage"])
        with open_after_rejections(loader, tmp_path / "gate", 1):
            assert [next(iteration) for _ in range(NUM_ITEMS - 1)] == list(range(1, NUM_ITEMS))
        num_rejected = loader.num_rejected
        assert num_rejected >= 1
        loader.kill()
        assert loader.num_rejected == num_rejected


def test_a_bomb_that_is_unpickled_would_create_the_file(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Bomb(tmp_path / "canary")))
    assert (tmp_path / "canary").exists()


def test_a_frame_of_two_gigabytes_is_refused_before_it_is_received(sockets: Path) -> None:
    with MultiLoader(sources.numbers, 1, transport="zmq", socket_dir=sockets, timeout_s=60.0) as loader:
        iteration = iter(loader)
        assert next(iteration) == 0
        (address,) = addresses(sockets)
        with socket.socket(socket.AF_UNIX) as peer:  # By hand: only the frame's head has to be sent.
            peer.connect(address.removeprefix("ipc://"))
            peer.settimeout(30)
            peer.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16) + b"\x00" + bytes(31))
            received = b""
            while len(received) < 64:
                received += peer.recv(4096)
            peer.sendall(b"\x04\x1a\x05READY\x0bSocket-Type\x00\x00\x00\x04PUSH")
            peer.sendall(b"\x02" + (2 << 30).to_bytes(8, "big") + b"x" * 100)
            while peer.recv(4096):
                pass  # Until it is turned away.
        time.sleep(0.5)  # ZeroMQ tells so a moment later, and nobody asks behind the last item.
        assert list(iteration) == list(range(1, NUM_ITEMS))
        assert loader.num_rejected >= 1


def test_the_folder_of_the_sockets_is_its_owners_alone(sockets: Path) -> None:
    transport = ZmqTransport(2, sockets, ItemCodec(None))
    (folder,) = sockets.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert len(set(transport._keys)) == 2
    assert all(len(key) == 32 for key in transport._keys)
    transport.close()
    transport.close()


def test_a_signature_covers_all_frames_and_their_sizes() -> None:
    key, parts = b"k" * 32, [Part(np.dtype("|u1"), (4,), ())]
    header = Outgoing("item", ["a", 0], parts).encode_header([None])
    numbers = pack_numbers(Message(ITEM, 0, 0, 0, 1, 0.0, None))
    frames = [_sign(key, [numbers, header, b"abcd"]), numbers, header, b"abcd"]
    assert _open(key, frames) == (numbers, [header, b"abcd"])
    for place in range(len(frames)):
        changed = list(frames)
        changed[place] = bytes([changed[place][0] ^ 1]) + changed[place][1:]
        with pytest.raises(ProtocolError, match="its signature is wrong"):
            _open(key, changed)
    with pytest.raises(ProtocolError, match="its signature is wrong"):
        _open(key, [frames[0], numbers, header + b"a", b"bcd"])
    with pytest.raises(ProtocolError, match="its signature is wrong"):
        _open(b"l" * 32, frames)


def test_a_message_that_came_before_does_not_count_again(sockets: Path) -> None:
    """It is signed, and says another number than the next one's."""
    transport = ZmqTransport(1, sockets, ItemCodec(None))
    sender = transport.sender(0, multiprocessing.get_context("fork"))
    sender.send(Message(ITEM, 0, 0, 3, 1, 0.0, None))
    transport.wait([0], 30.0)
    received = transport.receive(0)
    assert received is not None
    assert received.number == 3
    assert transport.receive(0) is None
    sender.close()
    transport.close()


def test_no_frame_may_be_larger_than_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmq_transport, "MOST_BYTES", 10)
    with pytest.raises(ProtocolError, match="larger than a message may be"):
        _open(b"k", [bytes(32), bytes(6), bytes(6)])
    assert MOST_BYTES == 1 << 30


def test_a_script_that_leaves_its_loader_open_ends(root: Path, tmp_path: Path) -> None:
    code = (
        "from loaders import sources\nfrom tfds_torch import MultiLoader\n"
        "loader = MultiLoader(sources.numbers, 1, transport='zmq', persistent_workers=True, start_method='fork', "
        f"socket_dir={str(tmp_path)!r})\nprint(len(list(loader)))\n"
    )
    paths = os.pathsep.join([str(root), str(root / "tests")])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{NUM_ITEMS}\n", "")
    assert list(tmp_path.iterdir()) == []
