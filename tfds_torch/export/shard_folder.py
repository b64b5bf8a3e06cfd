"""ShardFolder: the folder of a sharded export: its plan, what of it is done, and who may write there.

`export-<split>.json` holds the plan, and at the end what every shard holds. Until then each shard is told in a log,
`.export-<split>.log`, before it is put in its place: what lies there and agrees with its line is whole. Where several
machines write, each shard is told in a file of its own, `.export-<split>-<number>.note`: lines that they append to one
file of a network file system may overwrite each other.
"""

import errno
import fcntl
import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from itertools import chain
from pathlib import Path

from tfds_torch.errors import ConfigError, ExportError
from tfds_torch.export.manifest import (
    PREFIX,
    Shard,
    manifest_name,
    manifests_in,
    read_manifest,
    shard_of,
    write_manifest,
)
from tfds_torch.export.plan import ExportPlan, split_label
from tfds_torch.export.shard_file import read_file, told_refusals, write_for_good
from tfds_torch.export.tfds_metadata import withdraw_split
from tfds_torch.runtime.stage_metrics import StageMetrics

_SUFFIXES_OF_FILES = (".tar", ".beton", ".tfrecord", ".array_record")
_WAIT_S = 5.0
"""How long workers of a killed export may take to end."""


class ShardFolder:
    """The folder of an export.

    Args:
        path: of the folder, which need not be there yet.
        split: as the plan calls it.
        is_shared: whether several machines write to it.
    """

    def __init__(self, path: Path, split: str, is_shared: bool = False) -> None:
        self.path = path = path.absolute() if is_shared else path
        self.manifest = path / manifest_name(split)
        self._log = path / f".{PREFIX}{split}.log"
        self._split, self._is_shared = split, is_shared

    def check(self, plan: ExportPlan, overwrite: bool) -> None:
        """Raises ConfigError where the plan's shards cannot be written there; changes nothing.

        Args:
            plan: what is to be written.
            overwrite: whether another export of the same split may be replaced.
        """
        try:
            self._check(plan, overwrite)
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
                f"{self.path} holds files that are not of an export, such as {found[0]!r}: choose a new folder, or an "
                f"empty one. Nothing there is replaced."
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

    def begin(self, plan: ExportPlan) -> dict[int, Shard]:
        """Makes the folder the plan's, and returns the shards that were told to be complete; the caller has the lock.

        Raises:
            OSError: it cannot be written to.
        """
        self.remove_unfinished()
        if self.manifest.exists():
            other, shards = read_manifest(self.manifest)
            if not plan.differences(other):
                told = {shard.number: shard for shard in shards} | self._told()
                if notes := list(self._notes()):  # Those of this export will be told from older ones.
                    write_for_good(self._log, b"".join(map(_line, told.values())))
                    _remove(notes)
                return told
            self._clear(other)
        self._forget()
        write_manifest(self.manifest, plan, None)
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

    def complete(self, plan: ExportPlan, shards: Sequence[Shard]) -> None:
        """Writes what all shards hold.

        Raises:
            OSError: it cannot be written.
        """
        write_manifest(self.manifest, plan, shards)
        self._forget()

    def remove_unfinished(self) -> None:
        """Removes what processes that were ended have left of their shards; the caller has the lock."""
        for pattern in (f".*.{'[0-9a-f]' * 16}.tmp", f".{PREFIX}{self._split}-*.job"):
            for left in self.path.glob(pattern):
                with suppress(OSError):
                    left.unlink()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Makes the folder, and keeps other exports out of it until the block ends, and workers of this one with it.

        Those of other machines are not kept out: network file systems have no locks of folders.

        Raises:
            ExportError: another export writes there, or it cannot be made.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ExportError(f"The folder {self.path} cannot be made: {error.strerror}.") from error
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        deadline = time.monotonic() + _WAIT_S
        try:
            while not _lock(descriptor):
                if time.monotonic() >= deadline:
                    raise ExportError(f"Another export writes to {self.path}: let it end, or choose another folder.")
                time.sleep(0.05)
            yield
        finally:
            os.close(descriptor)

    def _told(self) -> dict[int, Shard]:
        lines = (_read_lines(path) for path in (self._log, *self._notes()))
        return {shard.number: shard for shard in chain.from_iterable(lines)}

    def _note(self, number: int) -> Path:
        return self.path / f".{PREFIX}{self._split}-{number:06d}.note"

    def _notes(self) -> Iterator[Path]:
        return self.path.glob(f".{PREFIX}{self._split}-*.note")

    def _forget(self) -> None:
        _remove((self._log, *self._notes()))

    def _clear(self, other: ExportPlan) -> None:
        """Removes the shards of an export that is replaced; first what promises them."""
        withdraw_split(self.path, other.split)
        for name in {other.file_name(shard) for shard in range(other.num_shards)}:
            (self.path / name).unlink(missing_ok=True)


def verify_shards(path: str | os.PathLike[str], split: str | None = None) -> None:
    """Reads shards of a folder again, and holds them against their checksums.

    Args:
        path: of the folder.
        split: whose export is verified: a split expression, or what names of files call it; None: all are.

    Raises:
        ExportError: a shard is missing or is not what was written, or an export is not complete.
        ConfigError: the folder has no such export, or a damaged manifest.
    """
    try:
        there = manifests_in(Path(path))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{str(path)!r} cannot be read as a folder of an export: {error}.") from None
    if split is not None:
        there = [one for one in there if one == ShardFolder(Path(path), split_label(split)).manifest]
    if not there:
        raise ConfigError(f"{path} holds no export{f' of the split {split!r}' if split is not None else ''}.")
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


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # Some file systems have no locks.
        return True
    return True
