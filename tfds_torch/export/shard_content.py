"""ShardContent: what goes into shards: samples as members of tar files, or records of a dataset as they are stored."""

import errno
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tfds_torch.errors import ConfigError
from tfds_torch.export.member_names import number_key, quote_id
from tfds_torch.export.sample_order import SampleOrder
from tfds_torch.export.sample_source import SampleSource
from tfds_torch.export.shard_file import ShardFile, WriteRefusedError, WrittenFile, read_file, told_refusals
from tfds_torch.export.tar_members import Member
from tfds_torch.plan.order import Int64Array
from tfds_torch.runtime.metrics import StageMetrics
from tfds_torch.storage.array_record.writer import ArrayRecordFileWriter
from tfds_torch.storage.record_source import RecordSource
from tfds_torch.storage.tfrecord.writer import TfrecordWriter, framed_bytes
from tfds_torch.storage.webdataset.writer import BLOCK_BYTES, RECORD_BYTES, TarWriter, member_bytes

TAR_END_BYTES, TAR_BLOCK_BYTES = 2 * BLOCK_BYTES, RECORD_BYTES
"""Of a tar file's end, and what the file is filled up to a multiple of."""
_PIECE_BYTES = 3 * 2**19  # Of records: what is read at a time.


class ShardContent(Protocol):
    """What goes into shards, by place of the export's order."""

    def write(self, places: range, file: ShardFile, metrics: StageMetrics) -> tuple[WrittenFile, int]:
        """Writes a shard, and returns what its file holds, and the bytes of its examples alone.

        Raises:
            WriteRefusedError: the file cannot be written.
            TfdsTorchError: an example cannot be read or stored.
        """

    def sizes(self, places: range, metrics: StageMetrics) -> Int64Array:
        """Returns the bytes that examples take in a shard, int64 [n]; they are read for it."""


@dataclass(frozen=True)
class TarContent:
    """Samples as members of tar files.

    Attributes:
        source: of the samples.
        order: of those that are exported.
        members: of each sample.
        key: what members are called by: "number", the place in the export, or "id".
    """

    source: SampleSource
    order: SampleOrder
    members: tuple[Member, ...]
    key: str

    def write(self, places: range, file: ShardFile, metrics: StageMetrics) -> tuple[WrittenFile, int]:
        """Writes a shard; see `ShardContent`."""
        tar, content_bytes = TarWriter(file.write), 0
        keys = set[str]()
        for key, sample in self._samples(places, metrics):
            if self.key == "id":  # Numbers differ. In different tars, readers tell equal keys apart.
                if key in keys:
                    raise ConfigError("key='id' (--key id): another sample has the same id. Use key='number'.")
                keys.add(key)
            for member in self.members:
                extension, content = member.encode(sample)
                tar.add(f"{key}.{extension}", content)
                content_bytes += len(content)
            metrics.add_batch(1)
        tar.close()
        return file.end(), content_bytes

    def sizes(self, places: range, metrics: StageMetrics) -> Int64Array:
        """Returns the bytes of each sample's members; see `ShardContent`."""
        found = []
        for _, sample in self._samples(places, metrics):
            found.append(sum(member_bytes(len(member.encode(sample)[1])) for member in self.members))
            metrics.add_batch(1)
        return np.array(found, np.int64)

    def digest(self, places: Iterable[int], metrics: StageMetrics) -> str:
        """Returns what tells samples from others: a digest of all their members."""
        digest = hashlib.blake2b(digest_size=16)
        for place in places:
            for key, sample in self._samples(range(place, place + 1), metrics):
                for member in self.members:
                    extension, content = member.encode(sample)
                    digest.update(f"{key}.{extension} {len(content)} ".encode() + content)
        return digest.hexdigest()

    def _samples(self, places: range, metrics: StageMetrics) -> Iterator[tuple[str, Any]]:
        fields = [str(member.key) for member in self.members]
        task = (places.start, places.stop)
        for place, sample in self.source.samples(task, self.order, fields, metrics):
            if self.key == "number":
                yield number_key(place), sample.value
            elif sample.id is None:
                raise ConfigError("key='id' (--key id): the sample has no id. Use key='number'.")
            else:
                yield quote_id(sample.id), sample.value


@dataclass(frozen=True)
class RecordContent:
    """Records of a dataset, copied as they are stored.

    Attributes:
        source: of the records.
        order: of those that are exported.
        file_format: of the shards, tfrecord or array_record.
    """

    source: RecordSource
    order: SampleOrder
    file_format: str

    def write(self, places: range, file: ShardFile, metrics: StageMetrics) -> tuple[WrittenFile, int]:
        """Writes a shard; see `ShardContent`."""
        if self.file_format == "tfrecord":
            content_bytes = _copy(self._records(places, metrics), TfrecordWriter(file.write))
            return file.end(), content_bytes
        with told_refusals():
            writer = ArrayRecordFileWriter(str(file.beside))
        try:
            content_bytes = _copy(self._records(places, metrics), writer)
            with told_refusals():
                writer.close()
        finally:
            writer.discard()
        written = read_file(file.beside, metrics)
        if written is None:
            raise WriteRefusedError(errno.EIO, f"{file.beside} cannot be read again")
        return written, content_bytes

    def sizes(self, places: range, metrics: StageMetrics) -> Int64Array:
        """Returns the bytes that each record takes; see `ShardContent`."""
        return np.array([framed_bytes(len(record)) for record in self._records(places, metrics)], np.int64)

    def _records(self, places: range, metrics: StageMetrics) -> Iterator[bytes]:
        piece = max(1, _PIECE_BYTES // max(1, self.source.mean_example_bytes))
        for start in range(places.start, places.stop, piece):
            numbers = self.order.at(range(start, min(start + piece, places.stop)))
            metrics.note_reading(int(numbers[0]))
            yield from self.source.records(numbers)
            metrics.add_batch(len(numbers))


class _RecordWriter(Protocol):
    def add(self, record: bytes) -> None: ...


def _copy(records: Iterator[bytes], writer: _RecordWriter) -> int:
    content_bytes = 0
    for record in records:
        with told_refusals():
            writer.add(record)
        content_bytes += len(record)
    return content_bytes
