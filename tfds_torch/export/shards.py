"""ShardedExport: a folder of shards, written shard by shard by the workers of any Executor; complete ones are kept."""

import errno
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tfds_torch.errors import ConfigError, ExportError, TfdsTorchError, WorkerError
from tfds_torch.export.fields import Form
from tfds_torch.export.folder import KEPT, ShardFolder, WriteRefusedError
from tfds_torch.export.jobs import (
    ExampleNames,
    Job,
    Progress,
    Workers,
    choose_by_first,
    error_of,
    in_context,
    job_file,
    local_workers,
    reporter,
)
from tfds_torch.export.plan import ExportPlan, ExportReport, Part, Shard, ShardSizes, safe_name, split_label
from tfds_torch.export.records import RecordContent, metadata_names, read_dataset_name, write_metadata
from tfds_torch.export.samples import NumberedSamples, ParserSamples, SampleOrder, SampleSource, count_samples
from tfds_torch.export.tar import (
    TAR_BLOCK_BYTES,
    TAR_END_BYTES,
    Member,
    TarContent,
    check_key,
    check_room,
    choose_members,
    longest_key,
)
from tfds_torch.export.workers import LocalExecutor
from tfds_torch.parsers.class_map import ClassMap
from tfds_torch.parsers.tfds.folder import metadata_of
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.plan.order import Int64Array
from tfds_torch.runtime.identity import digest_of
from tfds_torch.runtime.metrics import StageMetrics
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.array_record import writer as array_record
from tfds_torch.storage.record_source import RecordSource

_MEASURED_AT_A_TIME = 1000
_MOST_SUBMITTED = 1000
"""Tasks that another Executor has at a time."""

ShardContent = TarContent | RecordContent
"""The content of shards, by place of the export's order."""


@dataclass(frozen=True)
class ShardRequest:
    """The arguments of a sharded export.

    Attributes:
        format: one of SHARDED.
        key: how WebDataset's members are named; None: by number.
        skipped: fields that are left out.
        rename: fields -> their new names.
        names: names of the values of tuples, by position; None: the usual ones.
        indices: numbers of examples, in the export's order; None: all.
        shuffle_seed: the seed of a shuffle of them; None: no shuffle.
        part: the part of the shards that is written here; None: all of them.
    """

    format: str
    sizes: ShardSizes = field(default_factory=ShardSizes)
    key: str | None = None
    skipped: tuple[str, ...] = ()
    rename: Mapping[str, str] = field(default_factory=dict)
    names: Sequence[str] | None = None
    indices: Iterable[int] | None = None
    shuffle_seed: int | None = None
    part: Part | None = None


@dataclass(frozen=True)
class WriteShards:
    """Writes a shard in a worker, unless it is complete; `noted` are those of an earlier export, by number."""

    plan: ExportPlan
    content: ShardContent
    folder: ShardFolder
    noted: Mapping[int, Shard]

    def __call__(self, number: int, metrics: StageMetrics) -> tuple[Shard, bool] | WriteRefusedError:
        """Return a complete shard and whether it was there, or the error of a write that the system refused.

        A shard's bytes depend on plan, content and number alone: several attempts may be under way, on any machines.
        The first one's file stays.
        """
        plan, folder = self.plan, self.folder
        noted = self.noted.get(number)
        if noted is not None and folder.is_complete(plan, noted, metrics):
            metrics.add_batch(len(plan.places(number)))
            return noted, True
        try:
            file = folder.attempt(plan, number)
            try:
                shard = Shard(number, *self.content.write(plan.places(number), file, metrics))
                file.check_is_wanted()
                folder.note(shard)
                if not folder.is_complete(plan, shard, metrics):
                    file.commit(syncs_folder=False)  # The manifest is written last, and for good with all before it.
            finally:
                file.discard()
        except WriteRefusedError as error:  # About the shard's file; any other error is about a sample.
            return error
        return shard, False


