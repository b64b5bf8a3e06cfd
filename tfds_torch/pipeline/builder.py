"""Examples from any source, streamed in chunks of decoded columns."""

import atexit
from collections.abc import Generator, Iterator
from contextlib import suppress
from typing import Any
from weakref import WeakSet

import numpy as np

from tfds_torch.errors import CorruptRecordError
from tfds_torch.pipeline.chunks import read_chunks
from tfds_torch.pipeline.replacing import read_singly, report_replaced
from tfds_torch.pipeline.stream_spec import Chunk, StreamSpec
from tfds_torch.pipeline.tensorflow_runtime import load_tensorflow

INDEX = "index"
"""Name of the column that holds each example's index."""
REPLACED = "replaced"
"""Name of the column that says of each example whether it took the place of a damaged one."""

_open_streams: "WeakSet[Generator[dict[str, Any], None, None]]" = WeakSet()


def read_stream(spec: StreamSpec) -> Iterator[dict[str, Any]]:
    """Yields chunks of up to `chunk_size` examples: column name -> its n values; `index` is int64 [n].

    `replaced` is bool [n].

    Raises:
        ShardError: a file is missing, or holds another number of examples than promised.
        CorruptRecordError: a record, or an image in it, is damaged.
    """
    chunks = _read(spec)
    _open_streams.add(chunks)
    return chunks


def _read(spec: StreamSpec) -> Generator[dict[str, Any], None, None]:
    if not len(spec.source):
        return
    try:
        spec.source.check()
        tf = load_tensorflow()
        atexit.unregister(_close_streams)
        atexit.register(_close_streams)  # Anew, so that it runs before what tensorflow has registered.
        yield from _read_chunks(tf, spec)
    finally:
        spec.source.close()


def _close_streams() -> None:
    """Ends what is still being read while Python is alive: tensorflow's threads may be calling it."""
    for chunks in list(_open_streams):
        with suppress(ValueError):  # Another thread is in it.
            chunks.close()


def _read_chunks(tf: Any, spec: StreamSpec) -> Iterator[dict[str, Any]]:
    position, num_replaced = spec.num_skipped, 0
    while True:
        try:
            for chunk in read_chunks(tf, spec, position, position - spec.num_skipped):
                position += len(chunk[0])
                yield _name_columns(spec, chunk, is_replaced=False)
            return
        except CorruptRecordError:
            if spec.replacing is None:
                raise
        for example, error in read_singly(tf, spec, spec.replacing, position):
            if error is not None:
                num_replaced += 1
                report_replaced(spec, spec.replacing, num_replaced, position, example, error)
            position += 1
            yield _name_columns(spec, example, is_replaced=error is not None)


def _name_columns(spec: StreamSpec, chunk: Chunk, *, is_replaced: bool) -> dict[str, Any]:
    occurrences, columns = chunk
    index = occurrences % spec.num_examples
    if spec.clock is not None:
        spec.clock.note_reading(int(index[-1]))
    return {INDEX: index, REPLACED: np.full(len(index), is_replaced)} | columns
