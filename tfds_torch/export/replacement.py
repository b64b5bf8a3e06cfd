"""Replacement: an export that takes the place of another one of its split: the old or the new folder is there, whole.

The new shards are written into a folder beside the old one (`runtime/atomic_folder.py`). When they are complete,
the new folder gets hard links to all files that are not of the replaced export: other splits, and foreign files. Then
the two folders are exchanged, the rest of the old one (sub-folders, files that have appeared meanwhile) is moved,
and the old one is removed. After a kill, the next export to the folder goes on with these steps.
"""

import logging
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from tfds_torch.errors import ConfigError
from tfds_torch.export.manifest import OwnFiles, manifest_name, manifests_in, own_files_in, own_files_of
from tfds_torch.export.plan import ExportPlan
from tfds_torch.export.shard_folder import ShardFolder
from tfds_torch.runtime.atomic_folder import MARKER, AtomicFolder

_logger = logging.getLogger(__name__)


class Replacement:
    """Puts an export's shards into a folder: in their places, or in a new folder that replaces it.

    The caller has the folder's lock. `metadata` are the names of TFDS's metadata that the export writes.
    """

    def __init__(self, folder: ShardFolder, plan: ExportPlan, metadata: Sequence[str]) -> None:
        self._folder, self._plan, self._metadata = folder, plan, metadata
        self._whole = AtomicFolder(folder.path)

    @contextmanager
    def written(self) -> Iterator[ShardFolder]:
        """Yields the folder that the shards are written to; afterwards `put` makes it the export's folder."""
        is_replaced = self._folder.holds_another(self._plan)
        if self._whole.is_put():
            with nullcontext() if is_replaced else self._warned():
                _remove_replaced(self._whole)
        if not is_replaced:
            if self._whole.note_of(self._whole.new) == self._plan.split:
                self._whole.discard()  # Of an export that was given up.
            yield self._folder
            return
        new = self._folder.beside(self._whole.new)
        if not self._goes_on(new):
            self._whole.discard()
        self._whole.begin(self._plan.split)
        with new.locked():  # It keeps its lock when it is the folder itself.
            yield new

    def carry_over(self, new: ShardFolder) -> None:
        """Gives a new folder, whose shards are complete, the files of the old one that are not replaced.

        A ConfigError: a file that is not of an export has taken the name of a shard.
        """
        if new is self._folder:
            return
        self._folder.check_names(self._plan, self._metadata)
        own = OwnFiles(self._plan, ())
        for name in os.listdir(new.path):
            if name not in own and name != MARKER:  # Links of an earlier attempt, which may be out of date.
                (new.path / name).unlink()
        replaced = _Replaced(self._whole.path, self._plan.split)
        for entry in os.scandir(self._whole.path):
            if not entry.is_dir(follow_symlinks=False) and not replaced.is_alone(entry.name):
                try:
                    os.link(entry.path, new.path / entry.name, follow_symlinks=False)
                except OSError:  # Where the system allows no links, files are moved after the exchange.
                    if replaced.is_renewed(entry.name):
                        shutil.copy2(entry.path, new.path / entry.name)

    def put(self, new: ShardFolder) -> None:
        """Makes a complete folder the export's folder; an OSError leaves the old one as it was."""
        if new is self._folder:
            return
        with self._warned():
            self._whole.put()
            _remove_replaced(self._whole)

    @contextmanager
    def _warned(self) -> Iterator[None]:
        """Reports an OSError after which the new folder is in its place, and the old one lies beside it."""
        try:
            yield
        except OSError as error:
            if not self._whole.is_put():
                raise
            left = ", ".join(map(str, self._whole.left()))
            _logger.warning(
                "%s is the new export, and the one that it replaces could not be removed: %s. It is left in %s; the "
                "next export to the folder removes it.",
                self._whole.path,
                error,
                left,
            )

    def _goes_on(self, new: ShardFolder) -> bool:
        """Whether the new folder is that of an earlier attempt of the same plan."""
        try:
            return new.manifest.exists() and not new.holds_another(self._plan)
        except ConfigError:  # Damaged.
            return False


class _Replaced:
    """The files of an old folder that belong to the replaced export of a split."""

    def __init__(self, folder: Path, split: str) -> None:
        self.manifest = manifest_name(split)
        path = folder / self.manifest
        self._own = own_files_of(path) if path.is_file() else None
        self._others = [own_files_of(other) for other in manifests_in(folder) if other != path]

    def is_alone(self, name: str) -> bool:
        """Whether a file belongs to the replaced export alone."""
        if self._own is None:
            return False
        is_metadata = self._own.is_metadata(name) and not any(other.is_metadata(name) for other in self._others)
        return is_metadata or name in self._own

    def is_renewed(self, name: str) -> bool:
        """Whether a file belongs to the export or is metadata that it shares with other splits."""
        return self.is_alone(name) or any(other.is_metadata(name) for other in self._others)


def _remove_replaced(whole: AtomicFolder) -> None:
    """Moves the files of others to the new folder, and removes the old one; after an OSError, the next call goes on."""
    split = whole.note_of(whole.path)
    for old in whole.left():
        replaced, new = _Replaced(old, split), own_files_in(whole.path)
        names = sorted(os.listdir(old), key=lambda name: (not replaced.is_renewed(name), name))
        if replaced.manifest in names:  # Last: it names the files that are not moved.
            names.append(names.pop(names.index(replaced.manifest)))
        for name in names:
            source = old / name
            if replaced.is_renewed(name) and (source.is_symlink() or not source.is_dir()):
                source.unlink()
            else:
                _bring(source, whole.path / name, is_taken=any(name in own or own.is_metadata(name) for own in new))
        old.rmdir()
    whole.end()


def _bring(source: Path, place: Path, is_taken: bool) -> None:
    """Moves a file or folder of others, which may have appeared or changed since the files were linked."""
    if os.path.lexists(place):
        there, coming = place.lstat(), source.lstat()
        if os.path.samestat(there, coming):
            source.unlink()
            return
        if is_taken or place.is_dir() or source.is_dir():
            other = place.with_name(f"{place.name}.{secrets.token_hex(4)}")
            _logger.warning("%s has appeared while an export replaced the folder: it is now %s.", place, other)
            place = other
    os.replace(source, place)
