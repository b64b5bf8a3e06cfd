"""The files in a tar, found from its headers: content is passed over, not read.

A member is a header of 512 bytes and its content, filled up to a multiple of 512; two blocks of zeros end the tar.
Headers of ustar, GNU (long names) and PAX (`path`, `size`) are understood. What is not a plain file with a name that
stays below its folder is refused.
Source: POSIX.1-2017, pax; GNU tar's manual, "Basic Tar Format".
"""

import os
from collections.abc import Iterator
from io import FileIO
from typing import NamedTuple, NoReturn

import google_crc32c

from tfds_torch.errors import CorruptRecordError, ShardError
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.open_files import Stamp
from tfds_torch.storage.shard_scans import Advance, open_shard
from tfds_torch.storage.webdataset.tar_header import (
    BLOCK_BYTES,
    TAR_REMEDY,
    BadHeaderError,
    Header,
    check_name,
    compression_of,
    long_name,
    pax_records,
    read_header,
)

# As for TFRecord files: small members are found in large windows; of large ones only what lies between contents is
# read, which in a page of the file are the header, the label behind an image, and the next header.
_WINDOW_BYTES, _PAGE_BYTES = 256 * 1024, 4096
_LARGE_MEMBER_BYTES = 32 * 1024
_MOST_EXTENDED_BYTES = 1 << 20  # Of a long name, or of PAX records.
_ZEROS_AT_ONCE = 1 << 20
_ZERO_BLOCK = bytes(BLOCK_BYTES)

_EXTENDED_KINDS = (b"L", b"x", b"X", b"g")
_AS_FILES = "Write the tar again with the files that links stand for (tar --dereference --hard-dereference)"
_AS_ONE = "Write the tar again as one file"
_WITHOUT_IT = "Write the tar again without it (tar --exclude)"
_SPARSE = ("a sparse file", "Write the tar again without --sparse")
_REFUSED_KINDS = {
    b"1": ("a hard link", _AS_FILES),
    b"2": ("a symbolic link", _AS_FILES),
    b"3": ("a character device", _WITHOUT_IT),
    b"4": ("a block device", _WITHOUT_IT),
    b"6": ("a FIFO", _WITHOUT_IT),
    b"K": ("a link with a long name", _AS_FILES),
    b"S": _SPARSE,
    b"M": ("the rest of a file of another volume", f"{_AS_ONE}, without --multi-volume"),
    b"V": ("the label of a volume", f"{_AS_ONE}, without --label"),
    b"D": ("a list of files of an incremental backup", f"{_AS_ONE}, without --listed-incremental"),
    b"N": ("a list of long names of an old GNU tar", f"{_AS_ONE}, with a tar of today"),
}
"""Type flag -> what it stands for, and what to do."""
_SPARSE_PREFIX = b"GNU.sparse."


class Member(NamedTuple):
    """A plain file in a tar.

    Attributes:
        name: as it is stored.
        offset: of its content, in bytes; its own header is the block before.
        size: of its content, in bytes.
        header_crc: CRC32C of that block.
    """

    name: bytes
    offset: int
    size: int
    header_crc: int


def find_members(path: str, advance: Advance | None = None, stamp: Stamp | None = None) -> Iterator[Member]:
    """Yields the plain files of a tar, in their order; folders are passed over.

    Args:
        path: of a local tar that is not compressed.
        advance: called with the offset in bytes that the scan has reached, many times.
        stamp: as `open_shard` takes it.

    Raises:
        ShardError: the file is missing, compressed, cannot be read or is not the one of the stamp, or holds a link, a
            sparse file, a device, or a name that leaves its folder.
        CorruptRecordError: it is not a tar, was cut, or has more behind its end.
    """
    with open_shard(path, stamp, TAR_REMEDY) as file:
        yield from _Scan(path, file, advance).members()


