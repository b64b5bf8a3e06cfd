"""The ids of the samples of a `.beton` file."""

import numpy as np
from numpy.typing import NDArray

from tfds_torch.plan.order import Int64Array
from tfds_torch.storage.beton.head import Head, damaged
from tfds_torch.storage.beton.manifest import is_whole
from tfds_torch.storage.shard_files import file_name

_LONGEST_NUMBER = 18  # Digits.


class BetonIds:
    """Ids by number, and numbers by id. Ids stay in the file: Python strings would take many times the memory."""

    def __init__(self, head: Head) -> None:
        self._num_samples = head.layout.num_samples
        self._prefix = f"{file_name(head.path)}__"
        self._stops: NDArray[np.uint64] | None = None
        manifest = head.manifest
        if manifest is None or manifest.facts.ids is None or not self._num_samples:
            return
        self._head, self._map = head, head.map()
        self._state = self._map.check()
        self._compare()
        self._at, num_bytes = manifest.ids_at, manifest.facts.ids[0]
        self._text = self._map.part(self._at, self._at + num_bytes)
        self._stops = self._map.part(manifest.id_stops_at, manifest.ids_at).view("<u8")
        if int(self._stops[-1]) != num_bytes or (self._stops[1:] < self._stops[:-1]).any():
            raise damaged(head.path, "the places where its ids end are not in order")

    def _check(self) -> None:
        """Raise ShardError where the file was cut, CorruptRecordError where its ids were overwritten."""
        state = self._map.check()
        if state != self._state:
            self._compare()
            self._state = state

    def _compare(self) -> None:
        """Raise CorruptRecordError where the ids, or the places where they end, do not have their checksum."""
        manifest = self._head.manifest
        if manifest is None:
            return
        for part, at in ((manifest.facts.id_stops, manifest.id_stops_at), (manifest.facts.ids, manifest.ids_at)):
            if part is not None and not is_whole(part, self._map.part(at, at + part[0])):
                raise damaged(self._head.path, "its ids do not have their checksum")

    def names(self, index: Int64Array) -> list[str]:
        """Return the ids of samples, int64 [n]."""
        if self._stops is None:
            return [f"{self._prefix}{number}" for number in index.tolist()]
        self._check()
        stops = self._stops[index].tolist()
        starts = np.where(index > 0, self._stops[index - 1], 0).tolist()
        return [
            self._text[start:stop].tobytes().decode("utf-8", "surrogateescape")
            for start, stop in zip(starts, stops, strict=True)
        ]

    def find(self, id: str) -> int | None:
        """Return the number of the first sample that has an id; None where no sample has it. See `names`."""
        if self._stops is None:
            digits = id.removeprefix(self._prefix)
            is_number = digits != id and digits.isascii() and digits.isdigit() and len(digits) <= _LONGEST_NUMBER
            number = int(digits) if is_number else self._num_samples
            return number if number < self._num_samples and str(number) == digits else None
        self._check()
        wanted, end = id.encode("utf-8", "surrogateescape"), self._at + int(self._stops[-1])
        if not wanted:
            return next(iter(np.flatnonzero(np.diff(self._stops, prepend=np.uint64(0)) == 0).tolist()), None)
        at = self._map.find(wanted, self._at, end)
        while at >= 0:
            number = int(np.searchsorted(self._stops, at - self._at, side="right"))
            start = int(self._stops[number - 1]) if number else 0
            if at - self._at == start and int(self._stops[number]) == start + len(wanted):
                return number
            at = self._map.find(wanted, at + 1, end)
        return None
