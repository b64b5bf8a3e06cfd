"""A split's files as batches: read modes, and the way from an EpochPlan to tf.data and back."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from tfds_torch.errors import ConfigError
from tfds_torch.parsers.example_files import ExampleFiles
from tfds_torch.parsers.parser import Batch
from tfds_torch.pipeline.builder import INDEX, StreamSpec, read_stream
from tfds_torch.pipeline.columns import Column
from tfds_torch.pipeline.options import ReadOptions
from tfds_torch.plan.epoch import PAD_LABEL, EpochPlan, Remainder
from tfds_torch.plan.stream import Share, Stretch, deal_examples, deal_files
from tfds_torch.records.record_run import RecordRun

# Examples are decoded in chunks. Small ones cost more calls; the buffers of large ones (above about 32 MB decoded, that
# is 4 MB of JPEG) are given back to the system and faulted in again chunk by chunk, which took a third of the speed.
_CHUNK_BYTES = 3 * 2**19  # Encoded.
_SMALLEST_CHUNK, _LARGEST_MERGED_CHUNK = 4, 32


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
        """Returns the read mode for a plan: `files` or `examples`.

        Raises:
            ConfigError: `files` was asked for where it cannot keep its promises.
        """
        world = plan.world
        has_enough_files = self.files.has_shards and len(self.files.runs) >= world.num_pipelines
        pads = plan.remainder is Remainder.PAD
        if self.read.mode == "auto":
            return "files" if plan.is_training and has_enough_files and not pads else "examples"
        if self.read.mode == "files":
            if not plan.is_training:
                raise ConfigError(
                    "read mode 'files' yields some examples twice: evaluation takes 'examples' or 'auto'."
                )
            if not self.files.has_shards:
                raise ConfigError(
                    f"read mode 'files' deals shards to the pipelines, and {self.files.dataset} has none: its images "
                    f"are files of their own. Use mode 'examples' or 'auto'."
                )
            if pads:
                raise ConfigError("read mode 'files' does not pad: use remainder='wrap' or 'drop', or mode 'examples'.")
            if not has_enough_files:
                raise ConfigError(
                    f"read mode 'files' needs a file for each pipeline: {self.files.dataset} split {self.split!r} has "
                    f"{len(self.files.runs)} non-empty files, and there are {world.num_pipelines} pipelines "
                    f"({world.num_replicas} ranks x {world.num_workers} workers). Use mode 'examples' or 'auto'."
                )
        return self.read.mode

    def share(self, plan: EpochPlan, epoch: int) -> Share:
        """Returns which stretches of `files` the plan's pipeline reads in an epoch."""
        deal = deal_files if self.read_mode(plan) == "files" else deal_examples
        return deal(plan, [run.take for run in self.files.runs], epoch)

    def pieces(
        self, plan: EpochPlan, epoch: int, start_batch: int, columns: Mapping[str, Column], *, has_label: bool
    ) -> Iterator[Batch]:
        """Yields the batches of the plan's pipeline, each in pieces as they are decoded.

        Args:
            plan: the epoch plan, for one worker of one rank.
            epoch: which epoch, >= 0.
            start_batch: the rank's batch at which to begin.
            columns: field name -> how it is decoded.
            has_label: whether the column `label` is a scalar integer, and so becomes `Batch.label`.
        """
        world = plan.world
        numbers = plan.worker_batches(start_batch)
        # The worker whose turn is batch start_batch continues the stream of the worker that batch belonged to.
        source = world.at_worker((world.worker + start_batch) % world.num_workers, world.num_workers)
        source_plan = replace(plan, world=source)
        num_skipped = (len(source_plan.worker_batches()) - len(numbers)) * plan.batch_size
        share = self.share(source_plan, epoch)
        num_valid = share.num_valid if plan.remainder is Remainder.PAD else share.num_valid + share.num_fill
        chunks = read_stream(self._spec(source_plan, share, epoch, num_skipped, columns))
        position = num_skipped
        for part in _cut_chunks(chunks, plan.batch_size):
            number = numbers[(position - num_skipped) // plan.batch_size]
            index = part.pop(INDEX)
            valid = np.arange(position, position + len(index)) < num_valid
            label = np.where(valid, part.pop("label"), PAD_LABEL).astype(np.int64) if has_label else None
            yield Batch(part.pop("image", None), label, valid, index, self.files.ids(index), part, epoch, number)
            position += len(index)

    def _spec(
        self, plan: EpochPlan, share: Share, epoch: int, num_skipped: int, columns: Mapping[str, Column]
    ) -> StreamSpec:
        num_workers = plan.world.num_workers
        chunk_size = self._chunk_size(plan.batch_size)
        (seed,) = np.random.SeedSequence([plan.seed, epoch, plan.world.pipeline]).generate_state(1, np.uint64)
        source = self.files.source(
            [self._run(stretch) for stretch in share.valid],
            [self._run(stretch) for stretch in share.fill],
            seed=int(seed >> np.uint64(1)) if plan.shuffle else None,  # tf.data takes int64.
            read=self.read,
            num_workers=num_workers,
        )
        return StreamSpec(
            source=source,
            columns=columns,
            chunk_size=chunk_size,
            num_skipped=num_skipped,
            num_threads=self.read.threads_of_worker(num_workers),
            prefetch_chunks=self.read.prefetch_batches * max(1, plan.batch_size // chunk_size),
        )

    def _chunk_size(self, batch_size: int) -> int:
        """Returns how many examples are decoded at a time: part of a large batch, or several small batches."""
        most = max(_SMALLEST_CHUNK, _CHUNK_BYTES // max(1, self.files.mean_example_bytes))
        if batch_size > most:
            return -(-batch_size // -(-batch_size // most))
        return batch_size * max(1, min(most, _LARGEST_MERGED_CHUNK) // batch_size)

    def _run(self, stretch: Stretch) -> RecordRun:
        file = self.files.runs[stretch.file]
        return replace(
            file, skip=file.skip + stretch.start, take=len(stretch), first_index=file.first_index + stretch.start
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
