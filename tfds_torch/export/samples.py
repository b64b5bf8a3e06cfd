"""SampleSource: datasets that can be exported (parsers, map-style, sized iterables); SampleOrder: which samples."""

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from itertools import islice
from operator import index
from typing import Any, NamedTuple

import numpy as np

from tfds_torch.engines.fields import EncodedField
from tfds_torch.errors import ConfigError, ExportError
from tfds_torch.parsers.parser import DatasetParser
from tfds_torch.plan.order import Int64Array, epoch_order
from tfds_torch.runtime.arguments import check_integer
from tfds_torch.runtime.cached_property import cached_property
from tfds_torch.runtime.metrics import StageMetrics
from tfds_torch.runtime.printable import quoted

_PIECE_BYTES = 3 * 2**19  # Encoded examples of a parser that are read at a time.


class SampleOrder:
    """Samples of a source by their place in the file. All of them in order take no memory.

    Args:
        num_samples: of the source.
        indices: numbers of samples, in the file's order; a number may come several times; None: all of them.
        shuffle_seed: the seed of a shuffle of these; None: they stay in order.
    """

    def __init__(self, num_samples: int, indices: Iterable[int] | None = None, shuffle_seed: int | None = None) -> None:
        self._numbers = None if indices is None else _checked(indices, num_samples)
        self._len = num_samples if self._numbers is None else len(self._numbers)
        if shuffle_seed is not None:
            shuffled = epoch_order(self._len, check_integer("shuffle_seed", shuffle_seed, 0), 0)
            self._numbers = shuffled if self._numbers is None else self._numbers[shuffled]

    def __len__(self) -> int:
        return self._len

    def at(self, places: range) -> Int64Array:
        """Return int64 [n]: the number of the sample at each of these places, which lie side by side."""
        if self._numbers is None:
            return np.arange(places.start, places.stop)
        return self._numbers[places.start : places.stop]

    def number_at(self, place: int) -> int:
        """Return the number of the sample at a place."""
        return place if self._numbers is None else int(self._numbers[place])

    @property
    def has_repeats(self) -> bool:
        """Whether a sample stands at several places."""
        return self._numbers is not None and len(np.unique(self._numbers)) < len(self)

    def digest(self) -> str:
        """Return a digest of these numbers in this order."""
        return hashlib.blake2b(self._all.tobytes(), digest_size=16).hexdigest()

    def places_of(self, number: int) -> list[int]:
        """Return where a sample of the source stands in the file."""
        if self._numbers is None:
            return [number] if number < len(self) else []
        start, stop = np.searchsorted(self._sorted, [number, number + 1])
        return self._places[start:stop].tolist()  # type: ignore[no-any-return]

    @property
    def _all(self) -> Int64Array:
        return self.at(range(len(self)))

    @cached_property
    def _places(self) -> Int64Array:
        return np.argsort(self._all, kind="stable")

    @cached_property
    def _sorted(self) -> Int64Array:
        return self._all[self._places]


def _checked(indices: Iterable[int], num_samples: int) -> Int64Array:
    if isinstance(indices, str | bytes) or not isinstance(indices, Iterable):
        raise ConfigError(f"indices={quoted(indices)} must be a sequence of integers.")
    if isinstance(indices, np.ndarray) and indices.dtype.kind in "iu" and indices.ndim == 1:
        outside = indices[(indices < 0) | (indices >= num_samples)].tolist()
    else:
        indices = [_integer(one) for one in indices]
        outside = [number for number in indices if not 0 <= number < num_samples]
    if outside:
        raise ConfigError(f"indices: there is no sample {outside[0]}: the source has {num_samples:,}, counted from 0.")
    return np.array(indices, np.int64)


def _integer(value: object) -> int:
    try:
        if isinstance(value, bool | np.bool_):
            raise TypeError
        return index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ConfigError(
            f"indices: {quoted(value)} is not an integer. Of a mask, give np.flatnonzero(mask)."
        ) from None


class Sample(NamedTuple):
    """One sample: a mapping or a sequence of values, and its id; None: it has none."""

    value: Any
    id: str | None


