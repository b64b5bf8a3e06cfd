"""Chunks of Riegeli/records, the format that ArrayRecord files are made of, read without a package of theirs.

A chunk is: hash of the header behind it, size and hash of the data, type and number of records, size of the records
(u64 each, the type in the lowest byte), data; it may be interrupted by a block header at each multiple of 64 KiB. The
data of a simple chunk is: type of compression, size of the compressed sizes, these, the compressed records.
Source: doc/riegeli_records_file_format.md of google/riegeli.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import ConfigError
from tfds_torch.plan.order import Int64Array
from tfds_torch.storage.array_record.highway_hash import highway_hashes

BLOCK_BYTES, BLOCK_HEADER_BYTES = 1 << 16, 24
HEADER_BYTES = 40
SIGNATURE = bytes.fromhex("83af70d10d884a3f00000000000000004000000000000000")
"""How every file begins."""

_HASHED_BYTES = 1024  # Longer data is not compared with its hash: computing it takes as long as decoding the images.
_MOST_DECODED_BYTES = 1 << 32
_SIMPLE, _NONE, _ZSTD = ord("r"), 0, ord("z")
_TYPES = {ord("t"): "transposed", ord("s"): "file signature", ord("m"): "metadata", ord("p"): "padding"}
_COMPRESSIONS = {ord("b"): "brotli", ord("s"): "snappy"}

Decompress = Callable[[memoryview, int], bytes]
"""A zstd frame, and the bytes that it must give -> these; raises ValueError where it gives others."""


class BadChunkError(Exception):
    """A chunk that is not what was written: its place among those asked for, and a clause; never leaves this room."""

    def __init__(self, place: int, problem: str) -> None:
        super().__init__(problem)
        self.place, self.problem = place, problem


class UnreadChunkError(Exception):
    """A chunk of a kind that is not read: a clause that says of which; never leaves this room."""


def find_decompress(dataset: str) -> Decompress:
    """Returns the function that decompresses zstd; raises ConfigError where its package is not installed."""
    try:
        import zstandard
    except ImportError as error:
        raise ConfigError(
            f"{dataset} has files of format 'array_record', which are read by URL with zstandard, and that is not "
            f"installed: `pip install 'tfds-torch[remote]'`."
        ) from error

    def decompress(frame: memoryview, size: int) -> bytes:
        try:
            # The frame's own word is what would be allocated.
            if zstandard.frame_content_size(frame) not in (size, -1):
                raise ValueError("it does not hold the bytes that it should")
            found = zstandard.ZstdDecompressor().decompress(frame, max(1, size), allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise ValueError(str(error)) from error
        if len(found) != size:
            raise ValueError("it does not hold the bytes that it should")
        return found

    return decompress


def without_block_headers(content: memoryview, begin: int) -> memoryview:
    """Returns bytes of a file without the block headers among them.

    Args:
        content: the bytes from offset `begin` of the file on.
        begin: where a chunk begins.
    """
    first = -begin % BLOCK_BYTES
    if first >= len(content):
        return content
    starts = range(first + BLOCK_HEADER_BYTES, len(content), BLOCK_BYTES)
    pieces = [content[:first], *(content[at : at + BLOCK_BYTES - BLOCK_HEADER_BYTES] for at in starts)]
    return memoryview(b"".join(pieces))


def decode_chunks(
    chunks: Sequence[memoryview],
    num_records: Sequence[int | None],
    decompress: Decompress,
    *,
    verify_checksums: bool = True,
) -> list[list[bytes]]:
    """Returns the records of simple chunks.

    The hashes of all headers are verified, those of data of 1 KiB at most where `verify_checksums` says so; of longer
    data, that it decompresses to as many bytes and records as its header says.

    Args:
        chunks: each without block headers; what follows its data is ignored.
        num_records: how many records each must have; None: any number.
        decompress: as `find_decompress` returns it.
        verify_checksums: whether short data is compared with its hash.

    Raises:
        BadChunkError: a chunk was cut, or is not what was written.
        UnreadChunkError: a chunk is not simple, or compressed by something else than zstd.
    """
    headers = _headers(chunks)
    if verify_checksums:
        _check_data(chunks, headers, np.flatnonzero(headers[:, 1] <= _HASHED_BYTES))
    found: list[list[bytes]] = []
    for place, (chunk, header) in enumerate(zip(chunks, headers.tolist(), strict=True)):
        _, size, _, kind_and_count, decoded_size = header
        kind, count, expected = kind_and_count & 0xFF, kind_and_count >> 8, num_records[place]
        if kind != _SIMPLE:
            name = _TYPES.get(kind, f"type {kind}")
            if kind == ord("t"):
                raise UnreadChunkError(f"a {name} chunk")
            raise BadChunkError(place, f"a chunk of another kind ({name}) is there")
        if expected not in (None, count):
            raise BadChunkError(place, f"its chunk has {count} records, and {expected} belong there")
        try:
            found.append(_records(chunk[HEADER_BYTES : HEADER_BYTES + size], count, decoded_size, decompress))
        except ValueError as error:
            raise BadChunkError(place, f"its chunk cannot be decoded: {error}") from None
    return found


def check_data(chunks: Sequence[memoryview]) -> None:
    """Compares the data of chunks, however long, with its hash: about 1 us a byte; raises BadChunkError."""
    _check_data(chunks, _headers(chunks), np.arange(len(chunks)))


def _headers(chunks: Sequence[memoryview]) -> NDArray[np.uint64]:
    """Returns the headers of chunks, uint64 [n, 5], whose hashes are right, and all of whose data is there."""
    for place, chunk in enumerate(chunks):
        if len(chunk) < HEADER_BYTES:
            raise BadChunkError(place, "the file ends inside its chunk: it was cut")
    raw = b"".join(chunk[:HEADER_BYTES] for chunk in chunks)
    headers = np.frombuffer(raw, "<u8").reshape(len(chunks), 5)
    is_wrong = highway_hashes([chunk[8:HEADER_BYTES] for chunk in chunks]) != headers[:, 0]
    if is_wrong.any():
        raise BadChunkError(int(np.argmax(is_wrong)), "the header of its chunk does not have its hash")
    for place, (chunk, size) in enumerate(zip(chunks, headers[:, 1].tolist(), strict=True)):
        if HEADER_BYTES + size > len(chunk):
            raise BadChunkError(place, "its chunk has less room than its data takes")
    return headers


def _check_data(chunks: Sequence[memoryview], headers: NDArray[np.uint64], places: Int64Array) -> None:
    sizes = headers[:, 1].tolist()
    data = [chunks[place][HEADER_BYTES : HEADER_BYTES + sizes[place]] for place in places.tolist()]
    is_wrong = highway_hashes(data) != headers[places, 2]
    if is_wrong.any():
        place = int(places[np.argmax(is_wrong)])
        raise BadChunkError(place, f"the {sizes[place]} bytes of its chunk do not have their hash")


def _records(data: memoryview, count: int, decoded_size: int, decompress: Decompress) -> list[bytes]:
    """Returns the records of a simple chunk; ValueError: its data makes no sense."""
    if decoded_size > _MOST_DECODED_BYTES:
        raise ValueError(f"it says that it holds {decoded_size} bytes")
    if not len(data):
        raise ValueError("it is empty")
    compression = data[0]
    if compression not in (_NONE, _ZSTD):
        name = _COMPRESSIONS.get(compression, f"type {compression}")
        raise UnreadChunkError(f"a chunk that is compressed by {name}")
    sizes_bytes, at = _read_varint(data, 1)
    if at + sizes_bytes > len(data):
        raise ValueError("its sizes have no room")

    def content(part: memoryview) -> bytes:
        if compression == _NONE:
            return bytes(part)
        size, begin = _read_varint(part, 0)
        if size > _MOST_DECODED_BYTES:
            raise ValueError(f"it says that it holds {size} bytes")
        return decompress(part[begin:], size)

    values = content(data[at + sizes_bytes :])
    if len(values) != decoded_size:
        raise ValueError(f"it holds {len(values)} bytes, and its header says {decoded_size}")
    if count == 1:
        return [values]
    sizes = _read_varints(content(data[at : at + sizes_bytes]))
    # Sums may overflow only where a size is absurd.
    if len(sizes) != count or (sizes > decoded_size).any() or int(sizes.sum()) != decoded_size:
        raise ValueError("the sizes of its records are not those of its bytes")
    ends = np.cumsum(sizes).tolist()
    return [values[end - size : end] for end, size in zip(ends, sizes.tolist(), strict=True)]


def _read_varint(content: memoryview, at: int) -> tuple[int, int]:
    """Returns a number, and where the byte behind it is."""
    value = 0
    for place, byte in enumerate(content[at : at + 9]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at + place + 1
    raise ValueError("a size in it has no end")


def _read_varints(content: bytes) -> Int64Array:
    """Returns all numbers that bytes hold, int64."""
    raw: Any = np.frombuffer(content, np.uint8).astype(np.int64)
    if not len(raw):
        return np.empty(0, np.int64)
    is_last = raw < 0x80
    starts = np.flatnonzero(np.concatenate([[True], is_last[:-1]]))
    place = np.arange(len(raw)) - np.repeat(starts, np.diff(np.append(starts, len(raw))))
    if not is_last[-1] or place.max() > 8:
        raise ValueError("a size in it has no end")
    numbers: Int64Array = np.add.reduceat((raw & 0x7F) << 7 * place, starts)
    return numbers
