"""Records streamed by a process of its own, for one that was forked after tensorflow ran and so must not use it.

The process stays from epoch to epoch: only the first one waits for tensorflow's import. It only reads and shuffles;
the records are decoded where they were asked for.
"""

from collections import deque
from collections.abc import Iterator
from itertools import count
from typing import Any

from tfds_torch.engines.record_stream import RecordStream, stream_records
from tfds_torch.errors import WorkerError
from tfds_torch.plan.order import Int64Array
from tfds_torch.runtime.subprocess_call import FreshProcess

_Request = tuple[int, RecordStream | None, list[int]]
"""The number of a stream; it, where it begins; the numbers of others that were given up."""


class _Streams:
    """Answers each request with the next chunk of a stream; None: there is none."""

    def __init__(self) -> None:
        self._streams: dict[int, Iterator[tuple[Int64Array, list[bytes]]]] = {}

    def __call__(self, request: _Request) -> Any:
        number, stream, given_up = request
        for other in given_up:
            self._streams.pop(other, None)
        if stream is not None:
            self._streams[number] = stream_records(stream)
        if number not in self._streams:
            raise WorkerError("The process that streamed these records died. Iterate again: it is started anew.")
        chunk = next(self._streams[number], None)
        if chunk is None:
            del self._streams[number]
        return chunk


_process = FreshProcess(_Streams)
_numbers = count()
_given_up: deque[int] = deque()  # Told with the next request: garbage collection may close a stream at any moment.


def stream_elsewhere(stream: RecordStream) -> Iterator[tuple[Int64Array, list[bytes]]]:
    """Yields what `stream_records` yields, from a fresh process."""
    number = next(_numbers)
    chunk = _ask(number, stream)
    try:
        while chunk is not None:
            yield chunk
            chunk = _ask(number, None)
    finally:
        if chunk is not None:
            _given_up.append(number)


def _ask(number: int, stream: RecordStream | None) -> Any:
    given_up = [_given_up.popleft() for _ in range(len(_given_up))]
    return _process.ask((number, stream, given_up))
