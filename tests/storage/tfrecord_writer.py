"""TFRecord files written without tensorflow, after its record_writer.h, and ways to damage them."""

import struct
from collections.abc import Sequence
from pathlib import Path

import google_crc32c

HEADER_SIZE, FOOTER_SIZE = 12, 4


def masked_crc32c(data: bytes) -> int:
    crc = int.from_bytes(google_crc32c.Checksum(data).digest(), "big")
    rotated = (crc >> 15 | crc << 17) & 0xFFFFFFFF
    return (rotated + 0xA282EAD8) % 2**32


def header(length: int) -> bytes:
    """The header of a record of any length, with the right checksum."""
    packed = struct.pack("<Q", length)
    return packed + struct.pack("<I", masked_crc32c(packed))


def encode(records: Sequence[bytes]) -> bytes:
    return b"".join(header(len(r)) + r + struct.pack("<I", masked_crc32c(r)) for r in records)


def write(path: Path, records: Sequence[bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode(records))
    return path


def boundaries(records: Sequence[bytes]) -> list[int]:
    """Offsets at which a record begins, and the file's end."""
    ends = [0]
    for record in records:
        ends.append(ends[-1] + HEADER_SIZE + len(record) + FOOTER_SIZE)
    return ends
