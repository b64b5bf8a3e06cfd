"""A split's TFRecord files as batches: read modes, ids, and the way from an EpochPlan to tf.data and back."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import ConfigError
from tfds_torch.parsers.parser import Batch
from tfds_torch.pipeline.builder import INDEX, RecordRun, StreamSpec, read_stream
from tfds_torch.pipeline.columns import Column
from tfds_torch.pipeline.options import ReadOptions
from tfds_torch.plan.epoch import PAD_LABEL, EpochPlan, Remainder
from tfds_torch.plan.stream import Share, Stretch, deal_examples, deal_files

# Examples are decoded in chunks. Small ones cost more calls; the buffers of large ones (above about 32 MB decoded, that
# is 4 MB of JPEG) are given back to the system and faulted in again chunk by chunk, which took a third of the speed.
_CHUNK_BYTES = 3 * 2**19  # Encoded.
_SMALLEST_CHUNK, _LARGEST_MERGED_CHUNK = 4, 32


@dataclass(frozen=True)
class SplitStream:
    """The files of a split, and how they are streamed.

    Attributes:
        dataset: `name/config:version`, for messages.
        split: the split expression, for messages.
        files: the split as runs of records, none of them empty, in the order that `index` counts.
        read: how they are read.
        mean_example_bytes: size of an encoded example, for the memory budget.
    """

    dataset: str
    split: str
    files: tuple[RecordRun, ...]
    read: ReadOptions
    mean_example_bytes: int

    @property
    def num_examples(self) -> int:
        """Examples of the split."""
        return sum(run.take for run in self.files)

    def ids(self, index: NDArray[np.int64]) -> list[str]:
        """Returns TFDS's ids, `<shard file>__<record>`, of examples given by index, int64 [n]."""
        numbers = np.searchsorted(self._first_indices, index, side="right") - 1
        positions = index - self._first_indices[numbers]
        return [
            f"{os.path.basename(self.files[number].path)}__{self.files[number].skip + position}"
            for number, position in zip(numbers.tolist(), positions.tolist(), strict=True)
        ]

    def read_mode(self, plan: EpochPlan) -> str:
        """Returns the read mode for a plan: `files` or `examples`.

        Raises:
            ConfigError: `files` was asked for where it cannot keep its promises.
        """
        world = plan.world
        has_enough_files = len(self.files) >= world.num_pipelines
        pads = plan.remainder is Remainder.PAD
        if self.read.mode == "auto":
            return "files" if plan.is_training and has_enough_files and not pads else "examples"
        if self.read.mode == "files":
            if not plan.is_training:
                raise ConfigError(
                    "read mode 'files' yields some examples twice: evaluation takes 'examples' or 'auto'."
                )
            if pads:
                raise ConfigError("read mode 'files' does not pad: use remainder='wrap' or 'drop', or mode 'examples'.")
            if not has_enough_files:
                raise ConfigError(
                    f"read mode 'files' needs a file for each pipeline: {self.dataset} split {self.split!r} has "
                    f"{len(self.files)} non-empty files, and there are {world.num_pipelines} pipelines "
                    f"({world.num_replicas} ranks x {world.num_workers} workers). Use mode 'examples' or 'auto'."
                )
        return self.read.mode

    def share(self, plan: EpochPlan, epoch: int) -> Share:
        """Returns which stretches of `files` the plan's pipeline reads in an epoch."""
        deal = deal_files if self.read_mode(plan) == "files" else deal_examples
        return deal(plan, [run.take for run in self.files], epoch)

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
            yield Batch(part.pop("image", None), label, valid, index, self.ids(index), part, epoch, number)
            position += len(index)

    def _spec(
        self, plan: EpochPlan, share: Share, epoch: int, num_skipped: int, columns: Mapping[str, Column]
    ) -> StreamSpec:
        num_workers = plan.world.num_workers
        chunk_size = self._chunk_size(plan.batch_size)
        shuffle_buffer = self.read.shuffle_buffer_of_worker(num_workers, self.mean_example_bytes)
        (seed,) = np.random.SeedSequence([plan.seed, epoch, plan.world.pipeline]).generate_state(1, np.uint64)
        return StreamSpec(
            dataset=self.dataset,
            runs=[self._run(stretch) for stretch in share.valid],
            fill=[self._run(stretch) for stretch in share.fill],
            columns=columns,
            chunk_size=chunk_size,
            num_skipped=num_skipped,
            shuffle_buffer=shuffle_buffer if plan.shuffle else 1,
            seed=int(seed >> np.uint64(1)),  # tf.data takes int64.
            cycle_length=self.read.cycle_length,
            read_buffer_bytes=self.read.read_buffer_bytes,
            num_threads=self.read.threads_of_worker(num_workers),
            prefetch_chunks=self.read.prefetch_batches * max(1, plan.batch_size // chunk_size),
        )

    def _chunk_size(self, batch_size: int) -> int:
        """Returns how many examples are decoded at a time: part of a large batch, or several small batches."""
        most = max(_SMALLEST_CHUNK, _CHUNK_BYTES // max(1, self.mean_example_bytes))
        if batch_size > most:
            return -(-batch_size // -(-batch_size // most))
        return batch_size * max(1, min(most, _LARGEST_MERGED_CHUNK) // batch_size)

    def _run(self, stretch: Stretch) -> RecordRun:
        file = self.files[stretch.file]
        return replace(
            file, skip=file.skip + stretch.start, take=len(stretch), first_index=file.first_index + stretch.start
        )

    @cached_property
    def _first_indices(self) -> NDArray[np.int64]:
        return np.array([run.first_index for run in self.files], np.int64)


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
