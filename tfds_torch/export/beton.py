"""BetonExport: the samples are counted, their fields are chosen, and several processes fill the pages of one file."""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, is_dataclass
from dataclasses import fields as fields_of
from functools import partial
from multiprocessing import get_context
from typing import Any

from tfds_torch.engines.fields import EncodedField
from tfds_torch.errors import ConfigError, ExportError
from tfds_torch.export.fields import FieldChoice, FieldPlan, choose_fields
from tfds_torch.export.jobs import ExampleNames, Job, Progress, choose_by_first, local_workers, reporter
from tfds_torch.export.plan import ExportReport
from tfds_torch.export.samples import IteratedSamples, SampleOrder, SampleSource, count_samples
from tfds_torch.export.web_dataset_shards import WebDatasetShards
from tfds_torch.export.workers import LocalExecutor
from tfds_torch.runtime.cached_property import cached_property
from tfds_torch.runtime.metrics import StageMetrics
from tfds_torch.storage.beton.pages import PageWriter, WrittenPart
from tfds_torch.storage.beton.writer import BetonWriter


@dataclass(frozen=True)
class FileRequest:
    """The arguments of an export to a `.beton` file.

    Attributes:
        fields: name -> how it is stored, as `check_choices` returns it.
        rename: fields -> their new names.
        names: names of the values of tuples, by position; None: the usual ones.
        indices: numbers of samples, in the file's order; None: all.
        shuffle_seed: the seed of a shuffle of them; None: no shuffle.
        chunk_size: samples that a worker takes at a time.
        page_size: bytes of a page.
    """

    fields: Mapping[str, FieldChoice]
    rename: Mapping[str, str]
    names: Sequence[str] | None
    indices: Iterable[int] | None
    shuffle_seed: int | None
    chunk_size: int
    page_size: int


