"""ShardedExport: a folder of shards, written shard by shard by several processes; complete shards are kept."""

import errno
import hashlib
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tfds_torch.errors import ConfigError, ExportError
from tfds_torch.export.beam_export import BeamRunner
from tfds_torch.export.folder import KEPT, ShardFolder
from tfds_torch.export.manifest import Shard
from tfds_torch.export.plan import ExportPlan, ShardSizes, safe_name, split_label
from tfds_torch.export.records import metadata_names, read_dataset_name, write_metadata
from tfds_torch.export.report import ExportReport
from tfds_torch.export.sample_order import SampleOrder
from tfds_torch.export.samples import ExampleNames, ParserSamples, SampleSource, count_samples
from tfds_torch.export.shard_content import (
    TAR_BLOCK_BYTES,
    TAR_END_BYTES,
    RecordContent,
    ShardContent,
    TarContent,
    check_key,
    check_room,
    longest_key,
)
from tfds_torch.export.tar import Member, choose_members
from tfds_torch.export.workers import Job, Progress, Workers, choose_by_first
from tfds_torch.export.write_shards import DoneShard, WriteShards
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


@dataclass(frozen=True)
class ShardRequest:
    """What is asked of a sharded export.

    Attributes:
        format: one of SHARDED.
        key: what WebDataset's members are called by; None: by number.
        skipped: fields that are left out.
        names: of fields -> their new names.
        indices: numbers of examples, in the export's order; None: all.
        shuffle_seed: of a shuffle of them; None: none.
    """

    format: str
    sizes: ShardSizes = field(default_factory=ShardSizes)
    key: str | None = None
    skipped: tuple[str, ...] = ()
    names: Mapping[str, str] | None = None
    indices: Iterable[int] | None = None
    shuffle_seed: int | None = None


