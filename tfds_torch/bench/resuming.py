"""How long it takes from a state to the first batch, and what is read for it; where tensorflow is loaded."""

import itertools
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from tfds_torch.bench.system import read_bytes
from tfds_torch.bench.task import Task

POSITIONS = ("beginning", "middle", "end")
"""Of an epoch: its first batch, the one in its middle, its last one."""


@dataclass(frozen=True)
class Resumption:
    """One mode, resumed once.

    Attributes:
        mode: read mode.
        position: one of POSITIONS.
        first_batch_s: from before the state is loaded until a whole batch is there.
        num_read: records that were read by index, those that were fetched ahead included; None in stream modes.
        read_bytes: what the process read meanwhile, from disks or not; None where the system does not tell.
    """

    mode: str
    position: str
    first_batch_s: float
    num_read: int | None
    read_bytes: int | None


@dataclass(frozen=True)
class StateCost:
    """The state itself.

    Attributes:
        mode: read mode.
        json_bytes: of its JSON.
        save_s: seconds of every `state_dict` that was measured.
        load_s: seconds of every `load_state_dict`.
    """

    mode: str
    json_bytes: int
    save_s: Sequence[float]
    load_s: Sequence[float]


def measure_states(task: Task, modes: Sequence[str], num_repeats: int) -> list[StateCost]:
    """Saves and loads states in the middle of an epoch."""
    costs = []
    for mode in modes:
        dataset = _dataset(task, mode)
        middle = dataset.plan().num_batches // 2
        save_s, load_s = [], []
        for _ in range(num_repeats):
            start = time.perf_counter()
            state = dataset.state_dict(batches_delivered=middle)
            save_s.append(time.perf_counter() - start)
            start = time.perf_counter()
            _dataset_of(dataset).load_state_dict(state)
            load_s.append(time.perf_counter() - start)
        costs.append(StateCost(mode, len(json.dumps(state)), save_s, load_s))
    return costs


def resume_again_and_again(task: Task, modes: Sequence[str], num_repeats: int) -> Iterator[Resumption]:
    """Resumes in every mode at every position, in turns; the first round, which loads tensorflow, is not yielded."""
    datasets = {mode: _dataset(task, mode) for mode in modes}
    for number in range(1 + num_repeats):
        for position, mode in itertools.product(POSITIONS, modes):
            resumption = _resume(datasets[mode], mode, position, task.batch_size)
            if number:
                yield resumption


def _resume(dataset: Any, mode: str, position: str, batch_size: int) -> Resumption:
    num_batches = dataset.plan().num_batches
    number = {"beginning": 0, "middle": num_batches // 2, "end": num_batches - 1}[position]
    dataset = _dataset_of(dataset)
    state = dataset.state_dict(batches_delivered=number)
    dataset = _dataset_of(dataset)
    with _counted_reads() as counts:
        read_before = read_bytes()
        start = time.perf_counter()
        dataset.load_state_dict(state)
        examples = iter(dataset)
        for _ in itertools.islice(examples, batch_size):
            pass
        took_s = time.perf_counter() - start
        examples.close()
        read_after = read_bytes()
    num_read = sum(counts) if mode == "index" else None
    num_bytes = None if read_before is None or read_after is None else read_after - read_before
    return Resumption(mode, position, took_s, num_read, num_bytes)


def _dataset(task: Task, mode: str) -> Any:
    from tfds_torch import ImageDataset, ParserTfds, ReadOptions

    parser = ParserTfds(
        task.data_dir, task.dataset, is_training=True, batch_size=task.batch_size, read=ReadOptions(mode=mode)
    )
    return ImageDataset(parser)


def _dataset_of(dataset: Any) -> Any:
    """Returns a dataset of the same parser that has no past."""
    return type(dataset)(dataset.parser)


@contextmanager
def _counted_reads() -> Iterator[list[int]]:
    """Notes how many examples every read by index asks for meanwhile."""
    from tfds_torch.storage.tfrecord.reader import TfrecordReader

    read, counts = TfrecordReader.read, list[int]()

    def read_and_count(reader: TfrecordReader, index: NDArray[np.int64]) -> list[bytes]:
        counts.append(len(index))
        return read(reader, index)

    with mock.patch.object(TfrecordReader, "read", read_and_count):
        yield counts
