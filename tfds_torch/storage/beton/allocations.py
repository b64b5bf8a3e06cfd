"""Checks of a file's pointers: bounds, overlaps, counts; a slice of the table at a time."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tfds_torch.plan.order import Int64Array
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.beton.fields import BetonArray, BetonBytes, BetonCustom, BetonField, BetonJson
from tfds_torch.storage.beton.format import ALLOCATION, JPEG, RAW
from tfds_torch.storage.beton.head import Head, damaged
from tfds_torch.storage.beton.image_field import BetonImage
from tfds_torch.storage.beton.manifest import HEAD_MAGIC
from tfds_torch.storage.shard_files import Mapped

_SLICE = 1 << 15
"""Rows that are checked at a time: the arrays computed for so few rows stay in the processor's cache."""


@dataclass(frozen=True)
class PayloadSizes:
    """Where payloads lie and how large they are, checked.

    Attributes:
        pointer_of: field -> its pointers, uint64 [n] (a view of the rows).
        size_of: field -> its sizes, unsigned [n] (a view of the rows, where they hold them); or one size for all.
    """

    pointer_of: Mapping[str, NDArray[np.uint64]]
    size_of: Mapping[str, NDArray[Any] | int]

    def pointers(self, name: str, index: Int64Array) -> Int64Array:
        """Return where payloads of samples, int64 [n], lie."""
        return self.pointer_of[name][index].astype(np.int64)

    def sizes(self, name: str, index: Int64Array) -> Int64Array:
        """Return how large payloads of samples, int64 [n], are."""
        sizes = self.size_of[name]
        return np.full(len(index), sizes, np.int64) if isinstance(sizes, int) else sizes[index].astype(np.int64)


def check_allocations(head: Head, rows: NDArray[np.void], mapped: Mapped) -> PayloadSizes:
    """Compare every pointer of the samples with the allocation table, and the table with the file.

    The check takes one byte for every payload, and four more where only the table holds the payload's size. Beyond that
    memory does not grow with the file, unless the table is out of order: then it takes 24 bytes for each row meanwhile.

    Args:
        head: the head of the file.
        rows: [n], the rows of the samples.
        mapped: the whole file.

    Raises:
        CorruptRecordError: a pointer, size or count makes no sense.
    """
    table, members = _table_of(head, mapped), head.layout.row_type.names or ()
    payloads = [
        _Payloads(head, name, field, rows[member])
        for (name, field), member in zip(head.fields.items(), members, strict=True)
        if field.pointer_at is not None
    ]
    order, unclaimed = _Order(head), []
    for allocations in _slices_of(head, table):
        order.note(allocations)
        is_free = np.ones(len(allocations.pointers), np.bool_)
        for one in payloads:
            is_free &= ~one.claim(allocations, is_free)
        unclaimed += allocations.pointers[is_free][:1].tolist()
    order.check(table)
    _check_end(head, mapped, order.end)
    size_of = {one.name: one.sizes() for one in payloads}
    if unclaimed and not _has_custom(head):
        raise damaged(head.path, f"no sample has the payload at {unclaimed[0]}")
    return PayloadSizes({one.name: one.pointers for one in payloads}, size_of)


class _Allocations(NamedTuple):
    """Some rows of the table, each array [m]; rows of no bytes are left out."""

    pointers: NDArray[np.uint64]
    sizes: Int64Array
    samples: Int64Array


def _has_custom(head: Head) -> bool:
    return any(isinstance(field, BetonCustom) for field in head.fields.values())


def _table_of(head: Head, mapped: Mapped) -> NDArray[np.void]:
    num_samples = head.layout.num_samples
    expected = num_samples * sum(
        field.pointer_at is not None and not isinstance(field, BetonCustom) for field in head.fields.values()
    )
    if head.num_allocations < expected or (head.num_allocations > expected and not _has_custom(head)):
        raise damaged(
            head.path,
            f"its allocation table has {head.num_allocations} rows, and {num_samples} samples have {expected} payloads",
        )
    table: NDArray[np.void] = mapped.part(head.table_at, head.stamp[0]).view(ALLOCATION)
    return table


def _slices_of(head: Head, table: NDArray[np.void]) -> Iterator[_Allocations]:
    """Yield the rows of the table, checked against the file."""
    layout, page_size = head.layout, head.layout.page_size
    limit = head.table_at if head.manifest is None else head.manifest.at
    for start in range(0, len(table), _SLICE):
        some = table[start : start + _SLICE]
        pointers, sizes, samples = (np.ascontiguousarray(some[key]) for key in ("pointer", "size", "sample"))
        # Compared as unsigned numbers, before anything is added to them.
        is_bad = (pointers < layout.pages_at) | (pointers > limit) | (sizes > page_size)
        is_bad |= samples >= layout.num_samples
        if not is_bad.any():
            is_bad = (pointers + sizes > limit) | (pointers % page_size + sizes > page_size)
        if is_bad.any():
            row = int(np.flatnonzero(is_bad)[0])
            raise damaged(
                head.path,
                f"row {start + row} of its allocation table puts {sizes[row]} bytes of sample {samples[row]} at "
                f"{pointers[row]}, where no page of {page_size} bytes has room for them",
            )
        kept = sizes > 0
        yield _Allocations(pointers[kept], sizes[kept].astype(np.int64), samples[kept].astype(np.int64))


