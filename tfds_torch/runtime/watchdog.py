"""Watchdog: a limit on the time for which a thread waits, whatever it waits for."""

import ctypes
import logging
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import TypeVar

from tfds_torch.errors import StallError

_ARRIVAL_S = 1.0
_LOOK_S = 1.0

T = TypeVar("T")

_logger = logging.getLogger(__name__)


class Watchdog:
    """Ends a step that takes too long: `run(step)`, in one thread at a time.

    A step that ends in time costs a microsecond: the watchdog's own thread looks when the time is over. It interrupts
    the main thread by its own signal, so that waiting for a lock, a socket or `time.sleep` ends, too; it interrupts
    another thread at its next step of Python code. It does so every second until the step ends. A wait of another
    thread in native code cannot be ended: that is logged.

    Args:
        limit_s: how long a step may take, seconds; None: for ever.
        describe: called with the watched thread's stack when the time is over; returns the error's message.
        has_failed: called every second while a step takes long; True ends the step, too; None: it is not called.
    """

    def __init__(
        self, limit_s: float | None, describe: Callable[[str], str], has_failed: Callable[[], bool] | None = None
    ) -> None:
        self._limit_s, self._describe, self._has_failed = limit_s, describe, has_failed
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None
        self._watched = 0
        self._began_at: float | None = None
        self._stack: str | None = None  # Where the step was when it was interrupted.

    def run(self, step: Callable[[], T]) -> T:
        """Run a step within the limit, and return its result."""
        result: list[T] = []
        try:
            try:
                self._run(step, result)
            except BaseException as error:
                if self._stack is not None and not isinstance(error, _Interrupted):
                    _wait_for_interrupt()  # The code behind the step must not get it.
                raise
            if self._stack is None:
                return result[0]
            _wait_for_interrupt()
            result.clear()  # It has swallowed the interrupt, so its result may be wrong.
        except _Interrupted:
            if self._stack is None:
                raise
        self._settle()
        if result:  # It was over when it was interrupted.
            return result[0]
        raise StallError(self._describe(self._stack or "")) from None

    def close(self) -> None:
        """End its thread."""
        self._is_over.set()

    def _run(self, step: Callable[[], T], result: list[T]) -> None:
        self._watched, self._stack = threading.get_ident(), None
        self._began_at = time.monotonic()
        if self._thread is None:
            _prepare_main_thread()
            self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
            self._thread.start()
        try:
            result.append(step())
        finally:
            with self._lock:
                self._began_at = None

    def _settle(self) -> None:
        """Wait until no interrupt is under way any more."""
        while True:
            try:
                with self._lock:
                    self._began_at = None
                time.sleep(0.001)
            except _Interrupted:
                continue
            return

    def _watch(self) -> None:
        while not self._is_over.wait(self._wait_s()):
            began_at = self._began_at
            if began_at is None or not self._must_end(began_at):
                continue
            stack = _stack_of(self._watched)
            with self._lock:
                if self._began_at != began_at:
                    continue
                is_first, self._stack = self._stack is None, self._stack or stack
                can_end_all = _interrupt(self._watched)
            if is_first and not can_end_all:
                _logger.error("%s", self._describe(stack))

    def _wait_s(self) -> float:
        """Return the seconds for which there is nothing to do."""
        if self._has_failed is not None or self._stack is not None:
            return _LOOK_S
        began_at, limit_s = self._began_at, self._limit_s or _LOOK_S
        return limit_s if began_at is None else max(0.0, began_at + limit_s - time.monotonic())

    def _must_end(self, began_at: float) -> bool:
        waited_s = time.monotonic() - began_at
        if self._limit_s is not None and waited_s >= self._limit_s:
            return True
        return self._has_failed is not None and waited_s >= _LOOK_S and self._has_failed()


class _Interrupted(BaseException):
    """The exception that is raised in a watched thread."""


def _raise_interrupted(number: int, frame: object) -> None:
    raise _Interrupted


def _signal() -> int | None:
    return signal.SIGRTMAX - 4 if hasattr(signal, "SIGRTMAX") else None


def _prepare_main_thread() -> None:
    """Let the main thread be interrupted by our signal, where this is the main thread."""
    number = _signal()
    if number is not None and threading.current_thread() is threading.main_thread():
        signal.signal(number, _raise_interrupted)


def _interrupt(thread: int) -> bool:
    """Interrupt a thread; return whether the interrupt ends any wait of the thread."""
    number = _signal()
    is_main = thread == threading.main_thread().ident
    if is_main and number is not None and signal.getsignal(number) is _raise_interrupted:
        signal.pthread_kill(thread, number)
        return True
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(_Interrupted))
    return False


def _stack_of(thread: int) -> str:
    frame = sys._current_frames().get(thread)
    return "" if frame is None else "".join(traceback.format_stack(frame))


def _wait_for_interrupt() -> None:
    """Wait for an interrupt that is under way: it is raised here, unless the step has swallowed it."""
    ends_at = time.monotonic() + _ARRIVAL_S
    while time.monotonic() < ends_at:
        time.sleep(0.001)
