"""From an example's index to its file and its number in the file: the arithmetic over file instructions."""

from collections.abc import Sequence

import numpy as np

from tfds_torch.errors import ConfigError, ExampleNotFoundError
from tfds_torch.plan.order import Int64Array
from tfds_torch.storage.file_instruction import FileInstruction, is_local


class InstructionTable:
    """File instructions, flattened: example i is the i-th record of them all.

    Args:
        instructions: of one split expression, in its order.
        dataset: "name/config:version", for messages.

    Attributes:
        files: distinct files, in order of first use.
        num_in_file: records that each file holds by `dataset_info.json`.

    Raises:
        ConfigError: instructions that contradict each other.
    """

    def __init__(self, instructions: Sequence[FileInstruction], dataset: str) -> None:
        self.dataset = dataset
        counts: dict[str, int] = {}
        first = 0
        for item in instructions:
            promised = counts.setdefault(item.path, item.num_in_shard)
            whole = min(item.skip, item.take) >= 0 and item.skip + item.take <= item.num_in_shard
            if not whole or promised != item.num_in_shard or item.first_index != first:
                raise ConfigError(
                    f"{dataset}: {item} does not continue the instructions before it, or leaves its file."
                )
            first += item.take
        self.files, self.num_in_file = tuple(counts), tuple(counts.values())
        self.num_examples = first
        number = {path: place for place, path in enumerate(self.files)}
        self._file = np.array([number[item.path] for item in instructions], np.int64)
        self._first = np.array([item.first_index for item in instructions], np.int64)
        self._skip = np.array([item.skip for item in instructions], np.int64)

    def __len__(self) -> int:
        """Number of examples."""
        return self.num_examples

    def check_local(self) -> None:
        """Raises ConfigError unless every file is one of this machine."""
        remote = next((path for path in self.files if not is_local(path)), None)
        if remote is not None:
            raise ConfigError(
                f"{self.dataset}: {remote} is not a file of this machine, and examples can be read by their index "
                f"from local files only. Copy the dataset to a local folder."
            )

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
        # The last instruction that begins at or before the example; those without records are passed over.
        place = np.searchsorted(self._first, index, side="right") - 1
        return self._file[place], self._skip[place] + index - self._first[place]
