"""PNG of every kind, a strip of rows at a time, so that an image takes little more memory than its pixels.

Pillow alone keeps four bytes for each pixel and copies them several times: 14 bytes for a pixel of RGB. Here zlib
inflates the rows of a strip, and Pillow's own PNG decoder undoes their filters in an image of the strip's size. The
row above, on which the filters of the first row depend, goes before it as an unfiltered row. Conversions (palettes,
fewer than 8 bits, other modes) are Pillow's, of the strip. Python's lock is free in all of this.

Filters work on bytes at the distance of a pixel, so that the upper bytes of 16-bit samples are unfiltered alone.
"""

import io
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImagePalette
from PIL.PngImagePlugin import PngImageFile

from tfds_torch.images.decoders.decoder import (
    NUM_CHANNELS,
    ImageDecodeError,
    Pixels,
    Window,
    describe_pillow_error,
)
from tfds_torch.images.headers import Header

_unpack_chunk = struct.Struct(">I4s").unpack_from
_unpack_checksum = struct.Struct(">I").unpack_from
_unpack_size = struct.Struct(">II").unpack_from

_SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""Colour type -> samples of a pixel."""

_BIT_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
_PALETTE = 3
_MODE_OF_SAMPLES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
_CHECKED_CHUNKS = frozenset((b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"))
_ADAM7 = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))
"""Passes of an interlaced image: first row, first column, step down, step across."""
_ONE_PASS = ((0, 0, 1, 1),)

_STRIP_PIXELS = 2**18
_MOST_IN_A_ROW = 2**20  # Pixels; a longer row is decoded in parts.
_PIECE_BYTES = 2**16  # zlib copies what it has not read yet.


def decode(image: bytes, header: Header, mode: str, window: Window, shrink: int, out: Pixels | None) -> Pixels:
    """Returns a window of any PNG, of which all rows are decoded, so that damage is found whatever the window.

    Of an animation, it is the image that other readers show; of 16 bits, the upper 8 are kept.

    Raises:
        ImageDecodeError: it is damaged, ends early, or the header has another size.
    """
    pixels_at = check_chunks(image)
    width, height = _unpack_size(image, 16)
    if (width, height) != (header.width, header.height):
        raise ImageDecodeError(
            f"Its header has {header.height} x {header.width} pixels, and the PNG has {height} x {width}."
        )
    shape = (height, width, NUM_CHANNELS[mode])
    if out is not None and out.shape != shape:
        raise ImageDecodeError(f"It decodes to {shape}, and there is room for {out.shape}.")
    pixels = np.empty(shape, np.uint8) if out is None else out
    _decode_passes(image, pixels_at, _Layout.of(image, mode), pixels)
    return pixels[window]


def decode_grey_16(image: bytes, header: Header) -> NDArray[np.uint16]:
    """Returns uint16 [h, w, 1] of a grey PNG of 16 bits; an ImageDecodeError for any other, or a damaged one."""
    pixels_at = check_chunks(image)
    if image[24:26] != b"\x10\0" or _unpack_size(image, 16) != (header.width, header.height):
        raise ImageDecodeError("It is not a grey PNG of 16 bits of the size in its header.")
    pixels = np.empty((header.height, header.width, 2), np.uint8)
    _decode_passes(image, pixels_at, _Layout(16, False, 2, "LA", "LA", "LA"), pixels)  # Both bytes of each sample.
    return pixels.view(">u2").astype(np.uint16)


def _decode_passes(image: bytes, pixels_at: int, layout: "_Layout", out: Pixels) -> None:
    rows = _Inflated(_pieces(image, pixels_at))
    for top, left, down, across in _ADAM7 if image[28] else _ONE_PASS:
        part = out[top::down, left::across]
        if part.size:
            _decode_pass(rows, layout, part)


def check_chunks(image: bytes) -> int:
    """Returns where the first chunk of pixels begins.

    Raises:
        ImageDecodeError: a checksum of what makes the pixels is wrong, or the file ends before its last chunk does.
    """
    position, pixels_at, view = 8, 0, memoryview(image)
    while position + 12 <= len(image):
        length, kind = _unpack_chunk(image, position)
        end = position + 8 + length
        if end + 4 > len(image):
            break
        if kind in _CHECKED_CHUNKS and zlib.crc32(view[position + 4 : end]) != _unpack_checksum(image, end)[0]:
            raise ImageDecodeError("A checksum of the PNG does not match: its bytes have changed.")
        if kind == b"IDAT" and not pixels_at:
            pixels_at = position
        if kind == b"IEND":
            if not pixels_at:
                raise ImageDecodeError("The PNG has no pixels: there is no IDAT chunk.")
            return pixels_at
        position = end + 4
    raise ImageDecodeError(f"The PNG ends early: its {len(image):,} bytes end before its last chunk (IEND) does.")


def _pieces(image: bytes, position: int) -> Iterator[memoryview]:
    """Yields the data of consecutive chunks of pixels, in pieces."""
    view = memoryview(image)
    while True:
        length, kind = _unpack_chunk(image, position)
        if kind != b"IDAT":
            return
        for start in range(position + 8, position + 8 + length, _PIECE_BYTES):
            yield view[start : min(start + _PIECE_BYTES, position + 8 + length)]
        position += 12 + length


class _Inflated:
    """The inflated bytes of pieces, as a stream."""

    def __init__(self, pieces: Iterator[memoryview]) -> None:
        self._pieces = pieces
        self._inflate = zlib.decompressobj()
        self._rest: Any = b""

    def read(self, num_bytes: int) -> bytes:
        """Returns the next bytes; an ImageDecodeError: there are fewer, or they cannot be inflated."""
        parts, missing = [], num_bytes
        while missing:
            piece = self._rest or next(self._pieces, b"")
            try:
                part = self._inflate.decompress(piece, missing)
            except zlib.error as error:
                raise ImageDecodeError(f"The pixels of the PNG cannot be inflated: {error}.") from None
            if not part and (not piece or self._inflate.eof):
                raise ImageDecodeError("The PNG ends early: it holds fewer rows than its header promises.")
            self._rest = self._inflate.unconsumed_tail
            parts.append(part)
            missing -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


@dataclass(frozen=True)
class _Layout:
    """How the rows of a PNG become pixels.

    Attributes:
        bits: of a stored pixel.
        is_16: whether samples have 16 bits, of which the upper 8 are kept.
        step: bytes from a pixel to the next one, of those that are kept; 1 where a byte holds several pixels.
        stored: Pillow's mode of a strip.
        raw: Pillow's name of how its rows are packed.
        mode: of the pixels.
        palette: of a strip, and how its colours are packed; None: it has none.
        transparent: the transparent colour, grey level, or opacity of each colour of the palette, as Pillow has it.
    """

    bits: int
    is_16: bool
    step: int
    stored: str
    raw: str
    mode: str
    palette: tuple[str, bytes] | None = None
    transparent: Any = None

    @classmethod
    def of(cls, image: bytes, mode: str) -> "_Layout":
        """Returns the layout of a PNG whose pixels will be of a mode."""
        bit_depth, kind, filters = image[24], image[25], image[27]
        if bit_depth not in _BIT_DEPTHS[kind] or filters:
            raise ImageDecodeError(
                f"The PNG has {bit_depth} bits with colour type {kind} and filter method {filters}, which do not exist."
            )
        samples, is_16 = _SAMPLES[kind], bit_depth == 16
        stored = _MODE_OF_SAMPLES[samples]
        plain = cls(samples * bit_depth, is_16, samples, stored, stored, mode)
        has_transparent = b"tRNS" in image[: image.index(b"IDAT")]
        if kind != _PALETTE and bit_depth >= 8 and not has_transparent:
            return plain
        file = _open(image)
        transparent = file.info.get("transparency")
        if kind == _PALETTE:
            if file.palette is None:
                raise ImageDecodeError("The PNG has no palette.")
            palette = (file.palette.rawmode or "RGB", bytes(file.palette.palette))
            raw = "P" if bit_depth == 8 else f"P;{bit_depth}"
            return cls(bit_depth, False, 1, "P", raw, mode, palette, transparent)
        if is_16:
            if transparent is not None and mode == "RGBA":
                raise ImageDecodeError("It has a transparent colour of 16 bits, which cannot be decoded as RGBA.")
            return plain
        if bit_depth in (2, 4) and transparent is not None:
            transparent *= 255 // ((1 << bit_depth) - 1)  # Pillow scales the pixels, and not this.
        packed = {1: ("1", "1"), 2: ("L", "L;2"), 4: ("L", "L;4"), 8: (stored, stored)}
        return cls(plain.bits, False, samples, *packed[bit_depth], mode, None, transparent)

    def kept(self, lines: Pixels) -> Pixels:
        """Returns uint8 [n, k] bytes of rows without the lower bytes of 16-bit samples."""
        return np.ascontiguousarray(lines[:, ::2]) if self.is_16 else lines

    def unfilter(self, kinds: Pixels, lines: Pixels, above: Pixels | None) -> Pixels:
        """Returns uint8 [n, k] rows without their filters uint8 [n, 1]; above: uint8 [k], the row above them."""
        num_rows, num_bytes = lines.shape
        has_above = above is not None
        filtered = np.empty((num_rows + has_above, num_bytes + 1), np.uint8)
        if above is not None:
            filtered[0, 0], filtered[0, 1:] = 0, above
        filtered[has_above:, :1], filtered[has_above:, 1:] = kinds, lines
        mode = _MODE_OF_SAMPLES[self.step]
        data = zlib.compress(filtered.data, 0)
        try:
            strip = Image.frombytes(mode, (num_bytes // self.step, len(filtered)), data, "zip", mode)
        except ValueError:
            raise ImageDecodeError(f"A row of the PNG has the filter {kinds.max()}, and 4 is the last one.") from None
        return np.asarray(strip).reshape(len(filtered), num_bytes)[has_above:]

    def pixels(self, lines: Pixels, width: int) -> Pixels:
        """Returns uint8 [n, width, C] pixels of the mode, of uint8 [n, k] rows without filters."""
        shape = (len(lines), width, NUM_CHANNELS[self.mode])
        if self.raw == self.mode:
            return lines.reshape(shape)
        strip = Image.frombytes(self.stored, (width, len(lines)), lines.tobytes(), "raw", self.raw)
        if self.palette is not None:
            strip.palette = ImagePalette.raw(*self.palette)
            if self.transparent is not None:
                strip.info["transparency"] = self.transparent
            strip.load()  # Gives the palette and its opacities to the pixels.
            strip.info.pop("transparency", None)  # Pillow warns where a conversion drops it.
        if self.transparent is not None and self.mode == "RGBA":
            strip.info["transparency"] = self.transparent
        return np.asarray(strip.convert(self.mode)).reshape(shape)


def _open(image: bytes) -> PngImageFile:
    """Returns a file of Pillow's that has read the chunks before the pixels: the palette and transparent colours."""
    try:
        return PngImageFile(io.BytesIO(image))
    except MemoryError:
        raise
    except Exception as error:
        raise ImageDecodeError(describe_pillow_error(error)) from error


