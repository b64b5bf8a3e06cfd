"""The plain files of a tar, found from its headers alone; a damaged tar, or one that holds anything else, is refused.

The standard library's tarfile reads each header. Damage that it ignores (a cut file, bytes behind the end, numbers with
a sign, a damaged extended header) is an error here. The forms `v7`, `ustar`, GNU and PAX are read.
Source: POSIX.1-2017, pax; GNU tar's manual, "Basic Tar Format".
"""

import re
import tarfile
from collections.abc import Iterator
from typing import NamedTuple, NoReturn

import google_crc32c

from tfds_torch.errors import CorruptRecordError, ShardError
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.open_files import Stamp
from tfds_torch.storage.shard_files import LOCAL, ShardFiles
from tfds_torch.storage.shard_scans import Advance, ShardFile, expect_jumps, size_of

BLOCK_BYTES = tarfile.BLOCKSIZE
TAR_REMEDY = "Give the path of a tar that is there, or make or copy it again."

# As for TFRecord files: small members are found in large windows; of large ones only the bytes between contents are
# read: in a page of the file, these are the header, the label behind an image, and the next header.
_WINDOW_BYTES, _PAGE_BYTES = 256 * 1024, 4096
_LARGE_MEMBER_BYTES = 32 * 1024
_MOST_EXTENDED_BYTES = 1 << 20  # Bytes of a long name, or of PAX records.
_ZEROS_AT_ONCE = 1 << 20
_ZERO_BLOCK = bytes(BLOCK_BYTES)

# Octal digits with spaces or zero bytes around, or GNU's binary form for large numbers. tarfile also takes `1_0`, `-1`.
_SIZE = re.compile(rb" *[0-7]*(?: *| *\0.*)|\x80.{11}", re.DOTALL)
_PAX_LENGTH = re.compile(rb"([1-9][0-9]{0,7}) ")
_DECIMAL = re.compile(rb"[0-9]{1,19}")
_COMPRESSIONS = {
    b"\x1f\x8b": ("gzip", "gunzip --keep"),
    b"BZh": ("bzip2", "bunzip2 --keep"),
    b"\xfd7zXZ\0": ("xz", "unxz --keep"),
    b"\x28\xb5\x2f\xfd": ("zstd", "unzstd --keep"),
    b"\x04\x22\x4d\x18": ("lz4", "unlz4 --keep"),
    b"\x1f\x9d": ("compress", "uncompress --keep"),
}

_EXTENDED_KINDS = (tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.XGLTYPE)
_AS_FILES = "Write the tar again with the files that links stand for (tar --dereference --hard-dereference)"
_AS_ONE = "Write the tar again as one file"
_WITHOUT_IT = "Write the tar again without it (tar --exclude)"
_SPARSE = ("a sparse file", "Write the tar again without --sparse")
_REFUSED_KINDS = {
    tarfile.LNKTYPE: ("a hard link", _AS_FILES),
    tarfile.SYMTYPE: ("a symbolic link", _AS_FILES),
    tarfile.CHRTYPE: ("a character device", _WITHOUT_IT),
    tarfile.BLKTYPE: ("a block device", _WITHOUT_IT),
    tarfile.FIFOTYPE: ("a FIFO", _WITHOUT_IT),
    tarfile.GNUTYPE_LONGLINK: ("a link with a long name", _AS_FILES),
    tarfile.GNUTYPE_SPARSE: _SPARSE,
    b"M": ("the rest of a file of another volume", f"{_AS_ONE}, without --multi-volume"),
    b"V": ("the label of a volume", f"{_AS_ONE}, without --label"),
    b"D": ("a list of files of an incremental backup", f"{_AS_ONE}, without --listed-incremental"),
    b"N": ("a list of long names of an old GNU tar", f"{_AS_ONE}, with a tar of today"),
}
"""Type flag -> its meaning, and advice for the user."""
_SPARSE_PREFIX = b"GNU.sparse."


