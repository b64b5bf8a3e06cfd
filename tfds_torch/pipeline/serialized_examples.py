"""What sources of serialized `tf.train.Example`s have in common, however the records are read."""

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from tfds_torch.errors import CorruptRecordError, TfdsTorchError
from tfds_torch.records.record_run import RecordRun


class SerializedExamples(ABC):
    """The part of an `ExampleSource` that knows what a record holds."""

    dataset: str

    @property
    @abstractmethod
    def all_runs(self) -> Sequence[RecordRun]:
        """The runs of records that may be read."""

    def parse(self, tf: Any, encoded: Any, specs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Adds to the graph what takes features, by key, out of serialized examples, string [n]."""
        return tf.io.parse_example(encoded, specs) if specs else {}

    def describe_undecodable(self, index: int | None, reason: str) -> TfdsTorchError:
        """Returns the error for an example that cannot be decoded; see `ExampleSource`."""
        what = "An example" if index is None else self._name_record(index)
        return CorruptRecordError(
            f"{what} of {self.dataset} cannot be decoded, though its checksum is right: it was written that way. "
            f"{reason}"
        )

    def _name_record(self, index: int) -> str:
        run = next(run for run in self.all_runs if 0 <= index - run.first_index < run.take)
        record = run.skip + index - run.first_index
        return f"{run.path}: record {record} (index {index}, id {os.path.basename(run.path)}__{record})"
