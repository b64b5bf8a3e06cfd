"""What lies at a position of a `.beton` file, by the table of its format alone: what an index is held against.

No code of `storage`, `engines` or `parsers` runs here, and nothing is mapped: places are sought, and read.
"""

import hashlib
import io
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from PIL import Image

from tfds_torch.check.tfds_reader import ReferenceExample
from tfds_torch.errors import ShardError

_IMAGE, _RAW = 2, 1
_ROW_BYTES = {0: 8, 1: 8, _IMAGE: 13, 3: 16, 4: 8, 5: 16, 6: 8}
_UNALIGNED = (_IMAGE, 3, 5)  # Rows of several numbers; plain numbers lie at multiples of eight.
_DESCRIPTOR_BYTES, _HEADER, _ALLOCATION = 1041, struct.Struct("<HHIQQ"), struct.Struct("<QQQ")
_TABLE_ROWS_AT_ONCE = 2**16


class _Place(NamedTuple):
    mode: int
    width: int
    height: int
    pointer: int


def read_images(path: Path, key: str, positions: Sequence[int]) -> list[ReferenceExample]:
    """Returns the images of a field, encoded as a file that Pillow opens, with the digest of what is stored.

    Args:
        path: of the file.
        key: the field; the file has no field of a type of its own in front of it.
        positions: numbers of samples.

    Raises:
        ShardError: the file cannot be read, or is not of this form.
    """
    try:
        with path.open("rb") as file:
            places = _find_places(file, key, positions)
            sizes = _find_sizes(file, {place.pointer for place in places})
            return [_read(file, place, sizes[place.pointer]) for place in places]
    except (OSError, struct.error, LookupError, ValueError) as error:
        raise ShardError(f"{path} cannot be read by the table of its format: {error!r}.") from error


def digest(stored: bytes) -> str:
    """Returns the digest of a stored image, as a `ReferenceExample` has it."""
    return hashlib.blake2b(stored, digest_size=16).hexdigest()


def _find_places(file: BinaryIO, key: str, positions: Sequence[int]) -> list[_Place]:
    """Returns what stands in the rows of some samples about their image."""
    _, num_fields, *_ = _HEADER.unpack(file.read(_HEADER.size))
    descriptors = [file.read(_DESCRIPTOR_BYTES) for _ in range(num_fields)]
    at, offset = 0, None
    for descriptor in descriptors:
        kind = descriptor[0]
        at = at if kind in _UNALIGNED else -(-at // 8) * 8
        if descriptor[1:17].rstrip(b"\0").decode("ascii") == key and kind == _IMAGE:
            offset = at
        at += _ROW_BYTES[kind]
    if offset is None:
        raise KeyError(key)
    is_packed = all(descriptor[0] in _UNALIGNED for descriptor in descriptors)
    row_bytes = at if is_packed else -(-at // 8) * 8
    places = []
    for position in positions:
        file.seek(_HEADER.size + num_fields * _DESCRIPTOR_BYTES + position * row_bytes + offset)
        places.append(_Place(*struct.unpack("<BHHQ", file.read(_ROW_BYTES[_IMAGE]))))
    return places


def _find_sizes(file: BinaryIO, pointers: set[int]) -> dict[int, int]:
    """Returns pointer -> size of the payload, as the allocation table has it."""
    file.seek(0)
    *_, table_at = _HEADER.unpack(file.read(_HEADER.size))
    file.seek(table_at)
    sizes: dict[int, int] = {}
    while rows := file.read(_ALLOCATION.size * _TABLE_ROWS_AT_ONCE):
        sizes |= {pointer: size for _, pointer, size in _ALLOCATION.iter_unpack(rows) if pointer in pointers}
    return sizes


def _read(file: BinaryIO, place: _Place, size: int) -> ReferenceExample:
    file.seek(place.pointer)
    stored = file.read(size)
    encoded = stored
    if place.mode == _RAW:
        as_file = io.BytesIO()
        Image.frombytes("RGB", (place.width, place.height), stored).save(as_file, "PNG", compress_level=0)
        encoded = as_file.getvalue()
    return ReferenceExample(None, digest(stored), encoded)
