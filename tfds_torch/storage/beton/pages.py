"""PageWriter: writes samples into pages. Several processes, each with its own PageWriter, may write one file."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import ConfigError
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.beton.fields import BetonField, Encoded, payload_fields
from tfds_torch.storage.beton.format import ALLOCATION, Layout

_PACKED_AT_ONCE = 4096


WriteAt = Callable[[bytes | memoryview, int], None]
"""Function that writes all of content at an offset of the file; it raises OSError where it cannot."""


@dataclass(frozen=True)
class WrittenPart:
    """Samples that a PageWriter has written. Plain values: they travel between processes.

    Attributes:
        numbers: int64 [n], numbers of the samples, in the order in which they came.
        rows: [n] of the layout's row_type, the samples' rows of the metadata.
        ids: n ids; None for a sample without an id.
        allocations: [m] of ALLOCATION, one for every payload.
        checksums: uint32 [n, number of fields with payloads], CRC32C of every payload.
        num_pages: number of written pages.
        num_reencoded: number of samples with an image that could not keep its bytes.
    """

    numbers: NDArray[np.int64]
    rows: NDArray[np.void]
    ids: list[str | None]
    allocations: NDArray[np.void]
    checksums: NDArray[np.uint32]
    num_pages: int
    num_reencoded: int


class PageWriter:
    """Puts samples into pages. One process and thread at a time; `take_page` returns the next free page of the file."""

    def __init__(
        self, fields: Mapping[str, BetonField], layout: Layout, write: WriteAt, take_page: Callable[[], int]
    ) -> None:
        self.num_reencoded = 0
        self._rows: list[tuple[Any, ...]] = []
        self._allocations: list[tuple[int, int, int]] = []
        self._numbers: list[int] = []
        self._ids: list[str | None] = []
        self._packed: list[tuple[NDArray[np.void], NDArray[np.void], NDArray[np.uint32]]] = []
        self._checksums: list[int] = []
        self._num_written = 0  # Pages.
        self._fields = fields
        self._layout = layout
        self._write, self._take_page = write, take_page
        # All pages use the same memory: allocating so much costs more time than filling it.
        self._page: NDArray[np.uint8] | None = None
        self._page_number, self._page_fill = 0, -1  # Bytes in it; -1: no page was begun.

    def add(self, values: Sequence[Any], number: int, id: str | None = None) -> None:
        """Encode a sample and put it into a page; a page that is full is written."""
        encoded = [self._encode(name, value, number) for name, value in zip(self._fields, values, strict=True)]
        # A payload of no bytes takes one byte, so that no other payload has its pointer.
        num_bytes = sum(max(1, len(one.payload)) for one in encoded if one.payload is not None)
        if num_bytes > self._layout.page_size:
            largest = max(zip(encoded, self._fields, strict=True), key=lambda pair: len(pair[0].payload or b""))[1]
            raise ConfigError(
                f"Sample {number} has {num_bytes:,} bytes, most of them in {largest!r}, and a page "
                f"{self._layout.page_size:,}: all of a sample lies on one page. Use page_size="
                f"{1 << (num_bytes - 1).bit_length():,}, or store less of it (BetonImage has max_resolution)."
            )
        if num_bytes and not 0 <= self._page_fill <= self._layout.page_size - num_bytes:
            self._begin_page()
        row = tuple(
            self._place(one, member, number) for one, member in zip(encoded, self._fields.values(), strict=True)
        )
        self._numbers.append(number)
        self._rows.append(row)
        self._ids.append(id)
        self.num_reencoded += any(one.is_reencoded for one in encoded)
        if len(self._rows) == _PACKED_AT_ONCE:
            self._pack()

    @property
    def num_pages(self) -> int:
        """Number of pages that were written, or are being filled."""
        return self._num_written + (self._page_fill >= 0)

    def close(self) -> WrittenPart:
        """Write the last page, and return a description of all written samples."""
        self._flush()
        self._pack()
        rows, allocations, checksums = (np.concatenate(parts) for parts in zip(*self._packed, strict=True))
        numbers = np.array(self._numbers, np.int64)
        return WrittenPart(numbers, rows, self._ids, allocations, checksums, self._num_written, self.num_reencoded)

    def _pack(self) -> None:
        """Turn the noted rows into arrays, which take a tenth of the memory."""
        row_type = self._layout.row_type
        rows = np.zeros(len(self._rows), row_type)  # The padding between members is zero, too.
        for place, name in enumerate(row_type.names or ()):
            rows[name] = np.array([row[place] for row in self._rows], row_type[name])
        checksums = np.array(self._checksums, np.uint32).reshape(len(rows), len(payload_fields(self._fields)))
        self._packed.append((rows, np.array(self._allocations, ALLOCATION), checksums))
        self._rows, self._allocations, self._checksums = [], [], []

    def _encode(self, name: str, value: Any, number: int) -> Encoded:
        member = self._fields[name]
        try:
            encoded = member.encode(value, number)
        except ConfigError as error:
            raise ConfigError(f"Sample {number}, field {quoted(name)}: {error}") from None
        if (encoded.payload is None) != (member.pointer_at is None):
            raise ConfigError(
                f"Field {quoted(name)}: {type(member).__name__} has pointer_at={member.pointer_at} and returned "
                f"{'no' if encoded.payload is None else 'a'} payload: it has both or neither."
            )
        return encoded

    def _place(self, encoded: Encoded, member: BetonField, number: int) -> Any:
        """Put the payload of a field into the page, and return the field of the row."""
        values = encoded.facts
        if encoded.payload is not None and member.pointer_at is not None and self._page is not None:
            pointer = self._layout.pages_at + self._page_number * self._layout.page_size + self._page_fill
            payload = encoded.payload or b"\0"
            self._page[self._page_fill : self._page_fill + len(payload)] = np.frombuffer(payload, np.uint8)
            self._page_fill += len(payload)
            self._allocations.append((number, pointer, len(encoded.payload)))
            self._checksums.append(google_crc32c.value(encoded.payload))
            values = (*values[: member.pointer_at], pointer, *values[member.pointer_at :])
        return values if np.dtype(member.row_type).names else values[0]

    def _begin_page(self) -> None:
        self._flush()
        if self._page is None:
            self._page = np.empty(self._layout.page_size, np.uint8)
        self._page_fill, self._page_number = 0, self._take_page()

    def _flush(self) -> None:
        if self._page is None or self._page_fill < 0:
            return
        self._page[self._page_fill :] = 0
        self._write(self._page.data, self._layout.pages_at + self._page_number * self._layout.page_size)
        self._num_written, self._page_fill = self._num_written + 1, -1
