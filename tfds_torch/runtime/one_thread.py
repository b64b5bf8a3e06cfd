"""Iterators that belong to one thread of one process."""

import os
import threading
from collections.abc import Iterator
from typing import TypeVar

from tfds_torch.errors import ConfigError

T = TypeVar("T")


class OneThreadIterator(Iterator[T]):
    """Yields the items of another iterator, to the thread that took the first one.

    Two threads that take turns would each miss the items of the other. Instead, the first thread gets all items, and
    the second one gets an error. A forked process that took the iterator along gets an error, too.
    """

    def __init__(self, items: Iterator[T], name: str) -> None:
        self._items = items
        self._name = name
        self._owner: tuple[int, int] | None = None  # Process and thread.
        self._lock = threading.Lock()

    def __next__(self) -> T:
        taker = os.getpid(), threading.get_ident()
        if self._owner != taker:
            self._claim(taker)
        return next(self._items)

    def _claim(self, taker: tuple[int, int]) -> None:
        if self._owner is not None and self._owner[0] != taker[0]:
            raise ConfigError(
                f"The iterator of {self._name} began in another process, whose threads this one does not have. Begin "
                f"another one here."
            )
        with self._lock:
            if self._owner is not None:
                raise ConfigError(
                    f"Two threads take from the same iterator of {self._name}: each would miss the other's items. "
                    f"Give every thread an iterator of its own, or let one thread read and hand on."
                )
            self._owner = taker

    def close(self) -> None:
        """End the iteration, if the items can be closed."""
        close_iterator(self._items)


def close_iterator(items: object) -> None:
    """Close an iterator that can be closed, as a generator can."""
    close = getattr(items, "close", None)
    if close is not None:
        close()
