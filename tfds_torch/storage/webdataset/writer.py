"""TarWriter: writes WebDataset's tar files, whose bytes do not differ from one run to the next.

Members are ustar's, without times, owners or extensions: any tar program reads them, and equal samples have equal
bytes.
Source: POSIX.1-1988, ustar interchange format.
"""

from collections.abc import Callable

from tfds_torch.errors import ConfigError
from tfds_torch.runtime.printable import quoted

BLOCK_BYTES = 512
RECORD_BYTES = 20 * BLOCK_BYTES
"""A tar file is filled up to a multiple of so many bytes."""
LONGEST_NAME = 100
_MOST_BYTES = 8**11 - 1  # The most that eleven octal digits hold.
_MODE_TO_GROUP = b"0000644\0" + 2 * b"0000000\0"
_TIME = b"00000000000\0"
_AFTER_CHECKSUM = b"0" + bytes(100) + b"ustar\x0000" + bytes(247)
_SUM_OF_REST = sum(_MODE_TO_GROUP) + sum(_TIME) + 8 * ord(" ") + sum(_AFTER_CHECKSUM)


class TarWriter:
    """Writes members of a tar file, one after the other."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write, self._num_bytes = write, 0

    def add(self, name: str, content: bytes) -> None:
        """Write a member."""
        self._write(member_header(name, len(content)))
        self._write(content)
        padding = -len(content) % BLOCK_BYTES
        if padding:
            self._write(bytes(padding))
        self._num_bytes += member_bytes(len(content))

    def close(self) -> None:
        """Write the end of the file."""
        self._write(bytes(tar_bytes(self._num_bytes) - self._num_bytes))


def member_bytes(content_bytes: int) -> int:
    """Return the bytes of a member in a tar file: its header, and its content in whole blocks."""
    return BLOCK_BYTES + -(-content_bytes // BLOCK_BYTES) * BLOCK_BYTES


def tar_bytes(members_bytes: int) -> int:
    """Return the size of a tar file whose members take so many bytes: two empty blocks end it, and it is filled up."""
    return -(-(members_bytes + 2 * BLOCK_BYTES) // RECORD_BYTES) * RECORD_BYTES


def member_header(name: str, num_bytes: int) -> bytes:
    """Return the 512 bytes before a member's content."""
    encoded = name.encode("ascii", errors="replace")
    if len(encoded) > LONGEST_NAME or not name.isascii() or not name:
        raise ConfigError(
            f"A tar file has no room for the member {quoted(name)}: names are {LONGEST_NAME} ASCII characters at "
            f"most. Use shorter keys (numbers), or shorter names of fields."
        )
    if num_bytes > _MOST_BYTES:
        raise ConfigError(
            f"A tar file has no room for the {num_bytes:,} bytes of the member {quoted(name)}: {_MOST_BYTES:,} at most."
        )
    size = b"%011o\0" % num_bytes
    check = b"%06o\0 " % (_SUM_OF_REST + sum(encoded) + sum(size))
    return b"".join((encoded.ljust(LONGEST_NAME, b"\0"), _MODE_TO_GROUP, size, _TIME, check, _AFTER_CHECKSUM))
