"""ShardFolder: the folder of a sharded export: its plan, its complete shards, and its lock.

`export-<split>.json` holds the plan, and at the end size and checksum of every shard. Until then each shard is noted in
a log, `.export-<split>.log`, before it is put in its place: a shard there that agrees with its line is whole. Where
several machines write, each shard is noted in a file of its own, `.export-<split>-<number>.note`: lines that they
append to one file of a network file system may overwrite each other.
"""

import errno
import fcntl
import json
import os
import shlex
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from itertools import chain
from pathlib import Path

from tfds_torch.errors import ConfigError, ExportError
from tfds_torch.export.manifest import (
    PREFIX,
    OwnFiles,
    Shard,
    manifest_name,
    manifests_in,
    own_files_in,
    read_manifest,
    write_manifest,
)
from tfds_torch.export.plan import ExportPlan, split_label
from tfds_torch.export.shard_file import read_file, refusals_named, write_for_good
from tfds_torch.runtime.metrics import StageMetrics
from tfds_torch.runtime.printable import quoted

KEPT = "The shards that are complete stay: the same command goes on with the others."
_SUFFIXES_OF_FILES = (".tar", ".beton", ".tfrecord", ".array_record")
_WAIT_S = 5.0
"""How long workers of a killed export may take to end."""


