"""From an example's index to its file and its number in the file: the arithmetic over runs of records."""

from collections.abc import Sequence

import numpy as np

from tfds_torch.errors import ConfigError, ExampleNotFoundError
from tfds_torch.plan.order import Int64Array
from tfds_torch.records.record_run import RecordRun, is_local


class RunTable:
    """Consecutive runs of records, flattened: example i is the i-th record of the runs.

    Args:
        runs: of one split expression, in its order.
        dataset: "name/config:version", for messages.

    Attributes:
        files: distinct shards, in order of first use.
        num_in_file: records that each file holds by `dataset_info.json`.

    Raises:
        ConfigError: a run of another machine's file, or runs that contradict each other.
    """

    def __init__(self, runs: Sequence[RecordRun], dataset: str) -> None:
        self.dataset = dataset
        counts: dict[str, int] = {}
        first = 0
        for run in runs:
            if not is_local(run.path):
                raise ConfigError(
                    f"{dataset}: {run.path} is not a file of this machine, and examples can be read by their index "
                    f"from local files only. Copy the dataset to a local folder."
                )
            promised = counts.setdefault(run.path, run.num_in_shard)
            whole = min(run.skip, run.take) >= 0 and run.skip + run.take <= run.num_in_shard
            if not whole or promised != run.num_in_shard or run.first_index != first:
                raise ConfigError(f"{dataset}: {run} does not continue the runs before it, or leaves its file.")
            first += run.take
        self.files, self.num_in_file = tuple(counts), tuple(counts.values())
        self.num_examples = first
        number = {path: place for place, path in enumerate(self.files)}
        self._file = np.array([number[run.path] for run in runs], np.int64)
        self._first = np.array([run.first_index for run in runs], np.int64)
        self._skip = np.array([run.skip for run in runs], np.int64)

    def __len__(self) -> int:
        """Number of examples."""
        return self.num_examples

    def find(self, index: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Returns int64 [n] positions in `files` and int64 [n] record numbers in these files.

        Args:
            index: int64 [n], of examples, in any order.

        Raises:
            ExampleNotFoundError: an index outside 0..len-1.
        """
        index = np.asarray(index, np.int64)
        outside = (index < 0) | (index >= self.num_examples)
        if outside.any():
            raise ExampleNotFoundError(
                f"{self.dataset} has no example {index[outside][0]} here: the split has {self.num_examples} examples, "
                f"counted from 0."
            )
        if not len(index):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        # The last run that begins at or before the example; runs without records are passed over.
        run = np.searchsorted(self._first, index, side="right") - 1
        return self._file[run], self._skip[run] + index - self._first[run]
