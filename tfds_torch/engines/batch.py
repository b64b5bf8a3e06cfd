"""Batches and single examples, which engines yield, and how batches are put together from chunks.

Threads decode the chunks, images straight into the memory of their batch; the batches come in order.
"""

import atexit
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from tfds_torch.engines.chunks import (
    BatchImages,
    ChunkDecoder,
    DecodedChunk,
    EncodedChunk,
    RowsByField,
    RowsOf,
    WrittenImages,
    join,
)
from tfds_torch.engines.fields import Samples
from tfds_torch.engines.padding import Padded, pad_values
from tfds_torch.engines.request import ReadRequest
from tfds_torch.errors import ConfigError, CorruptRecordError, TfdsTorchError
from tfds_torch.images.batch_buffer import ArrayBuffer, MakeBatchBuffer
from tfds_torch.images.transform import BufferRows
from tfds_torch.plan.epoch import PAD_LABEL
from tfds_torch.plan.order import examples_of

_MOST_SHOWN = 4  # Entries of a list.
_MOST_SHOWN_BYTES = 40
_MARKS = {"i": PAD_LABEL, "f": np.nan, "c": np.nan}
"""Kind of a dtype -> the label of padding, where the kind can hold such a mark."""


@dataclass(frozen=True)
class Batch:
    """The examples of one batch of one rank, in numpy.

    Attributes:
        image: uint8 [B, H, W, C] with a preprocess (as the batch buffer hands it over, where one was given); of
            `Views`, a list of these, one for each view. Without a preprocess, a list of B arrays uint8 [H, W, C], which
            keep their sizes, or of the bytes of B files where these are not decoded. None when not asked for. Numbers
            that are not uint8 of 1, 3 or 4 channels keep their type: one array [B, H, W, C] where they have one size.
        label: int64 [B], -100 where padded; None when not asked for or when the target is not a scalar integer.
        valid: bool [B]; False marks padding, which only fills the batch. Among the features, labels of padding are -100
            where they are signed integers, and NaN where they are floats; other labels cannot be marked.
        index: int64 [B], positions of the examples in the split.
        id: B strings as TFDS makes them, `<shard file>__<record>`; each is computed when it is read.
        features: the other features asked for: name -> array [B, ...] or list of B values.
        epoch: the epoch the batch belongs to.
        batch: its number among the rank's batches of the epoch.
    """

    image: Any
    label: NDArray[np.int64] | None
    valid: NDArray[np.bool_]
    index: NDArray[np.int64]
    id: Sequence[str]
    features: dict[str, Any] = field(default_factory=dict)
    epoch: int = 0
    batch: int = 0

    def __len__(self) -> int:
        return len(self.index)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields that were asked for by name, and `valid`, `index` and `id`; features have flat names."""
        found = {"image": self.image, "label": self.label}
        asked = {name: values for name, values in found.items() if values is not None}
        return {**asked, **self.features, "valid": self.valid, "index": self.index, "id": list(self.id)}

    def padded(self, field: str, fill: float = 0) -> Padded:
        """Return a feature whose values differ in length as one array [B, longest, ...], and the lengths, int64 [B].

        Args:
            field: name of the feature in `features`.
            fill: the number that is written behind the end of a shorter value.

        Raises:
            ConfigError: the feature does not exist, or its values are not numbers that differ only in length.
        """
        if field not in self.features:
            raise ConfigError(f"padded: there is no feature {field!r} in this batch; there are {list(self.features)}.")
        return pad_values(field, self.features[field], fill)


@dataclass(frozen=True)
class DrawnBatch(Batch):
    """A batch with the keys of the random numbers of its examples.

    Attributes:
        keys: int64 [B], sample keys of the examples: `pass_number * num_examples + index`.
    """

    keys: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))


@dataclass(frozen=True, eq=False)
class Example:
    """One example, in numpy.

    Attributes:
        image: uint8 [H, W, C], or the bytes of its file; None when not asked for.
        label: None when not asked for, or when the target is not a scalar integer: it is then a feature.
        index: position in the split.
        id: as TFDS makes it, `<shard file>__<record>`; of an image folder, the path below its root.
        features: the other features asked for: name -> value.
    """

    image: Any
    label: int | None
    index: int
    id: str
    features: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields that were asked for by name, and `index` and `id`; features have flat names."""
        found = {"image": self.image, "label": self.label}
        asked = {name: value for name, value in found.items() if value is not None}
        return {**asked, **self.features, "index": self.index, "id": self.id}

    def __repr__(self) -> str:
        values = {name: getattr(self, name) for name in ("image", "label", "index", "id", "features")}
        return f"Example({', '.join(f'{name}={_summary(value)}' for name, value in values.items())})"