class ShardFolder:
    """The folder of an export, which need not be there yet.

    Args:
        path: of the folder.
        split: in the plan's form.
        is_shared: whether several machines write to it.
    """

    def __init__(self, path: Path, split: str, is_shared: bool = False) -> None:
        self.path = path = path.absolute() if is_shared else path
        self.manifest = path / manifest_name(split)
        self._log = path / f".{PREFIX}{split}.log"
        self._split, self._is_shared = split, is_shared

    def check(self, plan: ExportPlan, metadata: Sequence[str] = ()) -> None:
        """Raises ConfigError where the plan's shards and TFDS's metadata cannot be written there; changes nothing."""
        try:
            self._check(plan)
            if self.path.exists():
                self._check_names(plan, metadata)
        except OSError as error:
            raise ConfigError(
                f"{self.path} cannot be looked into: {error.strerror}. Choose another folder, or allow it."
            ) from None

    def _check(self, plan: ExportPlan) -> None:
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
            other = read_manifest(manifest).plan
            if manifest == self.manifest:
                if unequal := plan.differences(other):
                    here, there_now = shlex.quote(str(self.path)), shlex.quote(f"{self.path}.old")
                    raise ConfigError(
                        f"{self.path} holds an export with other options, which stays: {'; '.join(unequal)}. Give the "
                        f"same options to go on with it, or choose another folder. To replace it, move the folder "
                        f"away (mv {here} {there_now}), give this command again, and then remove it (rm -r "
                        f"{there_now})."
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

    def _check_names(self, plan: ExportPlan, metadata: Sequence[str]) -> None:
        """Raises ConfigError where the plan would write over a file that is not of an export; changes nothing."""
        names = os.listdir(self.path)
        if found := OwnFiles(plan, metadata).conflicts(names, own_files_in(self.path)):
            raise ConfigError(
                f"{self.path / found[0]} is not of an export, and this one would write over it. Move it, or choose "
                f"another folder. Nothing was written."
            )

    def begin(self, plan: ExportPlan, metadata: Sequence[str] = ()) -> dict[int, Shard]:
        """Makes the folder the plan's, and returns the shards that were noted to be complete.

        The caller has the lock; the folder does not hold an export of the split by another plan.
        """
        self.remove_unfinished(plan, metadata)
        if self.manifest.exists():
            noted = {shard.number: shard for shard in read_manifest(self.manifest).shards} | self._all_noted()
            if notes := list(self._notes()):  # Notes that appear from now on are of this export.
                write_for_good(self._log, b"".join(map(_line, noted.values())))
                _remove(notes)
            return noted
        self._forget()
        write_manifest(self.manifest, plan, None, metadata)
        return {}

    @refusals_named()
    def note(self, shard: Shard) -> None:
        """Notes a shard that will be put in its place next; several processes may do so at once.

        A shard that a power failure takes back is written again.
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
        """Returns the shard that a machine has noted since `begin`, where several write."""
        return next(iter(_read_lines(self._note(number))), None)

    def num_noted(self) -> int:
        """Returns how many shards machines have noted since `begin`, as far as the file system shows them now."""
        try:
            return sum(1 for _ in self._notes())
        except OSError:
            return 0

    def is_complete(self, plan: ExportPlan, shard: Shard, metrics: StageMetrics | None = None) -> bool:
        """Whether a shard lies in its place as it was noted; all of it is read."""
        path = self.path / plan.file_name(shard.number)
        return has_size(path, shard.num_bytes) and read_file(path, metrics) == (shard.num_bytes, shard.crc32c)

    def complete(self, plan: ExportPlan, shards: Sequence[Shard], metadata: Sequence[str] = ()) -> None:
        """Writes the manifest of a complete export."""
        write_manifest(self.manifest, plan, shards, metadata)
        self._forget()

    def remove_unfinished(self, plan: ExportPlan, metadata: Sequence[str] = ()) -> None:
        """Removes what ended processes have left of an export's files; the caller has the lock."""
        own = OwnFiles(plan, metadata)
        for name in os.listdir(self.path):
            if own.is_unfinished(name):
                with suppress(OSError):
                    (self.path / name).unlink()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Makes the folder, and keeps other exports out of it until the block ends, and workers of this one with it.

        Those of other machines are not kept out: network file systems have no locks of folders.
        """
        deadline = time.monotonic() + _WAIT_S
        while (descriptor := _lock(self.path)) is None:
            if time.monotonic() >= deadline:
                raise ExportError(f"Another export writes to {self.path}: let it end, or choose another folder.")
            time.sleep(0.05)
        try:
            yield
        finally:
            os.close(descriptor)

    def _all_noted(self) -> dict[int, Shard]:
        lines = (_read_lines(path) for path in (self._log, *self._notes()))
        return {shard.number: shard for shard in chain.from_iterable(lines)}

    def _note(self, number: int) -> Path:
        return self.path / f".{PREFIX}{self._split}-{number:06d}.note"

    def _notes(self) -> Iterator[Path]:
        return self.path.glob(f".{PREFIX}{self._split}-*.note")

    def _forget(self) -> None:
        _remove((self._log, *self._notes()))


def verify_shards(path: str | os.PathLike[str], split: str | None = None) -> None:
    """Reads the shards of a folder again, and compares them with their checksums.

    Args:
        path: of the folder.
        split: whose export is verified: a split expression, or its name in names of files; None: all are.

    Raises:
        ExportError: a shard is missing or damaged, or an export is not complete.
        ConfigError: the folder has no such export, or a damaged manifest.
    """
    try:
        there = manifests_in(Path(path))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{quoted(str(path))} cannot be read as a folder of an export: {error}.") from None
    if split is not None:
        there = [one for one in there if one == ShardFolder(Path(path), split_label(split)).manifest]
    if not there:
        raise ConfigError(f"{path} holds no export{f' of the split {quoted(split)}' if split is not None else ''}.")
    for manifest in there:
        plan, shards, _ = read_manifest(manifest)
        folder = ShardFolder(Path(path), plan.split)
        if len(shards) != plan.num_shards:
            raise ExportError(f"{manifest}: the export is not complete: the same command goes on with it.")
        wrong = [plan.file_name(shard.number) for shard in shards if not folder.is_complete(plan, shard)]
        if wrong:
            raise ExportError(
                f"{path}: {len(wrong)} of {len(shards)} shards are damaged or missing, such as {wrong[0]}: run the "
                f"same command again, which writes these anew."
            )


def has_size(path: Path, num_bytes: int) -> bool:
    """Whether a file is there and has this size."""
    try:
        return path.stat().st_size == num_bytes
    except OSError:
        return False


def _lock(path: Path) -> int | None:
    """Returns a descriptor that holds the folder's lock; None: another process has it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise ExportError(f"The folder {path} cannot be made: {error.strerror}.") from error
    if _take(descriptor):
        return descriptor
    os.close(descriptor)
    return None


def _take(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # Some file systems have no locks.
        return True
    return True


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
                yield Shard.from_dict(json.loads(line))