class ShardedExport:
    """An export of numbered samples to a folder of shards.

    Args:
        samples: the samples to export.
        path: of the folder.
        num_workers: processes of this machine, at most, that write.
        executor: whose workers write instead; None: those processes.
    """

    def __init__(self, samples: SampleSource, path: str, num_workers: int, executor: Executor | None = None) -> None:
        self._samples, self._path, self._num_workers, self._executor = samples, Path(path), num_workers, executor
        self._any_parser = samples.parser if isinstance(samples, ParserSamples) else None
        self._parser = self._any_parser if isinstance(self._any_parser, ParserTfds) else None
        self._context = f"The export to {path} failed."
        self._names = ExampleNames(samples.name, KEPT, samples.describe)

    def run(self, request: ShardRequest, progress: Progress | None) -> ExportReport:
        """Write all shards that are not there yet, and their metadata; after an ExportError, complete shards stay."""
        began_s = time.monotonic()
        parser = self._any_parser
        if parser is not None and parser.source.obstacle is not None:
            raise ConfigError(
                f"{self._samples.name} cannot be exported: {parser.source.obstacle}. Copy it to this machine."
            )
        order = SampleOrder(count_samples(self._samples), request.indices, request.shuffle_seed)
        if not len(order):
            raise ConfigError(f"{self._samples.name} has no examples to be exported as {request.format}.")
        content = self._content(request, order)
        plan = self._plan(request, order, content)
        if request.part is not None and request.part.of > plan.num_shards:
            raise ConfigError(
                f"part={request.part} (--part): the number of shards is {plan.num_shards:,}, and a part needs one: use "
                f"fewer parts, or more shards (num_shards, --shards)."
            )
        # Tars have no metadata of TFDS's.
        is_tar = isinstance(content, TarContent)
        metadata = [] if is_tar or self._parser is None else metadata_names(metadata_of(self._parser))
        folder = ShardFolder(self._path, plan.split, request.part, is_shared=self._executor is not None)
        folder.check(plan, metadata)
        try:
            with folder.locked():
                folder.check(plan, metadata)  # Another export may have ended just now.
                done, num_kept, num_workers = self._write_all(plan, content, folder, metadata, progress)
                num_missing = self._complete(plan, done, folder, metadata)
        except OSError as error:
            raise self._refusal(error, plan, []) from error
        return ExportReport(
            path=os.fspath(self._path),
            format=plan.format,
            num_samples=sum(len(plan.places(shard.number)) for shard in done),
            num_bytes=sum(shard.num_bytes for shard in done),
            elapsed_s=time.monotonic() - began_s,
            num_workers=num_workers,
            num_reencoded=0,
            fields=dict(plan.options["fields"]),
            num_shards=len(done),
            split=plan.split,
            num_kept=num_kept,
            part=None if request.part is None else str(request.part),
            num_missing=num_missing,
        )

    def _content(self, request: ShardRequest, order: SampleOrder) -> ShardContent:
        if request.format == "webdataset":
            key = "number" if request.key is None else request.key
            check_key(key, order)
            members, form = self._members(request, order)
            check_room(members, longest_key(key, order, self._samples))
            return TarContent(self._samples, order, members, key, form)
        if request.key is not None:
            raise ConfigError(
                f"key={quoted(request.key)} (--key) is for members of tar files: {request.format} has none."
            )
        if request.skipped or request.rename or request.names:
            raise ConfigError(
                f"fields, names and rename (--field, --rename): {request.format} copies records whole. Leave these "
                f"out, or use format='webdataset'."
            )
        if request.format == "array_record":
            array_record.check_package()
            if request.sizes.max_bytes is not None:
                raise ConfigError(
                    "max_bytes (--max-bytes): ArrayRecord is compressed, and a file's size is known only when it is "
                    "written. Use num_shards (--shards) or max_count (--max-count)."
                )
        return RecordContent(self._records(request.format), order, request.format)

    def _members(self, request: ShardRequest, order: SampleOrder) -> tuple[tuple[Member, ...], Form]:
        known = self._samples.encoded_fields()
        if known is not None:
            return choose_members(request.skipped, request.rename, request.names, known, None)
        choose = partial(choose_members, request.skipped, request.rename, request.names, None)
        return choose_by_first(self._samples, order, None, choose, self._names, self._context)

    def _records(self, file_format: str) -> RecordSource:
        """Return the records that are copied; raise ConfigError where the dataset has none."""
        parser = self._parser
        source = None if parser is None else parser.source
        if parser is not None and parser.dataset.has_windows:
            raise ConfigError(
                f"{self._samples.name}: format={quoted(file_format)} copies records as they are stored, which are "
                f"whole episodes, and this parser has windows of them. Leave out windows=, or use format='webdataset' "
                f"or 'beton'."
            )
        if parser is None or not isinstance(source, RecordSource):
            of_cache = parser is not None and parser.cache is not None
            advice = "open it without cache=" if of_cache else "use format='webdataset' or 'beton'"
            raise ConfigError(
                f"{self._samples.name} has no records to be copied: format={quoted(file_format)} takes datasets that "
                f"are stored as TFRecord or ArrayRecord. Here, {advice}."
            )
        if parser.dataset.class_map is not None:
            raise ConfigError(
                f"{self._samples.name}: {file_format} copies records as they are stored, and class_map would not be in "
                f"them. Leave it out, or use format='webdataset'."
            )
        if parser.dataset.transforms:
            raise ConfigError(
                f"{self._samples.name}: {file_format} copies records as they are stored, and transform= would not be "
                f"in them. Export what is stored, parser.as_stored(), or use format='webdataset'."
            )
        if not source.copies_labels:
            raise ConfigError(
                f"{self._samples.name}: {file_format} copies records as they are stored, and the directories of this "
                f"dataset count their classes in different orders. Use format='webdataset' or 'beton', or export each "
                f"directory."
            )
        return source

    def _plan(self, request: ShardRequest, order: SampleOrder, content: ShardContent) -> ExportPlan:
        samples, sizes, any_parser = self._samples, request.sizes, self._any_parser
        transforms = [] if any_parser is None else any_parser.dataset.transformed.identities
        split = "all" if any_parser is None else any_parser.split
        if isinstance(content, TarContent):
            fields = {member.of: member.describe() for member in content.members}
            own: dict[str, Any] = {"key": content.key}
            dataset = safe_name(samples.name.partition("/")[0].partition(":")[0])
            end = TAR_END_BYTES, TAR_BLOCK_BYTES
        else:
            assert self._parser is not None  # noqa: S101 (its records are copied)
            fields, own = {"record": "as it is stored"}, {}
            dataset, end = read_dataset_name(metadata_of(self._parser)), (0, 1)
        measured = None if sizes.max_bytes is None else self._measure(len(order), content)
        return ExportPlan(
            format=request.format,
            dataset=dataset,
            split=split_label(split),
            source={
                "name": samples.name,
                "split": split,
                "fingerprint": samples.fingerprint,
                "files": None if any_parser is None else digest_of(any_parser.source.stamps),
                "samples": self._digest_samples(len(order), content),
                "num_examples": count_samples(samples),
                "class_names": samples.class_names,
                "class_map": None if any_parser is None else _describe_map(any_parser.dataset.class_map),
                **({"transforms": transforms} if transforms else {}),
            },
            options={
                "fields": fields,
                **own,
                "indices": None if request.indices is None else order.digest(),
                "shuffle_seed": request.shuffle_seed,
                "num_shards": sizes.num_shards,
                "max_count": sizes.max_count,
                "max_bytes": sizes.max_bytes,
            },
            bounds=sizes.bounds(
                len(order), None if any_parser is None else any_parser.mean_example_bytes, measured, *end
            ),
        )

    def _digest_samples(self, num_examples: int, content: ShardContent) -> str | None:
        """Return a digest of the first, the middle and the last sample, where nothing else identifies the source."""
        if self._samples.fingerprint or not isinstance(content, TarContent):
            return None
        with local_workers(1, Job(content.digest, self._names), self._context) as workers:
            (digest,) = workers.results([sorted({0, num_examples // 2, num_examples - 1})])
        return str(digest)

    def _measure(self, num_examples: int, content: ShardContent) -> Int64Array:
        """Return the bytes that each example takes in a shard, int64 [num_examples]."""

        def measure(places: range, metrics: StageMetrics) -> tuple[range, Int64Array]:
            return places, content.sizes(places, metrics)

        sizes = np.zeros(num_examples, np.int64)
        starts = range(0, num_examples, _MEASURED_AT_A_TIME)
        tasks = (range(start, min(start + _MEASURED_AT_A_TIME, num_examples)) for start in starts)
        num_workers = min(self._num_workers, len(starts))
        with local_workers(num_workers, Job(measure, self._names), self._context, num_ahead=2) as workers:
            for places, found in workers.results(tasks):
                sizes[places.start : places.stop] = found
        return sizes

    def _write_all(
        self,
        plan: ExportPlan,
        content: ShardContent,
        folder: ShardFolder,
        metadata: Sequence[str],
        progress: Progress | None,
    ) -> tuple[list[Shard], int, int]:
        """Return the shards of this part, in order; how many were there; how many processes of ours wrote them."""
        noted = folder.begin(plan, metadata)
        numbers = range(plan.num_shards) if folder.part is None else folder.part.shards(plan.num_shards)
        num_workers = 0 if self._executor is not None else min(self._num_workers, len(numbers))
        # A user's own dataset is called by one thread at a time.
        job = Job(WriteShards(plan, content, folder, noted), self._names, isinstance(self._samples, NumberedSamples))
        try:
            with self._workers(job, num_workers, folder) as workers:
                done = self._write(plan, numbers, workers, progress)
        finally:
            folder.remove_unfinished(plan, metadata)
        found = [done[number] for number in numbers]
        return [shard for shard, _ in found], sum(is_kept for _, is_kept in found), num_workers

    @contextmanager
    def _workers(self, job: Job, num_workers: int, folder: ShardFolder) -> Iterator[Workers]:
        if self._executor is None:
            with local_workers(num_workers, job, self._context) as workers:
                yield workers
        else:
            with job_file(str(folder.path / folder.stem), job) as reference:
                yield Workers(self._executor, reference, _MOST_SUBMITTED, self._names, self._context)

    def _write(
        self, plan: ExportPlan, numbers: range, workers: Workers, progress: Progress | None
    ) -> dict[int, tuple[Shard, bool]]:
        """Return the shards by number.

        An error ends all; but where one of our own workers died or hung, the other shards are written before.
        """
        done: dict[int, tuple[Shard, bool]] = {}
        lost: list[TfdsTorchError] = []
        local = workers.executor if isinstance(workers.executor, LocalExecutor) else None
        total = sum(len(plan.places(number)) for number in numbers)

        def count() -> int:
            if local is not None and len(done) < len(numbers):
                return min(local.num_done, total)  # The work of a lost worker is done again.
            return sum(len(plan.places(number)) for number in done)

        report = reporter(progress, count, total)
        for number, future in workers.outcomes(numbers, report):
            error = error_of(future)
            if isinstance(error, WorkerError) and local is not None:
                lost.append(in_context(f"{self._context} {plan.file_name(number)}:", error))
            elif error is not None:
                raise in_context(self._context if local else f"{self._context} {plan.file_name(number)}:", error)
            elif isinstance(answer := future.result(), OSError):
                raise self._refusal(answer, plan, [shard for shard, _ in done.values()]) from answer
            else:
                done[number] = answer
        if lost:
            more = "" if len(lost) == 1 else f" ({len(lost)} shards were lost in this way.)"
            raise ExportError(f"{lost[0]}{more}") from lost[0].__cause__
        report()
        return done

    def _complete(self, plan: ExportPlan, done: Sequence[Shard], folder: ShardFolder, metadata: Sequence[str]) -> int:
        """Complete the export if no shard is missing; return how many shards of other parts are."""
        if folder.part is None:
            shards = list(done)
        else:
            noted = folder.noted() | {shard.number: shard for shard in done}
            shards = [noted[number] for number in sorted(noted) if folder.is_there(plan, noted[number])]
            if len(shards) < plan.num_shards:
                return plan.num_shards - len(shards)
        if metadata and self._parser is not None:
            lengths = [len(plan.places(shard.number)) for shard in shards]
            num_bytes = sum(shard.content_bytes for shard in shards)
            write_metadata(metadata_of(self._parser), folder.path, plan, lengths, num_bytes)
        folder.complete(plan, shards, metadata)
        return 0

    def _refusal(self, error: OSError, plan: ExportPlan, done: Sequence[Shard]) -> ExportError:
        """Return the error of a write that the system refused: why, how many bytes are missing, and how to continue."""
        what = f"The export to {self._path} failed: {error.strerror or error}."
        if error.errno == errno.EFBIG:
            return ExportError(
                f"{what} No file of that size is allowed there, by a limit (ulimit -f) or the file system: raise the "
                f"limit and give the same command again, or write elsewhere, or smaller shards (--max-count) to "
                f"another folder."
            )
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            return ExportError(f"{what} {KEPT}")
        num_done = sum(len(plan.places(shard.number)) for shard in done)
        num_left = plan.num_examples - num_done
        mean = 0 if self._any_parser is None else self._any_parser.mean_example_bytes
        if num_done:
            mean = sum(shard.num_bytes for shard in done) // num_done
        needed = f"About {mean * num_left:,} bytes are needed" if mean else "Room is needed"
        return ExportError(
            f"{what} {needed} for {num_left:,} of {plan.num_examples:,} examples, and {_free_bytes(self._path)} are "
            f"free: make room, or write elsewhere. {KEPT}"
        )


def _free_bytes(path: Path) -> str:
    try:
        status = os.statvfs(path if path.exists() else path.absolute().parent)
    except OSError:
        return "an unknown number of bytes"
    return f"{status.f_bavail * status.f_frsize:,}"


def _describe_map(class_map: ClassMap | None) -> list[list[Any]] | None:
    return None if class_map is None else sorted(([str(key), new] for key, new in class_map.entries.items()), key=str)
