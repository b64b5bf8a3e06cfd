"""ShardFolder: the folder of a sharded export: its plan, what of it is done, and who may write there.

`export-<split>.json` holds the plan, and at the end what every shard holds. Until then each shard is told in a log,
`.export-<split>.log`, before it is put in its place: what lies there and agrees with its line is whole. Where several
machines write, each shard is told in a file of its own, `.export-<split>-<number>.note`: lines that they append to one
file of a network file system may overwrite each other.
"""

import errno
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from itertools import chain
from pathlib import Path

from tfds_torch.errors import ConfigError, ExportError
from tfds_torch.export.folder_lock import locked_folder
from tfds_torch.export.manifest import (
    PREFIX,
    Shard,
    manifest_name,
    manifests_in,
    read_manifest,
    shard_of,
    write_manifest,
)
from tfds_torch.export.own_files import OwnFiles, own_files_in
from tfds_torch.export.plan import ExportPlan, split_label
from tfds_torch.export.refused_writes import KEPT
from tfds_torch.export.shard_file import read_file, told_refusals, write_for_good
from tfds_torch.runtime.atomic_folder import AtomicFolder, settle_folder
from tfds_torch.runtime.metrics import StageMetrics
from tfds_torch.runtime.printable import quoted

_SUFFIXES_OF_FILES = (".tar", ".beton", ".tfrecord", ".array_record")
_WAIT_S = 5.0
"""How long workers of a killed export may take to end."""