class _Order:
    """Finds payloads that overlap."""

    def __init__(self, head: Head) -> None:
        self._head = head
        self._is_ascending, self._last_start = True, 0
        self.end = 0  # The largest end of all payloads so far.

    def note(self, allocations: _Allocations) -> None:
        """Take further rows of the table; rows in the order of their pointers are checked at once."""
        starts = allocations.pointers.astype(np.int64)
        if not len(starts):
            return
        ends = starts + allocations.sizes
        self._is_ascending &= bool(starts[0] >= self._last_start and (starts[1:] >= starts[:-1]).all())
        if self._is_ascending:
            self._refuse_overlaps(starts, np.append(self.end, ends[:-1]))
        self._last_start, self.end = int(starts[-1]), max(self.end, int(ends.max()))

    def check(self, table: NDArray[np.void]) -> None:
        """Check all rows of a table that is not in the order of its pointers."""
        if self._is_ascending:
            return
        starts = table["pointer"][table["size"] > 0].astype(np.int64)
        order = np.argsort(starts, kind="stable")
        ends = starts + table["size"][table["size"] > 0].astype(np.int64)
        self._refuse_overlaps(starts[order][1:], ends[order][:-1])

    def _refuse_overlaps(self, starts: Int64Array, ends_before: Int64Array) -> None:
        overlaps = ends_before > starts
        if overlaps.any():
            raise damaged(self._head.path, f"its payloads overlap at {starts[overlaps][0]}")


class _Payloads:
    """The payloads of a field, for which rows of the table are claimed."""

    def __init__(self, head: Head, name: str, field: BetonField, column: NDArray[Any]) -> None:
        self.name, self.pointers = name, pointers_of(column, field)
        self._head, self._field, self._column = head, field, column
        self._is_claimed = np.zeros(len(column), np.bool_)
        rows_hold_sizes = isinstance(field, BetonArray | BetonBytes | BetonJson)
        self._found_sizes = None if rows_hold_sizes else np.zeros(len(column), np.uint32)
        for start in range(0, len(column), _SLICE):
            self._check_rows(start)

    def claim(self, allocations: _Allocations, is_free: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which of some rows of the table, bool [m], are this field's: at most one for a sample."""
        samples, sizes = allocations.samples, allocations.sizes
        stored = self._stored_sizes(samples)
        is_own: NDArray[np.bool_] = (
            is_free & (self.pointers[samples] == allocations.pointers) & ~self._is_claimed[samples]
        )
        is_own &= (stored < 0) | (stored == sizes)
        self._is_claimed[samples[is_own]] = True
        if self._found_sizes is not None:
            self._found_sizes[samples[is_own]] = sizes[is_own]
        return is_own

    def sizes(self) -> NDArray[Any] | int:
        """Return the sizes of the payloads, [n], or one for all; called when the whole table was read."""
        for start in range(0, 0 if isinstance(self._field, BetonCustom) else len(self._column), _SLICE):
            others = start + np.flatnonzero(~self._is_claimed[start : start + _SLICE])
            others = others[self._stored_sizes(others) != 0]
            if len(others):
                raise damaged(
                    self._head.path,
                    f"the pointer {self.pointers[others[0]]} of field {quoted(self.name)} of sample {others[0]} is not "
                    f"that of a payload of its own",
                )
        if isinstance(self._field, BetonArray):
            return self._field.num_bytes
        if self._found_sizes is None:
            sizes: NDArray[Any] = self._column["size"]
            return sizes
        is_one = len(self._found_sizes) and (self._found_sizes == self._found_sizes[0]).all()
        return int(self._found_sizes[0]) if is_one else self._found_sizes

    def _check_rows(self, start: int) -> None:
        """Check a slice of the samples' rows."""
        some, path = self._column[start : start + _SLICE], self._head.path
        if isinstance(self._field, BetonBytes | BetonJson) and (some["size"] > self._head.layout.page_size).any():
            raise damaged(path, f"a value of {quoted(self.name)} has a size of {some['size'].max()} bytes")
        if isinstance(self._field, BetonImage):
            mode = some["mode"]
            is_bad = (mode != JPEG) & (mode != RAW) | (some["width"] == 0) | (some["height"] == 0)
            if is_bad.any():
                place = int(np.flatnonzero(is_bad)[0])
                described = some[place].tolist()
                raise damaged(path, f"image {quoted(self.name)} of sample {start + place} is described as {described}")

    def _stored_sizes(self, samples: Int64Array) -> Int64Array:
        """Return the sizes of payloads of samples, int64 [m]; -1 where their rows do not hold them."""
        field = self._field
        if isinstance(field, BetonArray):
            return np.full(len(samples), field.num_bytes, np.int64)
        if isinstance(field, BetonBytes | BetonJson):
            sizes: Int64Array = self._column["size"][samples].astype(np.int64)
            return sizes
        if isinstance(field, BetonImage):
            rows = self._column[samples]
            num_bytes = 3 * rows["width"].astype(np.int64) * rows["height"]
            return np.where(rows["mode"] == RAW, num_bytes, -1)
        return np.full(len(samples), -1, np.int64)


def pointers_of(column: NDArray[Any], field: BetonField) -> NDArray[np.uint64]:
    """Return the pointers, uint64 [n], in the rows of a field that has payloads."""
    names = np.dtype(field.row_type).names
    return column if names is None or field.pointer_at is None else column[names[field.pointer_at]]


def _check_end(head: Head, mapped: Mapped, payloads_end: int) -> None:
    """Raise CorruptRecordError where a manifest begins behind the pages, but could not be found from the table."""
    layout = head.layout
    num_pages = -(-max(0, payloads_end - layout.pages_at) // layout.page_size)
    at = layout.pages_end(num_pages)
    if head.manifest is None and not head.has_old_manifest and mapped.read(at, len(HEAD_MAGIC)) == HEAD_MAGIC:
        raise damaged(head.path, "the tail of its manifest is missing")