class SampleSource(ABC):
    """Samples, and how their reading is divided among workers.

    Attributes:
        name: of the dataset, for messages and for the file.
        fingerprint: identity of the dataset's content; empty: unknown.
        class_names: of the values of the field `label`; None: unknown.
        num_ahead: tasks that a worker is given at a time.
    """

    name: str
    fingerprint = ""
    class_names: list[str] | None = None
    num_ahead = 2

    @property
    def paths(self) -> Iterable[str]:
        """Local files that are read."""
        return ()

    @abstractmethod
    def __len__(self) -> int:
        """Number of samples."""

    @abstractmethod
    def describe(self, number: int) -> str:
        """Return a sample's id, or another name of it."""

    def encoded_fields(self) -> Mapping[str, EncodedField | ConfigError] | None:
        """Return the fields of samples, or why one cannot be read; None: the first sample shows them."""
        return None

    @abstractmethod
    def first(self, number: int, fields: Sequence[str] | None) -> Sample | None:
        """Return the sample to choose fields by, the one of this number where samples have numbers; None: no sample.

        Only `fields` are read, where they are given.
        """

    def tasks(self, order: SampleOrder, chunk_size: int) -> Iterator[Any]:
        """Yield picklable tasks of about chunk_size samples each; by default first and last place."""
        return ((start, min(start + chunk_size, len(order))) for start in range(0, len(order), chunk_size))

    @abstractmethod
    def samples(
        self, task: Any, order: SampleOrder, fields: Sequence[str] | None, metrics: StageMetrics
    ) -> Iterator[tuple[int, Sample]]:
        """Yield place in the file and sample, for a task, in a worker; note each number before it is read."""


def count_samples(source: SampleSource) -> int:
    """Return how many samples there are; raise ConfigError where the user's own len() fails."""
    try:
        return len(source)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"{source.name}: its len() failed: {type(error).__name__}: {error}.") from error


