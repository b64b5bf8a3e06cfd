"""Encoded examples by index, whatever the files' format."""

from collections.abc import Sequence
from typing import Protocol

from tfds_torch.errors import ConfigError
from tfds_torch.plan.order import Int64Array
from tfds_torch.records.array_record import ArrayRecordFilesReader
from tfds_torch.records.record_index import RecordIndex
from tfds_torch.records.record_run import RecordRun
from tfds_torch.records.tfrecord_reader import TfrecordReader

FORMATS_WITH_RANDOM_ACCESS = ("tfrecord", "array_record")


class RecordReader(Protocol):
    """Reads encoded examples of one split by their index.

    Attributes:
        num_read: records whose bytes were read so far.
    """

    num_read: int

    def read(self, index: Int64Array) -> list[bytes]:
        """Returns encoded examples in the order asked.

        Args:
            index: int64 [n], of examples; the same may be asked for twice.

        Raises:
            ExampleNotFoundError: an index outside the split.
            ShardError: a file is missing, changed, or cannot be read.
            CorruptRecordError: a record is not what was written.
            ConfigError: the reader is closed.
        """
        ...

    def advise(self, index: Int64Array) -> None:
        """Asks the system to read examples ahead, where it can; returns at once.

        Args:
            index: int64 [n], of examples.
        """
        ...

    def close(self) -> None:
        """Closes the files; may be called twice."""
        ...

    def __enter__(self) -> "RecordReader":
        """Returns the reader."""
        ...

    def __exit__(self, *details: object) -> None:
        """Closes the files."""
        ...


def open_reader(
    runs: Sequence[RecordRun], dataset: str, file_format: str, *, verify_checksums: bool = True
) -> RecordReader:
    """Opens the files of a split for reading by index; TFRecord files are indexed first unless they are already.

    Args:
        runs: of one split expression, in its order; local files.
        dataset: "name/config:version", for messages and the key of the index.
        file_format: one of FORMATS_WITH_RANDOM_ACCESS.
        verify_checksums: whether the data of TFRecord files is held against its CRC32C.

    Raises:
        ConfigError: another format, files of another machine, or a package that is not installed.
        ShardError: a file is missing, cannot be read, or does not hold what `dataset_info.json` promises.
        CorruptRecordError: a TFRecord file ends inside a record, or a length does not have its checksum.
    """
    if file_format == "tfrecord":
        return TfrecordReader(RecordIndex.open(runs, dataset), verify_checksums=verify_checksums)
    if file_format == "array_record":
        return ArrayRecordFilesReader(runs, dataset)
    raise ConfigError(
        f"{dataset}: files of format {file_format!r} cannot be read by index; files of formats "
        f"{' and '.join(FORMATS_WITH_RANDOM_ACCESS)} can."
    )
