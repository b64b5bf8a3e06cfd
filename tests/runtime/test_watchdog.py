"""A watchdog ends what takes too long, wherever it waits, and leaves alone what does not."""

import contextlib
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


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfds_torch.runtime.watchdog._LOOK_S", 0.1)
    monkeypatch.setattr("tfds_torch.runtime.watchdog._ARRIVAL_S", 0.3)


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
    with contextlib.suppress(BaseException):
        time.sleep(FOREVER_S)


def swallow_twice() -> None:
    for _ in range(2):
        with contextlib.suppress(BaseException):
            time.sleep(FOREVER_S)


WAITS = [loop_in_python, wait_for_a_lock, wait_for_a_socket, sleep, swallow_and_return, swallow_twice]


def stall_in(wait: Callable[[], None]) -> StallError:
    watchdog = Watchdog(0.05, lambda stack: f"stalled:\n{stack}")
    with pytest.raises(StallError, match=r"^stalled:") as caught:
        watchdog.run(wait)
    watchdog.close()
    return caught.value


@pytest.mark.timeout(60)
@pytest.mark.parametrize("wait", WAITS)
def test_whatever_takes_too_long_in_the_main_thread_is_a_stall_error_with_its_stack(wait: Callable[[], None]) -> None:
    error = stall_in(wait)
    assert f"in {wait.__name__}" in str(error)
    assert error.__cause__ is None


@pytest.mark.timeout(60)
def test_another_thread_is_interrupted_at_its_next_step_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    errors: list[Any] = []
    thread = threading.Thread(target=lambda: errors.append(stall_in(loop_in_python)))
    thread.start()
    thread.join()
    assert "in loop_in_python" in str(errors[0])
    assert "in loop_in_python" in caplog.text


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
    assert [watchdog.run(lambda: 7) for _ in range(1000)] == [7] * 1000

    def fail() -> None:
        raise ValueError("its own")

    with pytest.raises(ValueError, match="its own"):
        watchdog.run(fail)
    watchdog.close()


@pytest.mark.timeout(60)
def test_a_step_that_ends_at_the_very_limit_is_a_result_or_a_stall_and_nothing_comes_later() -> None:
    watchdog = Watchdog(0.002, lambda stack: "stalled")
    outcomes = {"result": 0, "stall": 0}
    for number in range(300):
        try:
            watchdog.run(lambda number=number: time.sleep(0.0015 + 0.000005 * (number % 200)))  # type: ignore[misc]
            outcomes["result"] += 1
        except StallError:
            outcomes["stall"] += 1
    time.sleep(0.05)
    watchdog.close()
    assert sum(outcomes.values()) == 300
    assert all(outcomes.values()), outcomes


@pytest.mark.timeout(60)
def test_the_time_between_two_steps_does_not_count() -> None:
    described = threading.Event()
    watchdog = Watchdog(0.1, lambda stack: described.set() or "stalled")
    watchdog.run(int)
    assert not described.wait(0.5)
    with pytest.raises(StallError):
        watchdog.run(sleep)
    watchdog.close()


@pytest.mark.timeout(60)
def test_a_step_ends_where_something_else_has_failed() -> None:
    watchdog = Watchdog(None, lambda stack: "failed", lambda: True)
    with pytest.raises(StallError, match="failed"):
        watchdog.run(wait_for_a_socket)
    watchdog.close()


@pytest.mark.timeout(60)
def test_ctrl_c_within_a_step_is_ctrl_c() -> None:
    watchdog = Watchdog(FOREVER_S, str)
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        watchdog.run(sleep)
    watchdog.close()


def test_its_thread_ends_with_it() -> None:
    watchdog = Watchdog(FOREVER_S, str)
    watchdog.run(int)
    thread = watchdog._thread
    assert thread is not None
    assert thread.is_alive()
    watchdog.close()
    thread.join(30)
    assert not thread.is_alive()
