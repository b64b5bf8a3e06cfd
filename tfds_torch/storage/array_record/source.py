"""ArrayRecordSource: a split that TFDS stored as ArrayRecord files."""

from collections.abc import Collection, Mapping

from tfds_torch.storage.array_record.reader import ArrayRecordFilesReader, count_records
from tfds_torch.storage.record_source import RecordReader, RecordSource


class ArrayRecordSource(RecordSource):
    """Examples of ArrayRecord files. Their package verifies the hashes of what it reads in any case."""

    @property
    def _trusts_checksums(self) -> bool:
        return True

    def _open(self) -> RecordReader:
        reader = ArrayRecordFilesReader(self.instructions, self.name)
        reader.check()
        return reader

    def _count_records(self, path: str) -> int:
        return count_records(path, self.name)

    def _check_streamed(self, num_in_file: Mapping[str, int], streamed: Collection[str]) -> None:
        """Does nothing: these files are not streamed."""
