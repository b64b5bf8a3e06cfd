"""WindowReader: reads the bytes of the values of windows alone, and compares them with their checksums."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tfds_torch.errors import ConfigError, CorruptRecordError, ShardError
from tfds_torch.plan.order import Int64Array, unique
from tfds_torch.plan.windows import WindowTable, window_rows
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.episodes.layout import EpisodeLayout
from tfds_torch.storage.episodes.step_index import StepIndex
from tfds_torch.storage.episodes.units import (
    BadUnitError,
    examples_of_units,
    number_column,
    ranges_of,
    read_units,
    value_column,
)
from tfds_torch.storage.example import BadExampleError, ExampleReader
from tfds_torch.storage.record_source import RecordSource
from tfds_torch.storage.source import Columns

EPISODE, STEP = "episode of the window", "step of the window"
"""Fields of every window: the number of its episode in the split, and the step at which it begins; int64 [n]."""


def padding_key(key: str) -> str:
    """Return the field that says which steps of a feature are outside of the episode, bool [n, T]."""
    return f"padding of {key}"


@dataclass(frozen=True)
class WindowFeatures:
    """The features of episodes that windows have, and at which steps.

    Attributes:
        layout: the features of a record.
        offsets: column -> the steps that a window has of its feature.
        stored_as: feature that is stored as several features, like sequences within steps -> these features.
        copies: column -> its feature; the column that has the feature's name holds other steps of it.
    """

    layout: EpisodeLayout
    offsets: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    stored_as: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    copies: Mapping[str, str] = field(default_factory=dict)

    def feature_of(self, column: str) -> str:
        """Return the feature of a column: usually the feature with the column's name."""
        return self.copies.get(column, column)

    def is_of_steps(self, key: str) -> bool:
        """Return whether a feature has a value for each step, rather than one for the episode."""
        return key == self.layout.sequence or key.startswith(f"{self.layout.sequence}/")

    def parts_of(self, key: str) -> tuple[str, ...]:
        """Return the features as which a feature is stored: several, or the feature itself."""
        return self.stored_as.get(key, (key,))


@dataclass(frozen=True)
class _Asked:
    """The units that n windows have of one feature: int64 [n, T]; for numbers, also the steps within these units.

    For features that are read whole, T is the number of features as which they are stored.
    """

    units: Int64Array
    rows: Int64Array
    steps_of_unit: Int64Array


