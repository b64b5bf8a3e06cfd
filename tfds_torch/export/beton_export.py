"""BetonExport: the samples are counted, their fields are chosen, and several processes fill the pages of one file."""

import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

from tfds_torch.errors import ConfigError, ExportError
from tfds_torch.export.field_choice import ChosenFields, FieldChoice, FieldPlan, choose_fields
from tfds_torch.export.jobs import NO_SAMPLE, ChooseFields, CountShards, FillPages
from tfds_torch.export.report import ExportReport, describe_field
from tfds_torch.export.sample_order import SampleOrder
from tfds_torch.export.sample_source import ExampleNames, SampleSource, count_samples
from tfds_torch.export.samples import IteratedSamples
from tfds_torch.export.web_dataset_shards import WebDatasetShards
from tfds_torch.export.workers import Job, Workers
from tfds_torch.runtime.worker_faults import ErrorContext
from tfds_torch.storage.beton.pages import WrittenPart
from tfds_torch.storage.beton.writer import BetonWriter

Progress = Callable[[int, int], object]


@dataclass(frozen=True)
class FileRequest:
    """What is asked of an export to a `.beton` file.

    Attributes:
        fields: name -> how it is stored.
        names: of fields -> their new names.
        indices: numbers of samples, in the file's order; None: all.
        shuffle_seed: of a shuffle of them; None: none.
        chunk_size: samples that a worker takes at a time.
        page_size: bytes of a page.
    """

    fields: Mapping[str, FieldChoice]
    names: Mapping[str, str]
    indices: Iterable[int] | None
    shuffle_seed: int | None
    chunk_size: int
    page_size: int


class BetonExport:
    """An export to a `.beton` file, whose steps have workers of their own.

    Args:
        samples: what is exported.
        path: of the file.
        num_workers: at most.
    """

    def __init__(self, samples: SampleSource, path: str, num_workers: int) -> None:
        self._samples, self._path, self._num_workers = samples, path, num_workers

    def run(self, request: FileRequest, overwrite: bool, progress: Progress | None) -> ExportReport:
        """Writes the file.

        Raises:
            ConfigError: what is asked for cannot work; nothing was written.
            ExportError: a sample or a write failed; what was there before is as it was.
        """
        began_s = time.monotonic()
        samples = self._samples
        if isinstance(samples, WebDatasetShards):
            self._count(samples)
        order = SampleOrder(count_samples(samples), request.indices, request.shuffle_seed)
        plan = self._choose(order, request)
        number_of_page = get_context("fork").Value("q", 0)

        def take_page() -> int:
            with number_of_page.get_lock():
                number_of_page.value += 1
                return int(number_of_page.value) - 1

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
            num_workers = self._fill(
                order, plan, writer, request.chunk_size, progress, lambda: int(number_of_page.value)
            )
            facts = writer.close()
        return ExportReport(
            path=self._path,
            format="beton",
            num_samples=facts.num_samples,
            num_bytes=os.path.getsize(self._path),
            elapsed_s=time.monotonic() - began_s,
            num_workers=num_workers,
            num_reencoded=facts.num_reencoded,
            fields={name: describe_field(field) for name, field in plan.fields.items()},
        )

    def _count(self, shards: WebDatasetShards) -> None:
        """Counts the samples of shards, all of them at a time."""
        counts = [0] * len(shards.urls)
        names = ExampleNames(shards.name, self._next_step, lambda shard: f"shard {shards.urls[shard]}")
        num_workers = min(self._num_workers, len(counts))
        with self._workers(num_workers, CountShards(shards), names) as workers:
            for answer in workers.run(range(len(counts)), 1, lambda: None):
                if answer is not None:
                    shard, count = answer
                    counts[shard] = count
        shards.set_counts(counts)

    def _choose(self, order: SampleOrder, request: FileRequest) -> FieldPlan:
        """Returns the fields, chosen by a first sample where that is needed."""
        samples, asked, names = self._samples, request.fields, request.names
        if isinstance(samples, IteratedSamples):
            first = self._iterate(lambda: samples.first(0, None))
            return choose_fields(asked, names, None, None if first is None else first.value).plan(asked)
        number = order.number_at(0) if len(order) else NO_SAMPLE
        with self._workers(1, ChooseFields(samples, asked, names), self._names) as workers:
            answers = list(workers.run([number], 1, lambda: None))
        chosen: ChosenFields | ConfigError = answers[0]
        if isinstance(chosen, ConfigError):
            raise chosen
        return chosen.plan(asked)

    def _class_names(self, plan: FieldPlan) -> dict[str, list[str]]:
        """Returns the names of labels, by the field that holds these in the file."""
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
        """Writes all samples, and returns how many processes did."""
        num_workers, told = max(1, min(self._num_workers, -(-len(order) // chunk_size))), -1
        if isinstance(self._samples, WebDatasetShards):
            num_workers = min(self._num_workers, len(self._samples.urls))
        workers = self._workers(num_workers, FillPages(self._samples, order, plan, writer), self._names)

        def num_done() -> int:
            return sum(workers.metrics.counts(worker)[1] for worker in range(num_workers))

        def look() -> None:
            nonlocal told
            done = num_done()
            if progress is not None and done != told:
                told = done
                progress(done, len(order))

        refused: OSError | None = None
        with workers:
            tasks = self._tasks(order, chunk_size)
            for answer in workers.run(tasks, self._samples.num_ahead, look):
                if isinstance(answer, WrittenPart):
                    writer.include(answer)
                elif isinstance(answer, OSError):
                    refused = answer
                    break
            look()
        if refused is not None:  # The workers, who held the file open, have ended.
            raise writer.cannot_write(refused, num_done(), num_pages()) from refused
        return num_workers

    def _tasks(self, order: SampleOrder, chunk_size: int) -> Any:
        tasks = self._samples.tasks(order, chunk_size)
        while (task := self._iterate(lambda: next(tasks, None))) is not None:
            yield task

    def _iterate(self, act: Callable[[], Any]) -> Any:
        """Lets the user's own code make a sample here; what it raises is an ExportError."""
        try:
            return act()
        except (ExportError, ConfigError, MemoryError):
            raise
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            raise ExportError(f"{self._context} {self._samples.name} raised {said}. {self._next_step}") from error

    def _workers(self, num_workers: int, job: Job, names: ErrorContext) -> Workers:
        return Workers(num_workers, job, names, self._context)

    @property
    def _names(self) -> ErrorContext:
        return ExampleNames(self._samples.name, self._next_step, self._samples.describe)

    @property
    def _context(self) -> str:
        return f"The export to {self._path} failed."

    @property
    def _next_step(self) -> str:
        return "What was there before is untouched."
