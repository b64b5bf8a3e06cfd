"""One header of a tar: 512 bytes that tell a member's name, size and kind, with a checksum."""

import re
from dataclasses import dataclass

from tfds_torch.runtime.printable import quoted

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
