"""ReadRequest: the examples that one pipeline reads in an epoch. ReadContext: the memory and metrics of the run."""

from dataclasses import dataclass

import numpy as np

from tfds_torch.engines.fields import Content
from tfds_torch.engines.options import ReadOptions
from tfds_torch.images.batch_buffer import MakeBatchBuffer
from tfds_torch.plan.epoch import EpochPlan
from tfds_torch.plan.subset import Subset
from tfds_torch.runtime.cached_property import cached_property
from tfds_torch.runtime.metrics import StageMetrics
from tfds_torch.storage.source import Source

# Examples are decoded in chunks. Small ones cost more calls; the arrays of large ones (above about 32 MB decoded, that
# is 4 MB of JPEG) are given back to the system and faulted in again chunk by chunk, which took a third of the speed.
_CHUNK_BYTES = 3 * 2**19  # Encoded.
_BUFFERED_CHUNK_BYTES = 3 * 2**20  # Of 32 photographs: with 16 or 64 each takes a few percent more.
_SMALLEST_CHUNK, _LARGEST_MERGED_CHUNK = 4, 32


@dataclass(frozen=True)
class ReadContext:
    """The memory, metrics and neighbours that a run supplies; none of them changes the examples.

    Attributes:
        make_buffer: makes the memory of a batch's images; None: numpy does.
        metrics: metrics to which times and places are reported.
        num_local_ranks: ranks that share this machine, and so its cores; None: all of them.
        is_read_ahead: whether the consumer of the batches keeps some ready.
        has_one_size: whether `image` goes into batch buffers also without a preprocess: the images of a batch must then
            have one size.
        seeds_items: whether random numbers are seeded before a user's dataset is asked for an item.
    """

    make_buffer: MakeBatchBuffer | None = None
    metrics: StageMetrics | None = None
    num_local_ranks: int | None = None
    is_read_ahead: bool = False
    has_one_size: bool = True
    seeds_items: bool = True


@dataclass(frozen=True)
class ReplacementRange:
    """Consecutive examples, among which damaged ones are replaced by the next whole one.

    Attributes:
        start: the first one's index.
        stop: the index behind the last one's.
        most: largest number of damaged examples that a worker may replace in an epoch; 0: the first one is an error.
        subset: the examples among them that may be read, counted from `start` on; None: all.
    """

    start: int
    stop: int
    most: int
    subset: Subset | None = None

    @property
    def size(self) -> int:
        """Number of examples that may be read."""
        return self.stop - self.start if self.subset is None else len(self.subset)

    def following(self, index: int, step: int) -> int:
        """Return the index of the example some steps behind another one; the first one follows the last one."""
        if self.subset is None:
            return self.start + (index - self.start + step) % self.size
        place = int(self.subset.places_of(np.array([index - self.start], np.int64))[0])
        return self.start + int(self.subset.numbers[(place + step) % self.size])


@dataclass(frozen=True)
class ReadRequest:
    """The examples that one pipeline reads in an epoch, and how.

    Attributes:
        source: the encoded examples of the split.
        plan: plan of the epoch; its world names the pipeline.
        epoch: number of the epoch, >= 0.
        start_batch: the rank's batch at which to begin.
        content: the fields to decode.
        options: how the examples are read.
        in_pieces: whether a batch may come in several pieces, one after the other, each as soon as it is decoded.
        context: memory and metrics that the run supplies.
        replacing: the ranges in which damaged examples are replaced, in ascending order, which together hold all
            examples; None: everywhere or nowhere, as the options say.
        read_at_once: least number of examples that are read at a time where calls of the source are expensive; 0: those
            of one chunk.
        is_lazy: whether each batch is read when it is asked for, and none ahead: where nothing has to be decoded and a
            single example may take long.
    """

    source: Source
    plan: EpochPlan
    epoch: int
    start_batch: int
    content: Content
    options: ReadOptions
    in_pieces: bool = False
    context: ReadContext = ReadContext()
    replacing: tuple[ReplacementRange, ...] | None = None
    read_at_once: int = 0
    is_lazy: bool = False

    @cached_property
    def replacement_ranges(self) -> tuple[ReplacementRange, ...]:
        """The ranges in which damaged examples are replaced, with the largest number of them."""
        if self.replacing is not None:
            return self.replacing
        return (ReplacementRange(0, self.plan.num_examples, self.options.most_replaced, self.plan.order.subset),)

    @cached_property
    def num_threads(self) -> int:
        """Number of threads of this pipeline."""
        world = self.plan.world
        return self.options.threads_of_worker(world.num_workers, self.context.num_local_ranks or world.num_replicas)

    @cached_property
    def chunk_size(self) -> int:
        """Number of examples that are read and decoded at a time: part of a large batch, or several small batches."""
        batch_size, in_buffers = self.plan.batch_size, self.content.in_buffers
        size = find_chunk_size(batch_size, self.source.mean_example_bytes, in_buffers=in_buffers)
        if size > batch_size and self.is_lazy:
            return batch_size
        # Threads share the batches that are decoded ahead, rather than each taking its own batches.
        most = _divide_up(batch_size * (self.options.prefetch_batches + 1), self.num_threads)
        if size > batch_size:
            return max(1, min(size, most) // batch_size) * batch_size
        return _size_of_equal_parts(batch_size, min(size, most))

    @cached_property
    def num_chunks_ahead(self) -> int:
        """Number of chunks that are decoded ahead of the one that is handed over."""
        most = _divide_up(self.options.prefetch_batches * self.plan.batch_size, self.chunk_size)
        is_lean = self.context.is_read_ahead and self.options.prefetch_batches == 1
        return min(most, self.num_threads + 1) if is_lean else most


def find_chunk_size(batch_size: int, mean_example_bytes: int, *, in_buffers: bool) -> int:
    """Return how many examples are read and decoded at a time: part of a large batch, or several small batches."""
    num_bytes = _BUFFERED_CHUNK_BYTES if in_buffers else _CHUNK_BYTES
    most = max(_SMALLEST_CHUNK, num_bytes // max(1, mean_example_bytes))
    if batch_size > most:
        return _size_of_equal_parts(batch_size, most)
    return batch_size * max(1, min(most, _LARGEST_MERGED_CHUNK) // batch_size)


def _size_of_equal_parts(batch_size: int, most: int) -> int:
    """Return the size of a batch's parts, cut into as few as can be of at most `most`; the last one may be smaller."""
    num_parts = _divide_up(batch_size, most)
    return _divide_up(batch_size, num_parts)


def _divide_up(number: int, divisor: int) -> int:
    """Return a quotient, rounded up."""
    return -(-number // divisor)
