"""What can be exported: parsers, map-style datasets, sized iterables; each as samples that workers read."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np

from tfds_torch.engines.fields import EncodedField
from tfds_torch.errors import ConfigError, ExportError
from tfds_torch.export.sample_order import SampleOrder
from tfds_torch.export.sample_source import Placed, Sample, SampleSource
from tfds_torch.parsers.parser_base import ParserBase
from tfds_torch.runtime.metrics import StageMetrics
from tfds_torch.runtime.printable import quoted

_PIECE_BYTES = 3 * 2**19  # Encoded, of a parser: what is read at a time.


class ParserSamples:
    """The examples of a parser over a Source, as they are stored.

    Args:
        parser: reads them.

    Attributes:
        parser: the same.
    """

    num_ahead = 2

    def __init__(self, parser: ParserBase) -> None:
        self.parser = parser
        self.name = parser.dataset_name
        self.fingerprint = parser.fingerprint
        self.class_names = parser.class_names

    def __len__(self) -> int:
        return self.parser.num_examples

    @property
    def paths(self) -> Iterable[str]:
        """The files of the split."""
        return (instruction.path for instruction in self.parser.files)

    def describe(self, number: int) -> str:
        """Returns an example's id."""
        return self.parser.ids(np.array([number]))[0]

    def encoded_fields(self) -> Mapping[str, EncodedField | ConfigError] | None:
        """Returns all fields of the dataset."""
        return {name: _field_or_why_not(self.parser, name) for name in self.parser.encoded_names()}

    def first(self, number: int, fields: Sequence[str] | None) -> Sample | None:
        """Returns an example."""
        return next(self._read(np.array([number]), fields or ()))

    def tasks(self, order: SampleOrder, chunk_size: int) -> Iterator[tuple[int, int]]:
        """Yields places from a first to a last one."""
        return _ranges(len(order), chunk_size)

    def samples(
        self, task: tuple[int, int], order: SampleOrder, fields: Sequence[str] | None, metrics: StageMetrics
    ) -> Iterator[Placed]:
        """Yields the examples at these places; some of them are read at a time."""
        piece = max(1, _PIECE_BYTES // max(1, self.parser.mean_example_bytes))
        for start in range(task[0], task[1], piece):
            places = range(start, min(start + piece, task[1]))
            numbers = order.at(places)
            metrics.note_reading(int(numbers[0]))
            samples = self._read(numbers, fields or ())
            for place, number, sample in zip(places, numbers.tolist(), samples, strict=True):
                metrics.note_reading(number)
                yield Placed(place, sample)

    def _read(self, numbers: "np.typing.NDArray[np.int64]", fields: Sequence[str]) -> Iterator[Sample]:
        for example in self.parser.encoded_examples(numbers, fields):
            own = {"image": example.image, "label": example.label}
            yield Sample(
                example.features | {name: value for name, value in own.items() if value is not None}, example.id
            )


class NumberedSamples:
    """A map-style dataset, such as torch's: `len(dataset)` and `dataset[number]`.

    Args:
        dataset: itself.
    """

    num_ahead = 2
    fingerprint = ""
    class_names: list[str] | None = None
    paths: Iterable[str] = ()

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self.name = type(dataset).__name__

    def __len__(self) -> int:
        return len(self._dataset)

    def describe(self, number: int) -> str:
        """Returns how a sample is asked for."""
        return f"dataset[{number}]"

    def encoded_fields(self) -> Mapping[str, EncodedField | ConfigError] | None:
        """Returns None: a sample tells."""
        return None

    def first(self, number: int, fields: Sequence[str] | None) -> Sample | None:
        """Returns a sample."""
        return Sample(self._dataset[number], None)

    def tasks(self, order: SampleOrder, chunk_size: int) -> Iterator[tuple[int, int]]:
        """Yields places from a first to a last one."""
        return _ranges(len(order), chunk_size)

    def samples(
        self, task: tuple[int, int], order: SampleOrder, fields: Sequence[str] | None, metrics: StageMetrics
    ) -> Iterator[Placed]:
        """Yields the samples at these places."""
        for place in range(*task):
            number = order.number_at(place)
            metrics.note_reading(number)
            yield Placed(place, Sample(self._dataset[number], None))


class IteratedSamples:
    """Anything sized that can be iterated. This process does that, once; its workers encode what came.

    Args:
        iterable: itself.
    """

    num_ahead = 1  # A task holds samples: who waits for it takes it at once.
    fingerprint = ""
    class_names: list[str] | None = None
    paths: Iterable[str] = ()

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

    def describe(self, number: int) -> str:
        """Returns which one it is."""
        return f"item {number}"

    def encoded_fields(self) -> Mapping[str, EncodedField | ConfigError] | None:
        """Returns None: a sample tells."""
        return None

    def first(self, number: int, fields: Sequence[str] | None) -> Sample | None:
        """Returns the first sample, which stays the first."""
        self._ahead = self._ahead or list(islice(self._iterator, 1))
        return Sample(self._ahead[0], None) if self._ahead else None

    def tasks(self, order: SampleOrder, chunk_size: int) -> Iterator[list[tuple[int, list[int], Any]]]:
        """Yields number, places and value of samples.

        Raises:
            ExportError: there are more or fewer samples than promised.
        """
        chunk, number = [], -1
        for number, value in enumerate(self._all()):
            if number >= len(self):
                raise ExportError(
                    f"{self.name} said that it has {len(self)} samples, and there are more: no len() fits."
                )
            if places := order.places_of(number):
                chunk.append((number, places, value))
            if len(chunk) >= chunk_size:
                yield chunk
                chunk = []
        if number + 1 < len(self):
            raise ExportError(f"{self.name} said that it has {len(self)} samples, and ended after {number + 1}.")
        if chunk:
            yield chunk

    def samples(
        self,
        task: list[tuple[int, list[int], Any]],
        order: SampleOrder,
        fields: Sequence[str] | None,
        metrics: StageMetrics,
    ) -> Iterator[Placed]:
        """Yields the samples that came."""
        for number, places, value in task:
            metrics.note_reading(number)
            for place in places:
                yield Placed(place, Sample(value, None))

    def _all(self) -> Iterator[Any]:
        yield from self._ahead
        yield from self._iterator


def samples_of(source: Any) -> SampleSource:
    """Returns what can be exported as samples.

    Raises:
        ConfigError: it cannot.
    """
    if isinstance(source, ParserBase):
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
    """Whether a dataset is one of torch's that can be iterated alone: these inherit a [] that fails."""
    kinds = {f"{base.__module__}.{base.__name__}" for base in type(source).__mro__}
    return "torch.utils.data.dataset.IterableDataset" in kinds


def _ranges(num_samples: int, chunk_size: int) -> Iterator[tuple[int, int]]:
    return ((start, min(start + chunk_size, num_samples)) for start in range(0, num_samples, chunk_size))


def _field_or_why_not(parser: ParserBase, name: str) -> EncodedField | ConfigError:
    try:
        return parser.encoded_field(name)
    except ConfigError as error:
        return error
