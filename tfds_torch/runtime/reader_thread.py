"""Readers: the thread that takes batches out of torch's loader, so that nobody waits for it without a limit."""

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

_GRACE_S = 1.0


@dataclass(slots=True)
class Reply:
    """What came of a request.

    Attributes:
        value: a batch; None at the beginning of an iteration.
        error: what was raised instead, StopIteration at the end.
    """

    value: Any = None
    error: BaseException | None = None


class ThreadReader:
    """Takes from an iterator in a thread of its own, one item for each request, never ahead.

    The thread ends when `close` is called or this object is dropped, unless it is stuck: it then never keeps a process
    from ending.

    Args:
        begin: returns the iterator of an iteration; called in the thread.
        iterator: that of the first iteration, where it has begun already.
    """

    def __init__(self, begin: Callable[[], Iterator[Any]], iterator: Iterator[Any] | None = None) -> None:
        self._requests: queue.SimpleQueue[bool | None] = queue.SimpleQueue()
        self._replies: queue.SimpleQueue[Reply] = queue.SimpleQueue()
        self._num_due = 0
        self._thread = threading.Thread(
            target=_serve, args=(self._requests, self._replies, begin, iterator), name="loader", daemon=True
        )
        self._thread.start()

    def ask_begin(self) -> None:
        """Asks for a new iteration."""
        self._ask(True)

    def ask_next(self) -> None:
        """Asks for the next item."""
        self._ask(False)

    def _ask(self, request: bool) -> None:
        self._num_due += 1
        self._requests.put(request)

    def reply(self, timeout_s: float) -> Reply | None:
        """Returns the reply to the earliest request that has none yet; None: it did not come in time."""
        try:
            reply = self._replies.get(timeout=timeout_s)
        except queue.Empty:
            return None
        self._num_due -= 1
        return reply

    @property
    def is_idle(self) -> bool:
        """Whether every request has been replied to."""
        return self._num_due == 0

    @property
    def thread_id(self) -> int | None:
        """Of the thread that reads."""
        return self._thread.ident

    def close(self) -> None:
        """Lets the thread end, and waits for it: where it is busy, a second at most."""
        self._requests.put(None)
        self._thread.join(None if self.is_idle else _GRACE_S)

    def __del__(self) -> None:
        self._requests.put(None)


class DirectReader:
    """The same without a thread and without a limit: for a loader that has been told to wait for ever."""

    thread_id = None

    def __init__(self, begin: Callable[[], Iterator[Any]]) -> None:
        self._begin = begin
        self._iterator: Iterator[Any] | None = None
        self._requests: list[bool] = []

    def ask_begin(self) -> None:
        """Asks for a new iteration."""
        self._requests.append(True)

    def ask_next(self) -> None:
        """Asks for the next item."""
        self._requests.append(False)

    @property
    def is_idle(self) -> bool:
        """Whether every request has been replied to."""
        return not self._requests

    def reply(self, timeout_s: float) -> Reply | None:
        """Returns the reply to the earliest request, when it is there."""
        if not self._requests.pop(0):
            assert self._iterator is not None  # noqa: S101 (an iteration begins first)
            try:
                return Reply(next(self._iterator))
            except StopIteration as end:
                return Reply(error=end)
        self._iterator = self._begin()
        return Reply()

    def close(self) -> None:
        """Lets go of the iterator."""
        self._iterator = None


def _serve(
    requests: "queue.SimpleQueue[bool | None]",
    replies: "queue.SimpleQueue[Reply]",
    begin: Callable[[], Iterator[Any]],
    iterator: Iterator[Any] | None,
) -> None:
    while (is_begin := requests.get()) is not None:
        reply = Reply()
        try:
            if is_begin:
                iterator = begin()
            elif iterator is not None:
                reply.value = next(iterator)
        except BaseException as error:
            reply.error = error
        replies.put(reply)
        del reply  # The batch belongs to whoever gets it.
