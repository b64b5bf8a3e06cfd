"""ZmqTransport: batches through ZeroMQ sockets, in a private folder of the user, every message signed."""

import hmac
import logging
import os
import secrets
import shutil
import struct
import tempfile
import weakref
from collections.abc import Sequence
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

from tfds_torch.errors import ConfigError
from tfds_torch.loaders.transport import END, Codec, Message, ProtocolError, pack_numbers, unpack_message
from tfds_torch.loaders.wire import MOST_BUFFERS
from tfds_torch.loaders.wire_items import MOST_BYTES
from tfds_torch.runtime.own_folder import ForeignFolderError, check_own_folder
from tfds_torch.runtime.shared_slots import SlotPacking

_KEY_BYTES = _SIGNATURE_BYTES = 32
_LONGEST_ADDRESS = 107  # Of a socket in the file system, Linux.
_LENGTH = struct.Struct("<Q")

_logger = logging.getLogger(__name__)


def import_zmq() -> Any:
    """Return pyzmq, or raise ConfigError where it is not installed."""
    try:
        import zmq
    except ImportError as error:
        raise ConfigError(
            "MultiLoader: transport='zmq' needs pyzmq, which is not installed: pip install 'tfds-torch[zmq]'. On "
            "Linux, transport='shared' needs nothing and is faster."
        ) from error
    return zmq


def check_socket_folder(folder: Path) -> None:
    """Check that a folder may hold sockets: only this user can put anything into it."""
    try:
        check_own_folder(folder.resolve())
    except ForeignFolderError as error:
        raise ConfigError(
            f"MultiLoader: socket_dir={str(folder)!r} is not this user's own: {error.strerror}. Or leave out "
            f"socket_dir: a private folder is made."
        ) from None
    except OSError as error:
        raise ConfigError(f"MultiLoader: socket_dir={str(folder)!r} cannot be used: {error.strerror}.") from None


class ZmqTransport:
    """Carries messages as frames: a signature (HMAC-SHA256), numbers, the JSON header, and a frame for each buffer.

    Every worker has its own socket, below a new folder that only this user may enter, and its own key, which it gets
    when it starts. A message whose signature or header is wrong is dropped and counted; ZeroMQ refuses a frame that is
    larger than allowed before it is received.

    The folder of the sockets is made in a given one, or in the system's for temporary files.
    """

    name = "zmq"

    def __init__(self, num_workers: int, folder: Path | None, codec: Codec) -> None:
        self._codec = codec
        self._zmq = zmq = import_zmq()
        self.num_rejected = 0
        if folder is not None:
            check_socket_folder(folder)
        try:
            self._folder = tempfile.mkdtemp(prefix="tfds_torch.", dir=folder)
        except OSError as error:
            raise ConfigError(f"MultiLoader: no folder for its sockets can be made: {error}") from None
        self._end = weakref.finalize(self, _end, os.getpid(), self._folder, context := zmq.Context())
        self._addresses = [f"ipc://{self._folder}/{worker}" for worker in range(num_workers)]
        longest = len(self._addresses[-1]) - len("ipc://")
        if longest > _LONGEST_ADDRESS:
            self.close()
            raise ConfigError(
                f"MultiLoader: socket_dir={str(folder or tempfile.gettempdir())!r} has a path that is too long for "
                f"sockets: with theirs it has {longest} characters, and {_LONGEST_ADDRESS} are allowed."
            )
        self._keys = [secrets.token_bytes(_KEY_BYTES) for _ in range(num_workers)]
        self._sockets = []
        for address in self._addresses:
            socket = context.socket(zmq.PULL)
            self._sockets.append(socket)
            # How much is under way is limited by the batches that workers may read ahead.
            socket.set_hwm(0)
            socket.setsockopt(zmq.MAXMSGSIZE, MOST_BYTES)
            socket.bind(address)
        self._monitors = [_Monitor(zmq, socket) for socket in self._sockets]
        _open_here.add(self)

    def inherited(self) -> list[Any]:
        """Return the sockets, of which a forked child has copies that it cannot close."""
        return [*self._sockets, *(monitor.events for monitor in self._monitors)]

    def sender(self, worker: int, context: BaseContext) -> "ZmqSender":  # noqa: D102
        return ZmqSender(self._addresses[worker], self._keys[worker], self._codec)

    def receive(self, worker: int) -> Message | None:  # noqa: D102
        while True:
            try:
                frames = self._sockets[worker].recv_multipart(self._zmq.NOBLOCK, copy=False)
            except self._zmq.Again:
                frames = None  # A Ctrl-C while refusals are counted does not have this error behind it.
            except self._zmq.ZMQError:
                if self._sockets[worker].closed:
                    raise EOFError from None
                raise
            if frames is None:
                for _ in range(self._monitors[worker].num_refused()):
                    self._reject(worker, "a connection that broke the protocol, or sent a frame that is too large")
                return None
            try:
                numbers, content = _open(self._keys[worker], [frame.buffer for frame in frames])
            except ProtocolError as reason:
                self._reject(worker, f"a message: {reason}")
                continue
            try:
                item = self._codec.decode(content, {}) if content else None
            except ProtocolError as reason:
                raise ProtocolError(f"an invalid item: {reason}") from None
            return unpack_message(numbers, worker, item)

    def _reject(self, worker: int, what: str) -> None:
        self.num_rejected += 1
        _logger.warning("The socket of worker %d has rejected %s. Somebody else is writing to it.", worker, what)

    def wait(self, workers: Sequence[int], timeout_s: float) -> None:  # noqa: D102
        poller = self._zmq.Poller()
        for worker in workers:
            poller.register(self._sockets[worker], self._zmq.POLLIN)
        try:
            poller.poll(timeout_s * 1000)
        except self._zmq.ZMQError:
            if not any(socket.closed for socket in self._sockets):  # A signal handler may close the loader meanwhile.
                raise

    def close(self) -> None:  # noqa: D102
        for monitor in getattr(self, "_monitors", ()):
            monitor.close()
        self._end()


