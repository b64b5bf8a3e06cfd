"""OwnFiles: which files of a folder belong to an export; files of any other name are never changed or removed."""

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path

from tfds_torch.export.manifest import PREFIX, manifest_name, manifests_in, read_manifest
from tfds_torch.export.plan import ExportPlan
from tfds_torch.export.tfds_metadata import METADATA_FORMS
from tfds_torch.runtime.atomic_file import MOST_LETTERS, name_of_temporary

_RANDOM = "[0-9a-f]{16}"


class OwnFiles:
    """The files of an export: shards, their manifest and records, and what its writers leave when they are killed.

    Args:
        plan: of the export.
        metadata: names of TFDS's metadata that it writes; None: unknown.
    """

    def __init__(self, plan: ExportPlan, metadata: Iterable[str] | None) -> None:
        self._plan = plan
        self._metadata = None if metadata is None else frozenset(metadata)
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
        if self._metadata is not None:
            return name in self._metadata
        return self._plan.format != "webdataset" and any(fnmatch(name, form) for form in METADATA_FORMS)

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
        names = {self._manifest, *self._shards, *(self._metadata or ())}
        return frozenset(name[:MOST_LETTERS] for name in names)


def own_files_of(manifest: Path) -> OwnFiles:
    """Returns the files of the export of a manifest; a ConfigError where that cannot be read."""
    content = read_manifest(manifest)
    return OwnFiles(content.plan, content.metadata)


def own_files_in(folder: Path) -> list[OwnFiles]:
    """Returns the files of each export in a folder; a ConfigError: a manifest cannot be read."""
    return [own_files_of(manifest) for manifest in manifests_in(folder)]
