"""Build a decoded cache: decode every image of a split with threads, and write all into one `.beton` file."""

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import CorruptRecordError
from tfds_torch.images.decoding import ImageDecoder, Pixels
from tfds_torch.plan.order import Int64Array
from tfds_torch.runtime.limits import usable_cores
from tfds_torch.storage.beton.fields import BetonField, BetonFloat, BetonInt
from tfds_torch.storage.beton.format import (
    ALLOCATION,
    DEFAULT_PAGE,
    LARGEST_PAGE,
    LARGEST_SIDE,
    SMALLEST_PAGE,
    Layout,
    make_row_type,
)
from tfds_torch.storage.beton.image_field import BetonImage
from tfds_torch.storage.beton.writer import BetonWriter
from tfds_torch.storage.cached_source import IS_CACHED, PIXELS_FIELD
from tfds_torch.storage.source import Columns, FieldSpec, Source

_CHUNK_BYTES, _LARGEST_CHUNK = 1 << 20, 256  # A thread decodes at most so many encoded bytes, and examples, at a time.
_NUM_SAMPLED = 64
_ROOM_FOR_LARGER = 2  # Where sizes differ, an image may have this many times the bytes of the largest sampled one.
_IMAGES_IN_PAGE = 16  # A page that would hold more images is made smaller, so that small datasets have small files.
_IMAGE = ImageDecoder("RGB")


def make_pixels(max_resolution: int | None, image: bytes) -> Pixels:
    """Return an encoded image as a cache holds it, uint8 [h, w, 3]; raise ValueError where it cannot be decoded."""
    pixels = _IMAGE.decode(image, _IMAGE.read_header(image))
    if max_resolution is None or max(pixels.shape[:2]) <= max_resolution:
        return pixels
    encoded = BetonImage("raw", max_resolution=max_resolution).encode(pixels, 0)
    _, width, height = encoded.facts
    return np.frombuffer(bytearray(encoded.payload or b""), np.uint8).reshape(height, width, 3)


@dataclass(frozen=True)
class CacheContent:
    """The examples that a cache is built from."""

    source: Source
    image_key: str
    max_resolution: int | None
    fingerprint: str

    @property
    def names(self) -> Mapping[str, str]:
        """Stored field that is one number -> its field in the file."""
        return number_fields(self.source.specs)

    @property
    def fields(self) -> dict[str, BetonField]:
        """The fields of the file, in order."""
        numbers = {name: _number_field(self.source.specs[key]) for key, name in self.names.items()}
        image = BetonImage("raw", max_resolution=self.max_resolution)
        return {PIXELS_FIELD: image, **numbers, IS_CACHED: BetonInt()}


@dataclass(frozen=True)
class Estimate:
    """The room that a cache will need.

    Attributes:
        num_bytes: size of the file without its manifest; exact where all images are of one size.
        page_size: size of the pages that hold its images, bytes.
        shape: [h, w, 3] of an image.
    """

    num_bytes: int
    page_size: int
    shape: tuple[int, int, int]


def number_fields(specs: Mapping[str, FieldSpec]) -> dict[str, str]:
    """Return stored field -> its name in the file, for every field that is one number: FFCV allows 16 characters."""
    found: dict[str, str] = {}
    for key, spec in specs.items():
        if spec.shape == () and np.dtype(spec.dtype).kind in "biuf":
            is_fitting = len(key) <= 16 and key.isascii() and key.isprintable() and key not in (PIXELS_FIELD, IS_CACHED)
            found[key] = key if is_fitting else f"number {len(found)}"
    return found


