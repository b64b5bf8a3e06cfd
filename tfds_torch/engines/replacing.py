"""Damaged examples are replaced: by the next whole example of the split, wherever the damaged one is read."""

import logging
from bisect import bisect_right

import numpy as np

from tfds_torch.engines.chunks import ChunkDecoder, DecodedChunk, EncodedChunk, RowsOf, join, read_columns
from tfds_torch.engines.request import ReadRequest
from tfds_torch.errors import CorruptRecordError
from tfds_torch.plan.deal import WorkerOrder
from tfds_torch.plan.order import Int64Array, examples_of

_logger = logging.getLogger(__name__)


class Replacement:
    """Reads a chunk with a damaged example once more, one example at a time. It is for one iteration, in one thread."""

    def __init__(self, request: ReadRequest, order: WorkerOrder, decoder: ChunkDecoder) -> None:
        self._request = request
        self._order = order
        self._decoder = decoder
        self._starts = [part.start for part in request.replacement_ranges]
        self._num_replaced = [0] * len(self._starts)

    def __call__(self, start: int, stop: int, rows_of: RowsOf) -> DecodedChunk:
        """Return the examples at positions start..stop-1 of the order, with damaged ones replaced."""
        keys = self._order.sample_keys(start, stop)
        found, is_replaced = [], np.zeros(len(keys), np.bool_)
        for number in range(len(keys)):
            key = keys[number : number + 1]
            try:
                found.append(self._read(start + number, key, rows_of))
            except CorruptRecordError as error:
                at = bisect_right(self._starts, int(examples_of(key, self._request.plan.num_examples)[0])) - 1
                if not self._request.replacement_ranges[at].most:
                    raise
                found.append(self._read_next_whole(start + number, int(key[0]), at, rows_of))
                is_replaced[number] = True
                self._report(int(key[0]), int(found[-1].keys[0]), at, error)
        whole = join(found)
        return DecodedChunk(whole.keys, whole.columns, is_replaced)

    def _read(self, position: int, key: Int64Array, rows_of: RowsOf) -> DecodedChunk:
        request, plan = self._request, self._request.plan
        columns = read_columns(request.source, request.content, key, plan.num_examples, plan.seed, request.context)
        example = EncodedChunk(position, key, columns)
        return DecodedChunk(key, self._decoder.decode(example, rows_of(example)))

    def _read_next_whole(self, position: int, damaged: int, at: int, rows_of: RowsOf) -> DecodedChunk:
        num_examples, part = self._request.plan.num_examples, self._request.replacement_ranges[at]
        pass_number, index = divmod(damaged, num_examples)
        most_steps = min(part.size - 1, part.most + 1)
        for step in range(1, most_steps + 1):
            key = np.array([pass_number * num_examples + part.following(index, step)], np.int64)
            try:
                return self._read(position, key, rows_of)
            except CorruptRecordError:
                continue
        raise CorruptRecordError(
            f"No whole example was found among the {most_steps} that follow the damaged example {index}: the files are "
            f"damaged beyond what max_replaced={part.most} allows."
        )

    def _report(self, damaged_key: int, taken_key: int, at: int, error: CorruptRecordError) -> None:
        """Log that an example took the place of a damaged one."""
        self._num_replaced[at] += 1
        num_examples, most = self._request.plan.num_examples, self._request.replacement_ranges[at].most
        damaged, taken = examples_of(damaged_key, num_examples), examples_of(taken_key, num_examples)
        damaged_id, taken_id = self._request.source.ids(np.array([damaged, taken], np.int64))
        if self._num_replaced[at] > most:
            raise CorruptRecordError(
                f"{error} It (index {damaged}, id {damaged_id}) is damaged example number {self._num_replaced[at]} of "
                f"this worker's epoch, and ReadOptions allows max_replaced={most}."
            )
        if self._request.context.metrics is not None:
            self._request.context.metrics.note_replaced()
        _logger.warning(
            "%s The place of example %d (id %s) is taken by example %d (id %s): %d of at most %d are replaced.",
            # Its text: an error keeps frames, and these the memory of batches.
            str(error),
            damaged,
            damaged_id,
            taken,
            taken_id,
            self._num_replaced[at],
            most,
        )
