"""The bytes of a `.beton` file, version 2: header, descriptors of fields, metadata, pages, allocation table.

All numbers are little-endian. Pointers are offsets in the file. No payload crosses a page, and all payloads of a sample
lie on one page. Source: ffcv 1.0.2, `ffcv/types.py` and `ffcv/memory_allocator.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

VERSION = 2
HEADER = np.dtype(
    [("version", "<u2"), ("num_fields", "<u2"), ("page_size", "<u4"), ("num_samples", "<u8"), ("table_at", "<u8")]
)
DESCRIPTOR = np.dtype([("type_id", "u1"), ("name", "S16"), ("arguments", "V1024")])
ALLOCATION = np.dtype([("sample", "<u8"), ("pointer", "<u8"), ("size", "<u8")])
IMAGE_ROW = np.dtype([("mode", "u1"), ("width", "<u2"), ("height", "<u2"), ("pointer", "<u8")])
BYTES_ROW = np.dtype([("pointer", "<u8"), ("size", "<u8")])
POINTER_ROW = np.dtype("<u8")
JPEG, RAW = 0, 1
"""Modes of a stored image."""

FLOAT_ID, INT_ID, IMAGE_ID, BYTES_ID, ARRAY_ID, JSON_ID, TENSOR_ID, CUSTOM_ID = 0, 1, 2, 3, 4, 5, 6, 255

LONGEST_NAME = 16
MOST_FIELDS = 2**16 - 1
LARGEST_SIDE = 2**16 - 1
SMALLEST_PAGE, LARGEST_PAGE, DEFAULT_PAGE = 2**21, 2**31, 2**23


@dataclass(frozen=True)
class Layout:
    """Where the parts of a file lie."""

    num_samples: int
    num_fields: int
    row_type: np.dtype[np.void]
    page_size: int

    @property
    def metadata_at(self) -> int:
        """Where the metadata begins."""
        return HEADER.itemsize + self.num_fields * DESCRIPTOR.itemsize

    @property
    def metadata_end(self) -> int:
        """Where the metadata ends."""
        return self.metadata_at + self.num_samples * self.row_type.itemsize

    @property
    def pages_at(self) -> int:
        """Where the first page begins, if there is one."""
        return -(-self.metadata_end // self.page_size) * self.page_size

    def pages_end(self, num_pages: int) -> int:
        """Return the offset at which so many pages end; with no page, the offset at which the metadata ends."""
        return self.pages_at + num_pages * self.page_size if num_pages else self.metadata_end


def make_row_type(dtypes: Sequence[np.dtype[np.void]]) -> "np.dtype[np.void]":
    """Return the type of a sample's row: the fields `f0`, `f1`, ..., aligned as a C compiler does it."""
    return np.dtype([("", dtype) for dtype in dtypes], align=True)


def is_page_size(page_size: int) -> bool:
    """Return whether FFCV accepts pages of so many bytes: a power of two, from 2 MiB on, that fits its header."""
    return SMALLEST_PAGE <= page_size <= LARGEST_PAGE and page_size & (page_size - 1) == 0
