"""ShardContent: what goes into shards: samples as members of tar files, or records of a dataset as they are stored."""

import errno
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import numpy as np

from tfds_torch.errors import ConfigError
from tfds_torch.export.sample_order import SampleOrder
from tfds_torch.export.samples import ParserSamples, SampleSource
from tfds_torch.export.shard_file import ShardFile, WriteRefusedError, read_file, refusals_named
from tfds_torch.export.tar import Member
from tfds_torch.plan.order import Int64Array
from tfds_torch.runtime.metrics import StageMetrics
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.array_record.writer import ArrayRecordFileWriter
from tfds_torch.storage.record_source import RecordSource
from tfds_torch.storage.tfrecord.framing import TfrecordWriter, framed_bytes
from tfds_torch.storage.webdataset.writer import BLOCK_BYTES, LONGEST_NAME, RECORD_BYTES, TarWriter, member_bytes

TAR_END_BYTES, TAR_BLOCK_BYTES = 2 * BLOCK_BYTES, RECORD_BYTES
"""Of a tar file's end, and what the file is filled up to a multiple of."""
_PIECE_BYTES = 3 * 2**19  # Of records that are read at a time.
_KEYS = ("number", "id")
_LONGEST_EXTENSIONS = {"image": "webp", "beside": "webp", "value": "json", "floats": "npy"}
"""Of kinds whose extension depends on the value."""

WrittenShard = tuple[int, int, int]
"""A shard's size in bytes, its crc32c, and the bytes of its examples alone."""


@dataclass(frozen=True)
class TarContent:
    """Samples as members of tar files; key: their names, "number", the place in the export, or "id"."""

    source: SampleSource
    order: SampleOrder
    members: tuple[Member, ...]
    key: str

    def write(self, places: range, file: ShardFile, metrics: StageMetrics) -> WrittenShard:
        """Writes the samples of these places; a WriteRefusedError: the file cannot be written."""
        tar, content_bytes = TarWriter(file.write), 0
        keys = set[str]()
        for key, sample in self._samples(places, metrics):
            if self.key == "id":  # Numbers differ. In different tars, readers tell equal keys apart.
                if key in keys:
                    raise ConfigError("key='id' (--key id): another sample has the same id. Use key='number'.")
                keys.add(key)
            for extension, content in self._encode(sample):
                tar.add(f"{key}.{extension}", content)
                content_bytes += len(content)
            metrics.add_batch(1)
        tar.close()
        return *file.end(), content_bytes

    def sizes(self, places: range, metrics: StageMetrics) -> Int64Array:
        """Reads n samples, and returns the bytes that each takes in a shard, int64 [n]."""
        found = []
        for _, sample in self._samples(places, metrics):
            found.append(sum(member_bytes(len(content)) for _, content in self._encode(sample)))
            metrics.add_batch(1)
        return np.array(found, np.int64)

    def digest(self, places: Iterable[int], metrics: StageMetrics) -> str:
        """Returns a digest of all members of a few samples."""
        digest = hashlib.blake2b(digest_size=16)
        for place in places:
            for key, sample in self._samples(range(place, place + 1), metrics):
                for extension, content in self._encode(sample):
                    digest.update(f"{key}.{extension} {len(content)} ".encode() + content)
        return digest.hexdigest()

    def _encode(self, sample: Any) -> list[tuple[str, bytes]]:
        """Returns the members of a sample; a ConfigError: it would have none, and be none."""
        found = [encoded for member in self.members if (encoded := member.encode(sample)) is not None]
        if not found:
            raise ConfigError(
                "The sample has none of the exported fields, and a sample without a member does not exist. Leave it "
                "out (missing='skip', parser.subset), or export a field that all samples have."
            )
        return found

    def _samples(self, places: range, metrics: StageMetrics) -> Iterator[tuple[str, Any]]:
        fields = [str(member.key) for member in self.members]
        task = (places.start, places.stop)
        for place, sample in self.source.samples(task, self.order, fields, metrics):
            if self.key == "number":
                yield _number_key(place), sample.value
            elif sample.id is None:
                raise ConfigError("key='id' (--key id): the sample has no id. Use key='number'.")
            else:
                yield _quote_id(sample.id), sample.value


