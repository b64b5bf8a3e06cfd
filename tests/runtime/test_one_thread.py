"""An iterator belongs to the thread that took its first item."""

import os
import threading
from collections.abc import Iterator

import pytest

from tfds_torch.errors import ConfigError
from tfds_torch.runtime.one_thread import OneThreadIterator


def count(closed: list[bool]) -> Iterator[int]:
    try:
        yield from range(4)
    finally:
        closed.append(True)


def next_in_thread(items: OneThreadIterator[int]) -> list[object]:
    """Returns the next item as another thread sees it, or its error."""
    seen: list[object] = []

    def take() -> None:
        try:
            seen.append(next(items))
        except ConfigError as error:
            seen.append(str(error))

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return seen


def test_a_second_thread_gets_an_error_and_the_first_one_every_item() -> None:
    items = OneThreadIterator(count([]), "digits")
    assert next(items) == 0
    (said,) = next_in_thread(items)
    assert str(said).startswith("Two threads take from the same iterator of digits: ")
    assert list(items) == [1, 2, 3]


def test_the_thread_that_reads_need_not_be_the_one_that_made_it() -> None:
    items = OneThreadIterator(count([]), "digits")
    assert next_in_thread(items) == [0]
    with pytest.raises(ConfigError, match="Two threads"):
        next(items)


def test_closing_closes_what_is_iterated() -> None:
    closed: list[bool] = []
    items = OneThreadIterator(count(closed), "digits")
    next(items)
    items.close()
    assert closed == [True]
    assert list(items) == []
    OneThreadIterator(iter([1]), "a list").close()


def test_a_forked_process_is_told_to_begin_another_one() -> None:
    numbers = OneThreadIterator(iter(range(3)), "numbers")
    assert next(numbers) == 0
    receiver, sender = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            next(numbers)
        except ConfigError as error:
            os.write(sender, str(error).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(receiver, 1000).decode() == (
        "The iterator of numbers began in another process, whose threads this one does not have. Begin another one "
        "here."
    )
    assert list(numbers) == [1, 2]