class _Scan:
    """One pass over a tar."""

    def __init__(self, path: str, file: FileIO, advance: Advance | None) -> None:
        self._path, self._file, self._advance = path, file, advance
        self._size = os.fstat(file.fileno()).st_size
        self._window, self._window_at = b"", 0
        self._member_bytes = _LARGE_MEMBER_BYTES  # A running mean. The first header alone says which way to begin.
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)

    def members(self) -> Iterator[Member]:
        offset = 0
        while (block := self._block(offset)) != _ZERO_BLOCK:
            start, header, name, size = offset, *self._own_header(offset, block)
            offset = header.offset + BLOCK_BYTES
            if header.is_folder:
                if size:
                    self._corrupt(f"the folder {quoted(name)} has content", header.offset)
            else:
                end = self._end_of(offset, size, repr(name), start)  # Before anyone is told a size that cannot be.
                yield Member(name, offset, size, header.crc)
                offset = end
            self._member_bytes += (offset - start - self._member_bytes) // 4
        self._check_end(offset)

    def _own_header(self, offset: int, block: bytes) -> tuple[Header, bytes, int]:
        """Returns the header of a member, its name and its size; long names and PAX records before it are read."""
        start, name = offset, None
        records: dict[bytes, bytes] = {}
        while True:
            header = self._header(offset, block)
            kind = header.kind
            if kind not in _EXTENDED_KINDS:
                break
            after = self._end_of(offset + BLOCK_BYTES, header.size, "an extended header", offset)
            if header.size > _MOST_EXTENDED_BYTES:
                self._corrupt(f"an extended header is said to have {header.size} bytes", offset)
            extended = self._read(offset + BLOCK_BYTES, header.size)
            try:
                if kind == b"L":
                    if name is not None:
                        raise BadHeaderError("two long names follow each other")
                    name = long_name(extended)
                elif kind == b"g":
                    self._check_global(pax_records(extended), offset)
                else:
                    if records:
                        raise BadHeaderError("two extended headers follow each other")
                    records = pax_records(extended)
            except BadHeaderError as error:
                self._corrupt(str(error), offset)
            offset = after
            if (block := self._block(offset)) == _ZERO_BLOCK:
                self._corrupt("an extended header has no member behind it", start)
        name = records.get(b"path", header.name if name is None else name)
        self._check(name, header, records)
        try:
            size = header.size if b"size" not in records else _decimal(records[b"size"])
        except BadHeaderError as error:
            self._corrupt(f"member {quoted(name)}: {error}", offset)
        return header, name, size

    def _check(self, name: bytes, header: Header, records: dict[bytes, bytes]) -> None:
        """Raises ShardError for a member that cannot be read as a plain file below its folder."""
        is_sparse = any(key.startswith(_SPARSE_PREFIX) for key in records)
        refused = _SPARSE if is_sparse else _REFUSED_KINDS.get(header.kind)
        if refused is None and not header.is_folder and not header.is_file:
            refused = (f"of the unknown type {quoted(header.kind)}", _WITHOUT_IT)
        if refused is not None:
            what, remedy = refused
            raise ShardError(
                f"{self._path}: the member {quoted(name)} at offset {header.offset} is {what}, and only plain files "
                f"are read. {remedy}."
            )
        problem = check_name(name)
        if problem is not None:
            raise ShardError(
                f"{self._path}: the name of the member {quoted(name)} at offset {header.offset} {problem}. Write the "
                f"tar again with names below one folder."
            )

    def _check_global(self, records: dict[bytes, bytes], offset: int) -> None:
        changed = [key for key in records if key in (b"path", b"size", b"linkpath") or key.startswith(_SPARSE_PREFIX)]
        if changed:
            raise ShardError(
                f"{self._path}: the global extended header at offset {offset} sets {quoted(changed[0].decode())} for "
                f"all members behind it, which is not supported. Write the tar again."
            )

    def _header(self, offset: int, block: bytes) -> Header:
        try:
            return read_header(block, offset, google_crc32c.value(block))
        except BadHeaderError as error:
            if offset == 0:
                self._refuse_compressed(block)
            self._corrupt(f"there is no header of a tar's member: {error}", offset)

    def _refuse_compressed(self, start: bytes) -> None:
        """Raises ShardError for a file that is no tar, and begins as compressed ones do."""
        compression = compression_of(start)
        if compression is not None:
            name, command = compression
            raise ShardError(
                f"{self._path} is compressed ({name}), and a compressed tar cannot be read by number. Unpack it once: "
                f"{command} {quoted(self._path)}; images are compressed themselves, it hardly grows."
            ) from None

    def _block(self, offset: int) -> bytes:
        at = offset - self._window_at
        if at < 0 or at + BLOCK_BYTES > len(self._window):
            self._file.seek(offset)
            size = _PAGE_BYTES if self._member_bytes >= _LARGE_MEMBER_BYTES else _WINDOW_BYTES
            self._window, self._window_at, at = self._file.read(size), offset, 0
            if self._advance is not None:
                self._advance(offset)
            if len(self._window) < BLOCK_BYTES:
                if offset == 0:
                    self._refuse_compressed(self._window)
                where = "is empty" if not self._size else f"ends at byte {offset + len(self._window)}"
                raise CorruptRecordError(
                    f"{self._path} {where}, without the two blocks of zeros that end a tar: it was cut, or is still "
                    f"being written. Make or copy it again."
                )
        return self._window[at : at + BLOCK_BYTES]

    def _read(self, offset: int, size: int) -> bytes:
        self._file.seek(offset)
        return self._file.read(size)

    def _end_of(self, offset: int, size: int, what: str, start: int) -> int:
        """Returns where the next header begins, behind a content of this size."""
        end = offset + size + -size % BLOCK_BYTES
        if end > self._size:
            raise CorruptRecordError(
                f"{self._path}: the file ends at byte {self._size}, inside {what}, which begins at offset {start} and "
                f"has {size} bytes: it was cut. Make or copy it again."
            )
        return end

    def _check_end(self, offset: int) -> None:
        """Raises CorruptRecordError unless zeros alone follow, two blocks of them at least."""
        if self._block(offset + BLOCK_BYTES) != _ZERO_BLOCK:
            self._corrupt("a block of zeros lies between members", offset)
        at = offset + 2 * BLOCK_BYTES
        self._file.seek(at)
        while more := self._file.read(_ZEROS_AT_ONCE):
            if more.count(0) != len(more):
                behind = at + len(more) - len(more.lstrip(b"\0"))
                raise CorruptRecordError(
                    f"{self._path}: the tar ends at offset {offset}, and more follows at offset {behind}, which every "
                    f"reader would leave out. Tars that were put together with cat must be joined with tar "
                    f"--concatenate, or be given one by one."
                )
            at += len(more)

    def _corrupt(self, problem: str, offset: int) -> NoReturn:
        raise CorruptRecordError(
            f"{self._path}: at offset {offset} {problem}: it is damaged, or is not a tar. Make or copy it again."
        ) from None


def _decimal(digits: bytes) -> int:
    if not digits.isdigit() or len(digits) > len(str(2**63)):
        raise BadHeaderError(f"its size {digits[:40]!r} is not a number")
    return int(digits)
