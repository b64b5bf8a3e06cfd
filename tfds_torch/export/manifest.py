"""The manifest of a sharded export, `export-<split>.json`, and which files of a folder belong to the export."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from tfds_torch.errors import ConfigError
from tfds_torch.export.plan import ExportPlan
from tfds_torch.export.shard_file import write_for_good
from tfds_torch.runtime.atomic_file import MOST_LETTERS, name_of_temporary
from tfds_torch.runtime.cached_property import cached_property
from tfds_torch.runtime.printable import quoted

PREFIX = "export-"
"""What names of manifests begin with."""
_SUFFIX = ".json"
_RANDOM = "[0-9a-f]{16}"


@dataclass(frozen=True)
class Shard:
    """A complete shard: its number, the size and crc32c of its file, and the bytes of its examples alone."""

    number: int
    num_bytes: int
    crc32c: int
    content_bytes: int

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Shard":
        """Returns the shard with these attributes; values of other kinds raise any error of Python."""
        return cls(*(int(values[field.name]) for field in fields(cls)))


class Manifest(NamedTuple):
    """The content of a manifest.

    Attributes:
        shards: all of them; empty: the export is not complete.
        metadata: names of TFDS's metadata that the export writes.
    """

    plan: ExportPlan
    shards: list[Shard]
    metadata: list[str]


def manifest_name(split: str) -> str:
    """Returns the name of a manifest's file, for a split as plans call it."""
    return f"{PREFIX}{split}{_SUFFIX}"


def manifests_in(folder: Path) -> list[Path]:
    """Returns the manifests of a folder, by name; an OSError where it is not a folder that may be read."""
    return [path for path in sorted(folder.iterdir()) if path.name.startswith(PREFIX) and path.name.endswith(_SUFFIX)]


def write_manifest(path: Path, plan: ExportPlan, shards: Sequence[Shard] | None, metadata: Sequence[str] = ()) -> None:
    """Writes a plan, its shards (None: the export is not complete), and the names of TFDS's metadata beside them."""
    done = None if shards is None else [{"file": plan.file_name(shard.number), **asdict(shard)} for shard in shards]
    content = {"plan": plan.to_dict(), "shards": done, "metadata": list(metadata)}
    write_for_good(path, json.dumps(content, indent=1).encode())


def read_manifest(path: Path) -> Manifest:
    """Returns the content of a manifest; a ConfigError: it cannot be read, or is damaged."""
    try:
        values = json.loads(path.read_bytes())
        plan = ExportPlan.from_dict(values["plan"])
        if "metadata" not in values:
            raise ValueError("an earlier version of tfds_torch wrote it")
        metadata = values["metadata"]
        shards = [Shard.from_dict(one) for one in values["shards"] or ()]
        if path.name != manifest_name(plan.split):
            raise ValueError(f"it is of the split {quoted(plan.split)}")
        if shards and [shard.number for shard in shards] != list(range(plan.num_shards)):
            raise ValueError(f"its shards are not {plan.num_shards:,} in order")
        if not (isinstance(metadata, list) and all(isinstance(one, str) for one in metadata)):
            raise TypeError("metadata is not a list of names")
        plan.to_dict()  # JSON that is nested too deeply is an error here, and not where plans are compared.
    except (OSError, ArithmeticError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(
            f"{path} cannot be read as the manifest of an export ({type(error).__name__}: {error}): choose another "
            f"folder, or remove this one."
        ) from None
    return Manifest(plan, shards, metadata)


class OwnFiles:
    """The files of an export: shards, their manifest and records, and what its writers leave when they are killed.

    Files of any other name are never changed or removed.

    Args:
        plan: of the export.
        metadata: names of TFDS's metadata that it writes.
    """

    def __init__(self, plan: ExportPlan, metadata: Iterable[str]) -> None:
        self._plan, self._metadata = plan, frozenset(metadata)
        self._manifest = manifest_name(plan.split)
        stem = re.escape(f".{PREFIX}{plan.split}")
        self._records = re.compile(rf"{stem}(\.log|-[0-9]{{6,}}\.note|-{_RANDOM}\.job)")
        self._job = re.compile(rf"{stem}-{_RANDOM}\.job")

    def __contains__(self, name: str) -> bool:
        """Whether a file of this name belongs to the export alone, which TFDS's metadata does not."""
        is_record = name == self._manifest or self._records.fullmatch(name) is not None
        return is_record or name in self._shards or self.is_unfinished(name)

    def is_metadata(self, name: str) -> bool:
        """Whether it is TFDS's metadata, which exports of several splits share."""
        return name in self._metadata

    def is_unfinished(self, name: str) -> bool:
        """Whether it was left by a killed writer: a part of a file, or the job of a pipeline."""
        place = name_of_temporary(name)
        if place is None:
            return self._job.fullmatch(name) is not None
        if place in self._cut_names or self.is_metadata(place) or self._records.fullmatch(place) is not None:
            return True
        return len(place) == MOST_LETTERS and place.removeprefix(".").startswith(self._manifest[: MOST_LETTERS - 1])

    def conflicts(self, names: Iterable[str], others: Sequence["OwnFiles"]) -> list[str]:
        """Returns the files among `names` that the export would write over and that none of the others owns."""
        return sorted(
            name
            for name in names
            if (name in self._shards and not any(name in other for other in others))
            or (self.is_metadata(name) and not any(other.is_metadata(name) for other in others))
        )

    @cached_property
    def _shards(self) -> frozenset[str]:
        return frozenset(map(self._plan.file_name, range(self._plan.num_shards)))

    @cached_property
    def _cut_names(self) -> frozenset[str]:
        names = {self._manifest, *self._shards, *self._metadata}
        return frozenset(name[:MOST_LETTERS] for name in names)


def own_files_in(folder: Path) -> list[OwnFiles]:
    """Returns the files of each export in a folder; a ConfigError: a manifest cannot be read."""
    found = map(read_manifest, manifests_in(folder))
    return [OwnFiles(content.plan, content.metadata) for content in found]