class Member(NamedTuple):
    """A plain file in a tar.

    Attributes:
        name: name as it is stored.
        offset: where its content begins, in bytes; its own header is the block before.
        size: size of its content, in bytes.
        header_crc: CRC32C of that block.
    """

    name: bytes
    offset: int
    size: int
    header_crc: int


def find_members(
    path: str, advance: Advance | None = None, stamp: Stamp | None = None, files: ShardFiles = LOCAL
) -> Iterator[Member]:
    """Yield the plain files of a tar, in their order; folders are skipped.

    Args:
        path: a tar that is not compressed.
        advance: function that is called many times, with the offset in bytes that the scan has reached.
        stamp: size and modification time that the tar must have; see `open_shard`.
        files: access to the tar.

    Raises:
        ShardError: the file is missing, compressed, cannot be read or does not have the stamp, or holds a link, a
            sparse file, a device, or a name that leaves its folder.
        CorruptRecordError: the file is not a tar, was cut, or has bytes behind its end.
    """
    with files.scan(path, stamp, TAR_REMEDY) as file:
        yield from _Scan(path, file, advance).members()


class _Scan:
    """One pass over a tar."""

    def __init__(self, path: str, file: ShardFile, advance: Advance | None) -> None:
        self._path, self._file, self._advance = path, file, advance
        self._size = size_of(file)
        self._window, self._window_at = b"", 0
        self._member_bytes = _LARGE_MEMBER_BYTES  # A running mean. The first header alone decides which way to begin.
        expect_jumps(file)

    def members(self) -> Iterator[Member]:
        offset = 0
        while (block := self._block(offset)) != _ZERO_BLOCK:
            start = offset
            offset, block, header, name = self._own_header(offset, block)
            offset += BLOCK_BYTES
            if header.isdir():
                if header.size:
                    self._corrupt(f"the folder {quoted(name)} has content", offset - BLOCK_BYTES)
            else:
                # Checked first: no caller gets a size that reaches beyond the file.
                end = self._end_of(offset, header.size, repr(name), start)
                yield Member(name, offset, header.size, google_crc32c.value(block))
                offset = end
            self._member_bytes += (offset - start - self._member_bytes) // 4
        self._check_end(offset)

    def _own_header(self, offset: int, block: bytes) -> tuple[int, bytes, tarfile.TarInfo, bytes]:
        """Return a member's own header (offset, bytes, meaning) and its name, after its long name and PAX records."""
        start, name = offset, None
        records: dict[bytes, bytes] = {}
        while (header := self._header(offset, block)).type in _EXTENDED_KINDS:
            after = self._end_of(offset + BLOCK_BYTES, header.size, "an extended header", offset)
            if header.size > _MOST_EXTENDED_BYTES:
                self._corrupt(f"an extended header has {header.size} bytes", offset)
            self._file.seek(offset + BLOCK_BYTES)
            extended = self._file.read(header.size)
            if header.type == tarfile.GNUTYPE_LONGNAME:
                if name is not None:
                    self._corrupt("two long names follow each other", offset)
                name = extended.partition(b"\0")[0]
            elif header.type == tarfile.XGLTYPE:
                self._check_global(self._pax_records(extended, offset), offset)
            else:
                if records:
                    self._corrupt("two extended headers follow each other", offset)
                records = self._pax_records(extended, offset)
            offset = after
            if (block := self._block(offset)) == _ZERO_BLOCK:
                self._corrupt("an extended header has no member behind it", start)
        name = records.get(b"path", _name_of(header, block) if name is None else name)
        self._check(name, header, offset, records)
        if (size := records.get(b"size")) is not None:
            if not _DECIMAL.fullmatch(size):
                self._corrupt(f"member {quoted(name)}: its size {size[:40]!r} is not a number", offset)
            header.size = int(size)
        return offset, block, header, name

    def _check(self, name: bytes, header: tarfile.TarInfo, offset: int, records: dict[bytes, bytes]) -> None:
        """Raise ShardError for a member that cannot be read as a plain file below its folder."""
        is_sparse = any(key.startswith(_SPARSE_PREFIX) for key in records)
        refused = _SPARSE if is_sparse else _REFUSED_KINDS.get(header.type)
        if refused is None and not header.isdir() and not header.isreg():
            refused = (f"of the unknown type {quoted(header.type)}", _WITHOUT_IT)
        if refused is not None:
            what, remedy = refused
            raise ShardError(
                f"{self._path}: the member {quoted(name)} at offset {offset} is {what}, and only plain files are read. "
                f"{remedy}."
            )
        problem = _problem_of(name)
        if problem is not None:
            raise ShardError(
                f"{self._path}: the name of the member {quoted(name)} at offset {offset} {problem}. Write the tar "
                f"again with names below one folder."
            )

    def _check_global(self, records: dict[bytes, bytes], offset: int) -> None:
        changed = [key for key in records if key in (b"path", b"size", b"linkpath") or key.startswith(_SPARSE_PREFIX)]
        if changed:
            raise ShardError(
                f"{self._path}: the global extended header at offset {offset} sets {quoted(changed[0].decode())} for "
                f"all members behind it, which is not supported. Write the tar again."
            )

    def _pax_records(self, content: bytes, offset: int) -> dict[bytes, bytes]:
        r"""Return the records of a PAX header, `<length> <key>=<value>\n` each; the last record of a key counts."""
        records: dict[bytes, bytes] = {}
        at = 0
        while at < len(content) and content[at]:
            match = _PAX_LENGTH.match(content, at)
            end = at + int(match[1]) if match else at
            record = content[match.end() : end] if match else b""
            key, equals, value = record.partition(b"=")
            if end > len(content) or not record.endswith(b"\n") or not key or not equals:
                self._corrupt("an extended header has a record that is not '<length> <key>=<value>'", offset)
            records[key] = value[:-1]
            at = end
        return records

    def _header(self, offset: int, block: bytes) -> tarfile.TarInfo:
        try:
            header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
            if not _SIZE.fullmatch(block[124:136]):
                raise tarfile.HeaderError(f"its size {quoted(block[124:136])} is not a number")
        except tarfile.HeaderError as error:
            if offset == 0:
                self._refuse_compressed(block)
            self._corrupt(f"there is no header of a tar's member: {error}", offset)
        return header

    def _refuse_compressed(self, start: bytes) -> None:
        """Raise ShardError for a file that begins like a compressed file."""
        for magic, (name, command) in _COMPRESSIONS.items():
            if start.startswith(magic):
                raise ShardError(
                    f"{self._path} is compressed ({name}), and a compressed tar cannot be read by number. Unpack it "
                    f"once: {command} {quoted(self._path)}; images are compressed themselves, it hardly grows."
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

    def _end_of(self, offset: int, size: int, what: str, start: int) -> int:
        """Return the offset of the next header, behind a content of this size."""
        end = offset + size + -size % BLOCK_BYTES
        if end > self._size:
            raise CorruptRecordError(
                f"{self._path}: the file ends at byte {self._size}, inside {what}, which begins at offset {start} and "
                f"has {size} bytes: it was cut. Make or copy it again."
            )
        return end

    def _check_end(self, offset: int) -> None:
        """Raise CorruptRecordError unless only zeros follow, at least two blocks of them."""
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


def _name_of(header: tarfile.TarInfo, block: bytes) -> bytes:
    """Return the name in a header, with its prefix only in the form `ustar`: GNU's tar has times in its place."""
    name = header.name.encode("utf-8", "surrogateescape")
    return name if block[257:263] == tarfile.POSIX_MAGIC[:6] else block[:100].partition(b"\0")[0]


def _problem_of(name: bytes) -> str | None:
    """Return the problem with a member's name, as a clause; None where there is no problem."""
    if not name:
        return "is empty"
    if name.startswith(b"/"):
        return "is absolute"
    if b".." in name and b".." in name.split(b"/"):
        return "leaves its folder ('..')"
    return "holds a null character" if b"\0" in name else None
