"""Where the chunks of an ArrayRecord object begin: from its end, which is read instead of the whole object.

The last 64 KiB of a file begin with the postscript, a chunk that says where the footer is; the footer, a chunk as well,
says where each chunk of records begins. All chunks but the last one have the same number of records.
Source: cpp/layout.proto of google/array_record.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from tfds_torch.errors import CorruptRecordError
from tfds_torch.plan.order import Int64Array, unique
from tfds_torch.storage.array_record.riegeli import (
    BLOCK_BYTES,
    BLOCK_HEADER_BYTES,
    HEADER_BYTES,
    SIGNATURE,
    BadChunkError,
    Decompress,
    decode_chunks,
    without_block_headers,
)
from tfds_torch.storage.object_files import ObjectFiles
from tfds_torch.storage.open_files import Stamp

_TAIL_BYTES = 2 * BLOCK_BYTES  # Of the postscript, and of most footers.
_POSTSCRIPT_BYTES = 1024  # It is 100 bytes long; zeros follow.
_Meaning = TypeVar("_Meaning")
_MAGIC, _VERSION = 0x71930E704FDAE05E, 1


def find_chunks(files: ObjectFiles, url: str, stamp: Stamp, decompress: Decompress) -> tuple[int, Int64Array]:
    """Reads where the chunks of an object begin, in one or two requests.

    Args:
        files: where the object lies.
        url: of the object.
        stamp: size and version that it must have.
        decompress: as `find_decompress` returns it.

    Returns:
        The number of records; and int64 [2 + number of chunks]: records of a chunk, offset of each chunk, and where the
        last one ends.

    Raises:
        ShardError: the object is missing, changed, or cannot be read.
        CorruptRecordError: it is not an ArrayRecord file, was cut, or is damaged.
        UnreadChunkError: its footer is compressed by something that is not read.
    """
    size = stamp[0]
    if size < _TAIL_BYTES or size % BLOCK_BYTES:
        raise _no_array_record(files, url, stamp, f"it has {size} bytes, which is not a multiple of 64 KiB")
    tail = size - _TAIL_BYTES
    footer_at = _read(files, url, stamp, tail, size, lambda content: _parse_postscript(content, size, decompress))
    if footer_at >= tail:
        return _read(files, url, stamp, tail, size, lambda content: _parse(content, tail, footer_at, size, decompress))
    end = size - BLOCK_BYTES
    return _read(
        files, url, stamp, footer_at, end, lambda content: _parse(content, footer_at, footer_at, size, decompress)
    )


def are_chunks(found: Int64Array, size: int, count: int) -> bool:
    """Returns whether these can be the chunks of a file of a size with a number of records; see `find_chunks`."""
    group, offsets = int(found[0]), found[1:]
    place = offsets[:-1] % BLOCK_BYTES  # No chunk begins within a block header.
    return bool(
        0 < group <= max(1, count)
        and len(offsets) == -(-count // group) + 1
        and offsets[0] >= len(SIGNATURE)
        and offsets[-1] <= size - BLOCK_BYTES
        and (np.diff(offsets) >= HEADER_BYTES).all()
        and ((place == 0) | (place > BLOCK_HEADER_BYTES)).all()
    )


def _read(
    files: ObjectFiles, url: str, stamp: Stamp, start: int, stop: int, parse: Callable[[memoryview], _Meaning]
) -> _Meaning:
    """Returns what bytes of an object mean; damaged ones are fetched once more."""
    cuts = unique(np.array([0, start, stop, stamp[0]], np.int64)).values
    reader = files.open([url], [stamp], lambda _: cuts)
    try:
        while True:
            try:
                return parse(memoryview(reader.read(0, start, stop - start)))
            except BadChunkError as error:
                if not reader.discard(0, start):
                    raise _no_array_record(files, url, stamp, error.problem) from None
    finally:
        reader.close()


def _parse_postscript(tail: memoryview, size: int, decompress: Decompress) -> int:
    """Returns where the footer begins."""
    begin = size - BLOCK_BYTES
    chunk = without_block_headers(tail[-BLOCK_BYTES:][:_POSTSCRIPT_BYTES], begin)
    try:
        (records,) = decode_chunks([chunk], [None], decompress)
        found = _messages()["Postscript"](records[0])
    except BadChunkError:
        raise BadChunkError(0, "its last 64 KiB are not the end of an ArrayRecord file") from None
    except (DecodeError, IndexError):
        raise BadChunkError(0, "the postscript at its end makes no sense") from None
    if found.magic != _MAGIC or not len(SIGNATURE) <= found.footer_offset < begin:
        raise BadChunkError(0, "the postscript at its end makes no sense")
    return int(found.footer_offset)


def _parse(content: memoryview, at: int, footer_at: int, size: int, decompress: Decompress) -> tuple[int, Int64Array]:
    """Returns the records and chunks that a footer names, of which the bytes of a file from offset `at` on hold all."""
    chunk = without_block_headers(content[footer_at - at :], footer_at)
    try:
        (records,) = decode_chunks([chunk], [None], decompress)
    except BadChunkError as error:
        raise BadChunkError(0, f"its footer at offset {footer_at} is damaged: {error.problem}") from None
    try:
        metadata = _messages()["Metadata"](records[0]).array_record
        footers = list(map(_messages()["Footer"], records[1:]))
        offsets = np.array([*(one.chunk_offset for one in footers), footer_at], np.int64)
        counts = np.array([one.num_records for one in footers], np.int64)
    except (DecodeError, IndexError, OverflowError):
        raise BadChunkError(0, f"its footer at offset {footer_at} makes no sense") from None
    total, group = int(metadata.num_records), int(counts[0]) if len(counts) else 1
    found = np.concatenate([np.array([group], np.int64), offsets])
    is_right = (
        (metadata.version, metadata.num_chunks) == (_VERSION, len(footers))
        and int(counts.sum()) == total
        and (counts[:-1] == group).all()
        and are_chunks(found, size, total)
    )
    if not is_right:
        raise BadChunkError(0, f"its footer at offset {footer_at} makes no sense")
    return total, found


def _no_array_record(files: ObjectFiles, url: str, stamp: Stamp, problem: str) -> CorruptRecordError:
    reader = files.open([url], [stamp], lambda _: unique(np.array([0, min(64, stamp[0]), stamp[0]])).values)
    try:
        is_one = reader.read(0, 0, len(SIGNATURE)) == SIGNATURE
    finally:
        reader.close()
    what = "was cut, or is damaged" if is_one else "is not an ArrayRecord file"
    return CorruptRecordError(f"{url} {what}: {problem}. Prepare the dataset again.")


@cache
def _messages() -> dict[str, Callable[[bytes], Any]]:
    """Returns what parses each message."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="tfds_torch_array_record.proto", package="tfds_torch")
    layout = {
        "Postscript": ("footer_offset", "magic"),
        "Footer": ("chunk_offset", "decoded_data_size", "num_records"),
        "ArrayRecordMetadata": ("version", "num_chunks", "num_records"),
    }
    for name, fields in layout.items():
        message = file.message_type.add(name=name)
        for number, one in enumerate(fields, 1):
            message.field.add(name=one, number=number, type=field.TYPE_UINT64, label=field.LABEL_OPTIONAL)
    message = file.message_type.add(name="Metadata")
    message.field.add(
        name="array_record",
        number=1,
        type=field.TYPE_MESSAGE,
        label=field.LABEL_OPTIONAL,
        type_name=".tfds_torch.ArrayRecordMetadata",
    )
    pool = descriptor_pool.DescriptorPool()  # Of its own: the package array_record's holds messages like these.
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"tfds_torch.{name}")).FromString
        for name in ("Postscript", "Footer", "Metadata")
    }
