"""The direct engine: a Source hands over encoded fields by number; threads decode. tensorflow is never imported."""

import math
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from tfds_torch.engines.assembly import Assembly
from tfds_torch.engines.batch import Batch
from tfds_torch.engines.decoding import ChunkDecoder
from tfds_torch.engines.replacing import Replacement
from tfds_torch.engines.request import Content, Decoded, EncodedChunk, ReadContext, ReadRequest, SampleOrder
from tfds_torch.errors import TfdsTorchError
from tfds_torch.images.batch_buffer import ArrayBuffer
from tfds_torch.images.transform import BufferRows
from tfds_torch.plan.epoch import WorkerOrder
from tfds_torch.plan.order import Int64Array
from tfds_torch.plan.random import examples_of
from tfds_torch.storage.source import Source
from tfds_torch.storage.stored_pixels import StoredPixels

_AHEAD_BYTES, _MOST_AHEAD = 8 << 20, 1024  # Bytes, and examples, that the system is asked to read ahead.
_PIXELS_BYTES = 3 << 20
_ORDER_SLICE = 8192  # Examples whose order is worked out at a time; of a quarter of them each takes twice as long.


def read_in_index_mode(request: ReadRequest) -> Iterator[Batch]:
    """Yields the batches of a pipeline in read mode `index`.

    Raises:
        ShardError: a file is missing, or holds another number of examples than promised.
        CorruptRecordError: an example is damaged.
        ConfigError: the map_fn of the preprocess cannot be used.
    """
    order = WorkerOrder(request.plan, request.epoch, request.start_batch)
    return read_in_order(request, order, order.num_valid)


def read_in_order(request: ReadRequest, order: SampleOrder, num_valid: int) -> Iterator[Batch]:
    """Yields the batches of examples that are read by number, in any order; see `read_in_index_mode`.

    Args:
        request: what is read.
        order: of the examples from the request's first batch on.
        num_valid: the leading ones of these that are not padding.
    """
    if not len(order):
        return
    request.source.check()
    decoder = ChunkDecoder(request.source, request.content, request.plan.seed, request.context.metrics)
    replace = Replacement(request, order, decoder) if request.options.on_error == "replace" else None
    assembly = Assembly(request, len(order), num_valid, decoder, replace)
    yield from assembly.batches(_ChunkReader(request, order).chunks())


class _ChunkReader:
    """Reads one chunk after the other, and announces the following ones. One thread at a time.

    Args:
        request: what is read.
        order: of the examples.
    """

    def __init__(self, request: ReadRequest, order: SampleOrder) -> None:
        self._request = request
        self._order, self._num_examples = order, len(order)  # Counting them is arithmetic, too.
        self._keys = request.content.keys
        self._known = np.empty(0, np.int64)  # Sample keys from `_known_from` on, as far as they are worked out.
        self._known_from = 0

    def chunks(self) -> Iterator[EncodedChunk]:
        """Yields the chunks; one that cannot be read has an error."""
        request, num_examples = self._request, self._request.plan.num_examples
        source, metrics = request.source, request.context.metrics
        num_ahead = max(request.chunk_size, min(_AHEAD_BYTES // max(1, source.mean_example_bytes), _MOST_AHEAD))
        announced = 0
        stop, chunk_size = 0, request.chunk_size
        while stop < self._num_examples:
            start, stop = stop, end_of_chunk(stop, self._num_examples, request.plan.batch_size, chunk_size)
            began_s = time.perf_counter()
            ahead = min(stop + num_ahead, self._num_examples)
            keys = self._sample_keys(start, ahead)
            own = keys[: stop - start]
            index = examples_of(own, num_examples)
            if metrics is not None:
                metrics.note_reading(int(index[0]))
            try:
                source.announce(examples_of(keys[max(announced, start) - start :], num_examples))
                announced = ahead
                chunk = EncodedChunk(start, own, source.read(index, self._keys))
            except TfdsTorchError as error:
                chunk = EncodedChunk(start, own, error=error)
            if metrics is not None:
                metrics.add("read", time.perf_counter() - began_s)
            chunk_size = max(chunk_size, self._chunk_of_pixels(chunk))
            yield chunk

    def _chunk_of_pixels(self, chunk: EncodedChunk) -> int:
        """Returns how many examples are handed on at a time where their images are but copied; 0: they are decoded.

        Copying 256 images of 32 x 32 pixels takes no longer than handing them to a thread. A loader's worker hands on
        every batch by itself, in one of a few slots.
        """
        image = self._request.content.image
        images = None if image is None or self._request.context.is_read_ahead else chunk.columns.get(image.key)
        return _PIXELS_BYTES // math.prod(images.shape) if isinstance(images, StoredPixels) else 0

    def _sample_keys(self, start: int, stop: int) -> Int64Array:
        """Returns the sample keys at positions start..stop-1; those before `start` are forgotten."""
        self._known, self._known_from = self._known[start - self._known_from :], start
        worked_out = start + len(self._known)
        if worked_out < stop:
            until = min(max(stop, worked_out + _ORDER_SLICE), self._num_examples)
            self._known = np.concatenate([self._known, self._order.sample_keys(worked_out, until)])
        return self._known[: stop - start]


def end_of_chunk(start: int, num_examples: int, batch_size: int, chunk_size: int) -> int:
    """Returns the end of the chunk that begins at a position: part of one batch, or several whole ones."""
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
    """Yields examples in the order asked: their indices, int64 [n], and field -> n values, some of them at a time.

    Args:
        source: of the split.
        content: what is decoded; without a preprocess, images are arrays of their own.
        keys: int64 [n], sample keys in any order, also several times the same; of the first pass, they are indices.
        num_threads: that decode.
        chunk_size: examples that are read and decoded at a time.
        seed: of random numbers.
        context: what the run supplies.

    Raises:
        ShardError: a file is missing, or holds another number of examples than promised.
        CorruptRecordError: an example is damaged.
    """
    source.check()
    decoder = ChunkDecoder(source, content, seed, context.metrics)
    make_buffer = context.make_buffer or ArrayBuffer

    def read(part: Int64Array) -> tuple[Int64Array, Decoded]:
        index = examples_of(part, len(source))
        chunk = EncodedChunk(0, part, source.read(index, content.keys) if content.keys else {})
        if content.image is None:
            return index, decoder.decode(chunk, [])
        buffer = make_buffer((len(part), *decoder.row_shape(chunk, 0)))
        return index, decoder.decode(chunk, [BufferRows(buffer, 0, len(part))]) | {"image": buffer.images}

    parts: Sequence[Int64Array] = [keys[at : at + chunk_size] for at in range(0, len(keys), chunk_size)]
    if num_threads == 1 or len(parts) == 1:
        yield from map(read, parts)
        return
    with ThreadPoolExecutor(num_threads, "tfds_torch-decode") as threads:
        yield from threads.map(read, parts)
