"""WriteShards: the job of a sharded export's workers, on this machine and on Apache Beam's."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from tfds_torch.export.folder import ShardFolder
from tfds_torch.export.manifest import Shard
from tfds_torch.export.plan import ExportPlan
from tfds_torch.export.shard_content import ShardContent, TarContent
from tfds_torch.export.shard_file import ShardFile, WriteRefusedError
from tfds_torch.runtime.metrics import StageMetrics

DoneShard = tuple[Shard, bool]
"""A complete shard, and whether an earlier export had written it."""


def write_shard(
    plan: ExportPlan, number: int, content: ShardContent, folder: ShardFolder, metrics: StageMetrics
) -> Shard:
    """Writes a shard, whole or not at all; its bytes depend on the plan, the content and its number alone.

    A WriteRefusedError is about the shard's file, any other error about a sample.
    """
    file = ShardFile(folder.path / plan.file_name(number))
    try:
        shard = Shard(number, *content.write(plan.places(number), file, metrics))
        file.check_is_wanted()
        folder.note(shard)
        file.commit(syncs_folder=False)  # The manifest is written last, and for good with all names before it.
    finally:
        file.discard()
    return shard


@dataclass(frozen=True)
class WriteShards:
    """Writes shards, but those that are complete already; `noted` are those that an earlier export noted, by number."""

    plan: ExportPlan
    content: ShardContent
    folder: ShardFolder
    noted: Mapping[int, Shard]

    def __call__(self, number: int, metrics: StageMetrics) -> DoneShard | WriteRefusedError:
        """Returns a complete shard, or the error of a write that the system refused."""
        # A note is of an attempt of this export: Beam repeats a shard that is complete, where another one has failed.
        shard = self.folder.noted(number) or self.noted.get(number)
        if shard is not None and self.folder.is_complete(self.plan, shard, metrics):
            metrics.add_batch(len(self.plan.places(number)))
            return shard, True
        try:
            return write_shard(self.plan, number, self.content, self.folder, metrics), False
        except WriteRefusedError as error:
            return error

    def describe(self, number: int | None) -> str:
        """Returns a sample's name for messages; number is None where it is not known."""
        if number is None:
            return "A sample"
        if isinstance(self.content, TarContent):
            with suppress(Exception):  # A message about a fault must not fail.
                return self.content.source.describe(number)
        return f"Sample {number}"
