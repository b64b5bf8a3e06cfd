"""The suite `state`: the cost of a state, and the time and the reads from there to the first batch.

`index` reads the batch and fetches the next ones ahead; a stream first fills its shuffle buffer, which holds
all photographs of the usual size of this suite, so that its position does not show.
"""

import itertools
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import psutil
from numpy.typing import NDArray

from benchmarks.tables import Column, Ratio, Table, collect
from benchmarks.task import Run, Task
from tfds_torch.runtime import subprocess_call

MODES = ("index", "files", "examples")
POSITIONS = ("beginning", "middle", "end")
"""Of an epoch: its first batch, the one in its middle, its last one."""

_NUM_STATES = 200

Sample = tuple[str, Mapping[str, float | None]]

STATE = Table(
    "state",
    "a state",
    f"`ImageDataset.state_dict` and `load_state_dict` in the middle of an epoch, {_NUM_STATES} times, in a process "
    "without tensorflow. The size is that of its JSON.",
    "read mode",
    [
        Column("json_bytes", "JSON, bytes", has_spread=False),
        Column("save_ms", "state_dict, ms", "{:.2f}"),
        Column("load_ms", "load_state_dict, ms", "{:.2f}"),
    ],
)
RESUMING = Table(
    "resuming",
    "from a state to the first batch",
    "{num_photos:,} photographs in the page cache; `load_state_dict`, then a whole batch of decoded images, in a "
    "process that has tensorflow; modes and positions take turns. Beginning, middle and end: the first, the middle and "
    "the last batch of an epoch. What is read is counted until the iteration has been closed after that batch, so that "
    "what was fetched ahead is in it.",
    "read mode, position",
    [
        Column("first_batch_s", "state to first batch, s", "{:.2f}"),
        Column(
            "growth",
            "x index, beginning",
            "{:.2f}",
            has_spread=False,
            ratio=Ratio("first_batch_s", by="index_beginning"),
        ),
        Column("batches_read", "batches read by index", "{:.1f}", has_spread=False),
        Column("read_mb", "MB read", "{:,.1f}", has_spread=False),
    ],
)


def measure_state(run: Run) -> Iterator[Table]:
    """Yields the tables of the suite."""
    settings = run.settings
    task = Task(str(run.data_dir), None, settings.num_photos, settings.batch_size, num_workers=0)
    run.show_progress("saving and loading states")
    yield STATE.fill(collect(subprocess_call.iterate(measure_states, task, MODES, _NUM_STATES)))
    samples: list[Sample] = []
    num_all = settings.num_repeats * len(MODES) * len(POSITIONS)
    run.show_progress("resuming, a round that is not counted")
    for sample in subprocess_call.iterate(resume_again_and_again, task, MODES, settings.num_repeats):
        samples.append(sample)
        run.show_progress(f"resuming, {len(samples)} of {num_all}")
    names = [(mode, position) for mode in MODES for position in POSITIONS]
    found = collect(samples)
    yield RESUMING.fill(
        {f"{mode}_{position}": found[f"{mode}_{position}"] for mode, position in names},
        {f"{mode}_{position}": f"{mode}, {position}" for mode, position in names},
        num_photos=settings.num_photos,
    )


def measure_states(task: Task, modes: Sequence[str], num_repeats: int) -> Iterator[Sample]:
    """Saves and loads states in the middle of an epoch; yields the columns of every mode."""
    for mode in modes:
        dataset = _dataset(task, mode)
        middle = dataset.plan().num_batches // 2
        for number in range(num_repeats):
            start = time.perf_counter()
            state = dataset.state_dict(batches_delivered=middle)
            saved = time.perf_counter()
            other = _dataset_of(dataset)
            load = time.perf_counter()
            other.load_state_dict(state)
            loaded = time.perf_counter()
            size = {} if number else {"json_bytes": len(json.dumps(state))}
            yield mode, {"save_ms": (saved - start) * 1e3, "load_ms": (loaded - load) * 1e3, **size}


def resume_again_and_again(task: Task, modes: Sequence[str], num_repeats: int) -> Iterator[Sample]:
    """Resumes in every mode at every position, in turns; the first round, which loads tensorflow, is not yielded."""
    datasets = {mode: _dataset(task, mode) for mode in modes}
    for number in range(1 + num_repeats):
        for position, mode in itertools.product(POSITIONS, modes):
            figures = _resume(datasets[mode], mode, position, task.batch_size)
            if number:
                yield f"{mode}_{position}", figures


def _resume(dataset: Any, mode: str, position: str, batch_size: int) -> dict[str, float | None]:
    num_batches = dataset.plan().num_batches
    number = {"beginning": 0, "middle": num_batches // 2, "end": num_batches - 1}[position]
    state = _dataset_of(dataset).state_dict(batches_delivered=number)
    dataset = _dataset_of(dataset)
    with _counted_reads() as counts:
        read_before = _bytes_read()
        start = time.perf_counter()
        dataset.load_state_dict(state)
        examples = iter(dataset)
        for _ in itertools.islice(examples, batch_size):
            pass
        took_s = time.perf_counter() - start
        examples.close()
        read_after = _bytes_read()
    return {
        "first_batch_s": took_s,
        "batches_read": sum(counts) / batch_size if mode == "index" else None,
        "read_mb": None if read_before is None or read_after is None else (read_after - read_before) / 1e6,
    }


def _bytes_read() -> int | None:
    """Returns the bytes that this process has read so far, from disks or not; None where they are not reported."""
    return psutil.Process().io_counters().read_chars if psutil.LINUX else None


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
    from tfds_torch.storage.tfrecord.source import TfrecordReader

    read, counts = TfrecordReader.read, list[int]()

    def read_and_count(reader: TfrecordReader, index: NDArray[np.int64]) -> list[bytes]:
        counts.append(len(index))
        return read(reader, index)

    with mock.patch.object(TfrecordReader, "read", read_and_count):
        yield counts
