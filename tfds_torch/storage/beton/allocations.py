"""Whether the pointers of a file can be trusted: bounds, overlaps and counts, checked for all samples at once."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfds_torch.plan.order import Int64Array
from tfds_torch.storage.beton.fields import BetonArray, BetonBytes, BetonCustom, BetonField, BetonJson
from tfds_torch.storage.beton.format import ALLOCATION, JPEG, RAW
from tfds_torch.storage.beton.head import Head, damaged
from tfds_torch.storage.beton.image_field import BetonImage
from tfds_torch.storage.beton.manifest import HEAD_MAGIC


@dataclass(frozen=True)
class PayloadSizes:
    """Where payloads lie and how large they are, checked.

    Attributes:
        pointer_of: field -> its pointers, uint64 [n] (a view of the rows).
        size_of: field -> int64 [n], the sizes; or one size for all.
    """

    pointer_of: Mapping[str, NDArray[np.uint64]]
    size_of: Mapping[str, Int64Array | int]

    def pointers(self, name: str, index: Int64Array) -> Int64Array:
        """Returns where payloads of samples, int64 [n], lie."""
        return self.pointer_of[name][index].astype(np.int64)

    def sizes(self, name: str, index: Int64Array) -> Int64Array:
        """Returns how large payloads of samples, int64 [n], are."""
        sizes = self.size_of[name]
        return np.full(len(index), sizes, np.int64) if isinstance(sizes, int) else sizes[index].astype(np.int64)


def check_allocations(head: Head, rows: NDArray[np.void], memory: NDArray[np.uint8]) -> PayloadSizes:
    """Holds every pointer of the samples against the allocation table, and the table against the file.

    Args:
        head: of the file.
        rows: [n], of the samples.
        memory: uint8, the whole file.

    Raises:
        CorruptRecordError: a pointer, size or count makes no sense.
    """
    table = _read_table(head, memory)
    used = np.zeros(len(table.pointers), np.bool_)
    pointer_of: dict[str, NDArray[np.uint64]] = {}
    size_of: dict[str, Int64Array | int] = {}
    for (name, field), member in zip(head.fields.items(), head.layout.row_type.names or (), strict=True):
        if field.pointer_at is None:
            continue
        column = rows[member]
        pointer_of[name] = _pointers(column, field)
        size_of[name] = _match(head, name, table, used, pointer_of[name], _stored_sizes(head, name, field, column))
    if not used.all() and not _has_custom(head):
        raise damaged(head.path, f"no sample has the payload at {table.pointers[~used][0]}")
    return PayloadSizes(pointer_of, size_of)


@dataclass(frozen=True)
class _Table:
    """The allocations that have bytes, in the order of their pointers.

    Attributes:
        pointers: int64 [m].
        sizes: int64 [m].
        samples: int64 [m].
    """

    pointers: Int64Array
    sizes: Int64Array
    samples: Int64Array


def _has_custom(head: Head) -> bool:
    return any(isinstance(field, BetonCustom) for field in head.fields.values())


def _read_table(head: Head, memory: NDArray[np.uint8]) -> _Table:
    layout, page_size = head.layout, head.layout.page_size
    expected = layout.num_samples * sum(
        field.pointer_at is not None and not isinstance(field, BetonCustom) for field in head.fields.values()
    )
    if head.num_allocations < expected or (head.num_allocations > expected and not _has_custom(head)):
        raise damaged(
            head.path,
            f"its allocation table has {head.num_allocations} rows, and {layout.num_samples} samples have {expected} "
            f"payloads",
        )
    table = memory[head.table_at :].view(ALLOCATION)
    limit = head.table_at if head.manifest is None else head.manifest.at
    pointers, sizes, samples = (np.ascontiguousarray(table[key]) for key in ("pointer", "size", "sample"))
    # As unsigned numbers, before anything is added to them.
    is_bad = (pointers < layout.pages_at) | (pointers > limit) | (sizes > page_size) | (samples >= layout.num_samples)
    if not is_bad.any():
        is_bad = (pointers + sizes > limit) | (pointers % page_size + sizes > page_size)
    if is_bad.any():
        row = int(np.flatnonzero(is_bad)[0])
        raise damaged(
            head.path,
            f"row {row} of its allocation table puts {sizes[row]} bytes of sample {samples[row]} at {pointers[row]}, "
            f"where no page of {page_size} bytes has room for them",
        )
    kept = sizes > 0
    pointers, sizes, samples = (column[kept].astype(np.int64) for column in (pointers, sizes, samples))
    if (pointers[1:] < pointers[:-1]).any():
        order = np.argsort(pointers, kind="stable")
        pointers, sizes, samples = pointers[order], sizes[order], samples[order]
    overlaps = pointers[:-1] + sizes[:-1] > pointers[1:]
    if overlaps.any():
        raise damaged(head.path, f"its payloads overlap at {pointers[1:][overlaps][0]}")
    _check_end(head, memory, int(pointers[-1] + sizes[-1]) if len(pointers) else 0)
    return _Table(pointers, sizes, samples)


def _check_end(head: Head, memory: NDArray[np.uint8], payloads_end: int) -> None:
    """Raises CorruptRecordError where a manifest begins behind the pages, and was not found from the table."""
    layout = head.layout
    num_pages = -(-max(0, payloads_end - layout.pages_at) // layout.page_size)
    at = layout.pages_end(num_pages)
    if head.manifest is None and memory[at : at + len(HEAD_MAGIC)].tobytes() == HEAD_MAGIC:
        raise damaged(head.path, "the tail of its manifest is missing")


def _pointers(column: NDArray[Any], field: BetonField) -> NDArray[np.uint64]:
    names = np.dtype(field.row_type).names
    return column if names is None or field.pointer_at is None else column[names[field.pointer_at]]


def _stored_sizes(head: Head, name: str, field: BetonField, column: NDArray[Any]) -> NDArray[np.int64] | int | None:
    """Returns the sizes of payloads as far as the rows tell them, int64 [n], -1 where they do not; None: of none."""
    if isinstance(field, BetonArray):
        return field.num_bytes
    if isinstance(field, BetonBytes | BetonJson):
        sizes = column["size"]
        if (sizes > head.layout.page_size).any():
            raise damaged(head.path, f"a value of {name!r} is said to have {sizes.max()} bytes")
        return sizes.astype(np.int64)
    if not isinstance(field, BetonImage):
        return None
    mode, sides = column["mode"], column["width"].astype(np.int64) * column["height"]
    is_bad = (mode != JPEG) & (mode != RAW) | (sides == 0)
    if is_bad.any():
        number = int(np.flatnonzero(is_bad)[0])
        raise damaged(head.path, f"image {name!r} of sample {number} is described as {column[number].tolist()}")
    return np.where(mode == RAW, 3 * sides, -1)


def _match(
    head: Head,
    name: str,
    table: _Table,
    used: NDArray[np.bool_],
    pointers: NDArray[np.uint64],
    stored: NDArray[np.int64] | int | None,
) -> Int64Array | int:
    """Finds the allocations of a field, marks them as used, and returns their sizes: int64 [n], or one for all."""
    num_samples = len(pointers)
    known = np.broadcast_to(np.int64(-1) if stored is None else np.asarray(stored, np.int64), (num_samples,))
    place = np.searchsorted(table.pointers, pointers.astype(np.int64))  # What is beyond int64 becomes negative.
    place = np.minimum(place, max(0, len(table.pointers) - 1))
    if len(table.pointers):
        is_there = (table.pointers[place] == pointers.astype(np.int64)) & (
            table.samples[place] == np.arange(num_samples)
        )
        is_there &= (known < 0) | (table.sizes[place] == known)
        is_there &= ~used[place]
    else:
        is_there = np.zeros(num_samples, np.bool_)
    is_fine = is_there | (known == 0) | (stored is None)
    if not is_fine.all():
        number = int(np.flatnonzero(~is_fine)[0])
        raise damaged(
            head.path,
            f"the pointer {pointers[number]} of field {name!r} of sample {number} is not that of a payload of its own",
        )
    used[place[is_there]] = True
    if isinstance(stored, int):
        return stored
    sizes = np.where(is_there, table.sizes[place], 0) if len(table.pointers) else np.zeros(num_samples, np.int64)
    return int(sizes[0]) if num_samples and (sizes == sizes[0]).all() else sizes.astype(np.uint32)
