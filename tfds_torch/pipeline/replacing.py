"""Damaged examples whose place others take."""

import logging
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from tfds_torch.errors import CorruptRecordError
from tfds_torch.pipeline.chunks import read_chunks
from tfds_torch.pipeline.stream_spec import Chunk, Replacing, StreamSpec

_logger = logging.getLogger(__name__)


def read_singly(
    tf: Any, spec: StreamSpec, replacing: Replacing, position: int
) -> Iterator[tuple[Chunk, CorruptRecordError | None]]:
    """Yields the examples of a chunk one by one, damaged ones replaced, each with the error in whose place it is.

    Args:
        tf: the module tensorflow.
        spec: what is read.
        replacing: how others take the place of damaged examples.
        position: of the chunk's first example in the order of delivery.
    """
    single = replace(spec, chunk_size=1, prefetch_chunks=1)
    stop = min(position + spec.chunk_size, len(spec.source))
    while position < stop:
        try:
            # Closed here: an error that a log keeps would keep this frame, and what is read ahead with it.
            with closing(read_chunks(tf, single, position, position - spec.num_skipped)) as examples:
                for example in islice(examples, stop - position):
                    position += 1
                    yield example, None
        except CorruptRecordError as error:
            yield _read_next_whole(tf, single, replacing, position), error
            position += 1


def _read_next_whole(tf: Any, single: StreamSpec, replacing: Replacing, position: int) -> Chunk:
    """Returns the next example, by index, that is not damaged, in the place of the one at a position."""
    occurrence = int(replacing.occurrences(position, position + 1)[0])
    pass_number, index = divmod(occurrence, single.num_examples)
    for step in range(1, min(single.num_examples, replacing.most + 2)):
        number = pass_number * single.num_examples + (index + step) % single.num_examples
        source = replacing.source_of(np.array([number], np.int64))
        try:
            return next(read_chunks(tf, replace(single, source=source), 0, position - single.num_skipped))
        except CorruptRecordError:
            continue
        finally:
            source.close()
    raise CorruptRecordError(
        f"No whole example was found among the {min(single.num_examples - 1, replacing.most + 1)} that follow the "
        f"damaged example {index}: the files are damaged beyond what max_replaced={replacing.most} allows."
    )


def report_replaced(
    spec: StreamSpec,
    replacing: Replacing,
    num_replaced: int,
    position: int,
    example: Chunk,
    error: CorruptRecordError,
) -> None:
    """Logs that an example took the place of the damaged one at a position.

    Raises:
        CorruptRecordError: there are more of them than may be.
    """
    damaged = int(replacing.occurrences(position, position + 1)[0]) % spec.num_examples
    taken = int(example[0][0]) % spec.num_examples
    damaged_id, taken_id = replacing.ids(np.array([damaged, taken], np.int64))
    if num_replaced > replacing.most:
        raise CorruptRecordError(
            f"{error} It (index {damaged}, id {damaged_id}) is damaged example number {num_replaced} of this worker's "
            f"epoch, and ReadOptions allows max_replaced={replacing.most}."
        )
    if spec.clock is not None:
        spec.clock.note_replaced()
    _logger.warning(
        "%s The place of example %d (id %s) is taken by example %d (id %s): %d of at most %d are replaced.",
        *(error, damaged, damaged_id, taken, taken_id, num_replaced, replacing.most),
    )
