"""A split's files as batches: read modes, and the way from an EpochPlan to tf.data and back."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from tfds_torch.errors import ConfigError
from tfds_torch.parsers.example_files import ExampleFiles
from tfds_torch.parsers.parser import Batch
from tfds_torch.pipeline.builder import INDEX, REPLACED, read_stream
from tfds_torch.pipeline.canvas import MakeCanvas
from tfds_torch.pipeline.columns import Column, ImageColumn
from tfds_torch.pipeline.options import ReadOptions
from tfds_torch.pipeline.painter import ImagePainter
from tfds_torch.pipeline.preprocess import Preprocess
from tfds_torch.pipeline.stream_spec import ExampleSource, Replacing, StreamSpec
from tfds_torch.plan.epoch import PAD_LABEL, EpochPlan, Remainder
from tfds_torch.plan.order import Int64Array
from tfds_torch.plan.stream import Share, Stretch, deal_examples, deal_files
from tfds_torch.plan.worker_order import ListedOrder, WorkerOrder
from tfds_torch.records.record_run import RecordRun
from tfds_torch.runtime.clock import Clock

# Examples are decoded in chunks. Small ones cost more calls; the buffers of large ones (above about 32 MB decoded, that
# is 4 MB of JPEG) are given back to the system and faulted in again chunk by chunk, which took a third of the speed.
_CHUNK_BYTES = 3 * 2**19  # Encoded.
_PAINTED_CHUNK_BYTES = 3 * 2**20  # Of 32 photographs: with 16 or 64 each takes a few percent more.
_SMALLEST_CHUNK, _LARGEST_MERGED_CHUNK = 4, 32


@dataclass(frozen=True)
class PaintedImages:
    """Images that are preprocessed into the memory of their batch.

    Attributes:
        column: the feature that holds them.
        preprocess: what is done to them.
        make_canvas: makes the memory of a batch.
    """

    column: ImageColumn
    preprocess: Preprocess
    make_canvas: MakeCanvas


@dataclass(frozen=True)
class Content:
    """What is decoded of a split.

    Attributes:
        columns: field name -> how it is decoded.
        has_label: whether the column `label` is a scalar integer, and so becomes `Batch.label`.
        painted: the field `image`, where it is preprocessed; it is no column then.
        parse: bytes of a record -> `tf.train.Example`, where records are such.
        clock: what times are reported to.
    """

    columns: Mapping[str, Column]
    has_label: bool
    painted: PaintedImages | None = None
    parse: Callable[[bytes], Any] | None = None
    clock: Clock | None = None


@dataclass(frozen=True)
class SplitStream:
    """The files of a split, and how they are streamed.

    Attributes:
        split: the split expression, for messages.
        files: what holds its examples.
        read: how they are read.
    """

    split: str
    files: ExampleFiles
    read: ReadOptions

    def read_mode(self, plan: EpochPlan) -> str:
        """Returns the read mode for a plan: `index`, `files` or `examples`.

        Raises:
            ConfigError: a mode was asked for where it cannot keep its promises, or no mode can read the files.
        """
        obstacle = self.files.find_obstacle()
        mode = self.read.mode
        if mode == "auto":
            mode = "index" if obstacle is None else "files" if self._can_deal_files(plan) else "examples"
        if mode == "index":
            if obstacle is not None:
                working = "'files' (training) and 'examples'" if self.files.streams else "none: copy it to this machine"
                raise ConfigError(
                    f"read mode 'index' fetches single records, and {obstacle}. The modes that can read "
                    f"{self.files.dataset} are {working}."
                )
            return mode
        if not self.files.streams:
            where = "" if obstacle is None else f", and {obstacle}: copy it to this machine"
            raise ConfigError(
                f"read mode {mode!r} streams TFRecord files, and {self.files.dataset} is stored in a format that is "
                f"only read by index. Use mode 'index' or 'auto'{where}."
            )
        if self.read.on_error != "raise":
            raise ConfigError(
                f"on_error={self.read.on_error!r} replaces damaged examples by their neighbours, and the read mode is "
                f"{mode!r}: a stream cannot go on behind a damaged record. Use mode 'index', or on_error='raise'."
            )
        if self.read.block_records is not None:
            reason = "" if obstacle is None else f" ({obstacle}, so 'index' cannot be used)"
            raise ConfigError(
                f"block_records={self.read.block_records} says how mode 'index' shuffles, and the read mode is "
                f"{mode!r}{reason}. Leave out block_records: a stream shuffles by shuffle_buffer."
            )
        if mode == "files":
            self._check_files_can_be_dealt(plan)
        return mode

    def _can_deal_files(self, plan: EpochPlan) -> bool:
        try:
            self._check_files_can_be_dealt(plan)
        except ConfigError:
            return False
        return True

    def _check_files_can_be_dealt(self, plan: EpochPlan) -> None:
        world = plan.world
        others = "'index', 'examples'" if self.files.find_obstacle() is None else "'examples'"
        if not plan.is_training:
            raise ConfigError(f"read mode 'files' yields some examples twice: evaluation takes {others} or 'auto'.")
        if not self.files.has_shards:
            raise ConfigError(
                f"read mode 'files' deals shards to the pipelines, and {self.files.dataset} has none: its images "
                f"are files of their own. Use mode {others} or 'auto'."
            )
        if plan.remainder is Remainder.PAD:
            raise ConfigError(f"read mode 'files' does not pad: use remainder='wrap' or 'drop', or mode {others}.")
        if len(self.files.runs) < world.num_pipelines:
            raise ConfigError(
                f"read mode 'files' needs a file for each pipeline: {self.files.dataset} split {self.split!r} has "
                f"{len(self.files.runs)} non-empty files, and there are {world.num_pipelines} pipelines "
                f"({world.num_replicas} ranks x {world.num_workers} workers). Use mode {others} or 'auto'."
            )

    def share(self, plan: EpochPlan, epoch: int) -> Share:
        """Returns which stretches of `files` the plan's pipeline reads in an epoch; in the stream modes only.

        Raises:
            ConfigError: the read mode is `index`: there, `EpochPlan.batch` says what is in every batch.
        """
        mode = self.read_mode(plan)
        if mode == "index":
            raise ConfigError("In read mode 'index' there are no shares: EpochPlan.batch says what is in every batch.")
        deal = deal_files if mode == "files" else deal_examples
        return deal(plan, [run.take for run in self.files.runs], epoch)

    def pieces(self, plan: EpochPlan, epoch: int, start_batch: int, content: Content) -> Iterator[Batch]:
        """Yields the batches of the plan's pipeline, each in pieces as they are decoded.

        Images that are preprocessed are not in the pieces: `batches` adds them to whole batches.

        Args:
            plan: the epoch plan, for one worker of one rank.
            epoch: which epoch, >= 0.
            start_batch: the rank's batch at which to begin.
            content: what is decoded.
        """
        spec, num_valid = self._spec(plan, epoch, start_batch, content)
        return self._pieces(plan, epoch, plan.worker_batches(start_batch), spec, num_valid, content.has_label)

    def batches(self, plan: EpochPlan, epoch: int, start_batch: int, content: Content) -> Iterator[Batch]:
        """Yields the batches of the plan's pipeline; see `pieces`."""
        spec, num_valid = self._spec(plan, epoch, start_batch, content)
        numbers = plan.worker_batches(start_batch)
        batches = join_pieces(self._pieces(plan, epoch, numbers, spec, num_valid, content.has_label), plan.batch_size)
        painter = spec.painter
        if painter is None:
            return batches
        return (replace(batch, image=painter.take_canvas(numbers.index(batch.batch))) for batch in batches)

    def _pieces(
        self, plan: EpochPlan, epoch: int, numbers: range, spec: StreamSpec, num_valid: int, has_label: bool
    ) -> Iterator[Batch]:
        num_skipped = position = spec.num_skipped
        for part in _cut_chunks(read_stream(spec), plan.batch_size):
            number = numbers[(position - num_skipped) // plan.batch_size]
            index = part.pop(INDEX)
            valid = np.arange(position, position + len(index)) < num_valid
            replaced = part.pop(REPLACED)
            if not plan.is_training:  # What took a damaged example's place is counted where it belongs.
                valid &= ~replaced
            label = np.where(valid, part.pop("label"), PAD_LABEL).astype(np.int64) if has_label else None
            yield Batch(part.pop("image", None), label, valid, index, self.files.ids(index), part, epoch, number)
            position += len(index)

    def _stream_source(self, plan: EpochPlan, epoch: int, start_batch: int) -> tuple[ExampleSource, int, int]:
        """Returns what is streamed, how many examples of it are passed over, and how many are valid."""
        world = plan.world
        # The worker whose turn is batch start_batch continues the stream of the worker that batch belonged to.
        number = (world.worker + start_batch) % world.num_workers
        source_plan = replace(plan, world=world.at_worker(number, world.num_workers))
        num_passed = len(source_plan.worker_batches()) - len(plan.worker_batches(start_batch))
        share = self.share(source_plan, epoch)
        (seed,) = np.random.SeedSequence([plan.seed, epoch, source_plan.world.pipeline]).generate_state(1, np.uint64)
        source = self.files.source(
            [self._run(stretch) for stretch in share.valid],
            [self._run(stretch) for stretch in share.fill],
            seed=int(seed >> np.uint64(1)) if plan.shuffle else None,  # tf.data takes int64.
            read=self.read,
            num_workers=world.num_workers,
        )
        num_valid = share.num_valid if plan.remainder is Remainder.PAD else share.num_valid + share.num_fill
        return source, num_passed * plan.batch_size, num_valid

    def _spec(self, plan: EpochPlan, epoch: int, start_batch: int, content: Content) -> tuple[StreamSpec, int]:
        """Returns what is read, and how many examples of it are valid."""
        replacing = None
        if self.read_mode(plan) == "index":
            order = WorkerOrder(plan, epoch, start_batch)
            source = self.files.indexed_source(order, read=self.read, clock=content.clock)
            num_skipped, num_valid = 0, order.num_valid
            replacing = self._replacing(order, content.clock)
        else:
            source, num_skipped, num_valid = self._stream_source(plan, epoch, start_batch)
        chunk_size = self._chunk_size(plan.batch_size, is_painted=content.painted is not None)
        spec = StreamSpec(
            source=source,
            num_examples=self.files.num_examples,
            columns=content.columns,
            painter=self._painter(plan, content, source, num_skipped),
            chunk_size=chunk_size,
            num_skipped=num_skipped,
            num_threads=self.read.threads_of_worker(plan.world.num_workers),
            prefetch_chunks=self.read.prefetch_batches * max(1, plan.batch_size // chunk_size),
            replacing=replacing,
            parse=content.parse,
            clock=content.clock,
        )
        return spec, num_valid

    def _replacing(self, order: WorkerOrder, clock: Clock | None) -> Replacing | None:
        if self.read.on_error == "raise":
            return None

        def source_of(occurrences: Int64Array) -> ExampleSource:
            return self.files.indexed_source(ListedOrder(order.plan, occurrences), read=self.read, clock=clock)

        return Replacing(order.occurrences, source_of, self.files.ids, self.read.max_replaced)

    def _painter(
        self, plan: EpochPlan, content: Content, source: ExampleSource, num_skipped: int
    ) -> ImagePainter | None:
        if content.painted is None:
            return None
        return ImagePainter(
            content.painted.column,
            content.painted.preprocess,
            seed=plan.seed,
            num_examples=self.files.num_examples,
            batch_size=plan.batch_size,
            num_rows=len(source) - num_skipped,
            make_canvas=content.painted.make_canvas,
            refuse=source.describe_undecodable,
            clock=content.clock,
        )

    def _chunk_size(self, batch_size: int, *, is_painted: bool) -> int:
        """Returns how many examples are decoded at a time: part of a large batch, or several small batches."""
        num_bytes = _PAINTED_CHUNK_BYTES if is_painted else _CHUNK_BYTES
        most = max(_SMALLEST_CHUNK, num_bytes // max(1, self.files.mean_example_bytes))
        if batch_size > most:
            return -(-batch_size // -(-batch_size // most))
        return batch_size * max(1, min(most, _LARGEST_MERGED_CHUNK) // batch_size)

    def _run(self, stretch: Stretch) -> RecordRun:
        file = self.files.runs[stretch.file]
        return replace(
            file,
            skip=file.skip + stretch.start,
            take=len(stretch),
            first_index=file.first_index + stretch.start,
            pass_number=stretch.pass_number,
        )


def join_pieces(pieces: Iterator[Batch], batch_size: int) -> Iterator[Batch]:
    """Yields whole batches, each from its consecutive pieces, as soon as its last one is there."""
    parts: list[Batch] = []
    for piece in pieces:
        parts.append(piece)
        if sum(map(len, parts)) == batch_size:
            yield _join(parts)
            parts = []
    if parts:  # A last batch that is kept short.
        yield _join(parts)


def _join(parts: list[Batch]) -> Batch:
    if len(parts) == 1:
        return parts[0]
    columns = {name: _concatenate([getattr(part, name) for part in parts]) for name in ("valid", "index", "id")}
    for name in ("image", "label"):
        columns[name] = (
            None if getattr(parts[0], name) is None else _concatenate([getattr(part, name) for part in parts])
        )
    features = {name: _concatenate([part.features[name] for part in parts]) for name in parts[0].features}
    return replace(parts[0], **columns, features=features)


def _concatenate(values: list[Any]) -> Any:
    return np.concatenate(values) if isinstance(values[0], np.ndarray) else list(chain.from_iterable(values))


def _cut_chunks(chunks: Iterator[dict[str, Any]], batch_size: int) -> Iterator[dict[str, Any]]:
    """Yields pieces that lie within one chunk and within one batch."""
    room = batch_size
    for chunk in chunks:
        start, size = 0, len(chunk[INDEX])
        while start < size:
            stop = min(size, start + room)
            yield {name: values[start:stop] for name, values in chunk.items()}
            room = room - (stop - start) or batch_size
            start = stop