def estimate(content: CacheContent) -> Estimate:
    """Estimate the room that a cache will need from the headers of some images."""
    num_examples = len(content.source)
    index = np.unique(np.linspace(0, num_examples - 1, min(num_examples, _NUM_SAMPLED)).astype(np.int64))
    _, columns = _read_undamaged(content.source, index, [content.image_key])
    shapes = [shape for image in columns.get(content.image_key, ()) if (shape := _shape_of(image, content))]
    sizes = [math.prod(shape) for shape in shapes] or [3]
    largest = max(sizes) if min(sizes) == max(sizes) else _ROOM_FOR_LARGER * max(sizes)
    usual = min(DEFAULT_PAGE, _IMAGES_IN_PAGE * largest)
    page_size = min(LARGEST_PAGE, max(SMALLEST_PAGE, 1 << (max(usual, largest) - 1).bit_length()))
    fields = content.fields
    layout = Layout(num_examples, len(fields), make_row_type([one.row_type for one in fields.values()]), page_size)
    num_in_page = max(1, int(page_size // np.mean(sizes)))
    num_bytes = layout.pages_end(-(-num_examples // num_in_page)) + num_examples * ALLOCATION.itemsize
    return Estimate(num_bytes, page_size, shapes[0] if shapes else (1, 1, 3))


def build(
    content: CacheContent,
    path: Path,
    found: Estimate,
    say: Callable[[int], None],
    *,
    before_closing: Callable[[], None],
) -> int:
    """Write a cache, whole or not at all; decode on all usable cores, in bounded memory.

    Returns:
        How many images are left to the original files: those that cannot be decoded, or are far larger than the others.

    Raises:
        ExportError: the disk is full, or cannot be written to; `path` is as it was.
        ShardError: a file is missing, or does not hold the promised number of examples.
    """
    source, num_left_out = content.source, 0
    source.check()
    filler = np.zeros(found.shape, np.uint8)
    writer = BetonWriter(
        path,
        content.fields,
        len(source),
        page_size=found.page_size,
        name=source.name,
        fingerprint=content.fingerprint,
        overwrite=True,
        follows_link=False,
    )
    with writer:
        for numbers, images, rows in _decoded_chunks(content, found.page_size):
            for number, image, row in zip(numbers, images, rows, strict=True):
                num_left_out += image is None
                writer.add([filler if image is None else image, *row, int(image is not None)], number)
            say(numbers[-1] + 1)
        before_closing()
        writer.close()
    return num_left_out


_Chunk = tuple[range, list[Pixels | None], list[tuple[Any, ...]]]


def _decoded_chunks(content: CacheContent, page_size: int) -> Iterator[_Chunk]:
    """Yield all examples in order, chunk by chunk: their numbers, their images, and their other values."""
    num_threads = max(1, math.floor(usable_cores().number))
    with ThreadPoolExecutor(num_threads, "tfds_torch-cache") as threads:
        pending: deque[Future[_Chunk]] = deque()
        submitted = (threads.submit(_decode, content, page_size, *chunk) for chunk in _read_chunks(content))
        try:
            pending.extend(islice(submitted, num_threads + 1))
            while pending:
                chunk = pending.popleft().result()
                pending.extend(islice(submitted, 1))
                yield chunk
        finally:
            for future in pending:
                future.cancel()


def _read_chunks(content: CacheContent) -> Iterator[tuple[range, Int64Array, Columns]]:
    source, fields = content.source, [content.image_key, *content.names]
    size = max(1, min(_CHUNK_BYTES // max(1, source.mean_example_bytes), _LARGEST_CHUNK))
    for start in range(0, len(source), size):
        numbers = range(start, min(start + size, len(source)))
        source.announce(np.arange(numbers.stop, min(numbers.stop + size, len(source))))
        yield numbers, *_read_undamaged(source, np.arange(numbers.start, numbers.stop), fields)


def _read_undamaged(source: Source, index: Int64Array, fields: Sequence[str]) -> tuple[Int64Array, Columns]:
    """Return the numbers of the examples that are not damaged, and their values."""
    try:
        return index, source.read(index, fields)
    except CorruptRecordError:
        is_undamaged = np.array([_is_undamaged(source, one, fields) for one in index])
        index = index[is_undamaged]
        return index, source.read(index, fields) if len(index) else {}


def _is_undamaged(source: Source, number: np.int64, fields: Sequence[str]) -> bool:
    try:
        source.read(np.array([number], np.int64), fields)
    except CorruptRecordError:
        return False
    return True


def _decode(content: CacheContent, page_size: int, numbers: range, index: Int64Array, columns: Columns) -> _Chunk:
    keys = list(content.names)
    images: list[Pixels | None] = [None] * len(numbers)
    rows: list[tuple[Any, ...]] = [(0,) * len(keys)] * len(numbers)
    if not len(index):
        return numbers, images, rows
    places = (index - numbers.start).tolist()
    values = [_plain(columns[key]) for key in keys]
    for position, (place, image) in enumerate(zip(places, columns[content.image_key], strict=True)):
        rows[place] = tuple(column[position] for column in values)
        try:
            pixels = make_pixels(content.max_resolution, image)
        except ValueError:
            continue
        if pixels.nbytes <= page_size and max(pixels.shape[:2]) <= LARGEST_SIDE:
            images[place] = pixels
    return numbers, images, rows


def _plain(values: NDArray[Any]) -> list[Any]:
    """Return numbers as those of Python; uint64 becomes int64 of the same bits."""
    wide: list[Any] = np.asarray(values).astype(np.float64 if values.dtype.kind == "f" else np.int64).tolist()
    return wide


def _number_field(spec: FieldSpec) -> BetonField:
    return BetonFloat() if np.dtype(spec.dtype).kind == "f" else BetonInt()


def _shape_of(image: bytes, content: CacheContent) -> tuple[int, int, int] | None:
    """Return [h, w, 3] of an image as it will be cached, or None if its header cannot be read."""
    try:
        header = _IMAGE.read_header(image)
    except ValueError:
        return None
    height, width = header.height, header.width
    longest = content.max_resolution
    if longest is not None and max(height, width) > longest:
        ratio = longest / max(height, width)
        height, width = max(1, math.floor(height * ratio)), max(1, math.floor(width * ratio))
    return height, width, 3