def _decode_pass(rows: _Inflated, layout: _Layout, out: Pixels) -> None:
    """Decodes the rows of a pass, each after a byte that names its filter, into uint8 [h, w, C], a strip at a time."""
    height, width = out.shape[:2]
    num_bytes = (width * layout.bits + 7) // 8
    at_once = max(1, _STRIP_PIXELS // width)
    above: Pixels | None = None
    if width > _MOST_IN_A_ROW:
        for number, row in enumerate(out, start=1):
            above = _decode_long_row(rows, layout, above, row, is_last=number == height)
        return
    for start in range(0, height, at_once):
        num_rows = min(at_once, height - start)
        read = np.frombuffer(rows.read(num_rows * (num_bytes + 1)), np.uint8).reshape(num_rows, -1)
        lines = layout.unfilter(read[:, :1], layout.kept(read[:, 1:]), above)
        above = lines[-1]
        out[start : start + num_rows] = layout.pixels(lines, width)


def _decode_long_row(
    rows: _Inflated, layout: _Layout, above: Pixels | None, out: Pixels, *, is_last: bool
) -> Pixels | None:
    """Decodes one row into uint8 [w, C] in parts, and returns its bytes uint8 [k] without the filter; None of the last.

    A part is decoded with the pixel before it. The decoder knows nothing to the left of that pixel, which is therefore
    filtered anew, so that its value stays. `above` has the bytes uint8 [k] of the row above, without filters.
    """
    kind, step, width = rows.read(1)[0], layout.step, len(out)
    lines = []
    up_left, left = np.zeros((2, step), np.uint8)
    done = 0  # Bytes that are kept.
    for start in range(0, width, _STRIP_PIXELS):
        stop = min(width, start + _STRIP_PIXELS)
        filtered = np.frombuffer(rows.read(((stop - start) * layout.bits + 7) // 8), np.uint8)[None]
        kept = layout.kept(filtered)[0]
        up = np.zeros(len(kept), np.uint8) if above is None else above[done : done + len(kept)]
        predicted = {2: up_left, 3: up_left >> 1, 4: up_left}.get(kind, 0)
        line = layout.unfilter(
            np.full((1, 1), kind, np.uint8),
            np.concatenate((left - predicted, kept))[None],
            np.concatenate((up_left, up)),
        )[:, step:]
        out[start:stop] = layout.pixels(np.ascontiguousarray(line), stop - start)[0]
        up_left, left, done = up[-step:], line[0, -step:], done + len(kept)
        if not is_last:
            lines.append(line[0].copy())
    return None if is_last else np.concatenate(lines)
