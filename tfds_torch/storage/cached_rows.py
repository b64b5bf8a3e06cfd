"""What stands in the rows of a decoded cache's file, held in this process's memory."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tfds_torch.errors import CorruptRecordError, ShardError
from tfds_torch.plan.order import Int64Array
from tfds_torch.runtime.own_files import ForeignFileError, check_own_file, check_own_folder
from tfds_torch.storage.beton.reader import BetonReader
from tfds_torch.storage.beton.source import BetonSource
from tfds_torch.storage.shard_errors import unreadable

PIXELS_FIELD = "image"
"""The images' field in the file."""

IS_CACHED = "is_cached"
"""Field of the file: 0 where an example could not be decoded, and is left to the original files."""


@dataclass
class CachedRows:
    """The numbers of an open file: a write to the file does not change them.

    Attributes:
        reader: of the file.
        numbers: stored field -> its values, [n].
        left_out: int64, numbers of the examples that are left to the original files, in order.
    """

    reader: BetonReader
    numbers: Mapping[str, NDArray[Any]]
    left_out: Int64Array

    def are_kept(self, index: Int64Array) -> NDArray[np.bool_]:
        """Returns which examples, int64 [n], are not left to the original files, bool [n]."""
        if not len(self.left_out):
            return np.ones(len(index), np.bool_)
        return ~np.isin(index, self.left_out)

    def leave_out_damaged(self, index: Int64Array) -> bool:
        """Leaves examples, int64 [n], to the original files whose images do not have their checksum.

        Returns:
            Whether there are any.
        """
        is_damaged = np.array([self._is_damaged(one) for one in index[:, None]], np.bool_)
        self.left_out = np.union1d(self.left_out, index[is_damaged])
        return bool(is_damaged.any())

    def _is_damaged(self, one: Int64Array) -> bool:
        try:
            self.reader.read(PIXELS_FIELD, one)
        except CorruptRecordError:
            return True
        return False


def read_rows(file: BetonSource, names: Mapping[str, str], dtypes: Mapping[str, DTypeLike]) -> CachedRows:
    """Reads the rows of a file of this user's own, and compares them with their checksum.

    Args:
        file: of the cache.
        names: stored field of a number -> its field in the file.
        dtypes: stored field -> the type of its values.

    Raises:
        ShardError: another user may have written the file, it changed, or cannot be read.
        CorruptRecordError: its rows do not have their checksum.
    """
    _check_own(Path(file.head.path))
    reader = file.reader
    rows = reader.copy_rows()
    members = dict(zip(file.head.fields, rows.dtype.names or (), strict=True))
    numbers = {name: rows[members[place]].astype(dtypes[name]) for name, place in names.items()}
    return CachedRows(reader, numbers, np.flatnonzero(rows[members[IS_CACHED]] == 0).astype(np.int64))


def _check_own(path: Path) -> None:
    try:
        check_own_folder(path.parent)
        check_own_file(path)
    except ForeignFileError as error:
        raise ShardError(f"{error.filename} is not this user's own: {error.strerror}.") from None
    except OSError as error:
        raise unreadable(path, error) from error
