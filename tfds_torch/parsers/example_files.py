"""The files that hold a split's examples: which example lies where, and how a pipeline reads its share of them."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import ConfigError
from tfds_torch.pipeline.indexed_records import IndexedRecords
from tfds_torch.pipeline.options import ReadOptions
from tfds_torch.pipeline.record_files import RecordFiles
from tfds_torch.pipeline.stream_spec import ExampleSource
from tfds_torch.plan.worker_order import RecordOrder
from tfds_torch.records.record_reader import open_reader
from tfds_torch.records.record_run import RecordRun, is_local
from tfds_torch.runtime.clock import Clock

Indices = NDArray[np.int64]

_RECORDS_AT_A_TIME = 64


@dataclass(frozen=True)
class ExampleFiles(ABC):
    """A split's examples on disk. It can be pickled.

    Attributes:
        dataset: `name/config:version`, for messages.
        runs: the split as runs of records, none of them empty, in the order that `index` counts.
        mean_example_bytes: size of an encoded example, for the memory budget.
    """

    dataset: str
    runs: tuple[RecordRun, ...]
    mean_example_bytes: int

    @property
    def num_examples(self) -> int:
        """Examples of the split."""
        return sum(run.take for run in self.runs)

    @property
    @abstractmethod
    def num_shards(self) -> int:
        """Files that hold examples of the split."""

    @property
    @abstractmethod
    def has_shards(self) -> bool:
        """Whether a file holds many examples, so that whole files can be dealt to pipelines."""

    @property
    @abstractmethod
    def streams(self) -> bool:
        """Whether the files can be read as streams, one after the other."""

    @abstractmethod
    def find_obstacle(self) -> str | None:
        """Returns why examples cannot be fetched one by one, as a clause; None when they can."""

    @property
    @abstractmethod
    def identity(self) -> object:
        """A value whose `repr` is equal where `index` means the same examples, and depends on no path or time."""

    @abstractmethod
    def ids(self, index: Indices) -> list[str]:
        """Returns the ids of examples given by index, int64 [n]."""

    @abstractmethod
    def names(self, key: str, parse: Callable[[bytes], Any]) -> list[str]:
        """Returns what the files themselves name their examples, in the order of `index`. Loads no tensorflow.

        Args:
            key: the feature that holds the name.
            parse: bytes of an encoded example -> `tf.train.Example`.

        Raises:
            ConfigError: the files are remote.
            ShardError: a file is missing or damaged.
        """

    @abstractmethod
    def source(
        self,
        valid: Sequence[RecordRun],
        fill: Sequence[RecordRun],
        *,
        seed: int | None,
        read: ReadOptions,
        num_workers: int,
    ) -> ExampleSource:
        """Returns what one pipeline reads in an epoch.

        Args:
            valid: the epoch's own records.
            fill: the records that come after them.
            seed: of the shuffle of the valid ones; None keeps their order.
            read: how they are read.
            num_workers: workers of the rank, who share its threads and buffers.
        """

    @abstractmethod
    def indexed_source(self, order: RecordOrder, *, read: ReadOptions, clock: Clock | None) -> ExampleSource:
        """Returns what one pipeline reads by index, in mode `index`.

        Args:
            order: its examples.
            read: how they are read.
            clock: what times are reported to.
        """

    def _locate(self, index: Indices) -> tuple[Indices, Indices]:
        """Returns where examples lie: the position of their run in `runs`, and of the record in its file."""
        numbers = np.searchsorted(self._first_indices, index, side="right") - 1
        return numbers, index - self._first_indices[numbers] + self._skips[numbers]

    @cached_property
    def _first_indices(self) -> Indices:
        return np.array([run.first_index for run in self.runs], np.int64)

    @cached_property
    def _skips(self) -> Indices:
        return np.array([run.skip for run in self.runs], np.int64)


@dataclass(frozen=True)
class RecordShards(ExampleFiles):
    """Shard files, one run per TFDS file instruction.

    Attributes:
        file_format: `tfrecord` or `array_record`.
    """

    file_format: str

    has_shards = True

    @property
    def streams(self) -> bool:  # noqa: D102
        return self.file_format == "tfrecord"

    def find_obstacle(self) -> str | None:  # noqa: D102
        remote = next((run.path for run in self.runs if not is_local(run.path)), None)
        return None if remote is None else f"{remote} is remote"

    @property
    def num_shards(self) -> int:  # noqa: D102
        return len({run.path for run in self.runs})

    @property
    def identity(self) -> object:  # noqa: D102
        return [(os.path.basename(run.path), run.skip, run.take, run.num_in_shard) for run in self.runs]

    def ids(self, index: Indices) -> list[str]:
        """Returns TFDS's ids, `<shard file>__<record>`."""
        numbers, records = self._locate(index)
        names = self._shard_names
        return [f"{names[number]}__{record}" for number, record in zip(numbers.tolist(), records.tolist(), strict=True)]

    @cached_property
    def _shard_names(self) -> list[str]:
        return [os.path.basename(run.path) for run in self.runs]

    def names(self, key: str, parse: Callable[[bytes], Any]) -> list[str]:  # noqa: D102
        obstacle = self.find_obstacle()
        if obstacle is not None:
            raise ConfigError(
                f"The file names of {self.dataset} can only be read from local shards, and {obstacle}. Ask for the "
                f"field {key!r} instead."
            )
        names = []
        with open_reader(self.runs, self.dataset, self.file_format) as reader:
            for start in range(0, self.num_examples, _RECORDS_AT_A_TIME):
                stop = min(start + _RECORDS_AT_A_TIME, self.num_examples)
                for record in reader.read(np.arange(start, stop)):
                    feature = parse(record).features.feature[key]
                    name = next(iter([*feature.bytes_list.value, *feature.int64_list.value]), "")
                    names.append(name.decode(errors="replace") if isinstance(name, bytes) else str(name))
        return names

    def source(  # noqa: D102
        self,
        valid: Sequence[RecordRun],
        fill: Sequence[RecordRun],
        *,
        seed: int | None,
        read: ReadOptions,
        num_workers: int,
    ) -> ExampleSource:
        return RecordFiles(
            dataset=self.dataset,
            num_in_split=self.num_examples,
            runs=valid,
            fill=fill,
            shuffle_buffer=1 if seed is None else read.shuffle_buffer_of_worker(num_workers, self.mean_example_bytes),
            seed=seed or 0,
            cycle_length=read.cycle_length,
            read_buffer_bytes=read.read_buffer_bytes,
            num_threads=read.threads_of_worker(num_workers),
        )

    def indexed_source(self, order: RecordOrder, *, read: ReadOptions, clock: Clock | None) -> ExampleSource:  # noqa: D102
        return IndexedRecords(
            dataset=self.dataset,
            runs=self.runs,
            file_format=self.file_format,
            order=order,
            mean_example_bytes=self.mean_example_bytes,
            verify_checksums=read.verify_checksums,
            clock=clock,
        )
