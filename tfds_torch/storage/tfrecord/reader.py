"""Records of TFRecord files by the examples' index: one read for each stretch of neighbours, everything verified."""

import os

import numpy as np

from tfds_torch.errors import CorruptRecordError, ShardError
from tfds_torch.plan.order import Int64Array
from tfds_torch.records.open_files import OpenFiles
from tfds_torch.records.record_index import Located, RecordIndex
from tfds_torch.records.tfrecord import FOOTER_SIZE, FRAME_SIZE, HEADER_SIZE, checksum, record_header

_READ_AS_WHOLE_BYTES = 256 << 20
_STRETCH_BYTES = 4 << 20  # Neighbours are read together up to here: a batch of them is not held twice.


class TfrecordReader:
    """Reads examples by index with `pread`, sorted by file and offset, each record once per call.

    Processes and threads: may be used by several threads (single reads take turns) and after a fork.

    Args:
        index: of the split.
        verify_checksums: whether the data is held against its CRC32C; the length always is.

    Attributes:
        num_read: records whose bytes were read so far.
    """

    def __init__(self, index: RecordIndex, *, verify_checksums: bool = True) -> None:
        self.index = index
        self.num_read = 0
        self._verify = verify_checksums
        self._files = OpenFiles(index.files, index.stamps)
        self._reads_whole_files = sum(size for size, _ in index.stamps) <= _READ_AS_WHOLE_BYTES
        self._is_advised = False

    def read(self, index: Int64Array) -> list[bytes]:
        """Returns encoded examples in the order asked.

        Args:
            index: int64 [n], of examples; the same may be asked for twice.

        Raises:
            ExampleNotFoundError: an index outside the split.
            ShardError: a file is missing, cannot be opened or read, or has changed since it was indexed.
            CorruptRecordError: a record is not what was written.
            ConfigError: the reader is closed.
        """
        index = np.asarray(index, np.int64)
        located = self.index.locate(index)
        places, first, back = np.unique(located.place, return_index=True, return_inverse=True)
        found: list[bytes] = []
        stretches = _Stretches(places, located, first)
        for start, stop in stretches.bounds:
            file, begin = stretches.file[start], stretches.offset[start]
            try:
                content = self._files.read(file, begin, stretches.end[stop - 1] - begin)
                self.num_read += stop - start
                for number in range(start, stop):
                    offset = stretches.offset[number] - begin
                    found.append(self._checked(content, offset, stretches.end[number] - begin))
            except _BadRecordError as error:
                raise self._corrupt(int(index[first[len(found)]]), str(error)) from None
            except ShardError as error:
                raise type(error)(f"{self._name(int(index[first[len(found)]]))}: {error}") from error
        return [found[place] for place in back.tolist()]

    def advise(self, index: Int64Array) -> None:
        """Asks the system to read these examples ahead, one request for each stretch of neighbours; returns at once.

        Small files are asked for as wholes, once: a request costs more than it gains where the records are small too.

        Args:
            index: int64 [n], of examples.

        Raises:
            ExampleNotFoundError: an index outside the split.
            ShardError: a file is missing, cannot be opened, or has changed since it was indexed.
            ConfigError: the reader is closed.
        """
        if not hasattr(os, "posix_fadvise"):
            return
        if self._reads_whole_files:
            self._advise_whole()
            return
        located = self.index.locate(index)
        places, first = np.unique(located.place, return_index=True)
        stretches = _Stretches(places, located, first)
        for start, stop in stretches.bounds:
            begin = stretches.offset[start]
            self._files.advise(stretches.file[start], begin, stretches.end[stop - 1] - begin)

    def _advise_whole(self) -> None:
        if self._is_advised:
            return
        self._is_advised = True
        for file, (size, _) in enumerate(self.index.stamps):
            self._files.advise(file, 0, size)

    def close(self) -> None:
        """Closes the files; may be called twice."""
        self._files.close()

    def __enter__(self) -> "TfrecordReader":
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def _checked(self, content: bytes, start: int, end: int) -> bytes:
        """Returns the data of the record that fills content[start:end]."""
        if end > len(content):
            raise _BadRecordError("the file ends inside it: it was cut")
        length = end - start - FRAME_SIZE
        if content[start : start + HEADER_SIZE] != record_header(length):
            raise _BadRecordError("its header is not the one that was indexed: the file is corrupt")
        data = content[start + HEADER_SIZE : end - FOOTER_SIZE]
        if self._verify and content[end - FOOTER_SIZE : end] != checksum(data):
            raise _BadRecordError(f"its {length} bytes do not have their checksum: the file is corrupt")
        return data

    def _name(self, example: int) -> str:
        return f"example {example} of {self.index.dataset}"

    def _corrupt(self, example: int, problem: str) -> CorruptRecordError:
        located = self.index.locate(np.array([example], np.int64))
        file = int(located.file[0])
        changed = self._files.changed(file)
        since = f" The file changed since it was indexed: {changed}." if changed else ""
        return CorruptRecordError(
            f"{self._name(example)}: {self.index.files[file]}: record {located.record[0]} at offset "
            f"{located.offset[0]}: {problem}.{since} Prepare the dataset again."
        )


class _BadRecordError(Exception):
    """A record that is not what was indexed; says why."""


class _Stretches:
    """Distinct records in the order of the disk, in stretches of direct neighbours.

    Attributes:
        file: of each record, position in the index's files.
        offset: of each record's header, in bytes.
        end: of each record, in bytes.
        bounds: first record of each stretch, and the one after its last.
    """

    def __init__(self, places: Int64Array, located: Located, first: Int64Array) -> None:
        offset = located.offset[first]
        end = offset + located.length[first] + FRAME_SIZE
        apart = (np.diff(places) != 1) | (np.diff(offset // _STRETCH_BYTES) != 0)
        starts = [0, *(np.flatnonzero(apart) + 1).tolist()]
        self.file: list[int] = located.file[first].tolist()
        self.offset: list[int] = offset.tolist()
        self.end: list[int] = end.tolist()
        self.bounds = list(zip(starts, [*starts[1:], len(places)], strict=True)) if len(places) else []
