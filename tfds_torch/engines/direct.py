"""The direct engine: a Source reads encoded fields by number, and threads decode. tensorflow is never imported."""

import time
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise, starmap

import numpy as np

from tfds_torch.engines.batch import Batch, BatchAssembler, make_batch
from tfds_torch.engines.chunks import (
    BatchImages,
    ChunkDecoder,
    DecodedChunk,
    EncodedChunk,
    RowsByField,
    WrittenImages,
    read_columns,
)
from tfds_torch.engines.fields import Content, Decoded, Samples
from tfds_torch.engines.replacing import Replacement
from tfds_torch.engines.request import ReadContext, ReadRequest
from tfds_torch.errors import CorruptRecordError, TfdsTorchError
from tfds_torch.images.batch_buffer import MakeBatchBuffer
from tfds_torch.plan.deal import WorkerOrder
from tfds_torch.plan.order import Int64Array, examples_of
from tfds_torch.runtime.metrics import StageMetrics
from tfds_torch.storage import network
from tfds_torch.storage.source import Source
from tfds_torch.storage.stored_pixels import StoredPixels

_AHEAD_BYTES, _MOST_AHEAD = 8 << 20, 1024  # Bytes, and examples, that the system is asked to read ahead.
_READ_AT_ONCE = 1024  # Examples whose places are read at a time where images are only copied.
_ORDER_SLICE = 8192  # Examples whose order is computed at a time; in slices of 2048, each example takes twice as long.


def read_in_index_mode(request: ReadRequest) -> Iterator[Batch]:
    """Yield the batches of a pipeline in read mode `index`."""
    order = WorkerOrder(request.plan, request.epoch, request.start_batch)
    if not len(order):
        return
    request.source.check()
    batches = _read_batches(request, order)
    block_records = request.source.block_records
    if block_records is None:
        yield from batches
        return
    try:
        first = next(batches)  # It has the link for itself.
        request.source.follow(request.plan.order.windows(order, block_records))
        yield first
        del first
        yield from batches
    finally:
        request.source.follow(())


def _read_batches(request: ReadRequest, order: WorkerOrder) -> Iterator[Batch]:
    """Yield the batches of `read_in_index_mode`, from files that were checked."""
    decoder = ChunkDecoder(
        request.source, request.content, request.plan.seed, request.context.metrics, is_lazy=request.is_lazy
    )
    may_replace = any(part.most for part in request.replacement_ranges)
    replace = Replacement(request, order, decoder) if may_replace else None
    reader = _ChunkReader(request, order)
    stop = 0  # The end of the gathered examples.
    if _are_only_copied(request, order, decoder):
        stop = yield from _gather_batches(request, reader, decoder, replace, order.num_valid)
    if stop < len(order):
        assembly = BatchAssembler(request, len(order), order.num_valid, decoder, replace)
        yield from assembly.batches(reader.chunks(stop))


def _are_only_copied(request: ReadRequest, order: WorkerOrder, decoder: ChunkDecoder) -> bool:
    """Return whether examples are stored as they are delivered; the number of examples and the first batch decide."""
    try:
        columns = request.source.read(np.empty(0, np.int64), request.content.keys)
    except TfdsTorchError:  # Reading an example reports it.
        return False
    return decoder.only_copies(columns, order.sample_keys(0, min(request.plan.batch_size, len(order))))


