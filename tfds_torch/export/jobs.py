"""What an export's workers do: choose the fields by a first sample, count the samples of shards, fill pages."""

from collections.abc import Mapping

from tfds_torch.engines.fields import EncodedField
from tfds_torch.errors import ConfigError
from tfds_torch.export.field_choice import ChosenFields, FieldChoice, FieldPlan, choose_fields
from tfds_torch.export.sample_order import SampleOrder
from tfds_torch.export.sample_source import SampleSource
from tfds_torch.export.web_dataset_shards import WebDatasetShards
from tfds_torch.runtime.metrics import StageMetrics
from tfds_torch.storage.beton.pages import WrittenPart
from tfds_torch.storage.beton.writer import BetonWriter

NO_SAMPLE = -1


class ChooseFields:
    """Reads a first sample and chooses the fields by it: what it opens or starts, no other worker inherits.

    Args:
        source: of the samples.
        asked: as `check_choices` returns it.
        names: as `check_choices` returns it.
    """

    def __init__(self, source: SampleSource, asked: Mapping[str, FieldChoice], names: Mapping[str, str]) -> None:
        self._source, self._asked, self._names = source, asked, names

    def begin(self, metrics: StageMetrics) -> None:
        """Prepares the worker."""
        self._metrics = metrics

    def do(self, number: int) -> ChosenFields | ConfigError:
        """Returns the fields that a sample tells, or why there are none; `NO_SAMPLE`: that are known without one."""
        known, sample = self._source.encoded_fields(), None
        if number != NO_SAMPLE:
            self._metrics.note_reading(number)
            sample = self._source.first(number, None if known is None else self._readable(known))
        try:
            return choose_fields(self._asked, self._names, known, None if sample is None else sample.value)
        except ConfigError as error:  # It is about all samples, and not about this one.
            return ConfigError(str(error))

    def finish(self) -> None:
        """Has nothing more to tell."""

    def _readable(self, known: Mapping[str, object]) -> list[str]:
        wanted = (name for name in known if name not in self._asked or self._asked[name] is not None)
        return [name for name in wanted if isinstance(known[name], EncodedField)]


class CountShards:
    """Counts the samples of WebDataset's shards.

    Args:
        shards: all of them.
    """

    def __init__(self, shards: WebDatasetShards) -> None:
        self._shards = shards

    def begin(self, metrics: StageMetrics) -> None:
        """Prepares the worker."""
        self._metrics = metrics

    def do(self, shard: int) -> tuple[int, int]:
        """Returns a shard's number, and how many samples it has."""
        self._metrics.note_reading(shard)
        count = 0
        for _ in self._shards.read(shard):
            count += 1
            self._metrics.add_batch(1)
        return shard, count

    def finish(self) -> None:
        """Has nothing more to tell."""


class FillPages:
    """Puts samples into pages of the file, each worker into its own.

    Args:
        source: of the samples.
        order: of those that are exported.
        plan: what is taken out of each.
        writer: of the file.
    """

    def __init__(self, source: SampleSource, order: SampleOrder, plan: FieldPlan, writer: BetonWriter) -> None:
        self._source, self._order, self._plan, self._writer = source, order, plan, writer

    def begin(self, metrics: StageMetrics) -> None:
        """Prepares the worker."""
        self._metrics, self._pages = metrics, self._writer.page_writer()

    def do(self, task: object) -> OSError | None:
        """Writes the samples of a task; returns what kept the system from writing."""
        plan, metrics, fields = self._plan, self._metrics, list(map(str, self._plan.keys))
        for place, sample in self._source.samples(task, self._order, fields, metrics):
            values = plan.values(sample.value)
            try:
                self._pages.add(values, place, sample.id)
            except OSError as error:
                return error
            metrics.add_batch(1)
        return None

    def finish(self) -> WrittenPart | OSError:
        """Writes the last page, and returns what was written; or what kept the system from it."""
        try:
            return self._pages.close()
        except OSError as error:
            return error
