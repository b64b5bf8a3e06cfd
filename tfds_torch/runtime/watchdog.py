"""Watchdog: a limit on how long a thread waits, whatever it waits for."""

import ctypes
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import TracebackType

from tfds_torch.errors import StallError

_ARRIVAL_S = 1.0


class Watchdog:
    """Ends what takes too long: `with watchdog:` around it, in one thread at a time.

    Entering and leaving cost a microsecond: a thread of its own looks when the time is over. It interrupts what the
    watched thread does: the main thread as Ctrl-C would, where that is Python's own, so that waiting for a lock, a
    socket or `time.sleep` ends, too; another thread at its next step of Python code.

    Args:
        limit_s: how long the block may take, seconds.
        describe: called when that is over with the watched thread's stack; returns the error's message.
    """

    def __init__(self, limit_s: float, describe: Callable[[str], str]) -> None:
        self._limit_s, self._describe = limit_s, describe
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None
        self._watched = 0
        self._began_at: float | None = None
        self._message: str | None = None

    def __enter__(self) -> None:
        self._watched = threading.get_ident()
        self._began_at = time.monotonic()
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
            self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._began_at = None
            message, self._message = self._message, None
        if message is None:
            return
        if not isinstance(error, KeyboardInterrupt | _Interrupted):
            _wait_for_interrupt()
        raise StallError(message) from None

    def close(self) -> None:
        """Ends its thread."""
        self._is_over.set()

    def _watch(self) -> None:
        wait_s = self._limit_s
        while not self._is_over.wait(wait_s):
            with self._lock:
                wait_s = self._limit_s
                if self._began_at is None or self._message is not None:
                    continue
                wait_s = self._began_at + self._limit_s - time.monotonic()
                if wait_s <= 0:
                    frame = sys._current_frames().get(self._watched)
                    stack = "" if frame is None else "".join(traceback.format_stack(frame))
                    del frame
                    self._message = self._describe(stack)
                    _interrupt(self._watched)
                    wait_s = self._limit_s


class _Interrupted(BaseException):
    """What is raised in a thread that is not the main one."""


def _interrupt(thread: int) -> None:
    is_main = thread == threading.main_thread().ident
    is_plain = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_main and is_plain and hasattr(signal, "pthread_kill"):
        signal.pthread_kill(thread, signal.SIGINT)
    else:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(_Interrupted))


def _wait_for_interrupt() -> None:
    """Returns when an interrupt that is under way has come: the code behind the block must not get it."""
    ends_at = time.monotonic() + _ARRIVAL_S
    try:
        while time.monotonic() < ends_at:
            time.sleep(0.001)
    except (KeyboardInterrupt, _Interrupted):
        pass
