"""CachedSource: a Source some of whose values lie in a `.beton` file as well, decoded."""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import CorruptRecordError, ShardError
from tfds_torch.plan.order import Int64Array
from tfds_torch.runtime.own_files import ForeignFileError, check_own_file, check_own_folder
from tfds_torch.storage.beton.source import BetonSource
from tfds_torch.storage.file_instruction import FileInstruction
from tfds_torch.storage.shard_errors import unreadable
from tfds_torch.storage.source import Columns, FieldSpec, Source

_logger = logging.getLogger(__name__)

PIXELS = "pixels of the image"
"""The stored field under which decoded images are asked for. The encoded ones keep the name of their feature."""

PIXELS_FIELD = "image"
"""The images' field in the file."""

IS_CACHED = "is_cached"
"""Field of the file: 0 where an example could not be decoded, and is left to the original files."""

MakePixels = Callable[[bytes], "NDArray[np.uint8]"]
"""Encoded image -> uint8 [h, w, 3], as a cache holds it; raises ValueError where it cannot be decoded."""


class CachedSource:
    """The examples of another Source, and their decoded images: out of a cache, else of the original files.

    What comes does not depend on whether there is a cache: number, order and ids are the original's, and so are all
    values but the images that a cache holds smaller than they are, which are made as small here.

    Args:
        original: the encoded examples.
        image_key: stored field of the image.
        file: of the cache, as many samples as examples; None: there is none.
        names: stored field of a number -> its field in the file.
        max_resolution: longest side of the images; None: they are as they are.
        make_pixels: for images that the file lacks; None: they stay encoded.
    """

    streams: Literal["records", "numbers"] | None = None

    def __init__(
        self,
        original: Source,
        image_key: str,
        file: BetonSource | None,
        names: Mapping[str, str],
        max_resolution: int | None,
        make_pixels: MakePixels | None,
    ) -> None:
        self.original, self.image_key, self.file = original, image_key, file
        self._names = dict(names)
        self._max_resolution, self._make_pixels = max_resolution, make_pixels
        self._missing: Int64Array | None = None  # Numbers of the examples that the file lacks, in order.
        self._reads_original = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_missing": None, "_reads_original": False}

    def over(self, original: Source) -> "CachedSource":
        """Returns the same cache over the same examples, read in another way."""
        return CachedSource(original, self.image_key, self.file, self._names, self._max_resolution, self._make_pixels)

    @property
    def name(self) -> str:
        """The original's."""
        return self.original.name

    @property
    def identity(self) -> object:
        """The original's, and with it the size of images that are smaller there."""
        identity = self.original.identity
        return identity if self._max_resolution is None else (identity, f"max_resolution {self._max_resolution}")

    @property
    def stamps(self) -> object:
        """The original's."""
        return self.original.stamps

    @property
    def specs(self) -> Mapping[str, FieldSpec]:
        """The original's, and the decoded images."""
        return MappingProxyType({**self.original.specs, PIXELS: FieldSpec((), object)})

    @property
    def instructions(self) -> Sequence[FileInstruction]:
        """The original's."""
        return self.original.instructions

    @property
    def mean_example_bytes(self) -> int:
        """That of what is read: the cache's, or the original's."""
        return (self.file or self.original).mean_example_bytes

    @property
    def obstacle(self) -> str | None:
        """The original's."""
        return self.original.obstacle

    @property
    def has_shards(self) -> bool:
        """As the original."""
        return self.original.has_shards

    def __len__(self) -> int:
        return len(self.original)

    def check(self, streamed: Collection[str] | None = None) -> None:
        """Checks the cache, and the original files where they are read."""
        if self.file is not None:
            try:
                self.file.check()
            except ShardError as error:
                self._give_up(error)
        if self.file is None or self._reads_original:
            self.original.check()

    def read(self, index: Int64Array, fields: Sequence[str]) -> Columns:
        """Returns values of examples in the order asked; see `Source`."""
        index = np.asarray(index, np.int64)
        cached = [name for name in fields if name == PIXELS or name in self._names]
        others = [name for name in fields if name not in cached]
        columns = None if self.file is None else self._read_cached(self.file, index, cached)
        if columns is None:
            return self._read_original(index, fields)
        return columns | self._read_original(index, others) if others else columns

    def parse(self, records: Sequence[bytes], index: Int64Array, fields: Sequence[str]) -> Columns:
        """Is the original's: records have no decoded images."""
        return self.original.parse(records, index, fields)

    def announce(self, index: Int64Array) -> None:
        """Tells whoever will be read."""
        if self.file is not None:
            self.file.announce(index)
        if self.file is None or self._reads_original:
            self.original.announce(index)

    def ids(self, index: Int64Array) -> Sequence[str]:
        """Returns the original's."""
        return self.original.ids(index)

    def find(self, id: str) -> int:
        """Returns the original's number."""
        return self.original.find(id)

    def undecodable(self, index: int, reason: str) -> CorruptRecordError:
        """Returns the original's error: what a cache holds is decoded."""
        return self.original.undecodable(index, reason)

    def close(self) -> None:
        """Closes the files; the next read opens them again."""
        if self.file is not None:
            self.file.close()
        self.original.close()

    def _read_cached(self, file: BetonSource, index: Int64Array, fields: Sequence[str]) -> dict[str, Any] | None:
        """Returns values out of the file; None: it cannot be read any more."""
        places = {name: PIXELS_FIELD if name == PIXELS else self._names[name] for name in fields}
        try:
            if self._missing is None:  # The first read of this process.
                _check_own(file)
                flags = file.reader.rows_of(IS_CACHED)
                self._missing = np.flatnonzero(flags == 0).astype(np.int64)
            stored = file.read(index, list(places.values()))
        except ShardError as error:
            self._give_up(error)
            return None
        columns = {name: self._as_declared(name, stored[place]) for name, place in places.items()}
        if fields and len(self._missing):
            missing = np.flatnonzero(np.isin(index, self._missing))
            if len(missing):
                columns = _with(columns, missing, self._read_original(index[missing], fields))
        return columns

    def _as_declared(self, name: str, values: Any) -> Any:
        return values if name == PIXELS else values.astype(self.original.specs[name].dtype, copy=False)

    def _read_original(self, index: Int64Array, fields: Sequence[str]) -> dict[str, Any]:
        if not self._reads_original and self.file is not None:
            self.original.check()
        self._reads_original = True
        keys = list(dict.fromkeys(self.image_key if name == PIXELS else name for name in fields))
        columns = self.original.read(index, keys)
        found = {name: columns[self.image_key if name == PIXELS else name] for name in fields}
        if PIXELS in found and self._make_pixels is not None:
            found[PIXELS] = [_pixels_of(image, self._make_pixels) for image in found[PIXELS]]
        return found

    def _give_up(self, error: ShardError) -> None:
        _logger.warning(
            "The decoded cache of %s cannot be read any more, and its images are decoded from the original files: %s",
            self.name,
            error,
        )
        self.file = None


def _check_own(file: BetonSource) -> None:
    """Raises ShardError where another user may have written a cache."""
    path = Path(file.head.path)
    try:
        check_own_folder(path.parent)
        check_own_file(path)
    except ForeignFileError as error:
        raise ShardError(f"{error.filename} is not this user's own: {error.strerror}.") from None
    except OSError as error:
        raise unreadable(path, error) from error


def _pixels_of(image: bytes, make_pixels: MakePixels) -> Any:
    try:
        return make_pixels(image)
    except ValueError:
        return image  # Whoever decodes it says what is wrong, and which example it is.


def _with(columns: Mapping[str, Any], places: Int64Array, others: Mapping[str, Any]) -> dict[str, Any]:
    """Returns columns that have other values at some places."""
    changed: dict[str, Any] = {}
    for name, values in columns.items():
        if isinstance(values, np.ndarray):
            changed[name] = values.copy()
            changed[name][places] = others[name]
            continue
        changed[name] = list(values)
        for place, value in zip(places.tolist(), others[name], strict=True):
            changed[name][place] = value
    return changed
