"""Ids of examples that nobody may ever look at: each is put together when it is looked at."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

from tfds_torch.plan.order import Int64Array
from tfds_torch.runtime.printable import quoted


class LazyIds(Sequence[str]):
    """A sequence of ids, equal to the list of them; pickled, it becomes that list.

    Args:
        name: file and record numbers, int64 [m] each -> their m ids.
        file: int64 [n], positions in the source's files.
        record: int64 [n], numbers in these files.
    """

    __slots__ = ("_file", "_name", "_record")
    __hash__ = None  # type: ignore[assignment]  # Like a list.

    def __init__(
        self, name: Callable[[Int64Array, Int64Array], list[str]], file: Int64Array, record: Int64Array
    ) -> None:
        self._name, self._file, self._record = name, file, record

    def __len__(self) -> int:
        return len(self._file)

    @overload
    def __getitem__(self, place: int) -> str: ...

    @overload
    def __getitem__(self, place: slice) -> "LazyIds": ...

    def __getitem__(self, place: int | slice) -> "str | LazyIds":
        if isinstance(place, slice):
            return LazyIds(self._name, self._file[place], self._record[place])
        file, record = self._file[place], self._record[place]
        return self._name(file.reshape(1), record.reshape(1))[0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._name(self._file, self._record))

    def __contains__(self, one: object) -> bool:
        return one in list(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, list | tuple | LazyIds):
            return NotImplemented
        return len(self) == len(other) and list(self) == list(other)

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)

    def __repr__(self) -> str:
        first = f", {quoted(self[0])} first" if len(self) else ""
        return f"<{len(self)} ids{first}>"
