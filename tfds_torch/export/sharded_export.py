"""ShardedExport: planned, then written shard by shard by several processes; complete shards are not written again."""

import hashlib
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfds_torch.errors import ConfigError
from tfds_torch.export.beam_export import BeamRunner
from tfds_torch.export.manifest import Shard
from tfds_torch.export.member_names import check_key, check_room, longest_key
from tfds_torch.export.own_directories import check_is_not_read
from tfds_torch.export.plan import ExportPlan, safe_name, split_label
from tfds_torch.export.refused_writes import KEPT, describe_refusal
from tfds_torch.export.replacement import Replacement
from tfds_torch.export.report import ExportReport
from tfds_torch.export.sample_order import SampleOrder
from tfds_torch.export.sample_source import ExampleNames, SampleSource, count_samples
from tfds_torch.export.samples import ParserSamples
from tfds_torch.export.shard_content import (
    TAR_BLOCK_BYTES,
    TAR_END_BYTES,
    RecordContent,
    ShardContent,
    TarContent,
)
from tfds_torch.export.shard_folder import ShardFolder
from tfds_torch.export.shard_jobs import ChooseMembers, DigestSamples, DoneShard, MeasureExamples, WriteShards
from tfds_torch.export.shard_request import ShardRequest
from tfds_torch.export.tar_members import Member, choose_members
from tfds_torch.export.tfds_metadata import metadata_names, read_dataset_name, write_metadata
from tfds_torch.export.workers import Job, Workers
from tfds_torch.parsers.class_map import ClassMap
from tfds_torch.parsers.tfds.parser_tfds import ParserTfds
from tfds_torch.plan.order import Int64Array
from tfds_torch.runtime.atomic_folder import settle_folder
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.array_record import writer as array_record
from tfds_torch.storage.record_source import RecordSource

Progress = Callable[[int, int], object]
_MEASURED_AT_A_TIME = 1000