@dataclass(frozen=True)
class WindowReader:
    """Reads windows of the E episodes of a split. Threads may share one.

    Attributes:
        episodes: the records.
        features: the features that windows have.
        index: index of the steps of all records of the files.
        records: int64 [E], the record of each episode in the index.
        num_steps: int64 [E], steps of each episode.
        table: the windows.
        examples: decodes features that are read whole.
    """

    episodes: RecordSource
    features: WindowFeatures
    index: StepIndex
    records: Int64Array
    num_steps: Int64Array
    table: WindowTable
    examples: ExampleReader

    def read(self, index: Int64Array, fields: Sequence[str]) -> Columns:
        """Return the values of windows, int64 [n] with n > 0, in the order asked; see `Source`."""
        episode, step = self.table.locate(index)
        own: dict[str, Any] = {EPISODE: episode, STEP: step}
        own |= {
            padding_key(key): window_rows(step, self.num_steps[episode], offsets)[1]
            for key, offsets in self.features.offsets.items()
            if padding_key(key) in fields
        }
        asked = {key: self._units_of(key, episode, step) for key in dict.fromkeys(fields) if key not in own}
        units, example = _all_units(asked, episode)
        while True:
            try:
                found, back = read_units(self.episodes, self.index, example, units)
                break
            except BadUnitError as error:
                if not self.episodes.discard(example[error.position : error.position + 1]):
                    raise self._bad_unit(error, asked, index) from None
        stop = 0
        for key, one in asked.items():
            start, stop = stop, stop + one.units.size
            own[key] = self._column(key, one, found, back[start:stop].reshape(one.units.shape), index)
        return {key: own[key] for key in fields}

    def announce(self, index: Int64Array, fields: Sequence[str]) -> None:
        """Ask the system to read ahead some fields of windows, int64 [n]."""
        episode, step = self.table.locate(index)
        keys = [key for key in fields if self.features.feature_of(key) in self.episodes.specs]
        units, example = _all_units({key: self._units_of(key, episode, step) for key in keys}, episode)
        distinct, first, _ = unique(units)
        ranges = ranges_of(self.index, example[first], distinct)
        self.episodes.announce_parts(ranges.example, ranges.start, ranges.stop)

    def names_of(self, index: Int64Array) -> list[str]:
        """Return the ids of windows, `<shard file>__<record>/<step>`."""
        episode, step = self.table.locate(index)
        return [f"{name}/{at}" for name, at in zip(self.episodes.ids(episode), step.tolist(), strict=True)]

    def place_of(self, index: int) -> tuple[str, int, int]:
        """Return the file of a window, the number of its record there, and the step at which it begins."""
        episode, step = self.table.locate(np.array([index], np.int64))
        file, record = self.episodes.table.find(episode)
        return self.episodes.table.files[int(file[0])], int(record[0]), int(step[0])

    def undecodable(self, index: int, reason: str) -> CorruptRecordError:
        """Return the error for a window whose content cannot be decoded; see `Source`."""
        path, record, step = self.place_of(index)
        (name,) = self.names_of(np.array([index], np.int64))
        cause = (
            ", though its checksum is right: it was written that way."
            if self.episodes.verify_checksums
            else ". Its checksum was not verified (verify_checksums=False): it was written that way, or is damaged."
        )
        return CorruptRecordError(
            f"{path}: the window at step {step} of record {record} (window {index}, id {name}) of "
            f"{self.episodes.name} cannot be decoded{cause} {reason}"
        )

    def _units_of(self, column: str, episode: Int64Array, step: Int64Array) -> _Asked:
        """Return the units of a column for windows that begin at steps of episodes, int64 [n] both."""
        layout, record, num_steps = self.features.layout, self.records[episode], self.num_steps[episode]
        key = self.features.feature_of(column)
        if key not in self.episodes.specs:
            raise ConfigError(f"{self.episodes.name}: a window has no stored field {quoted(key)}.")
        if key not in layout.values and key not in layout.numbers:
            units = np.stack([self.index.first_units(part, record) for part in self.features.parts_of(key)], axis=1)
            return _Asked(units, units, units)
        rows, _ = window_rows(step, num_steps, self.features.offsets.get(column, (0,)))
        first = self.index.first_units(key, record)[:, None]
        if key in layout.values:
            return _Asked(first + rows, rows, rows)
        size = layout.numbers[key].steps_of_block
        block = rows // size
        return _Asked(first + block, rows % size, np.minimum(size, num_steps[:, None] - block * size))

    def _column(self, name: str, asked: _Asked, found: Sequence[bytes], places: Int64Array, index: Int64Array) -> Any:
        """Return the values of a column of n windows; `places`, int64 [n, T], are places among the units found."""
        features, key = self.features, self.features.feature_of(name)
        spec = self.episodes.specs[key]
        if key in features.layout.values:
            return value_column(found, places, has_time=name in features.offsets)
        if (numbers := features.layout.numbers.get(key)) is not None:
            rows = number_column(found, places, asked.rows, asked.steps_of_unit, numbers, np.dtype(spec.dtype))
            time = (len(features.offsets[name]),) if name in features.offsets else ()
            return rows.reshape(len(places), *time, *(side or 0 for side in spec.shape[1:]))
        records = list(examples_of_units(found, places, features.parts_of(key)))
        try:
            column = self.examples.read(records, [key])[key]
        except BadExampleError as error:
            raise self.undecodable(int(index[error.position]), error.reason) from None
        return self._steps_of(name, column, index) if features.is_of_steps(key) else column

    def _steps_of(self, name: str, column: Sequence[Any], index: Int64Array) -> list[Any]:
        """Return the steps of windows from a feature that was decoded for whole episodes."""
        episode, step = self.table.locate(index)
        num_steps = self.num_steps[episode]
        for number, steps, values in zip(index.tolist(), num_steps.tolist(), column, strict=True):
            if len(values) != steps:
                key = self.features.feature_of(name)
                raise self.undecodable(
                    number, f"Its feature {quoted(key)} has {len(values)} steps, and others have {steps}."
                )
        offsets = self.features.offsets.get(name)
        rows, _ = window_rows(step, num_steps, offsets or (0,))
        chosen = [[values[row] for row in own] for values, own in zip(column, rows.tolist(), strict=True)]
        return [own[0] for own in chosen] if offsets is None else chosen

    def _bad_unit(self, error: BadUnitError, asked: Mapping[str, _Asked], index: Int64Array) -> ShardError:
        """Return the error for values that do not have their checksum."""
        position, column, steps = _place_among(asked, error.position)
        key = self.features.feature_of(column)
        path, record, step = self.place_of(int(index[position]))
        where = f"{path}: record {record} ({self.episodes.name}, the window at step {step})"
        at = f"at step {steps} " if key in self.features.layout.values else ""
        try:
            self.episodes.records(self.table.locate(index[position : position + 1])[0])
        except CorruptRecordError:
            return CorruptRecordError(
                f"{where}: the {error.length} bytes of {quoted(key)} {at}from byte {error.offset} of the record on do "
                f"not have their checksum: the file is corrupt. Prepare the dataset again."
            )
        return ShardError(
            f"{where}: the record is whole, and not the one whose steps were indexed: the file was exchanged for one "
            f"of the same size and time. Run `touch {path}`, so that it is indexed again, and start again."
        )


def _place_among(asked: Mapping[str, _Asked], position: int) -> tuple[int, str, int]:
    """Return window, column and row of a unit by its position among the units of all columns."""
    for key, one in asked.items():
        if position < one.units.size:
            width = one.units.shape[1]
            return position // width, key, int(one.rows.reshape(-1)[position])
        position -= one.units.size
    raise IndexError(position)


def _all_units(asked: Mapping[str, _Asked], episode: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return the units of all features, int64 [number], one feature behind the other, and their episodes."""
    if not asked:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    units = np.concatenate([one.units.reshape(-1) for one in asked.values()])
    examples = [np.repeat(episode, one.units.shape[1]) for one in asked.values()]
    return units, np.concatenate(examples)