ReplaceDamaged = Callable[[int, int, RowsOf], DecodedChunk]
"""Reads the examples at positions start..stop-1 once more, and replaces damaged examples by whole ones."""


@dataclass
class _OpenBatch:
    """A batch of `images.size` examples that are being decoded; `parts` are ready, in order."""

    number: int
    images: BatchImages
    parts: list[DecodedChunk] = field(default_factory=list)


class BatchAssembler:
    """Decodes the chunks of one pipeline and puts batches together. It is for one iteration, in one thread.

    Positions count the examples that the pipeline delivers from the request's first batch on.

    Args:
        request: the examples to read, and how.
        num_delivered: number of examples that the pipeline delivers.
        num_valid: number of leading examples that are not padding.
        decoder: decoder of the chunks.
        replace: replaces damaged examples by others; None: a damaged example is an error.
    """

    def __init__(
        self,
        request: ReadRequest,
        num_delivered: int,
        num_valid: int,
        decoder: ChunkDecoder,
        replace: ReplaceDamaged | None = None,
    ) -> None:
        self._request = request
        self._num_delivered = num_delivered
        self._num_valid = num_valid
        self._decoder = decoder
        self._replace = replace
        self._numbers = request.plan.worker_batches(request.start_batch)
        self._batch_size = request.plan.batch_size
        self._open: dict[int, _OpenBatch] = {}  # By ordinal among the pipeline's batches.
        self._threads: ThreadPoolExecutor | None = None

    def batches(self, chunks: Iterator[EncodedChunk]) -> Iterator[Batch]:
        """Yield the batches of chunks that come in the order of delivery; some chunks are decoded ahead.

        Raises:
            TfdsTorchError: the error of a chunk, after everything before it has been yielded.
        """
        num_threads, threads = self._request.num_threads, None
        if not self._request.is_lazy:
            threads = self._threads = ThreadPoolExecutor(num_threads, "tfds_torch-decode")
            _running.add(self)
        waiting: deque[tuple[EncodedChunk, Future[DecodedChunk]]] = deque()
        num_ahead = 0 if self._request.is_lazy else num_threads  # As many are busy while the oldest one is waited for.
        try:
            for chunk in chunks:
                waiting.append((chunk, self._begin(chunk, threads)))
                # The first chunks are not kept waiting for those that are read ahead, nor the first batch for others.
                is_first_whole = chunk.start < self._batch_size <= chunk.start + len(chunk)
                while len(waiting) > (0 if is_first_whole else num_ahead):
                    num_ahead += 0 < num_ahead < self._request.num_chunks_ahead
                    yield from self._finish(*waiting.popleft())
            while waiting:
                yield from self._finish(*waiting.popleft())
            self.end_threads()
        finally:
            # Not waited for: garbage collection closes an iteration that was given up, in any thread at any moment.
            self.end_threads(wait=False)

    def end_threads(self, *, wait: bool = True) -> None:
        """End the threads when they have finished what they are decoding; may be called twice."""
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait, cancel_futures=True)

    def _begin(self, chunk: EncodedChunk, threads: ThreadPoolExecutor | None) -> "Future[DecodedChunk]":
        try:
            if chunk.error is not None:
                return _failed(chunk.error)
            if threads is None:  # Nothing has to be decoded.
                done: Future[DecodedChunk] = Future()
                done.set_result(self._decode(chunk, self._rows_of(chunk)))
                return done
            return threads.submit(self._decode, chunk, self._rows_of(chunk))
        except TfdsTorchError as error:  # What comes before it is yielded first.
            return _failed(error)

    def _decode(self, chunk: EncodedChunk, rows: RowsByField) -> DecodedChunk:
        return DecodedChunk(chunk.keys, self._decoder.decode(chunk, rows))

    def _finish(self, chunk: EncodedChunk, decoding: "Future[DecodedChunk]") -> Iterator[Batch]:
        """Yield the batches that a chunk completes; or its pieces of batches."""
        start, stop, is_damaged = chunk.start, chunk.start + len(chunk), False
        try:
            self._keep(start, decoding.result())
        except CorruptRecordError:
            if self._replace is None:
                raise
            is_damaged = True
        finally:
            del decoding  # It keeps the chunk's rows; or an error, whose traceback keeps this frame and its buffers.
        metrics = self._request.context.metrics
        if metrics is not None:
            metrics.at_work.note_last(examples_of(int(chunk.keys[-1]), self._request.plan.num_examples))
        for ordinal, first, last in self._within_batches(start, stop):
            if is_damaged and self._replace is not None:  # Batch by batch: an error comes after whole batches.
                self._batch_at(ordinal).parts.append(self._replace(first, last, self._rows_of))
            if last == ordinal * self._batch_size + self._open[ordinal].images.size:
                yield self._make(self._open.pop(ordinal), last)  # Nothing here refers to it while it is used.
            elif self._request.in_pieces:
                yield self._make(self._open[ordinal], last)
                self._open[ordinal].parts.clear()

    def _keep(self, start: int, decoded: DecodedChunk) -> None:
        """Add a decoded chunk, which begins at a position, to its batches."""
        for ordinal, first, last in self._within_batches(start, start + len(decoded.keys)):
            self._batch_at(ordinal).parts.append(decoded.cut(first - start, last - start))

    def _within_batches(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield the ordinal of each batch with positions among start..stop-1, and the first and the end of these."""
        for ordinal in range(start // self._batch_size, -(-stop // self._batch_size)):
            first = ordinal * self._batch_size
            yield ordinal, max(start, first), min(stop, first + self._batch_size)

    def _batch_at(self, ordinal: int) -> _OpenBatch:
        batch = self._open.get(ordinal)
        if batch is None:
            size = min(self._batch_size, self._num_delivered - ordinal * self._batch_size)
            batch = self._open[ordinal] = _OpenBatch(self._numbers[ordinal], BatchImages(size))
        return batch

    def _rows_of(self, chunk: EncodedChunk) -> RowsByField:
        """Return the rows where the images of a chunk belong."""
        rows: dict[str, list[BufferRows]] = {}
        if not self._request.content.in_buffers:
            return rows
        make_buffer = self._request.context.make_buffer
        for ordinal, start, stop in self._within_batches(chunk.start, chunk.start + len(chunk)):
            first, images = ordinal * self._batch_size, self._batch_at(ordinal).images
            found = images.rows_of(self._decoder, make_buffer, chunk, start - chunk.start, start - first, stop - first)
            for name, own in found.items():
                rows.setdefault(name, []).append(own)
        return rows

    def _make(self, batch: _OpenBatch, stop: int) -> Batch:
        """Return one batch of its parts, which end before position `stop`."""
        return make_batch(self._request, batch.number, join(batch.parts), stop, self._num_valid)


def make_batch(request: ReadRequest, number: int, decoded: DecodedChunk, stop: int, num_valid: int) -> DrawnBatch:
    """Return decoded examples as a batch.

    Args:
        request: the examples to read, and how.
        number: number of the batch among the rank's batches of the epoch.
        decoded: n examples; their fields become those of the batch.
        stop: end of the examples' positions among those that the pipeline delivers.
        num_valid: number of leading examples of the pipeline that are not padding.
    """
    plan, content, label = request.plan, request.content, None
    index, columns = examples_of(decoded.keys, plan.num_examples), decoded.columns
    if content.chains is not None:
        make_buffer = request.context.make_buffer or ArrayBuffer
        if not content.chains.in_threads:
            samples, memory = Samples(decoded.keys, plan.seed), make_buffer if content.are_one_array else None
            columns = content.chains.apply(columns, samples, index, request.source, request.context, memory)
        if content.are_one_array and "image" in columns:
            columns = {**columns, "image": _as_one_array(columns["image"], make_buffer, request.source.ids(index))}
    columns = {
        name: values.of_batch() if isinstance(values, WrittenImages) else values for name, values in columns.items()
    }
    valid = np.arange(stop - len(index), stop) < num_valid
    if decoded.replaced is not None and not plan.is_training:  # Its replacement is counted where it belongs.
        valid &= ~decoded.replaced
    if content.has_label and are_labels(columns["label"]):
        label = np.where(valid, np.asarray(columns.pop("label"), np.int64), PAD_LABEL)
    elif "label" in columns and not valid.all():
        columns["label"] = mark_padding(columns["label"], valid)
    image, ids = columns.pop("image", None), request.source.ids(index)
    return DrawnBatch(image, label, valid, index, ids, columns, request.epoch, number, decoded.keys)


def _as_one_array(images: Any, make_buffer: MakeBatchBuffer, ids: Sequence[str]) -> Any:
    """Return the images of a batch that the user's functions made: in a batch buffer, where they are uint8.

    Raises:
        ConfigError: they are of several sizes.
    """
    if isinstance(images, WrittenImages) or not len(images):
        return images
    forms = [(one.dtype, one.shape) for one in images]
    other = next((place for place, form in enumerate(forms) if form != forms[0]), None)
    if other is not None:
        (dtype, shape), (dtype_of_first, first) = forms[other], forms[0]
        raise ConfigError(
            f"Whole batches need images of one size and dtype: the transform made {dtype_of_first} {list(first)} of "
            f"{ids[0]}, and {dtype} {list(shape)} of {ids[other]}. Resize, crop or convert them in the transform, give "
            f"the parser a preprocess, or read single examples."
        )
    if images[0].dtype != np.uint8:
        return np.stack(images)
    buffer = make_buffer((len(images), *images[0].shape))
    for row, image in zip(buffer.pixels, images, strict=True):
        row[...] = image
    return buffer.images


def are_labels(values: Any) -> bool:
    """Return whether the values of the field `label` are one integer each, also where a user's function made them."""
    if isinstance(values, np.ndarray):
        return values.ndim == 1 and values.dtype.kind in "biu"
    return all(isinstance(value, int | np.integer | np.bool_) for value in values)


def mark_padding(labels: Any, valid: NDArray[np.bool_]) -> Any:
    """Return labels, an array [n, ...] or a list of n values, in which those of padding are marked.

    Signed integers of padding become -100, and floats NaN; unsigned ones, booleans and texts stay as they are.

    Args:
        labels: they are not changed.
        valid: bool [n]; False marks padding.
    """
    if not isinstance(labels, np.ndarray):
        return [one if is_valid else _marked(one) for one, is_valid in zip(labels, valid.tolist(), strict=True)]
    if labels.dtype.kind not in _MARKS:
        return labels
    marked = labels.copy()
    marked[~valid] = _MARKS[labels.dtype.kind]
    return marked


def _marked(label: Any) -> Any:
    """Return a label in which every number that can be marked is marked."""
    if isinstance(label, dict):
        return {name: _marked(inner) for name, inner in label.items()}
    if isinstance(label, list | tuple):
        return [_marked(inner) for inner in label]
    if isinstance(label, np.ndarray | np.generic):
        mark = _MARKS.get(label.dtype.kind)
        return label if mark is None else np.full_like(label, mark)[()]
    if isinstance(label, bool) or not isinstance(label, int | float):
        return label
    return PAD_LABEL if isinstance(label, int) else float("nan")


def _failed(error: TfdsTorchError) -> "Future[DecodedChunk]":
    future: Future[DecodedChunk] = Future()
    future.set_exception(error)
    return future


_running: "WeakSet[BatchAssembler]" = WeakSet()


def _end_all_threads() -> None:
    """End the threads that a script leaves running at its end, while the modules that this needs are still there."""
    for assembly in list(_running):
        assembly.end_threads()


atexit.register(_end_all_threads)


def _summary(value: Any) -> str:
    """Return a value in short: of an array its shape and dtype, of many bytes their number."""
    if isinstance(value, np.ndarray):
        return f"<{value.dtype} {list(value.shape)}>"
    if isinstance(value, bytes) and len(value) > _MOST_SHOWN_BYTES:
        return f"<{len(value):,} bytes>"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name!r}: {_summary(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list):
        shown = [_summary(one) for one in value[:_MOST_SHOWN]]
        return f"[{', '.join(shown + ['...'] * (len(value) > _MOST_SHOWN))}]"
    return repr(value)