class ShardedExport:
    """An export to a folder of shards.

    Args:
        samples: what is exported: samples with numbers.
        path: of the folder.
        num_workers: processes, at most.
        beam: what writes the shards instead of them.
    """

    def __init__(self, samples: SampleSource, path: str, num_workers: int, beam: BeamRunner | None = None) -> None:
        self._samples, self._path, self._num_workers, self._beam = samples, Path(path), num_workers, beam
        self._any_parser = samples.parser if isinstance(samples, ParserSamples) else None
        self._kept = KEPT

    def run(self, request: ShardRequest, overwrite: bool, progress: Progress | None) -> ExportReport:
        """Writes all shards that are not there yet, and what belongs to them.

        Raises:
            ConfigError: what is asked for cannot work; nothing was written.
            ExportError: an example or a shard failed; complete shards stay.
        """
        began_s = time.monotonic()
        self._check_places()
        order = SampleOrder(count_samples(self._samples), request.indices, request.shuffle_seed)
        if not len(order):
            raise ConfigError(f"{self._samples.name} has no examples to be exported as {request.format}.")
        content = self._content(request, order)
        plan = self._plan(request, order, content)
        metadata = self._metadata_names(plan)
        folder = ShardFolder(self._path, plan.split, is_shared=self._beam is not None)
        settle_folder(self._path)
        folder.check(plan, overwrite, metadata)
        try:
            with folder.locked():
                folder.check(plan, overwrite, metadata)  # Another export may have ended just now.
                done, num_workers = self._write_all(plan, content, folder, metadata, progress)
        except OSError as error:
            raise describe_refusal(error, self._path, plan, [], self._mean_bytes, self._kept) from error
        shards = [one.shard for one in done]
        return ExportReport(
            path=os.fspath(self._path),
            format=plan.format,
            num_samples=plan.num_examples,
            num_bytes=sum(shard.num_bytes for shard in shards),
            elapsed_s=time.monotonic() - began_s,
            num_workers=num_workers,
            num_reencoded=0,
            fields=dict(plan.options["fields"]),
            num_shards=plan.num_shards,
            split=plan.split,
            num_kept=sum(one.is_kept for one in done),
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
        job = ChooseMembers(self._samples, request.skipped, names)
        with self._workers(1, job) as workers:
            found = next(iter(workers.run([order.number_at(0)], 1, lambda: None)))
        if isinstance(found, ConfigError):
            raise found
        members: tuple[Member, ...] = found
        return members

    def _records(self, file_format: str) -> RecordSource:
        """Returns the records that are copied, or says why there are none."""
        parser = self._parser
        source = None if parser is None else parser.source
        if parser is None or not isinstance(source, RecordSource):
            of_cache = parser is not None and parser.cache is not None
            advice = "open it without cache=" if of_cache else "use format='webdataset' or 'beton'"
            raise ConfigError(
                f"{self._samples.name} has no records to be copied: format={quoted(file_format)} takes datasets that "
                f"are stored as TFRecord or ArrayRecord. Here, {advice}."
            )
        if parser.class_map is not None:
            raise ConfigError(
                f"{self._samples.name}: {file_format} copies records as they are stored, and class_map would not be in "
                f"them. Leave it out, or use format='webdataset'."
            )
        return source

    @property
    def _parser(self) -> ParserTfds | None:
        return self._any_parser if isinstance(self._any_parser, ParserTfds) else None

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
            dataset, end = read_dataset_name(self._parser.data_dir), (0, 1)
        measured = None if sizes.max_bytes is None else self._measure(len(order), content)
        return ExportPlan(
            format=request.format,
            dataset=dataset,
            split=split_label(split),
            source={
                "name": samples.name,
                "split": split,
                "fingerprint": samples.fingerprint,
                "files": None if any_parser is None else _digest(repr(any_parser.source.stamps).encode()),
                "samples": self._digest_samples(len(order), content),
                "num_examples": count_samples(samples),
                "class_names": samples.class_names,
                "class_map": None if any_parser is None else _describe_map(any_parser.class_map),
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
        with self._workers(1, DigestSamples(content)) as workers:
            places = sorted({0, num_examples // 2, num_examples - 1})
            return str(next(iter(workers.run([places], 1, lambda: None))))

    def _measure(self, num_examples: int, content: ShardContent) -> Int64Array:
        sizes = np.zeros(num_examples, np.int64)
        starts = range(0, num_examples, _MEASURED_AT_A_TIME)
        tasks = (range(start, min(start + _MEASURED_AT_A_TIME, num_examples)) for start in starts)
        with self._workers(min(self._num_workers, len(starts)), MeasureExamples(content)) as workers:
            for answer in workers.run(tasks, 2, lambda: None):
                if answer is not None:
                    places, found = answer
                    sizes[places.start : places.stop] = found
        return sizes

    def _write_all(
        self,
        plan: ExportPlan,
        content: ShardContent,
        target: ShardFolder,
        metadata: Sequence[str],
        progress: Progress | None,
    ) -> tuple[list[DoneShard], int]:
        """Writes the shards and what belongs to them; returns the same as `_write`."""
        replacement = Replacement(target, plan, metadata)
        with replacement.written() as folder:
            self._kept = folder.describe_kept()
            complete = folder.begin(plan, metadata)
            try:
                done, num_workers = self._write(plan, content, folder, complete, progress)
            finally:
                folder.remove_unfinished(plan, metadata)
            shards = [one.shard for one in done]
            replacement.carry_over(folder)
            if metadata and self._parser is not None:
                lengths = [len(plan.places(shard.number)) for shard in shards]
                num_bytes = sum(shard.content_bytes for shard in shards)
                write_metadata(self._parser.data_dir, folder.path, plan, lengths, num_bytes)
            folder.complete(plan, shards, metadata)
            replacement.put(folder)
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
            return self._beam.write(job, plan, folder, complete, progress), 0
        done: dict[int, DoneShard] = {}
        refused: OSError | None = None
        num_workers, told = min(self._num_workers, plan.num_shards), -1
        workers = self._workers(num_workers, job)

        def look() -> None:
            nonlocal told
            now = sum(workers.metrics.counts(worker)[1] for worker in range(num_workers))
            if progress is not None and now != told:
                told = now
                progress(now, plan.num_examples)

        with workers:
            for answer in workers.run(range(plan.num_shards), 1, look):
                if isinstance(answer, DoneShard):
                    done[answer.shard.number] = answer
                elif isinstance(answer, OSError):
                    refused = answer
                    break
            look()
        if refused is not None:
            written = [one.shard for one in done.values()]
            raise describe_refusal(refused, self._path, plan, written, self._mean_bytes, self._kept) from refused
        return [done[number] for number in range(plan.num_shards)], num_workers

    def _metadata_names(self, plan: ExportPlan) -> list[str]:
        """Returns the names of the files that TFDS keeps beside the shards."""
        return [] if plan.format == "webdataset" or self._parser is None else metadata_names(self._parser.data_dir)

    @property
    def _mean_bytes(self) -> int:
        return 0 if self._any_parser is None else self._any_parser.mean_example_bytes

    def _check_places(self) -> None:
        """What is exported must be on this machine, and is never written to."""
        parser = self._any_parser
        if parser is not None and parser.source.obstacle is not None:
            raise ConfigError(
                f"{self._samples.name} cannot be exported: {parser.source.obstacle}. Copy it to this machine."
            )
        check_is_not_read(self._samples, self._path, is_folder=True)

    def _workers(self, num_workers: int, job: Job) -> Workers:
        names = ExampleNames(self._samples.name, self._kept, self._samples.describe)
        return Workers(num_workers, job, names, f"The export to {self._path} failed.")


def _describe_map(class_map: ClassMap | None) -> list[list[Any]] | None:
    return None if class_map is None else sorted(([str(key), new] for key, new in class_map.entries.items()), key=str)


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
