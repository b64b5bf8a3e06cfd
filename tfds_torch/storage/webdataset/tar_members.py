"""The files in a tar, found from its headers: content is passed over, not read.

A member is a header of 512 bytes and its content, filled up to a multiple of 512; two blocks of zeros end the tar.
Headers of ustar, GNU (long names) and PAX (`path`, `size`) are understood. What is not a plain file with a name that
stays below its folder is refused.
Source: POSIX.1-2017, pax; GNU tar's manual, "Basic Tar Format".
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from io import FileIO
from typing import NamedTuple, NoReturn

import google_crc32c

from tfds_torch.errors import CorruptRecordError, ShardError
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.open_files import Stamp
from tfds_torch.storage.shard_scans import Advance, open_shard

BLOCK_BYTES = 512
TAR_REMEDY = "Give the path of a tar that is there, or make or copy it again."

_NAME, _SIZE, _CHECKSUM, _KIND, _MAGIC, _PREFIX = (
    slice(0, 100),
    slice(124, 136),
    slice(148, 156),
    slice(156, 157),
    slice(257, 263),
    slice(345, 500),
)
_CHECKSUM_SPACES = 8 * ord(" ")  # The checksum's own field counts as spaces.
_FILE_KINDS = (b"0", b"\0", b"7")
_COMPRESSIONS = {
    b"\x1f\x8b": ("gzip", "gunzip --keep"),
    b"BZh": ("bzip2", "bunzip2 --keep"),
    b"\xfd7zXZ\0": ("xz", "unxz --keep"),
    b"\x28\xb5\x2f\xfd": ("zstd", "unzstd --keep"),
    b"\x04\x22\x4d\x18": ("lz4", "unlz4 --keep"),
    b"\x1f\x9d": ("compress", "uncompress --keep"),
}
_PAX_LENGTH = re.compile(rb"([1-9][0-9]{0,7}) ")


class BadHeaderError(Exception):
    """Bytes that are not a header, or a part of one; the message is a clause. Never leaves this room."""


@dataclass(frozen=True)
class Header:
    """What a header tells.

    Attributes:
        name: of the member, prefix included.
        size: of its content, in bytes.
        kind: the type flag, one byte.
        offset: of the header in the tar.
        crc: CRC32C of the header.
    """

    name: bytes
    size: int
    kind: bytes
    offset: int
    crc: int

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder; an old tar only marks them by a slash."""
        return self.kind == b"5" or (self.kind == b"\0" and self.name.endswith(b"/"))

    @property
    def is_file(self) -> bool:
        """Whether it is a plain file."""
        return self.kind in _FILE_KINDS and not self.is_folder


def read_header(block: bytes, offset: int, crc: int) -> Header:
    """Returns what a header tells, once its checksum was verified.

    Args:
        block: 512 bytes.
        offset: of them in the tar.
        crc: their CRC32C.

    Raises:
        BadHeaderError: it does not have its checksum, or its size is not a number.
    """
    stored = _number(block[_CHECKSUM], "checksum")
    own = block[_CHECKSUM]
    unsigned = sum(block) - sum(own) + _CHECKSUM_SPACES
    if stored != unsigned and stored != unsigned - 256 * sum(byte >= 128 for byte in block[:148] + block[156:]):
        raise BadHeaderError("its checksum is wrong")  # The second one is that of old tars, which added signed bytes.
    name = block[_NAME].partition(b"\0")[0]
    if block[_MAGIC] == b"ustar\0":  # GNU tar, with "ustar ", has times there.
        prefix = block[_PREFIX].partition(b"\0")[0]
        name = prefix + b"/" + name if prefix else name
    return Header(name, _number(block[_SIZE], "size"), block[_KIND], offset, crc)


def long_name(content: bytes) -> bytes:
    """Returns the name in the content of GNU's extended header `L`."""
    return content.partition(b"\0")[0]


def pax_records(content: bytes) -> dict[bytes, bytes]:
    r"""Returns the records of a PAX header: each is `<length> <key>=<value>\n`; a later one replaces an earlier one.

    Raises:
        BadHeaderError: a record is not of this form.
    """
    records: dict[bytes, bytes] = {}
    at = 0
    while at < len(content) and content[at]:
        match = _PAX_LENGTH.match(content, at)
        end = at + int(match[1]) if match else at
        record = content[match.end() : end] if match else b""
        key, equals, value = record.partition(b"=")
        if end > len(content) or not record.endswith(b"\n") or not key or not equals:
            raise BadHeaderError("an extended header has a record that is not '<length> <key>=<value>'")
        records[key] = value[:-1]
        at = end
    return records


def check_name(name: bytes) -> str | None:
    """Returns what is wrong with a member's name, as a clause; None: nothing."""
    if not name:
        return "is empty"
    if name.startswith(b"/"):
        return "is absolute"
    if b".." in name and b".." in name.split(b"/"):
        return "leaves its folder ('..')"
    return "holds a null character" if b"\0" in name else None


def compression_of(start: bytes) -> tuple[str, str] | None:
    """Returns by what a file is compressed that begins like this, and the command that unpacks it; None: by nothing."""
    return next((known for magic, known in _COMPRESSIONS.items() if start.startswith(magic)), None)


def _number(field: bytes, what: str) -> int:
    """Returns a number: octal digits with spaces or zero bytes around, or GNU's binary form for large ones."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.partition(b"\0")[0].strip(b" ")
    try:
        if digits and not digits.isdigit():
            raise ValueError
        return int(digits or b"0", 8)
    except ValueError:
        raise BadHeaderError(f"its {what} {quoted(field)} is not a number") from None


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