@dataclass(frozen=True)
class RecordContent:
    """Records of a dataset, copied as they are stored; file_format is tfrecord or array_record."""

    source: RecordSource
    order: SampleOrder
    file_format: str

    def write(self, places: range, file: ShardFile, metrics: StageMetrics) -> WrittenShard:  # noqa: D102
        if self.file_format == "tfrecord":
            content_bytes = _copy(self._records(places, metrics), TfrecordWriter(file.write))
            return *file.end(), content_bytes
        with refusals_named():
            writer = ArrayRecordFileWriter(str(file.beside))
        try:
            content_bytes = _copy(self._records(places, metrics), writer)
            with refusals_named():
                writer.close()
        finally:
            writer.discard()
        written = read_file(file.beside, metrics)
        if written is None:
            raise WriteRefusedError(errno.EIO, f"{file.beside} cannot be read again")
        return *written, content_bytes

    def sizes(self, places: range, metrics: StageMetrics) -> Int64Array:  # noqa: D102
        return np.array([framed_bytes(len(record)) for record in self._records(places, metrics)], np.int64)

    def _records(self, places: range, metrics: StageMetrics) -> Iterator[bytes]:
        piece = max(1, _PIECE_BYTES // max(1, self.source.mean_example_bytes))
        for start in range(places.start, places.stop, piece):
            numbers = self.order.at(range(start, min(start + piece, places.stop)))
            with metrics.at_work.reading(numbers):
                yield from self.source.records(numbers)
            metrics.add_batch(len(numbers))


ShardContent = TarContent | RecordContent
"""What goes into shards, by place of the export's order."""


def _copy(records: Iterator[bytes], writer: TfrecordWriter | ArrayRecordFileWriter) -> int:
    content_bytes = 0
    for record in records:
        with refusals_named():
            writer.add(record)
        content_bytes += len(record)
    return content_bytes


def _number_key(place: int) -> str:
    return f"{place:09d}"


def _quote_id(sample_id: str) -> str:
    # Readers tell members apart by their names before the first dot. Bytes that are not UTF-8 are escaped as well.
    return quote(sample_id, safe="", errors="surrogateescape").replace(".", "%2E")


def check_key(key: object, order: SampleOrder) -> None:
    """Raises ConfigError for what members cannot be called by."""
    if not isinstance(key, str) or key not in _KEYS:
        raise ConfigError(f"key={quoted(key)} (--key) must be 'number' or 'id'.")
    if key == "id" and order.has_repeats:
        raise ConfigError("key='id' (--key id): indices has an example twice, and keys must differ. Use key='number'.")


def longest_key(key: str, order: SampleOrder, samples: SampleSource) -> str:
    """Returns the longest key of the first, the middle and the last member; a ConfigError: samples have no ids."""
    last = len(order) - 1
    if key == "number":
        return _number_key(last)
    if not isinstance(samples, ParserSamples):
        raise ConfigError(f"key='id' (--key id): samples of {samples.name} have no id. Use key='number'.")
    few = np.array([order.number_at(place) for place in (0, last // 2, last)])
    return max(map(_quote_id, samples.ids(few)), key=len)


def check_room(members: Sequence[Member], key: str) -> None:
    """Raises a ConfigError that names all members for whose names, after this key, a tar file has no room."""
    room = max(0, LONGEST_NAME - len(f"{key}."))
    refused = [
        f"{quoted(member.key)}: its member would be {quoted(name)}, {len(name):,} characters after the key"
        for member in members
        if len(name := f"{member.name}.{_LONGEST_EXTENSIONS.get(member.kind, member.kind)}".lstrip(".")) > room
    ]
    if refused:
        raise ConfigError(
            f"Nothing was written: a tar file has room for names of {LONGEST_NAME} characters, which leaves {room} "
            f"after the key {quoted(key)}.\n  " + "\n  ".join(refused) + "\nGive such a field a shorter name with "
            "names={name: new} (--rename NAME=NEW), or leave it out with fields={name: None} (--field NAME=skip); of "
            "long keys, use key='number' (--key number)."
        )
