"""SampleSource: what can be exported, as samples, and how their reading is divided among workers."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from tfds_torch.engines.fields import EncodedField
from tfds_torch.errors import ConfigError
from tfds_torch.export.sample_order import SampleOrder
from tfds_torch.runtime.metrics import StageMetrics
from tfds_torch.runtime.worker_faults import ErrorContext


class Sample(NamedTuple):
    """One sample of a source.

    Attributes:
        value: a mapping, or a sequence of values.
        id: of it; None: it has none.
    """

    value: Any
    id: str | None


class Placed(NamedTuple):
    """A sample on its way into the file.

    Attributes:
        place: in the file.
        sample: itself.
    """

    place: int
    sample: Sample


class SampleSource(Protocol):
    """Samples, and how their reading is divided among workers."""

    @property
    def name(self) -> str:
        """What they belong to, for messages and for the file."""

    @property
    def fingerprint(self) -> str:
        """Identity of what they are made from; empty: unknown."""

    @property
    def class_names(self) -> list[str] | None:
        """Names of the values of the field `label`; None: it has none."""

    @property
    def paths(self) -> Iterable[str]:
        """Local files that are read."""

    @property
    def num_ahead(self) -> int:
        """Tasks that a worker is given at a time."""

    def __len__(self) -> int:
        """Number of samples."""

    def describe(self, number: int) -> str:
        """Returns a sample's id, or what else it is called by."""

    def encoded_fields(self) -> Mapping[str, EncodedField | ConfigError] | None:
        """Returns the fields of samples, where they are known without one; or why one cannot be read."""

    def first(self, number: int, fields: Sequence[str] | None) -> Sample | None:
        """Returns a sample to choose fields by; None: there is none.

        Args:
            number: of one that will be exported; where samples have numbers.
            fields: those that are wanted, where they are known.
        """

    def tasks(self, order: SampleOrder, chunk_size: int) -> Iterator[Any]:
        """Yields picklable tasks, about chunk_size samples each."""

    def samples(
        self, task: Any, order: SampleOrder, fields: Sequence[str] | None, metrics: StageMetrics
    ) -> Iterator[Placed]:
        """Yields the samples of a task, in a worker, and notes the number of each before it is read."""


@dataclass(frozen=True)
class ExampleNames(ErrorContext):
    """What messages tell of an export's samples."""

    def example(self, index: int | None) -> str:
        """Returns what a sample is called, as the rest of a sentence."""
        if index is None or self.find_id is None:
            return ""
        with suppress(Exception):  # A message about a fault must not fail.
            return f", {self.find_id(index)}"
        return f", sample {index}"


def count_samples(source: SampleSource) -> int:
    """Returns how many samples there are.

    Raises:
        ConfigError: the user's own len() failed.
    """
    try:
        return len(source)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"{source.name}: its len() failed: {type(error).__name__}: {error}.") from error
