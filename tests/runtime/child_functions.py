"""What the tests of subprocess_call run in fresh processes. Importable, and light to import."""

import fcntl
import multiprocessing
import os
import pickle
import signal
import stat
import struct
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tfds_torch.errors import ConfigError, StallError
from tfds_torch.runtime import subprocess_call


def echo(*args: Any, **kwargs: Any) -> Any:
    return args, kwargs


def nothing() -> None:
    pass


def pid() -> int:
    return os.getpid()


def loaded_modules() -> set[str]:
    return set(sys.modules)


def count(stop: int) -> Iterator[int]:
    yield from range(stop)


def send_blocks(size: int, stop: int) -> Iterator[bytes]:
    for number in range(stop):
        yield bytes([number % 256]) * size


def note_blocks(size: int, notes: str) -> Iterator[bytes]:
    """Endless blocks; the file's length is the number of blocks begun."""
    with Path(notes).open("ab", buffering=0) as file:
        while True:
            file.write(b".")
            yield bytes(size)


def raise_ours(message: str) -> None:
    raise ConfigError(message)


def raise_a_foreign_error() -> None:
    raise KeyError("lost")


def leave_by_sys_exit() -> None:
    sys.exit("leaving")


def count_and_raise_ours(stop: int) -> Iterator[int]:
    yield from range(stop)
    raise StallError("no more")


def count_and_raise_a_foreign_error(stop: int) -> Iterator[int]:
    yield from range(stop)
    raise ZeroDivisionError("at the end")


def die_by(number: int) -> None:
    os.kill(os.getpid(), number)
    threading.Event().wait()


def leave_with(code: int) -> None:
    os._exit(code)


def count_and_leave_with(stop: int, code: int) -> Iterator[int]:
    yield from range(stop)
    os._exit(code)


class DieWhenPickled:
    """Its process is killed in the middle of a reply."""

    def __reduce__(self) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


def die_in_the_middle_of_a_reply(size: int) -> Iterator[Any]:
    yield "first"
    yield [bytes(size), DieWhenPickled()]


def die_after_bytes_of_a_reply(num_bytes: int) -> Iterator[Any]:
    """As one that is killed while it writes a large item: the pipe holds the item's first bytes."""
    yield "first"
    die_after_writing(num_bytes)


def die_after_writing(num_bytes: int) -> None:
    """Writes the first bytes of a reply, whose size multiprocessing writes before it, and dies."""
    (replies,) = [fd for fd in range(3, 64) if is_writable_pipe(fd)]
    os.write(replies, (struct.pack("!i", 10_000) + pickle.dumps(("item", bytes(10_000))))[:num_bytes])
    os.kill(os.getpid(), signal.SIGKILL)


def is_writable_pipe(descriptor: int) -> bool:
    try:
        is_pipe = stat.S_ISFIFO(os.fstat(descriptor).st_mode)
    except OSError:
        return False
    return is_pipe and fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY


def reply_with_something_unpicklable(size: int) -> Iterator[Any]:
    yield "first"
    yield [bytes(size), lambda: 0]


def pid_then_wait_for_ever() -> Iterator[int]:
    yield os.getpid()
    threading.Event().wait()


def pid_then_write_for_ever() -> Iterator[Any]:
    yield os.getpid()
    while True:
        yield bytes(1 << 20)


def press_ctrl_c() -> str:
    os.kill(os.getpid(), signal.SIGINT)
    return "unharmed"


def say(text: str) -> str:
    print(text)
    return "said"


def say_and_wait_for_ever(text: str) -> Iterator[str]:
    print(text)
    yield "said"
    threading.Event().wait()


def say_without_python(text: str) -> None:
    os.write(1, text.encode())


def say_in_a_grandchild(text: str) -> int:
    return os.system(f"echo {text}")


def start_one_and_block(replies: Any, function: Any) -> None:
    """Tells the pid of a fresh process of ours, and then waits for ever with the iterator open."""
    iterator = subprocess_call.iterate(function)
    replies.send(next(iterator))
    threading.Event().wait()


def use_from_a_daemon(replies: Any) -> None:
    daemon = multiprocessing.current_process().daemon
    called = subprocess_call.call(echo, 1, word="two")
    counted = list(subprocess_call.iterate(count, 3))
    replies.send((daemon, called, counted, os.getpid()))


def fork_and_join() -> int | None:
    worker = multiprocessing.get_context("fork").Process(target=int)
    worker.start()
    worker.join(20)
    return worker.exitcode