class ZmqSender:
    """A worker's end of a `ZmqTransport`, which connects when it first sends."""

    def __init__(self, address: str, key: bytes, codec: Codec) -> None:
        self._address, self._key, self._codec = address, key, codec
        self._socket: Any = None

    def send(self, message: Message) -> None:  # noqa: D102
        content = self._codec.encode(message, SlotPacking(None)) if message.kind != END else ()
        frames = [pack_numbers(message), *content]
        if self._socket is None:
            self._open()
        self._socket.send_multipart([_sign(self._key, frames), *frames], copy=False)

    def _open(self) -> None:
        zmq = import_zmq()
        self._context = zmq.Context()  # Not the parent's, whose threads this process does not have.
        self._socket = self._context.socket(zmq.PUSH)
        self._socket.set_hwm(0)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(self._address)

    def close(self) -> None:  # noqa: D102
        if self._socket is not None:
            self._socket.close()
            self._context.term()


class _Monitor:
    """Counts the connections to a socket that ZeroMQ refused."""

    def __init__(self, zmq: Any, socket: Any) -> None:
        self._zmq, self._socket = zmq, socket
        failed = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
        self.events = socket.get_monitor_socket(failed | zmq.EVENT_DISCONNECTED | zmq.EVENT_ACCEPTED)
        self._num_accepted = 0

    def num_refused(self) -> int:
        """Return how many connections, of those that are not the worker's own, have ended since the last call."""
        num_refused = 0
        while self.events.poll(0):
            kind = struct.unpack("=Hi", self.events.recv_multipart()[0])[0]
            if kind == self._zmq.EVENT_ACCEPTED:
                self._num_accepted += 1
            elif self._num_accepted > 1:
                self._num_accepted -= 1
                num_refused += 1
        return num_refused

    def close(self) -> None:
        """End it, if the socket is still open."""
        if not self._socket.closed:
            self._socket.disable_monitor()
            self.events.close(linger=0)


_open_here: "weakref.WeakSet[ZmqTransport]" = weakref.WeakSet()
_inherited: list[Any] = []


def _keep_inherited() -> None:
    """Keep the copies of a forked child to its end: pyzmq closes none of them, and warns of any dropped earlier."""
    for transport in _open_here:
        _inherited.extend(transport.inherited())
    _open_here.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_keep_inherited)


def _end(owner: int, folder: str, context: Any) -> None:
    if os.getpid() != owner:  # What a fork has copied is not its own.
        return
    context.destroy(linger=0)  # All of its sockets, also the monitors': ending it waits for each of them.
    shutil.rmtree(folder, ignore_errors=True)


def _sign(key: bytes, frames: Sequence[Any]) -> bytes:
    """Return the signature of a header and its buffers, whose sizes it covers."""
    signature = hmac.new(key, digestmod="sha256")
    for frame in frames:
        signature.update(_LENGTH.pack(memoryview(frame).nbytes))
        signature.update(frame)
    return signature.digest()


def _open(key: bytes, frames: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
    """Return the numbers and the frames of the item of a message whose signature is right."""
    if not 2 <= len(frames) <= 3 + MOST_BUFFERS:
        raise ProtocolError(f"it has {len(frames)} frames")
    signature, numbers, *content = frames
    if len(signature) != _SIGNATURE_BYTES or sum(memoryview(frame).nbytes for frame in frames) > MOST_BYTES:
        raise ProtocolError("its signature is of another size, or it is larger than a message may be")
    if not hmac.compare_digest(bytes(signature), _sign(key, frames[1:])):
        raise ProtocolError("its signature is wrong")
    return numbers, content
