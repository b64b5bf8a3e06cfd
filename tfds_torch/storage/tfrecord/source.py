"""TfrecordSource: a split that TFDS stored as TFRecord files."""

from collections.abc import Collection, Mapping

from tfds_torch.storage.record_source import RecordReader, RecordSource
from tfds_torch.storage.source import is_local
from tfds_torch.storage.tfrecord.framing import count_records
from tfds_torch.storage.tfrecord.reader import RecordIndex, TfrecordReader
from tfds_torch.storage.tfrecord.shard_counts import check_shards


class TfrecordSource(RecordSource):
    """Examples of TFRecord files. Opening them builds their index, once for all processes of the machine."""

    streams = "records"

    def _open(self) -> RecordReader:
        return TfrecordReader(RecordIndex.open(self.table), verify_checksums=self.verify_checksums)

    def _count_records(self, path: str) -> int:
        return count_records(path)

    def _check_streamed(self, num_in_file: Mapping[str, int], streamed: Collection[str]) -> None:
        """Counts records without building an index, which is of use only where examples are read by number."""
        check_shards({path: n for path, n in num_in_file.items() if is_local(path) and path in streamed}, self.name)
