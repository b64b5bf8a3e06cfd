"""export_dataset: a dataset as a `.beton` file, there whole or not at all, written by several processes."""

import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

from tfds_torch.errors import ConfigError, ExportError
from tfds_torch.export.field_choice import ChosenFields, FieldChoice, FieldPlan, check_choices, choose_fields
from tfds_torch.export.jobs import NO_SAMPLE, ChooseFields, CountShards, FillPages
from tfds_torch.export.report import ExportReport, describe_field
from tfds_torch.export.sample_order import SampleOrder
from tfds_torch.export.sample_source import SampleSource
from tfds_torch.export.samples import IteratedSamples, samples_of
from tfds_torch.export.web_dataset_shards import WebDatasetShards
from tfds_torch.export.workers import Job, Workers
from tfds_torch.plan.arguments import check_integer, did_you_mean
from tfds_torch.runtime.machine_share import num_cores
from tfds_torch.runtime.worker_faults import ReadingNames
from tfds_torch.storage.beton.format import DEFAULT_PAGE
from tfds_torch.storage.beton.pages import WrittenPart
from tfds_torch.storage.beton.target import check_target
from tfds_torch.storage.beton.writer import BetonWriter

FORMATS = ("beton",)
Progress = Callable[[int, int], object]


def export_dataset(
    source: Any,
    out: str | os.PathLike[str],
    *,
    format: str,
    fields: Mapping[str, FieldChoice] | None = None,
    names: Mapping[str, str] | None = None,
    num_workers: int = 0,
    indices: Iterable[int] | None = None,
    shuffle_seed: int | None = None,
    chunk_size: int = 100,
    page_size: int = DEFAULT_PAGE,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> ExportReport:
    """Writes the samples of a dataset into one file, which is there whole or not at all.

    Forked workers read and encode; an iterable is iterated here, and its samples are sent to them. The file's order is
    that of the numbers of samples, whatever the workers. Of a parser, images keep the bytes that they have on disk, and
    ids, class names and fingerprint go into the file.

    Args:
        source: a parser over files of this machine, a map-style dataset (torch's), anything sized that yields
            dictionaries or tuples, or `WebDatasetShards`.
        out: path of the file.
        format: of the file: "beton", which FFCV reads, too.
        fields: name -> how it is stored: a value such as `BetonImage("jpg")`, or its short name: of images
            "passthrough", "raw", "jpg", "smart", "proportion"; "int", "float", "bytes", "json"; None or "skip" leaves
            it out. What is not named is stored by its type: encoded images as they are, pixels as pixels, integers,
            numbers and arrays as such, text and what varies in size as JSON. Image and label come first. As many names
            as a tuple has values are these values' names, in order.
        names: name -> its name in the file, which has room for 16 ASCII characters.
        num_workers: processes; 0: as many as there are cores that may be used.
        indices: numbers of samples in the file's order, also one several times; None: all.
        shuffle_seed: of a shuffle of them; None: none.
        chunk_size: samples that a worker takes at a time; of WebDataset's shards it takes one.
        page_size: bytes of a page: a power of two from 2 MiB on. A sample must fit into one.
        overwrite: whether a file that is there may be replaced.
        progress: called in this thread, now and then, with the samples that are done and their number.

    Raises:
        ConfigError: an argument that cannot work, or values that cannot be stored.
        ExportError: a worker raised (with its traceback), died or hung; or the disk is full. What was there before is
            as it was.
    """
    began_s = time.monotonic()
    _check_format(format)
    num_workers = check_integer("num_workers", num_workers, 0) or num_cores()
    chunk_size = check_integer("chunk_size", chunk_size, 1)
    if progress is not None and not callable(progress):
        raise ConfigError(f"progress={progress!r} must be a function of two numbers: done, and how many there are.")
    path = _path_of(out)
    check_target(path, page_size, overwrite)
    asked, new_names = check_choices(fields, names)
    samples = source if isinstance(source, WebDatasetShards) else samples_of(source)
    _check_is_not_read(samples, path)
    export = _Export(samples, path, num_workers)
    if isinstance(samples, WebDatasetShards):
        export.count(samples)
    order = SampleOrder(export.num_samples(), indices, shuffle_seed)
    plan = export.choose(order, asked, new_names)
    number_of_page = get_context("fork").Value("q", 0)

    def take_page() -> int:
        with number_of_page.get_lock():
            number_of_page.value += 1
            return int(number_of_page.value) - 1

    writer = BetonWriter(
        path,
        plan.fields,
        len(order),
        page_size=page_size,
        name=samples.name,
        fingerprint=samples.fingerprint,
        class_names=export.class_names(plan),
        overwrite=overwrite,
        take_page=take_page,
    )
    with writer:
        num_workers = export.fill(order, plan, writer, chunk_size, progress, lambda: int(number_of_page.value))
        facts = writer.close()
    return ExportReport(
        path=os.fspath(path),
        format=format,
        num_samples=facts.num_samples,
        num_bytes=os.path.getsize(path),
        elapsed_s=time.monotonic() - began_s,
        num_workers=num_workers,
        num_reencoded=facts.num_reencoded,
        fields={name: describe_field(field) for name, field in plan.fields.items()},
    )


@dataclass(frozen=True)
class _Names(ReadingNames):
    """What messages tell of an export's samples."""

    def example(self, index: int | None) -> str:
        if index is None or self.find_id is None:
            return ""
        with suppress(Exception):  # A message about a fault must not fail.
            return f", {self.find_id(index)}"
        return f", sample {index}"


class _Export:
    """The steps of an export, each with workers of its own.

    Args:
        samples: what is exported.
        path: of the file.
        num_workers: at most.
    """

    def __init__(self, samples: SampleSource, path: str, num_workers: int) -> None:
        self._samples, self._path, self._num_workers = samples, path, num_workers

    def num_samples(self) -> int:
        """Returns how many there are."""
        try:
            return len(self._samples)
        except ConfigError:
            raise
        except Exception as error:  # Of the user's own len().
            raise ConfigError(f"{self._samples.name}: its len() failed: {type(error).__name__}: {error}.") from error

    def count(self, shards: WebDatasetShards) -> None:
        """Counts the samples of shards, all of them at a time."""
        counts = [0] * len(shards.urls)
        names = _Names(shards.name, self._next_step, lambda shard: f"shard {shards.urls[shard]}")
        num_workers = min(self._num_workers, len(counts))
        with self._workers(num_workers, CountShards(shards), names) as workers:
            for answer in workers.run(range(len(counts)), 1, lambda: None):
                if answer is not None:
                    shard, count = answer
                    counts[shard] = count
        shards.set_counts(counts)

    def choose(self, order: SampleOrder, asked: Mapping[str, FieldChoice], names: Mapping[str, str]) -> FieldPlan:
        """Returns the fields, chosen by a first sample where that is needed."""
        samples = self._samples
        if isinstance(samples, IteratedSamples):
            first = self._iterate(lambda: samples.first(0, None))
            return choose_fields(asked, names, None, None if first is None else first.value).plan(asked)
        number = int(order.numbers[0]) if len(order) else NO_SAMPLE
        with self._workers(1, ChooseFields(samples, asked, names), self._names) as workers:
            answers = list(workers.run([number], 1, lambda: None))
        chosen: ChosenFields | ConfigError = answers[0]
        if isinstance(chosen, ConfigError):
            raise chosen
        return chosen.plan(asked)

    def class_names(self, plan: FieldPlan) -> dict[str, list[str]]:
        """Returns the names of labels, by the field that holds these in the file."""
        names = dict(zip(plan.keys, plan.fields, strict=True))
        found = self._samples.class_names
        return {names["label"]: found} if found and "label" in names else {}

    def fill(
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

    def _workers(self, num_workers: int, job: Job, names: ReadingNames) -> Workers:
        return Workers(num_workers, job, names, self._context)

    @property
    def _names(self) -> ReadingNames:
        return _Names(self._samples.name, self._next_step, self._samples.describe)

    @property
    def _context(self) -> str:
        return f"The export to {self._path} failed."

    @property
    def _next_step(self) -> str:
        return "What was there before is untouched."


def _check_format(format: object) -> None:
    if format not in FORMATS:
        known = ", ".join(map(repr, FORMATS))
        raise ConfigError(f"format={format!r} cannot be written: choose {known}.{did_you_mean(format, FORMATS)}")


def _path_of(out: object) -> str:
    if not isinstance(out, str | os.PathLike):
        raise ConfigError(f"out={out!r} must be the path of a file.")
    return os.path.expanduser(os.fspath(out))


def _check_is_not_read(samples: SampleSource, path: str) -> None:
    """A file that is exported from must not be replaced by its own export."""
    own = _stat(path)
    if own is None:
        return
    for other in map(_stat, set(samples.paths)):
        if other is not None and os.path.samestat(own, other):
            raise ConfigError(f"{path} is what is exported: choose another path for the file that is written.")


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except (OSError, ValueError):  # ValueError: a null character.
        return None
