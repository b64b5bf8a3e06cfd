"""Fields of all windows as arrays: numbers and texts of their own steps, read without an image."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfds_torch.engines.direct import read_examples
from tfds_torch.engines.fields import Content, FieldDecoder
from tfds_torch.errors import ConfigError, ShardError
from tfds_torch.parsers.tfds.feature_tree import FoundFeature, Leaf, innermost
from tfds_torch.parsers.tfds.fields import is_image
from tfds_torch.parsers.tfds.window_fields import WindowFields
from tfds_torch.plan.order import Int64Array
from tfds_torch.plan.windows import window_rows
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.episodes.source import WindowSource
from tfds_torch.storage.episodes.window_reader import EPISODE, STEP, padding_key
from tfds_torch.storage.source import FieldSpec

_MOST_AT_ONCE = 1 << 14  # Steps that are read together: the arithmetic of more of them leaves the processor's cache.
_BYTES_AT_ONCE = 8 << 20
_READ_AHEAD = 16  # So many times as many steps are announced to the system at once.


@dataclass(frozen=True)
class _Column:
    """One field of steps, or of episodes.

    Attributes:
        decoder: makes its values.
        spec: of one value.
        is_of_steps: whether each step has a value, rather than the episode.
        is_text: whether its bytes become str.
    """

    decoder: FieldDecoder
    spec: FieldSpec
    is_of_steps: bool
    is_text: bool

    @property
    def num_bytes(self) -> int:
        """Size of one value; of texts a guess."""
        return 64 if self.spec.dtype is object else prod(side or 0 for side in self.spec.shape) * 8


@dataclass(frozen=True)
class WindowColumns:
    """Reads fields of windows: of a field of steps, the value of each window's own step, whatever its offsets.

    Attributes:
        fields: the fields of the windows.
        source: the windows.
        num_threads: number of threads that read and decode.
    """

    fields: WindowFields
    source: WindowSource
    num_threads: int = 1

    def read(self, names: Sequence[str], index: Int64Array) -> dict[str, NDArray[Any]]:
        """Returns name -> values of windows, int64 [n], in the order asked.

        They are numbers, [n, ...] of the declared dtype, or objects [n]: str of texts, else bytes.

        Raises:
            ConfigError: a field does not exist, is an image, or has no fixed size.
            ShardError, CorruptRecordError: as reading raises them.
        """
        order = None if (np.diff(index) >= 0).all() else np.argsort(index, kind="stable")
        ordered = index if order is None else index[order]
        episode, step = self.source.reader.table.locate(ordered)
        columns = self._known(names, episode, step)
        read = {name: self._column(name) for name in names if name not in columns}
        num_steps = self.source.reader.num_steps
        first = np.cumsum(num_steps) - num_steps  # The number of each episode's first step among all of them.
        columns |= self._read({name: one for name, one in read.items() if one.is_of_steps}, first[episode] + step)
        of_episodes = {name: one for name, one in read.items() if not one.is_of_steps}
        if of_episodes:
            distinct, back = np.unique(episode, return_inverse=True)
            columns |= {name: values[back] for name, values in self._read(of_episodes, first[distinct]).items()}
        return {name: columns[name] if order is None else _reordered(columns[name], order) for name in names}

    def _known(self, names: Sequence[str], episode: Int64Array, step: Int64Array) -> dict[str, NDArray[Any]]:
        """Returns those fields of windows that begin at steps of episodes, int64 [n], that are arithmetic."""
        offsets = {padding_key(key): own for key, own in self.source.features.offsets.items()}
        known: dict[str, NDArray[Any]] = {}
        for name in names:
            (key, *_) = self.fields.encoded_field(name).decoder.keys
            if key in offsets:
                known[name] = window_rows(step, self.source.reader.num_steps[episode], offsets[key])[1]
            elif key in (EPISODE, STEP):
                known[name] = episode if key == EPISODE else step
        return known

    def _column(self, name: str) -> _Column:
        """Returns how a field is read; raises ConfigError where it cannot be a column."""
        found = self.fields.find(name)
        own_steps = replace(self.fields, windows=replace(self.fields.windows, offsets={}, pad="edge"))
        leaf = innermost(found.feature)
        if is_image(leaf):
            raise self._refused(
                name,
                "is an image: columns are the numbers and texts of all steps, read without a byte of an image. Images "
                "come in batches()",
            )
        encoded = own_steps.encoded_field(name)
        decoder, spec = encoded.decoder, encoded.spec
        is_of_steps = self.source.features.is_of_steps("/".join(found.path))
        if not self._has_one_size(found, decoder, spec, is_of_steps):
            raise self._refused(
                name,
                f"is {quoted(found.feature)}, which does not have one size in every step: it cannot be one array. It "
                f"comes in batches()",
            )
        is_text = (isinstance(leaf, Leaf) and leaf.kind == "text") or self.fields.is_text(name)
        return _Column(decoder, spec, is_of_steps, is_text)

    def _has_one_size(self, found: FoundFeature, decoder: FieldDecoder, spec: object, is_of_steps: bool) -> bool:
        if not isinstance(found.feature, Leaf) or not isinstance(spec, FieldSpec) or None in spec.shape:
            return False
        if np.dtype(spec.dtype).kind in "OSU" and spec.shape:
            return False
        layout = self.source.features.layout
        if is_of_steps:
            return all(key in layout.values or key in layout.numbers for key in decoder.keys)
        return not found.sequence_depth

    def _refused(self, name: str, why: str) -> ConfigError:
        return ConfigError(f"{self.source.name}: columns: the field {quoted(name)} {why}.")

    def _read(self, columns: Mapping[str, _Column], numbers: Int64Array) -> dict[str, NDArray[Any]]:
        """Returns fields of steps by their numbers among all steps of the split, int64 [n], ascending."""
        if not columns:
            return {}
        found = {name: _empty(one, len(numbers)) for name, one in columns.items()}
        content = Content({name: one.decoder for name, one in columns.items()}, has_label=False)
        size = max(1, min(_MOST_AT_ONCE, _BYTES_AT_ONCE // max(1, sum(one.num_bytes for one in columns.values()))))
        steps, texts, stop = self.source.steps(), _Texts(), 0
        for at in range(0, len(numbers), size * _READ_AHEAD):
            part = numbers[at : at + size * _READ_AHEAD]
            with suppress(ShardError):  # Reading raises it.
                steps.reader.announce(part, content.keys)
            for index, decoded in read_examples(steps, content, part, self.num_threads, size):
                start, stop = stop, stop + len(index)
                for name, one in columns.items():
                    values = texts.of(decoded[name]) if one.is_text else decoded[name]
                    found[name][start:stop] = values
        return found


class _Texts:
    """Makes str of bytes, one for all values that are equal: a text of an episode stands there for every step."""

    def __init__(self) -> None:
        self._known: dict[bytes | str, str] = {}

    def of(self, values: Sequence[bytes | str]) -> list[str]:
        """Returns the texts of n values."""
        known = self._known
        for value in set(values) - known.keys():
            known[value] = value if isinstance(value, str) else value.decode(errors="replace")
        return [known[value] for value in values]


def _empty(column: _Column, size: int) -> NDArray[Any]:
    dtype = np.dtype(column.spec.dtype)
    return np.empty((size, *column.spec.shape), object if dtype.kind in "OSU" else dtype)  # type: ignore[arg-type]


def _reordered(values: NDArray[Any], order: Int64Array) -> NDArray[Any]:
    """Returns values, [n, ...], of which the i-th one belongs at the place order[i]."""
    found = np.empty_like(values)
    found[order] = values
    return found
