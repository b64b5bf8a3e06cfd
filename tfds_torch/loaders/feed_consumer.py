"""Consumer: the batches that are made ahead for one training loop."""

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any

MOST_READY = 4
"""Batches that are made ahead for each training loop."""


@dataclass(order=True, slots=True)
class Numbered:
    """A batch, or the pieces of one, and its number among the batches of the run."""

    number: int
    content: Any = field(compare=False)


class Consumer:
    """What a `FeedQueue` knows of one training loop: the batches that are ready for it.

    Args:
        lock: the queue's.
    """

    def __init__(self, lock: "threading.RLock") -> None:
        self.ready: deque[Numbered] = deque()
        self.is_closed = False
        self.is_complete = False  # There are no more batches than those that are ready.
        self.is_making = False  # A batch is being made for it.
        self.has_ready = threading.Condition(lock)
        self.has_room = threading.Condition(lock)
