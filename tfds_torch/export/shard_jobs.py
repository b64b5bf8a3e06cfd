"""What the workers of a sharded export do: choose members by a first sample, measure samples, write shards."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from tfds_torch.errors import ConfigError
from tfds_torch.export.manifest import Shard
from tfds_torch.export.plan import ExportPlan
from tfds_torch.export.sample_source import SampleSource
from tfds_torch.export.shard_content import ShardContent, TarContent
from tfds_torch.export.shard_file import ShardFile, WriteRefusedError
from tfds_torch.export.shard_folder import ShardFolder
from tfds_torch.export.tar_members import Member, choose_members
from tfds_torch.plan.order import Int64Array
from tfds_torch.runtime.metrics import StageMetrics


@dataclass(frozen=True)
class DoneShard:
    """A shard that is complete.

    Attributes:
        shard: what it holds.
        is_kept: whether an earlier export had written it.
    """

    shard: Shard
    is_kept: bool


def write_shard(
    plan: ExportPlan, number: int, content: ShardContent, folder: ShardFolder, metrics: StageMetrics
) -> Shard:
    """Writes a shard, whole or not at all; its bytes depend on the plan, the content and its number alone.

    Args:
        plan: of the export.
        number: of the shard.
        content: what goes into it.
        folder: where it is put, and told.
        metrics: told of each example.

    Raises:
        WriteRefusedError: it cannot be written.
        TfdsTorchError: an example cannot be read or stored; a user's own samples may raise anything.
    """
    file = ShardFile(folder.path / plan.file_name(number))
    try:
        written, content_bytes = content.write(plan.places(number), file, metrics)
        shard = Shard(number, written.num_bytes, written.crc32c, content_bytes)
        file.check_is_wanted()
        folder.note(shard)
        file.commit(syncs_folder=False)  # The manifest is written last, and for good with all names before it.
    finally:
        file.discard()
    return shard


class WriteShards:
    """Writes shards, but those that are complete already.

    Args:
        plan: of the export.
        content: what goes into them.
        folder: where they are put.
        told: shards that an earlier export told to be complete, by number.
    """

    def __init__(self, plan: ExportPlan, content: ShardContent, folder: ShardFolder, told: Mapping[int, Shard]) -> None:
        self._plan, self._content, self._folder, self._told = plan, content, folder, told

    def begin(self, metrics: StageMetrics) -> None:
        """Prepares the worker."""
        self._metrics = metrics

    def do(self, number: int) -> DoneShard | WriteRefusedError:
        """Returns a complete shard, or what kept the system from writing it."""
        # A note is of an attempt of this export: Beam repeats a shard that is complete, where another one has failed.
        shard = self._folder.noted(number) or self._told.get(number)
        if shard is not None and self._folder.is_complete(self._plan, shard, self._metrics):
            self._metrics.add_batch(len(self._plan.places(number)))
            return DoneShard(shard, is_kept=True)
        try:
            return DoneShard(write_shard(self._plan, number, self._content, self._folder, self._metrics), is_kept=False)
        except WriteRefusedError as error:
            return error

    def describe(self, number: int | None) -> str:
        """Returns what a sample is called in messages; None: it is not known which one."""
        if number is None:
            return "A sample"
        if isinstance(self._content, TarContent):
            with suppress(Exception):  # A message about a fault must not fail.
                return self._content.source.describe(number)
        return f"Sample {number}"

    def finish(self) -> None:
        """Has nothing more to tell."""


class MeasureExamples:
    """Finds out what examples take in a shard.

    Args:
        content: what goes into shards.
    """

    def __init__(self, content: ShardContent) -> None:
        self._content = content

    def begin(self, metrics: StageMetrics) -> None:
        """Prepares the worker."""
        self._metrics = metrics

    def do(self, places: range) -> tuple[range, Int64Array]:
        """Returns the places, and the bytes of the example at each."""
        return places, self._content.sizes(places, self._metrics)

    def finish(self) -> None:
        """Has nothing more to tell."""


class DigestSamples:
    """Reads a few samples, by which the export of another state of a dataset is told.

    Args:
        content: what goes into shards.
    """

    def __init__(self, content: TarContent) -> None:
        self._content = content

    def begin(self, metrics: StageMetrics) -> None:
        """Prepares the worker."""
        self._metrics = metrics

    def do(self, places: Sequence[int]) -> str:
        """Returns a digest of the samples at these places."""
        return self._content.digest(places, self._metrics)

    def finish(self) -> None:
        """Has nothing more to tell."""


class ChooseMembers:
    """Reads a first sample and chooses the members by it: what it opens or starts, no other worker inherits.

    Args:
        source: of the samples, whose fields only a sample tells.
        skipped: fields that are left out.
        names: of fields -> their new names.
    """

    def __init__(self, source: SampleSource, skipped: Sequence[str], names: Mapping[str, str]) -> None:
        self._source, self._skipped, self._names = source, skipped, names

    def begin(self, metrics: StageMetrics) -> None:
        """Prepares the worker."""
        self._metrics = metrics

    def do(self, number: int) -> tuple[Member, ...] | ConfigError:
        """Returns the members that a sample tells, or why there are none."""
        self._metrics.note_reading(number)
        first = self._source.first(number, None)
        try:
            return choose_members(self._skipped, self._names, None, None if first is None else first.value)
        except ConfigError as error:  # It is about all samples, and not about this one.
            return ConfigError(str(error))

    def finish(self) -> None:
        """Has nothing more to tell."""