class ShardedExport:
    """An export of numbered samples to a folder of shards, by num_workers processes at most or by Beam."""

    def __init__(self, samples: SampleSource, path: str, num_workers: int, beam: BeamRunner | None = None) -> None:
        self._samples, self._path, self._num_workers, self._beam = samples, Path(path), num_workers, beam
        self._any_parser = samples.parser if isinstance(samples, ParserSamples) else None
        self._parser = self._any_parser if isinstance(self._any_parser, ParserTfds) else None
        self._context = f"The export to {path} failed."

    def run(self, request: ShardRequest, progress: Progress | None) -> ExportReport:
        """Writes all shards that are not there yet, and their metadata; after an ExportError, complete shards stay."""
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
        # Tars have no metadata of TFDS's.
        is_tar = isinstance(content, TarContent)
        metadata = [] if is_tar or self._parser is None else metadata_names(metadata_of(self._parser))
        folder = ShardFolder(self._path, plan.split, is_shared=self._beam is not None)
        folder.check(plan, metadata)
        try:
            with folder.locked():
                folder.check(plan, metadata)  # Another export may have ended just now.
                done, num_workers = self._write_all(plan, content, folder, metadata, progress)
        except OSError as error:
            raise self._refusal(error, plan, []) from error
        return ExportReport(
            path=os.fspath(self._path),
            format=plan.format,
            num_samples=plan.num_examples,
            num_bytes=sum(shard.num_bytes for shard, _ in done),
            elapsed_s=time.monotonic() - began_s,
            num_workers=num_workers,
            num_reencoded=0,
            fields=dict(plan.options["fields"]),
            num_shards=plan.num_shards,
            split=plan.split,
            num_kept=sum(is_kept for _, is_kept in done),
        )

    def _content(self, request: ShardRequest, order: SampleOrder) -> ShardContent:
        if request.format == "webdataset":
            key = "number" if request.key is None else request.key
            check_key(key, order)
            members = self._members(request, order)
            check_room(members, longest_key(key, order, self._samples))
            return TarContent(self._samples, order, members, key)
        if request.key is not None:
            raise ConfigError(
                f"key={quoted(request.key)} (--key) is for members of tar files: {request.format} has none."
            )
        if request.skipped or request.names:
            raise ConfigError(
                f"fields and names (--field, --rename): {request.format} copies records whole. Leave these out, or use "
                f"format='webdataset'."
            )
        if request.format == "array_record":
            array_record.check_package()
            if request.sizes.max_bytes is not None:
                raise ConfigError(
                    "max_bytes (--max-bytes): ArrayRecord is compressed, and a file's size is known only when it is "
                    "written. Use num_shards (--shards) or max_count (--max-count)."
                )
        return RecordContent(self._records(request.format), order, request.format)

    def _members(self, request: ShardRequest, order: SampleOrder) -> tuple[Member, ...]:
        known, names = self._samples.encoded_fields(), request.names or {}
        if known is not None:
            return choose_members(request.skipped, names, known, None)
        choose = partial(choose_members, request.skipped, names, None)
        return choose_by_first(self._samples, order, None, choose, self._names(), self._context)

    def _records(self, file_format: str) -> RecordSource:
        """Returns the records that are copied; a ConfigError: the dataset has none."""
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
        if not source.copies_labels:
            raise ConfigError(
                f"{self._samples.name}: {file_format} copies records as they are stored, and the directories of this "
                f"dataset count their classes in different orders. Use format='webdataset' or 'beton', or export each "
                f"directory."
            )
        return source

    def _plan(self, request: ShardRequest, order: SampleOrder, content: ShardContent) -> ExportPlan:
        samples, sizes, any_parser = self._samples, request.sizes, self._any_parser
        split = "all" if any_parser is None else any_parser.split
        if isinstance(content, TarContent):
            fields = {str(member.key): member.describe() for member in content.members}
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
        """Returns a digest of the first, the middle and the last sample, where nothing else identifies the source."""
        if self._samples.fingerprint or not isinstance(content, TarContent):
            return None
        with self._workers(1, content.digest) as workers:
            return str(next(workers.run([sorted({0, num_examples // 2, num_examples - 1})])))

    def _measure(self, num_examples: int, content: ShardContent) -> Int64Array:
        """Returns the bytes that each example takes in a shard, int64 [num_examples]."""

        def measure(places: range, metrics: StageMetrics) -> tuple[range, Int64Array]:
            return places, content.sizes(places, metrics)

        sizes = np.zeros(num_examples, np.int64)
        starts = range(0, num_examples, _MEASURED_AT_A_TIME)
        tasks = (range(start, min(start + _MEASURED_AT_A_TIME, num_examples)) for start in starts)
        with self._workers(min(self._num_workers, len(starts)), measure) as workers:
            for places, found in workers.run(tasks, num_ahead=2):
                sizes[places.start : places.stop] = found
        return sizes

    def _write_all(
        self,
        plan: ExportPlan,
        content: ShardContent,
        folder: ShardFolder,
        metadata: Sequence[str],
        progress: Progress | None,
    ) -> tuple[list[DoneShard], int]:
        """Writes the shards and what belongs to them; returns the same as `_write`."""
        complete = folder.begin(plan, metadata)
        try:
            done, num_workers = self._write(plan, content, folder, complete, progress)
        finally:
            folder.remove_unfinished(plan, metadata)
        shards = [shard for shard, _ in done]
        if metadata and self._parser is not None:
            lengths = [len(plan.places(shard.number)) for shard in shards]
            num_bytes = sum(shard.content_bytes for shard in shards)
            write_metadata(metadata_of(self._parser), folder.path, plan, lengths, num_bytes)
        folder.complete(plan, shards, metadata)
        return done, num_workers

    def _write(
        self,
        plan: ExportPlan,
        content: ShardContent,
        folder: ShardFolder,
        complete: dict[int, Shard],
        progress: Progress | None,
    ) -> tuple[list[DoneShard], int]:
        """Returns all shards, in order, and how many processes wrote them; 0: those of Beam."""
        job = WriteShards(plan, content, folder, complete)
        if self._beam is not None:
            return self._beam.write(job, progress), 0
        done: dict[int, DoneShard] = {}
        num_workers, refused = min(self._num_workers, plan.num_shards), None
        with self._workers(num_workers, job) as workers:
            tasks = range(plan.num_shards)
            for answer in workers.run(tasks, progress=progress, num_samples=plan.num_examples):
                if isinstance(answer, OSError):
                    refused = answer
                    break
                done[answer[0].number] = answer
        if refused is not None:
            raise self._refusal(refused, plan, [shard for shard, _ in done.values()]) from refused
        return [done[number] for number in range(plan.num_shards)], num_workers

    def _refusal(self, error: OSError, plan: ExportPlan, done: Sequence[Shard]) -> ExportError:
        """Returns the error of a write that the system refused: why, how many bytes are missing, and how to go on."""
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

    def _workers(self, num_workers: int, job: Job) -> Workers:
        return Workers(num_workers, job, self._names(), self._context)

    def _names(self) -> ExampleNames:
        return ExampleNames(self._samples.name, KEPT, self._samples.describe)


def _free_bytes(path: Path) -> str:
    try:
        status = os.statvfs(path if path.exists() else path.absolute().parent)
    except OSError:
        return "an unknown number of bytes"
    return f"{status.f_bavail * status.f_frsize:,}"


def _describe_map(class_map: ClassMap | None) -> list[list[Any]] | None:
    return None if class_map is None else sorted(([str(key), new] for key, new in class_map.entries.items()), key=str)


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