class ShardFolder:
    """The folder of an export.

    Args:
        path: of the folder, which need not be there yet.
        split: as the plan calls it.
        is_shared: whether several machines write to it.

    Attributes:
        path: the same.
        target: where the shards will be, for messages: another path than `path` while they replace others.
    """

    def __init__(self, path: Path, split: str, is_shared: bool = False) -> None:
        self.path = self.target = path = path.absolute() if is_shared else path
        self.manifest = path / manifest_name(split)
        self._log = path / f".{PREFIX}{split}.log"
        self._split, self._is_shared = split, is_shared

    def beside(self, new: Path) -> "ShardFolder":
        """Returns a folder whose shards will replace those of this one."""
        folder = ShardFolder(new, self._split, self._is_shared)
        folder.target = self.path
        return folder

    def describe_kept(self) -> str:
        """Returns what stays when an export fails, and how to go on."""
        if self.target == self.path:
            return KEPT
        return (
            f"What was there before is as it was. New shards that are complete stay in {self.path}: the same command "
            f"goes on with the others."
        )

    def check(self, plan: ExportPlan, overwrite: bool, metadata: Sequence[str] = ()) -> None:
        """Raises ConfigError where the plan's shards cannot be written there; changes nothing.

        Args:
            plan: what is to be written.
            overwrite: whether another export of the same split may be replaced.
            metadata: names of TFDS's metadata that is written, too.
        """
        try:
            self._check(plan, overwrite)
            if self.path.exists():
                self.check_names(plan, metadata)
                if self.holds_another(plan):
                    AtomicFolder(self.path).check()
        except OSError as error:
            raise ConfigError(
                f"{self.path} cannot be looked into: {error.strerror}. Choose another folder, or allow it."
            ) from None

    def _check(self, plan: ExportPlan, overwrite: bool) -> None:
        if not self.path.exists():
            if self.path.is_symlink():
                raise ConfigError(
                    f"{self.path} is a link to {os.readlink(self.path)}, which is not there: make that folder, or "
                    f"choose another one."
                )
            if self.path.suffix in _SUFFIXES_OF_FILES:
                raise ConfigError(
                    f"{self.path} is the name of a file, and {plan.format} is a folder of shards: give the name of a "
                    f"folder, such as {self.path.with_suffix('')}."
                )
            return
        if not self.path.is_dir():
            raise ConfigError(f"{self.path} is a file: the shards of an export need a folder of their own.")
        there = list(manifests_in(self.path))
        if not there and (found := sorted(name for name in os.listdir(self.path) if not name.startswith("."))):
            raise ConfigError(
                f"{self.path} holds files that are not of an export, such as {quoted(found[0])}: choose a new folder, "
                f"or an empty one. Nothing there is replaced."
            )
        for manifest in there:
            other, _ = read_manifest(manifest)
            if manifest == self.manifest:
                if (told := plan.differences(other)) and not overwrite:
                    raise ConfigError(
                        f"{self.path} holds an export with other options, which stays: {'; '.join(told)}. Give the "
                        f"same options to go on with it, use overwrite=True (--overwrite) to replace it, or choose "
                        f"another folder."
                    )
            elif (other.format, other.dataset, other.source.get("name")) != (
                plan.format,
                plan.dataset,
                plan.source.get("name"),
            ):
                raise ConfigError(
                    f"{self.path} holds {other.source.get('name')} as {other.format}: choose another folder for "
                    f"{plan.source.get('name')} as {plan.format}."
                )

    def check_names(self, plan: ExportPlan, metadata: Sequence[str]) -> None:
        """Raises ConfigError where the plan would write over a file that is not of an export; changes nothing.

        Args:
            plan: what is to be written.
            metadata: names of TFDS's metadata that is written, too.

        Raises:
            OSError: the folder cannot be looked into.
        """
        names = os.listdir(self.path)
        if found := OwnFiles(plan, metadata).conflicts(names, own_files_in(self.path)):
            raise ConfigError(
                f"{self.path / found[0]} is not of an export, and this one would write over it. Move it, or choose "
                f"another folder. Nothing was written."
            )

    def holds_another(self, plan: ExportPlan) -> bool:
        """Whether there is an export of the same split by another plan; it is not changed in its place, but replaced.

        Raises:
            ConfigError: its manifest cannot be read.
        """
        return self.manifest.exists() and bool(plan.differences(read_manifest(self.manifest)[0]))

    def begin(self, plan: ExportPlan, metadata: Sequence[str] = ()) -> dict[int, Shard]:
        """Makes the folder the plan's, and returns the shards that were told to be complete; the caller has the lock.

        Args:
            plan: what is to be written; the folder does not hold another one of the split.
            metadata: names of TFDS's metadata that is written, too.

        Raises:
            OSError: it cannot be written to.
        """
        self.remove_unfinished(plan, metadata)
        if self.manifest.exists():
            _, shards = read_manifest(self.manifest)
            told = {shard.number: shard for shard in shards} | self._told()
            if notes := list(self._notes()):  # Those of this export will be told from older ones.
                write_for_good(self._log, b"".join(map(_line, told.values())))
                _remove(notes)
            return told
        self._forget()
        write_manifest(self.manifest, plan, None, metadata)
        return {}

    @told_refusals()
    def note(self, shard: Shard) -> None:
        """Tells of a shard that will be put in its place next; processes may do so at once.

        What a power failure takes back is written again.

        Raises:
            WriteRefusedError: it cannot be told.
        """
        line = _line(shard)
        if self._is_shared:
            write_for_good(self._note(shard.number), line)
            return
        log = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            if os.write(log, line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(log)

    def noted(self, number: int) -> Shard | None:
        """Returns what a machine has told of a shard since `begin`, where several write."""
        return next(iter(_read_lines(self._note(number))), None)

    def num_noted(self) -> int:
        """Returns of how many shards machines have told since `begin`, as far as the file system tells now."""
        try:
            return sum(1 for _ in self._notes())
        except OSError:
            return 0

    def is_complete(self, plan: ExportPlan, shard: Shard, metrics: StageMetrics | None = None) -> bool:
        """Whether a shard lies in its place as it was told; all of it is read.

        Args:
            plan: of the export.
            shard: as it was told.
            metrics: told of the time that it takes.
        """
        path = self.path / plan.file_name(shard.number)
        try:
            if path.stat().st_size != shard.num_bytes:
                return False
        except OSError:
            return False
        found = read_file(path, metrics)
        return found is not None and (found.num_bytes, found.crc32c) == (shard.num_bytes, shard.crc32c)

    def complete(self, plan: ExportPlan, shards: Sequence[Shard], metadata: Sequence[str] = ()) -> None:
        """Writes what all shards hold.

        Raises:
            OSError: it cannot be written.
        """
        write_manifest(self.manifest, plan, shards, metadata)
        self._forget()

    def remove_unfinished(self, plan: ExportPlan, metadata: Sequence[str] = ()) -> None:
        """Removes what processes that were ended have left of an export's files; the caller has the lock."""
        own = OwnFiles(plan, metadata)
        for name in os.listdir(self.path):
            if own.is_unfinished(name):
                with suppress(OSError):
                    (self.path / name).unlink()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Makes the folder, and keeps other exports out of it until the block ends, and workers of this one with it.

        Those of other machines are not kept out: network file systems have no locks of folders.

        Raises:
            ExportError: another export writes there, or it cannot be made.
        """
        with locked_folder(self.path, _WAIT_S):
            yield

    def _told(self) -> dict[int, Shard]:
        lines = (_read_lines(path) for path in (self._log, *self._notes()))
        return {shard.number: shard for shard in chain.from_iterable(lines)}

    def _note(self, number: int) -> Path:
        return self.path / f".{PREFIX}{self._split}-{number:06d}.note"

    def _notes(self) -> Iterator[Path]:
        return self.path.glob(f".{PREFIX}{self._split}-*.note")

    def _forget(self) -> None:
        _remove((self._log, *self._notes()))


def verify_shards(path: str | os.PathLike[str], split: str | None = None) -> None:
    """Reads shards of a folder again, and holds them against their checksums.

    Args:
        path: of the folder.
        split: whose export is verified: a split expression, or what names of files call it; None: all are.

    Raises:
        ExportError: a shard is missing or is not what was written, or an export is not complete.
        ConfigError: the folder has no such export, or a damaged manifest.
    """
    settle_folder(path)
    try:
        there = manifests_in(Path(path))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{quoted(str(path))} cannot be read as a folder of an export: {error}.") from None
    if split is not None:
        there = [one for one in there if one == ShardFolder(Path(path), split_label(split)).manifest]
    if not there:
        raise ConfigError(f"{path} holds no export{f' of the split {quoted(split)}' if split is not None else ''}.")
    for manifest in there:
        plan, shards = read_manifest(manifest)
        folder = ShardFolder(Path(path), plan.split)
        if len(shards) != plan.num_shards:
            raise ExportError(f"{manifest}: the export is not complete: the same command goes on with it.")
        wrong = [plan.file_name(shard.number) for shard in shards if not folder.is_complete(plan, shard)]
        if wrong:
            raise ExportError(
                f"{path}: {len(wrong)} of {len(shards)} shards are not what was written, such as {wrong[0]}: run the "
                f"same command again, which writes these anew."
            )


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _line(shard: Shard) -> bytes:
    # It begins with its own end: one that a full disk has cut does not spoil the next.
    return f"\n{json.dumps(asdict(shard))}\n".encode()


def _read_lines(path: Path) -> Iterator[Shard]:
    with suppress(OSError):
        for line in path.read_bytes().splitlines():
            # Cut by a full disk, or by the end of the machine.
            with suppress(ArithmeticError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
                yield shard_of(json.loads(line))
