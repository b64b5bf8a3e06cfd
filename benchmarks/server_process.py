"""ServerProcess: a server on this machine, in a process group of its own, which ends with the process that started it.

Run as a script, this file is the guard that stands between the two: it starts the server and kills the whole group when
its standard input ends or its parent is another one, so also after SIGKILL of the parent. It imports the standard
library alone and starts at once.
"""

import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType

START_S = 30.0
_LOOK_EVERY_S = 0.2
_GRACE_S = 10.0


class ServerError(Exception):
    """A server did not start, or has ended by itself; the message holds the end of its log."""


def listen() -> socket.socket:
    """Returns a listening socket on a free port of 127.0.0.1, for a server that inherits it.

    Whoever connects before the server is ready waits in its queue.
    """
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", 0))
    listener.listen(128)
    return listener


def free_port() -> int:
    """Returns a port that nobody listens on, for a server that can inherit no socket."""
    with listen() as listener:
        return int(listener.getsockname()[1])


class ServerProcess:
    """A running server.

    Args:
        command: what to run; it inherits `listener` under the same descriptor.
        port: where it listens; None: on the listener's.
        listener: made by `listen`; it belongs to the server then, and is closed here.
        environ: variables to add to this process's own.

    Raises:
        ServerError: it has ended, or does not accept connections within START_S.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        port: int | None = None,
        listener: socket.socket | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.port = port if listener is None else int(listener.getsockname()[1])
        self._name = " ".join(command)
        inherited = "" if listener is None else str(listener.fileno())
        self._owner = os.getpid()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `end`)
        # Fixed command, no shell: the guard, in front of the server.
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-I", "-S", __file__, str(self._owner), inherited, *command],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            env={**os.environ, **(environ or {})},
            pass_fds=() if listener is None else (listener.fileno(),),
            start_new_session=True,
        )
        if listener is not None:
            listener.close()
        self.pid = self._process.pid
        try:
            self._wait_for_port()
        except BaseException:
            self.end()
            raise

    def __enter__(self) -> "ServerProcess":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end()

    def end(self) -> None:
        """Kills the server and everything that it has started; does nothing when that was done already.

        Nor does it in a process that was forked from the one that started the server.
        """
        if self._log.closed or os.getpid() != self._owner:
            return
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:  # It has ended by itself.
            pass
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(_GRACE_S)
        self._log.close()

    def begin(self, ask: Callable[[], object]) -> None:
        """Waits until the server answers a first request, so that its start is in nobody's time.

        Args:
            ask: sends a request and waits for the answer.

        Raises:
            ServerError: it has ended instead.
        """
        try:
            ask()
        except BaseException as error:
            try:
                if isinstance(error, OSError):
                    self.check(wait_s=START_S)
            finally:
                self.end()
            raise

    def log(self) -> str:
        """Returns what the server has printed so far."""
        return os.pread(self._log.fileno(), 1 << 20, 0).decode(errors="replace")

    def _wait_for_port(self) -> None:
        deadline = time.monotonic() + START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port or 0), timeout=_LOOK_EVERY_S).close()
                return
            except OSError:
                self.check()
            if time.monotonic() > deadline:
                raise ServerError(f"{self._name} accepts no connections after {START_S:g} s: {self.log()[-2000:]}")
            time.sleep(0.02)

    def check(self, wait_s: float = 0.0) -> None:
        """Raises a ServerError when the server has ended, or does within `wait_s`."""
        try:
            code = self._process.wait(wait_s)
        except subprocess.TimeoutExpired:
            return
        raise ServerError(f"{self._name} ended with exit code {code}: {self.log()[-2000:]}")


def _guard(parent: int, listener: int | None, command: Sequence[str]) -> int:
    """Runs a command until it ends, or the parent does; returns its exit code."""
    inherited = [] if listener is None else [listener]
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=inherited)  # noqa: S603 (as above)
    for descriptor in inherited:  # The server's alone: when it has ended, its port refuses connections.
        os.close(descriptor)
    while (code := server.poll()) is None:
        is_input, _, _ = select.select([0], [], [], _LOOK_EVERY_S)
        # Processes that were forked from the parent may hold the pipe open.
        if (is_input and not os.read(0, 1)) or os.getppid() != parent:
            os.killpg(0, signal.SIGKILL)
    return code


if __name__ == "__main__":
    sys.exit(_guard(int(sys.argv[1]), int(sys.argv[2]) if sys.argv[2] else None, sys.argv[3:]))
