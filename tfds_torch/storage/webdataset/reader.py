"""Members of tars by their position in the index: one read for each range of neighbours, every header verified."""

from collections.abc import Iterable, Sequence

import google_crc32c
import numpy as np

from tfds_torch.errors import CorruptRecordError
from tfds_torch.plan.order import Int64Array, unique
from tfds_torch.storage.open_files import ReadRanges
from tfds_torch.storage.shard_files import RangeReader, discard_range
from tfds_torch.storage.webdataset.tar_index import TarIndex
from tfds_torch.storage.webdataset.tar_members import BLOCK_BYTES

_GAP_BYTES = 4096  # Smaller gaps are read as well: the system reads whole pages.


class TarReader:
    """Reads members with `pread`, sorted by tar and offset, each once per call.

    A tar has no checksum of its content. Each of its headers has a checksum and is compared with the index, which finds
    a tar that was replaced by one of the same size and time.

    Processes and threads: may be used by several threads (single reads take turns) and after a fork.
    """

    def __init__(self, index: TarIndex, paths: Sequence[str], files: RangeReader) -> None:
        self._index, self._paths, self._files = index, paths, files
        # Members of a tar are consecutive: the number of a member tells its tar.
        self._first_member = index.first[np.cumsum([0, *index.counts])[:-1]]

    def read(self, members: Int64Array) -> list[bytes]:
        """Return the contents of members, int64 [n], in the order asked."""
        distinct, _, back = unique(members)
        ranges, header_crc = self._ranges_of(distinct), self._index.header_crc[distinct].tolist()
        found = list[bytes]()
        contents = self._files.read_all(ranges.spans)
        for (start, stop), span, content in zip(ranges.bounds, ranges.spans, contents, strict=True):
            own = header_crc[start:stop]
            try:
                found += self._cut(content, ranges, start, stop, own)
            except CorruptRecordError:
                if not discard_range(self._files, span[0], span[1], span[1] + span[2]):
                    raise
                found += self._cut(self._files.read(*span), ranges, start, stop, own)
        return [found[place] for place in back.tolist()]

    def advise(self, members: Int64Array) -> None:
        """Ask the system to read members, int64 [n], ahead; return at once."""
        self._files.advise_ranges(lambda: self._ranges_of(unique(members).values))

    def follow(self, schedule: Iterable[tuple[int, Sequence[tuple[int, int]]]]) -> None:
        """Fetch the blocks of an order's next windows ahead; see RangeReader."""
        self._files.follow(schedule)

    def close(self) -> None:
        """Close the tars; may be called twice."""
        self._files.close()

    def _cut(self, content: bytes, ranges: ReadRanges, start: int, stop: int, header_crc: Sequence[int]) -> list[bytes]:
        """Return the contents of neighbours that were read at once, whose headers have these CRCs."""
        tar, begin = ranges.file[start], ranges.start[start]
        found = list[bytes]()
        for number, crc in zip(range(start, stop), header_crc, strict=True):
            header, end = ranges.start[number] - begin, ranges.end[number] - begin
            block = content[header : header + BLOCK_BYTES]
            if end > len(content) or google_crc32c.value(block) != crc:
                raise self._corrupt(tar, ranges.start[number])
            found.append(content[header + BLOCK_BYTES : end])
        return found

    def _ranges_of(self, members: Int64Array) -> ReadRanges:
        """Return distinct members, each with its header."""
        tar = np.searchsorted(self._first_member, members, side="right") - 1
        offset = self._index.offset[members]
        return ReadRanges(tar, offset - BLOCK_BYTES, offset + self._index.size[members], _GAP_BYTES)

    def _corrupt(self, tar: int, offset: int) -> CorruptRecordError:
        changed = self._files.changed(tar)
        since = f" The file changed since it was indexed: {changed}." if changed else ""
        return CorruptRecordError(
            f"{self._paths[tar]}: the header at offset {offset} is not the one that was indexed: the tar is damaged, "
            f"or was exchanged for another one of the same size and time.{since} Restore it; for another one, touch "
            f"the file, so that it is indexed again."
        )