def _gather_batches(
    request: ReadRequest, reader: "_ChunkReader", decoder: ChunkDecoder, replace: Replacement | None, num_valid: int
) -> Generator[Batch, None, int]:
    """Yield batches whose images this thread copies into their memory, as long as all images are stored as pixels.

    Returns the number of examples that were yielded.
    """
    batch_size, image = request.plan.batch_size, request.content.image
    numbers = request.plan.worker_batches(request.start_batch)
    # From far away, bytes come with the places.
    num_batches = 1 if request.source.networks else max(1, _READ_AT_ONCE // batch_size)
    for chunk in reader.chunks(0, batch_size * num_batches):
        for start in range(0, len(chunk), batch_size):
            part = chunk.cut(start, start + batch_size)
            if chunk.error is not None:  # The batches before the damaged example are delivered.
                part = reader.read(part.start, part.keys)
            if part.error is None and (image is None or not isinstance(part.columns[image.key], StoredPixels)):
                return part.start  # A cache was lost.
            number, stop = numbers[part.start // batch_size], part.start + len(part)
            # Nothing here refers to its memory while it is used.
            yield make_batch(request, number, _gather(request, part, decoder, replace), stop, num_valid)
    return reader.num_examples


def _gather(
    request: ReadRequest, batch: EncodedChunk, decoder: ChunkDecoder, replace: Replacement | None
) -> DecodedChunk:
    """Return a batch whose images are copied into its memory."""
    rows = _BatchRows(batch, decoder, request.context.make_buffer)
    try:
        if batch.error is not None:
            raise batch.error
        return DecodedChunk(batch.keys, decoder.decode(batch, rows.of(batch)))
    except CorruptRecordError:
        if replace is None:
            raise
        return replace(batch.start, batch.start + len(batch), rows.of)


class _BatchRows:
    """The memory of the images of one batch."""

    def __init__(self, batch: EncodedChunk, decoder: ChunkDecoder, make_buffer: MakeBatchBuffer | None) -> None:
        self._start, self._decoder, self._make_buffer = batch.start, decoder, make_buffer
        self._images = BatchImages(len(batch))

    def of(self, chunk: EncodedChunk) -> RowsByField:
        """Return the rows of some examples of the batch."""
        first = chunk.start - self._start
        rows = self._images.rows_of(self._decoder, self._make_buffer, chunk, 0, first, first + len(chunk))
        return {name: [own] for name, own in rows.items()}


class _ChunkReader:
    """Reads one chunk after the other, and announces the following ones to the source. One thread at a time uses it."""

    def __init__(self, request: ReadRequest, order: WorkerOrder) -> None:
        self._request = request
        self._order, self.num_examples = order, len(order)  # Counting them is arithmetic, too.
        self._keys = request.content.keys
        self._is_far = bool(request.source.networks)
        self._known = np.empty(0, np.int64)  # Sample keys from `_known_from` on, as far as they are worked out.
        self._known_from = 0

    def chunks(self, start: int = 0, chunk_size: int | None = None) -> Iterator[EncodedChunk]:
        """Yield the chunks from a position on; a chunk that cannot be read has an error."""
        chunk_size = chunk_size or self._request.chunk_size
        request, num_examples = self._request, self._request.plan.num_examples
        source, metrics = request.source, request.context.metrics
        num_ahead = max(chunk_size, min(_AHEAD_BYTES // max(1, source.mean_example_bytes), _MOST_AHEAD))
        at_once = min(request.read_at_once, num_ahead)
        first_batch = min(request.plan.batch_size, self.num_examples)
        announced, stop = 0, start
        while stop < self.num_examples:
            is_first = stop < first_batch  # The first batch is not kept waiting for others.
            start, bounds = stop, self._chunk_bounds(stop, chunk_size, 0 if is_first else at_once)
            stop = bounds[-1]
            began_at, waited_before_s = time.monotonic(), self._waited_s()
            ahead = max(stop, first_batch) if is_first else min(stop + num_ahead, self.num_examples)
            keys = self._sample_keys(start, ahead)
            own = keys[: stop - start]
            with suppress(TfdsTorchError):  # Reading raises it.
                source.announce(examples_of(keys[max(announced, start) - start :], num_examples))
            announced = ahead
            read = self._read_chunks(start, own, bounds)
            if metrics is not None:
                _add_reading(metrics, began_at, self._waited_s() - waited_before_s)
            yield from read

    def _waited_s(self) -> float:
        """Return how long this thread has waited for far files."""
        return network.waited_s() if self._is_far else 0.0

    def _chunk_bounds(self, start: int, chunk_size: int, at_once: int) -> list[int]:
        """Return the ends of the chunks from a position on that are read together: `at_once` examples, or one chunk."""
        bounds: list[int] = []
        while not bounds or (bounds[-1] - start < at_once and bounds[-1] < self.num_examples):
            first = bounds[-1] if bounds else start
            bounds.append(end_of_chunk(first, self.num_examples, self._request.plan.batch_size, chunk_size))
        return bounds

    def _read_chunks(self, start: int, keys: Int64Array, bounds: Sequence[int]) -> list[EncodedChunk]:
        """Read the chunks between some bounds together, or one by one where that fails."""
        whole = self.read(start, keys)
        if len(bounds) == 1:
            return [whole]
        parts = [(first - start, last - start) for first, last in pairwise([start, *bounds])]
        if whole.error is None:
            return [whole.cut(*part) for part in parts]
        return [self.read(start + first, keys[first:last]) for first, last in parts]

    def read(self, start: int, keys: Int64Array) -> EncodedChunk:
        """Read the examples of sample keys, int64 [n]; the first one has position `start`."""
        try:
            request, plan = self._request, self._request.plan
            columns = read_columns(request.source, request.content, keys, plan.num_examples, plan.seed, request.context)
        except TfdsTorchError as error:
            return EncodedChunk(start, keys, error=error)
        return EncodedChunk(start, keys, columns)

    def _sample_keys(self, start: int, stop: int) -> Int64Array:
        """Return the sample keys at positions start..stop-1; those before `start` are forgotten."""
        self._known, self._known_from = self._known[start - self._known_from :], start
        worked_out = start + len(self._known)
        if worked_out < stop:
            until = min(max(stop, worked_out + _ORDER_SLICE), self.num_examples)
            self._known = np.concatenate([self._known, self._order.sample_keys(worked_out, until)])
        return self._known[: stop - start]


def _add_reading(metrics: StageMetrics, began_at: float, waited_s: float) -> None:
    """Add the time of a read to the metrics: the wait for the network, and the rest."""
    if waited_s:
        metrics.add("download", waited_s)
    metrics.add("read", time.monotonic() - began_at - waited_s)


def end_of_chunk(start: int, num_examples: int, batch_size: int, chunk_size: int) -> int:
    """Return the end of the chunk that begins at a position: part of one batch, or several whole ones."""
    end_of_batches = start // batch_size * batch_size + batch_size * max(1, chunk_size // batch_size)
    return min(start + chunk_size, end_of_batches, num_examples)


def read_examples(
    source: Source,
    content: Content,
    keys: Int64Array,
    num_threads: int,
    chunk_size: int,
    *,
    seed: int = 0,
    context: ReadContext = ReadContext(),
) -> Iterator[tuple[Int64Array, Decoded]]:
    """Yield examples in the given order, some at a time: their indices, int64 [n], and field -> n values.

    Args:
        source: the encoded examples of the split.
        content: the fields to decode; without a preprocess, each image is its own array.
        keys: int64 [n], sample keys in any order, which may repeat; of the first pass, they are indices.
        num_threads: number of threads that decode.
        chunk_size: number of examples that are read and decoded at a time.
        seed: seed of random numbers.
        context: memory and metrics that the run supplies.
    """
    source.check()
    decoder = ChunkDecoder(source, content, seed, context.metrics)

    def read(part: Int64Array) -> tuple[Int64Array, Decoded]:
        columns = read_columns(source, content, part, len(source), seed, context) if content.keys else {}
        chunk = EncodedChunk(0, part, columns)
        rows: RowsByField = {}
        if content.in_buffers:
            rows = _BatchRows(chunk, decoder, context.make_buffer).of(chunk)
        return part, decoder.decode(chunk, rows)

    def finish(part: Int64Array, decoded: Decoded) -> tuple[Int64Array, Decoded]:
        index, chains = examples_of(part, len(source)), content.chains
        if chains is not None and not chains.in_threads:
            decoded = chains.apply(decoded, Samples(part, seed), index, source, context)
        return index, {name: own.of_batch() if isinstance(own, WrittenImages) else own for name, own in decoded.items()}

    parts: Sequence[Int64Array] = [keys[at : at + chunk_size] for at in range(0, len(keys), chunk_size)]
    if num_threads == 1 or len(parts) == 1 or source.is_one_threaded:
        yield from starmap(finish, map(read, parts))
        return
    with ThreadPoolExecutor(num_threads, "tfds_torch-decode") as threads:
        yield from starmap(finish, threads.map(read, parts))
