"""A watchdog ends what takes too long, wherever it waits, and leaves alone what does not."""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tfds_torch.errors import StallError
from tfds_torch.runtime.watchdog import Watchdog

FOREVER_S = 3600.0


def loop_in_python() -> None:
    while True:
        pass


def wait_for_a_lock() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def wait_for_a_socket() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.recv(1)


def sleep() -> None:
    time.sleep(FOREVER_S)


def swallow_and_return() -> None:
    try:
        time.sleep(FOREVER_S)
    except KeyboardInterrupt:
        pass


WAITS = [loop_in_python, wait_for_a_lock, wait_for_a_socket, sleep, swallow_and_return]


def stall_in(wait: Callable[[], None]) -> StallError:
    watchdog = Watchdog(0.05, lambda stack: f"stalled:\n{stack}")
    with pytest.raises(StallError, match=r"^stalled:") as caught, watchdog:
        wait()
    watchdog.close()
    return caught.value


@pytest.mark.timeout(60)
@pytest.mark.parametrize("wait", WAITS)
def test_whatever_takes_too_long_in_the_main_thread_is_a_stall_error_with_its_stack(wait: Callable[[], None]) -> None:
    error = stall_in(wait)
    assert f"in {wait.__name__}" in str(error)
    assert error.__suppress_context__


@pytest.mark.timeout(60)
def test_another_thread_is_interrupted_at_its_next_step() -> None:
    errors: list[Any] = []
    thread = threading.Thread(target=lambda: errors.append(stall_in(loop_in_python)))
    thread.start()
    thread.join()
    assert "in loop_in_python" in str(errors[0])


@pytest.mark.timeout(60)
def test_a_program_with_its_own_ctrl_c_is_interrupted_without_it() -> None:
    calls: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: calls.append(number))
    try:
        stall_in(loop_in_python)
    finally:
        signal.signal(signal.SIGINT, before)
    assert calls == []


def test_what_is_in_time_is_left_alone_however_often() -> None:
    watchdog = Watchdog(FOREVER_S, str)
    for _ in range(1000):
        with watchdog:
            pass
    with pytest.raises(ValueError, match="its own"), watchdog:
        raise ValueError("its own")
    watchdog.close()


@pytest.mark.timeout(60)
def test_the_time_between_two_blocks_does_not_count() -> None:
    told = threading.Event()
    watchdog = Watchdog(0.1, lambda stack: told.set() or "stalled")
    with watchdog:
        pass
    assert not told.wait(0.5)
    with pytest.raises(StallError), watchdog:
        time.sleep(FOREVER_S)
    watchdog.close()


@pytest.mark.timeout(60)
def test_ctrl_c_within_a_block_is_ctrl_c() -> None:
    watchdog = Watchdog(FOREVER_S, str)
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt), watchdog:
        time.sleep(FOREVER_S)
    watchdog.close()


def test_its_thread_ends_with_it() -> None:
    watchdog = Watchdog(FOREVER_S, str)
    with watchdog:
        pass
    thread = watchdog._thread
    assert thread is not None
    assert thread.is_alive()
    watchdog.close()
    thread.join(30)
    assert not thread.is_alive()