class ParserSamples(SampleSource):
    """The examples of a parser over a Source, as they are stored."""

    def __init__(self, parser: DatasetParser) -> None:
        self.parser = parser
        self.name, self.fingerprint = parser.dataset_name, parser.fingerprint
        self.class_names = parser.class_names
        self._numbers = parser.indices

    def __len__(self) -> int:
        return self.parser.num_examples

    @property
    def paths(self) -> Iterable[str]:  # noqa: D102
        return (instruction.path for instruction in self.parser.files)

    def describe(self, number: int) -> str:  # noqa: D102
        return self.ids(np.array([number]))[0]

    def ids(self, numbers: Int64Array) -> Sequence[str]:
        """Return the ids of samples, int64 [n]."""
        return self.parser.ids(self._numbers[numbers])

    def encoded_fields(self) -> Mapping[str, EncodedField | ConfigError] | None:  # noqa: D102
        names = self.parser.dataset.encoded_names()
        self.parser.dataset.chains_of_export(names)  # Nothing is written where a transform cannot run.
        return {name: _field_or_why_not(self.parser, name) for name in names}

    def first(self, number: int, fields: Sequence[str] | None) -> Sample | None:  # noqa: D102
        return next(self._read(np.array([number]), fields or ()))

    def samples(  # noqa: D102
        self, task: tuple[int, int], order: SampleOrder, fields: Sequence[str] | None, metrics: StageMetrics
    ) -> Iterator[tuple[int, Sample]]:
        piece = max(1, _PIECE_BYTES // max(1, self.parser.mean_example_bytes))
        for start in range(task[0], task[1], piece):
            places = range(start, min(start + piece, task[1]))
            numbers = order.at(places)
            samples = self._read(numbers, fields or ())
            with metrics.at_work.reading(numbers):
                for place, number, sample in zip(places, numbers.tolist(), samples, strict=True):
                    metrics.note_reading(number)
                    yield place, sample
                    metrics.at_work.note_passed()

    def _read(self, numbers: Int64Array, fields: Sequence[str]) -> Iterator[Sample]:
        for example in self.parser.dataset.encoded_examples(self._numbers[numbers], fields):
            values = dict(example.features)
            for name, value in (("image", example.image), ("label", example.label)):
                if value is not None or name in fields:  # None of a sample that lacks it.
                    values.setdefault(name, value)
            yield Sample(values, example.id)


class NumberedSamples(SampleSource):
    """A map-style dataset, like torch's: `len(dataset)` and `dataset[number]`."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self.name = type(dataset).__name__

    def __len__(self) -> int:
        return len(self._dataset)

    def describe(self, number: int) -> str:  # noqa: D102
        return f"dataset[{number}]"

    def first(self, number: int, fields: Sequence[str] | None) -> Sample | None:  # noqa: D102
        return Sample(self._dataset[number], None)

    def samples(  # noqa: D102
        self, task: tuple[int, int], order: SampleOrder, fields: Sequence[str] | None, metrics: StageMetrics
    ) -> Iterator[tuple[int, Sample]]:
        for place in range(*task):
            number = order.number_at(place)
            metrics.note_reading(number)
            yield place, Sample(self._dataset[number], None)


class IteratedSamples(SampleSource):
    """Anything sized that can be iterated. This process does that, once; its workers encode the samples."""

    num_ahead = 1  # A task holds samples: another one would only wait in memory.

    def __init__(self, iterable: Any) -> None:
        self._iterable = iterable
        self._ahead: list[Any] = []
        self.name = type(iterable).__name__

    def __len__(self) -> int:
        return self._num_samples

    @cached_property
    def _num_samples(self) -> int:
        return len(self._iterable)

    @cached_property
    def _iterator(self) -> Iterator[Any]:
        return iter(self._iterable)

    def describe(self, number: int) -> str:  # noqa: D102
        return f"item {number}"

    def first(self, number: int, fields: Sequence[str] | None) -> Sample | None:
        """Return the first sample, which stays the first."""
        self._ahead = self._ahead or list(islice(self._iterator, 1))
        return Sample(self._ahead[0], None) if self._ahead else None

    def tasks(self, order: SampleOrder, chunk_size: int) -> Iterator[list[tuple[int, list[int], Any]]]:
        """Yield number, places and value of samples; raise ExportError for another count than promised."""
        chunk, number = [], -1
        for number, value in enumerate(self._all()):
            if number >= len(self):
                raise ExportError(f"{self.name}: its len() is {len(self)}, and there are more samples.")
            if places := order.places_of(number):
                chunk.append((number, places, value))
            if len(chunk) >= chunk_size:
                yield chunk
                chunk = []
        if number + 1 < len(self):
            raise ExportError(f"{self.name}: its len() is {len(self)}, and it ended after {number + 1} samples.")
        if chunk:
            yield chunk

    def samples(  # noqa: D102
        self,
        task: list[tuple[int, list[int], Any]],
        order: SampleOrder,
        fields: Sequence[str] | None,
        metrics: StageMetrics,
    ) -> Iterator[tuple[int, Sample]]:
        for number, places, value in task:
            metrics.note_reading(number)
            for place in places:
                yield place, Sample(value, None)

    def _all(self) -> Iterator[Any]:
        yield from self._ahead
        yield from self._iterator


def samples_of(source: Any) -> SampleSource:
    """Return the samples of a dataset; raise ConfigError where it cannot be exported."""
    if isinstance(source, DatasetParser):
        return ParserSamples(source)
    if isinstance(source, str | bytes | os.PathLike):
        raise ConfigError(
            f"{quoted(source)} is not a dataset: open it first, for example with ParserTfds or ParserBeton."
        )
    if isinstance(source, Mapping | set | frozenset) or not isinstance(source, Sized):
        raise ConfigError(
            f"{type(source).__name__} cannot be exported: give a parser, a dataset with len() and [], an iterable of "
            f"dictionaries or tuples with len(), or WebDatasetShards."
        )
    if hasattr(type(source), "__getitem__") and not _is_iterable_only(source):
        return NumberedSamples(source)
    if isinstance(source, Iterable):
        return IteratedSamples(source)
    raise ConfigError(f"{type(source).__name__} has len(), and neither [] nor iter(): its samples cannot be had.")


def _is_iterable_only(source: Any) -> bool:
    """Return whether a dataset is one of torch's that can be iterated alone: these inherit a [] that fails."""
    kinds = {f"{base.__module__}.{base.__name__}" for base in type(source).__mro__}
    return "torch.utils.data.dataset.IterableDataset" in kinds


def _field_or_why_not(parser: DatasetParser, name: str) -> EncodedField | ConfigError:
    try:
        return parser.dataset.encoded_field(name)
    except ConfigError as error:
        return error
