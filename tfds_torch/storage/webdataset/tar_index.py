"""Where the samples of tars lie, and what their members are called."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tfds_torch.plan.order import Int64Array


@dataclass(frozen=True)
class TarIndex:
    """The samples of tars, and their members; N samples of M members.

    Attributes:
        counts: samples of each tar.
        extensions: of the members, each once.
        has_distinct_keys: whether no key is in two tars.
        num_skipped: files of each tar that belong to no sample.
        skipped: names of a few of these, for messages.
        digest: of keys, extensions and sizes: equal where number n means the same sample.
        first: int64 [N + 1], first member of each sample, and M.
        key_stops: int64 [N], where each key ends in `keys`.
        offset: int64 [M], of each member's content in its tar, in bytes.
        size: int64 [M], of each member's content, in bytes.
        header_crc: uint32 [M], CRC32C of the header before it.
        extension: uint16 [M], position in `extensions`.
        keys: uint8 [bytes], of all samples, one behind the other.
    """

    counts: tuple[int, ...]
    extensions: tuple[str, ...]
    has_distinct_keys: bool
    num_skipped: tuple[int, ...]
    skipped: tuple[str, ...]
    digest: str
    first: Int64Array
    key_stops: Int64Array
    offset: Int64Array
    size: Int64Array
    header_crc: NDArray[np.uint32]
    extension: NDArray[np.uint16]
    keys: NDArray[np.uint8]

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.key_stops)

    def keys_of(self, index: Int64Array) -> list[bytes]:
        """Returns the keys of samples, int64 [n]."""
        stops = self.key_stops[index].tolist()
        starts = np.where(index > 0, self.key_stops[index - 1], 0).tolist()
        return [self.keys[start:stop].tobytes() for start, stop in zip(starts, stops, strict=True)]

    def find_key(self, key: bytes, start: int, stop: int) -> int | None:
        """Returns the number of the sample with a key, of those from start to stop - 1; None: there is none."""
        ends = self.key_stops[start:stop]
        begins = np.concatenate([self.key_stops[start - 1 : start] if start else [0], ends[:-1]]).astype(np.int64)
        found = np.flatnonzero(ends - begins == len(key))
        for at in reversed(range(len(key))):  # The last bytes differ most.
            found = found[self.keys[begins[found] + at] == key[at]]
        return start + int(found[0]) if len(found) else None

    def members_of(self, extensions: Sequence[str]) -> Int64Array:
        """Returns int64 [N]: of each sample the member with the first of these extensions that it has, or -1."""
        rows = np.full(len(self), -1, np.int64)
        for name in reversed(extensions):
            if name in self.extensions:
                members = np.flatnonzero(self.extension == self.extensions.index(name))
                rows[np.searchsorted(self.first, members, side="right") - 1] = members
        return rows