class BetonExport:
    """An export to a `.beton` file; each of its steps forks workers, num_workers at most."""

    def __init__(self, samples: SampleSource, path: str, num_workers: int) -> None:
        self._samples, self._path, self._num_workers = samples, path, num_workers
        self._context, self._next_step = f"The export to {path} failed.", "What was there before is untouched."
        self._names = ExampleNames(samples.name, self._next_step, samples.describe)

    def run(self, request: FileRequest, overwrite: bool, progress: Progress | None) -> ExportReport:
        """Write the file; a ConfigError or ExportError leaves an earlier file as it was."""
        began_s = time.monotonic()
        samples = self._samples
        if isinstance(samples, WebDatasetShards):
            self._count(samples)
        order = SampleOrder(count_samples(samples), request.indices, request.shuffle_seed)
        plan = self._choose(order, request)
        num_pages = get_context("fork").Value("q", 0)

        def take_page() -> int:
            with num_pages.get_lock():
                num_pages.value += 1
                return int(num_pages.value) - 1

        writer = BetonWriter(
            self._path,
            plan.fields,
            len(order),
            page_size=request.page_size,
            name=samples.name,
            fingerprint=samples.fingerprint,
            class_names=self._class_names(plan),
            overwrite=overwrite,
            take_page=take_page,
        )
        with writer:
            num_workers = self._fill(order, plan, writer, request.chunk_size, progress, lambda: int(num_pages.value))
            facts = writer.close()
        return ExportReport(
            path=self._path,
            format="beton",
            num_samples=facts.num_samples,
            num_bytes=os.path.getsize(self._path),
            elapsed_s=time.monotonic() - began_s,
            num_workers=num_workers,
            num_reencoded=facts.num_reencoded,
            fields={name: _describe_field(field) for name, field in plan.fields.items()},
        )

    def _count(self, shards: WebDatasetShards) -> None:
        """Count the samples of shards, all of them at a time."""

        def count_samples_of(shard: int, metrics: StageMetrics) -> tuple[int, int]:
            metrics.note_reading(shard)
            count = 0
            for _ in shards.read(shard):
                count += 1
                metrics.add_batch(1)
            return shard, count

        names = ExampleNames(shards.name, self._next_step, lambda shard: f"shard {shards.urls[shard]}")
        num_shards = len(shards.urls)
        with local_workers(min(self._num_workers, num_shards), Job(count_samples_of, names), self._context) as workers:
            counts = dict(workers.results(range(num_shards)))
        shards.set_counts([counts[shard] for shard in range(num_shards)])

    def _choose(self, order: SampleOrder, request: FileRequest) -> FieldPlan:
        """Return the fields, chosen by a first sample where that is needed."""
        samples, asked, new = self._samples, request.fields, (request.rename, request.names)
        if isinstance(samples, IteratedSamples):
            first = self._iterate(lambda: samples.first(0, None))
            return choose_fields(asked, *new, None, None if first is None else first.value).plan(asked)
        known = samples.encoded_fields()
        wanted = None if known is None else _readable(known, asked)
        choose = partial(choose_fields, asked, *new, known)
        return choose_by_first(samples, order, wanted, choose, self._names, self._context).plan(asked)

    def _class_names(self, plan: FieldPlan) -> dict[str, list[str]]:
        """Return the names of labels, by the field that holds these in the file."""
        names = dict(zip(plan.keys, plan.fields, strict=True))
        found = self._samples.class_names
        return {names["label"]: found} if found and "label" in names else {}

    def _fill(
        self,
        order: SampleOrder,
        plan: FieldPlan,
        writer: BetonWriter,
        chunk_size: int,
        progress: Progress | None,
        num_pages: Callable[[], int],
    ) -> int:
        """Write all samples, and return how many processes did."""
        num_workers = max(1, min(self._num_workers, -(-len(order) // chunk_size)))
        if isinstance(self._samples, WebDatasetShards):
            num_workers = min(self._num_workers, len(self._samples.urls))
        filler = _PageFiller(self._samples, order, plan, writer)
        job, ahead = Job(filler, self._names), self._samples.num_ahead
        with local_workers(num_workers, job, self._context, ahead) as workers:
            executor = workers.executor
            assert isinstance(executor, LocalExecutor)  # noqa: S101 (those are local)
            report = reporter(progress, lambda: executor.num_done, len(order))
            refused = next(filter(None, workers.results(self._tasks(order, chunk_size), report)), None)
            report()
            for part in workers.of_each(None) if refused is None else ():
                if isinstance(part, OSError):
                    refused = part
                    break
                writer.include(part)
            num_done = executor.num_done
            if refused is not None:
                executor.close()  # The workers hold the file open.
        if refused is not None:
            raise writer.cannot_write(refused, num_done, num_pages()) from refused
        return num_workers

    def _tasks(self, order: SampleOrder, chunk_size: int) -> Iterator[Any]:
        tasks = self._samples.tasks(order, chunk_size)
        while (task := self._iterate(lambda: next(tasks, None))) is not None:
            yield task

    def _iterate(self, act: Callable[[], Any]) -> Any:
        """Let the user's own code make a sample here; its error becomes an ExportError."""
        try:
            return act()
        except (ExportError, ConfigError, MemoryError):
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise ExportError(f"{self._context} {self._samples.name} raised {reason}. {self._next_step}") from error


class _PageFiller:
    """Puts samples into pages of the file, each worker into its own."""

    def __init__(self, source: SampleSource, order: SampleOrder, plan: FieldPlan, writer: BetonWriter) -> None:
        self._source, self._order, self._plan, self._writer = source, order, plan, writer

    @cached_property
    def _pages(self) -> PageWriter:
        return self._writer.page_writer()

    def __call__(self, task: object, metrics: StageMetrics) -> WrittenPart | OSError | None:
        """Write the samples of a task, for the task None the last page; return the figures of this worker's writing.

        The error of a write that the system refused is returned.
        """
        try:
            if task is None:
                return self._pages.close()
        except OSError as error:
            return error
        pages, fields = self._pages, list(map(str, self._plan.keys))
        for place, sample in self._source.samples(task, self._order, fields, metrics):
            values = self._plan.values(sample.value)
            try:
                pages.add(values, place, sample.id)
            except OSError as error:
                return error
            metrics.add_batch(1)
        return None


def _readable(known: Mapping[str, EncodedField | ConfigError], asked: Mapping[str, FieldChoice]) -> list[str]:
    """Return the fields that are wanted and can be read."""
    return [
        name for name, field in known.items() if isinstance(field, EncodedField) and asked.get(name, "") is not None
    ]


def _describe_field(field: object) -> str:
    """Return how a field is stored, in short: an image's mode, and all that is not as usual."""
    if not is_dataclass(field):
        return repr(field)
    parts = []
    for place, one in enumerate(fields_of(field)):
        value = getattr(field, one.name)
        if one.repr and (place == 0 or one.default is MISSING or value != one.default):
            parts.append(f"{one.name}={str(value) if one.name == 'dtype' else repr(value)}")
    return f"{type(field).__name__}({', '.join(parts)})"
