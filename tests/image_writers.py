"""Writers of PNG, GIF, BMP and TIFF variants that Pillow reads and cannot write."""

import itertools
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

# PNG

_ADAM7 = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))
"""Of each pass: first row, first column, step down, step across."""


def png_chunk(kind: bytes, data: bytes) -> bytes:
    """Returns a chunk of a PNG."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def write_png(
    samples: NDArray[Any], kind: int, bit_depth: int, chunks: Sequence[bytes] = (), interlaced: bool = False
) -> bytes:
    """Returns a PNG.

    Args:
        samples: [h, w, C], in the bit depth's range.
        kind: its colour type: 0 grey, 2 RGB, 3 palette, 4 grey and alpha, 6 RGBA.
        bit_depth: 1, 2, 4, 8 or 16.
        chunks: between the header and the pixels.
        interlaced: in seven passes.
    """
    height, width = samples.shape[:2]
    passes = _ADAM7 if interlaced else ((0, 0, 1, 1),)
    lines = (line for top, left, down, across in passes for line in samples[top::down, left::across] if line.size)
    header = struct.pack(">IIBBBBB", width, height, bit_depth, kind, 0, 0, interlaced)
    data = zlib.compress(b"".join(b"\0" + pack_samples(line, bit_depth) for line in lines))
    return (
        b"\x89PNG\r\n\x1a\n"
        + png_chunk(b"IHDR", header)
        + b"".join(chunks)
        + png_chunk(b"IDAT", data)
        + png_chunk(b"IEND", b"")
    )


def pack_samples(line: NDArray[np.uint16], bit_depth: int) -> bytes:
    """Returns samples [w, C] as bytes, the first one in the highest bits."""
    if bit_depth == 16:
        return line.astype(">u2").tobytes()
    bits = (line.reshape(-1, 1) >> np.arange(bit_depth)[::-1]) & 1
    return np.packbits(bits.astype(np.uint8).reshape(-1)).tobytes()


# GIF


def write_gif(
    size: tuple[int, int], palette: bytes, frames: Sequence[tuple[tuple[int, int, int, int], int, int]]
) -> bytes:
    """Returns a GIF of frames of one colour each, without compression.

    Args:
        size: width and height of the screen.
        palette: red, green and blue of four colours.
        frames: (left, top, width, height), number of the colour, and disposal of each.
    """
    parts = [b"GIF89a", struct.pack("<HHBBB", *size, 0x81, 0, 0), palette]
    for place, colour, disposal in frames:
        parts.append(b"\x21\xf9\x04" + bytes([disposal << 2, 10, 0, 0, 0]))
        codes = [code for _ in range(place[2] * place[3]) for code in (4, colour)] + [5]  # 4 clears the table, 5 ends.
        bits = sum(code << 3 * position for position, code in enumerate(codes))
        data = bits.to_bytes((3 * len(codes) + 7) // 8, "little")
        parts.append(b"\x2c" + struct.pack("<HHHHBB", *place, 0, 2) + bytes([len(data)]) + data + b"\0")
    return b"".join(parts) + b"\x3b"


# BMP


def write_bmp(
    rows: Sequence[bytes],
    width: int,
    num_bits: int,
    *,
    palette: bytes = b"",
    masks: bytes = b"",
    top_down: bool = False,
    old: bool = False,
    compressed: bool = False,
) -> bytes:
    """Returns a BMP.

    Args:
        rows: from the first one stored, filled up to 4 bytes.
        width: in pixels.
        num_bits: of a pixel.
        palette: blue, green, red and a zero of each colour.
        masks: the bits of red, green, blue and alpha; none: as usual.
        top_down: the first row is the uppermost.
        old: has the header of OS/2.
        compressed: the rows are run lengths.
    """
    height = len(rows)
    if old:
        info = struct.pack("<IHHHH", 12, width, height, 1, num_bits)
    else:
        info_bytes = 108 if masks else 40
        info = struct.pack(
            "<IiiHHI", info_bytes, width, -height if top_down else height, 1, num_bits, 3 if masks else 0
        )
        info = (info + bytes(20) + masks).ljust(info_bytes, b"\0")
    offset = 14 + len(info) + len(palette)
    body = info + palette + b"".join(rows)
    return b"BM" + struct.pack("<IHHI", 14 + len(body), 0, 0, offset) + body


def bmp_rows(lines: Iterable[bytes]) -> list[bytes]:
    """Returns lines as a BMP stores them: from the lowest to the uppermost, filled up to 4 bytes."""
    return [line + bytes(-len(line) % 4) for line in lines][::-1]


def run_lengths(line: NDArray[np.uint8]) -> bytes:
    """Returns a line of an 8-bit BMP whose rows are compressed."""
    return bytes(itertools.chain.from_iterable((1, value) for value in line.tolist())) + b"\0\0"


# TIFF


def write_tiff(parts: Sequence[bytes], tags: Mapping[int, int | tuple[int, ...]], *, is_tiled: bool = False) -> bytes:
    """Returns an uncompressed little-endian TIFF.

    Args:
        parts: strips or tiles.
        tags: number -> value or values, each of 32 bits; those of the parts' places and lengths are added.
        is_tiled: whether the parts are tiles.
    """
    places, lengths = (324, 325) if is_tiled else (273, 279)
    starts = [8 + sum(map(len, parts[:number])) for number in range(len(parts))]
    whole = {**tags, places: tuple(starts), lengths: tuple(map(len, parts))}
    body = b"".join(parts)
    at = 8 + len(body) + 2 + 12 * len(whole) + 4
    entries, values = b"", b""
    for tag, value in sorted(whole.items()):
        numbers = value if isinstance(value, tuple) else (value,)
        packed = struct.pack(f"<{len(numbers)}I", *numbers)
        if len(packed) > 4:
            entries += struct.pack("<HHII", tag, 4, len(numbers), at + len(values))
            values += packed
        else:
            entries += struct.pack("<HHI", tag, 4, len(numbers)) + packed
    directory = struct.pack("<H", len(whole)) + entries + bytes(4)
    return b"II*\0" + struct.pack("<I", 8 + len(body)) + body + directory + values
