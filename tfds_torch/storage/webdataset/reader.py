"""Members of tars by their position in the index: one read for each range of neighbours, every header verified."""

import os
from collections.abc import Sequence

import google_crc32c
import numpy as np

from tfds_torch.errors import CorruptRecordError
from tfds_torch.plan.order import Int64Array, unique
from tfds_torch.storage.open_files import OpenFiles, Stamp
from tfds_torch.storage.webdataset.tar_index import TarIndex
from tfds_torch.storage.webdataset.tar_members import BLOCK_BYTES, TAR_REMEDY

_READ_AS_WHOLE_BYTES = 256 << 20
_RANGE_BYTES = 4 << 20  # As for TFRecord files.
_GAP_BYTES = 4096  # What lies between is read as well: the system reads pages.


class TarReader:
    """Reads members with `pread`, sorted by tar and offset, each once per call.

    A tar has no checksum of its content. Its headers have, and each is held against what was indexed: a tar that was
    exchanged for one of the same size and time is found.

    Processes and threads: may be used by several threads (single reads take turns) and after a fork.

    Args:
        index: of the tars.
        paths: of the tars.
        stamps: size in bytes and modification time in ns of each, when they were indexed.
    """

    def __init__(self, index: TarIndex, paths: Sequence[str], stamps: Sequence[Stamp]) -> None:
        self._index, self._paths, self._stamps = index, paths, stamps
        self._files = OpenFiles(paths, stamps, remedy=TAR_REMEDY)
        # Members of a tar are consecutive: which tar a member is in follows from its number.
        self._first_member = index.first[np.cumsum([0, *index.counts])[:-1]]
        self._reads_whole_files = sum(size for size, _ in stamps) <= _READ_AS_WHOLE_BYTES
        self._is_advised = False

    def read(self, members: Int64Array) -> list[bytes]:
        """Returns the contents of members, int64 [n], in the order asked.

        Raises:
            ShardError: a tar is missing, cannot be opened or read, or has changed since it was indexed.
            CorruptRecordError: a header is not the one that was indexed.
        """
        distinct, _, back = unique(members)
        ranges, found = _Ranges(distinct, self._index, self._first_member), list[bytes]()
        for start, stop in ranges.bounds:
            tar, begin = ranges.tar[start], ranges.header[start]
            content = self._files.read(tar, begin, ranges.end[stop - 1] - begin)
            for number in range(start, stop):
                header, end = ranges.header[number] - begin, ranges.end[number] - begin
                block = content[header : header + BLOCK_BYTES]
                if end > len(content) or google_crc32c.value(block) != ranges.header_crc[number]:
                    raise self._corrupt(tar, ranges.header[number])
                found.append(content[header + BLOCK_BYTES : end])
        return [found[place] for place in back.tolist()]

    def advise(self, members: Int64Array) -> None:
        """Asks the system to read members, int64 [n], ahead; small tars as wholes, once. Returns at once.

        Raises:
            ShardError: a tar is missing, cannot be opened, or has changed since it was indexed.
        """
        if not hasattr(os, "posix_fadvise"):
            return
        if self._reads_whole_files:
            if not self._is_advised:
                self._is_advised = True
                for tar, (size, _) in enumerate(self._stamps):
                    self._files.advise(tar, 0, size)
            return
        ranges = _Ranges(unique(members).values, self._index, self._first_member)
        for start, stop in ranges.bounds:
            begin = ranges.header[start]
            self._files.advise(ranges.tar[start], begin, ranges.end[stop - 1] - begin)

    def close(self) -> None:
        """Closes the tars; may be called twice."""
        self._files.close()

    def _corrupt(self, tar: int, offset: int) -> CorruptRecordError:
        changed = self._files.changed(tar)
        since = f" The file changed since it was indexed: {changed}." if changed else ""
        return CorruptRecordError(
            f"{self._paths[tar]}: the header at offset {offset} is not the one that was indexed: the tar is damaged, "
            f"or was exchanged for another one of the same size and time.{since} Restore it; for another one, touch "
            f"the file, so that it is indexed again."
        )


class _Ranges:
    """Distinct members in the order of the disk, in ranges of neighbours, each with its header.

    Attributes:
        tar: of each member, number of its tar.
        header: of each member, offset of its header in bytes.
        end: of each member, in bytes.
        header_crc: of each member, CRC32C of its header.
        bounds: first member of each range, and the one after its last.
    """

    def __init__(self, members: Int64Array, index: TarIndex, first_member: Int64Array) -> None:
        tar = np.searchsorted(first_member, members, side="right") - 1
        offset = index.offset[members]
        header, end = offset - BLOCK_BYTES, offset + index.size[members]
        apart = (np.diff(tar) != 0) | (header[1:] - end[:-1] > _GAP_BYTES) | (np.diff(header // _RANGE_BYTES) != 0)
        starts = [0, *(np.flatnonzero(apart) + 1).tolist()]
        self.tar: list[int] = tar.tolist()
        self.header: list[int] = header.tolist()
        self.end: list[int] = end.tolist()
        self.header_crc: list[int] = index.header_crc[members].tolist()
        self.bounds = list(zip(starts, [*starts[1:], len(members)], strict=True)) if len(members) else []
