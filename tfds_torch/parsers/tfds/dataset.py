"""TfdsDataset: what is known of a dataset on disk, and the Source of each of its splits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfds_torch.errors import ConfigError
from tfds_torch.parsers.tfds.feature_tree import Feature
from tfds_torch.parsers.tfds.shard_names import BadTemplateError
from tfds_torch.parsers.tfds.splits import check_slices
from tfds_torch.runtime.arguments import did_you_mean
from tfds_torch.runtime.printable import quoted, shortened
from tfds_torch.storage.remote.urls import join
from tfds_torch.storage.shard_files import LOCAL, ShardFiles
from tfds_torch.storage.source import FieldSpec, FileInstruction, Source, source_type


@dataclass(frozen=True, eq=False)
class TfdsDataset:
    """A dataset on disk.

    Attributes:
        name: `name/config:version`, or `name:version` without a config.
        directory: the version directory that holds the shards and `dataset_info.json`, or the root of an image folder.
        features: the features of an example.
        specs: what an example consists of, as it is stored; empty for an image folder.
        splits: TFDS's `SplitDict`.
        file_format: how examples are stored, a name of the registry of `storage/source.py`.
        listing: the listing of an image folder; None: it is not an image folder.
        files: where the shards lie.
        mirror: what the paths of the splits begin with in the place of `directory`; None: with `directory`.
    """

    name: str
    directory: Any
    features: Feature
    specs: Mapping[str, FieldSpec]
    splits: Any
    file_format: str
    listing: Any = None
    files: ShardFiles = LOCAL
    mirror: str | None = None

    @property
    def mean_example_bytes(self) -> int:
        """Mean size of an encoded example over all splits."""
        num_bytes, num_examples = (
            sum(int(getattr(split, key)) for split in self.splits.values()) for key in ("num_bytes", "num_examples")
        )
        return num_bytes // max(1, num_examples)

    def source(self, split: str, *, verify_checksums: bool = True) -> Source:
        """Returns the encoded examples of a split, in the order of TFDS's file instructions.

        Raises:
            ConfigError: the expression is malformed, names no split, or a slice does not lie within its split.
        """
        try:
            instructions, empty_files = self._instructions(split)
        except BadTemplateError as error:
            raise ConfigError(f"{self.name}: {error}") from None
        make: Any = source_type(self.file_format)
        if self.listing is not None:
            return make(self.name, instructions, self.listing, self.mean_example_bytes)  # type: ignore[no-any-return]
        self.files.look_ahead(item.path for item in instructions)
        return make(  # type: ignore[no-any-return]
            self.name,
            instructions,
            self.specs,
            mean_example_bytes=self.mean_example_bytes,
            empty_files=empty_files,
            verify_checksums=verify_checksums,
            files=self.files,
        )

    def _instructions(self, split: str) -> tuple[tuple[FileInstruction, ...], tuple[str, ...]]:
        """Returns a split's examples by file, and the files of its splits that are promised to be empty."""
        there = {name: info.num_examples for name, info in self.splits.items()}
        try:
            found = self.splits[split].file_instructions
        except (ValueError, KeyError, AssertionError) as error:
            unknown = [bare for part in split.split("+") if (bare := part.partition("[")[0].strip()) not in there]
            hint = did_you_mean(unknown[0], there) if unknown else ""
            listed = ", ".join(f"{name} ({number} examples)" for name, number in there.items())
            reason = str(error).splitlines()[0].rstrip(".")
            raise ConfigError(
                f"{self.name}: split {quoted(split)}: {shortened(reason)}. The splits are: {listed}.{hint}"
            ) from None
        names = check_slices(split, self.splits, self.name)
        instructions: list[FileInstruction] = []
        first_index = 0
        for item in found:
            if item.take:
                instructions.append(
                    FileInstruction(
                        self._path(item.filename), item.skip, item.take, first_index, item.examples_in_shard
                    )
                )
            first_index += item.take
        return tuple(instructions), tuple(self._empty_files(names))

    def _path(self, path: str) -> str:
        """Returns the path or URL of a shard."""
        return path if self.mirror is None else join(self.directory, path[len(self.mirror) :])

    def _empty_files(self, split_names: Sequence[str]) -> list[str]:
        """Returns the shards that dataset_info.json promises to be empty."""
        if self.listing is not None:
            return []
        infos = [self.splits[name] for name in dict.fromkeys(split_names)]
        return [
            self._path(path)
            for info in infos
            for path, length in zip(info.filepaths, info.shard_lengths, strict=True)
            if not length
        ]
