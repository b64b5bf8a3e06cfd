"""The folder of a sharded export: its plan, its complete shards, its locks, and who may remove what.

`export-<split>.json` holds the plan, and at the end size and checksum of every shard. Until then each shard is noted in
a log before it is put in its place: a shard there that agrees with its line is whole. Each machine has its own log:
lines that several append to one file of a network file system may overwrite each other.

| file | of |
|---|---|
| `.export-<split>.log` | an export of this machine |
| `.export-<split>-part-3-of-16.log` | a part; locked while it is written |
| `.export-<split>-<random>.log` | a worker of another Executor |
| `.export-<split>-<digest>.job` | an export by another Executor, while it runs: what the workers do |
| `.export-<split>-<number>.<random>.tmp` | one attempt at a shard; several may be under way |
"""

import errno
import fcntl
import json
import os
import re
import secrets
import shlex
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from itertools import chain
from pathlib import Path

import google_crc32c

from tfds_torch.errors import ConfigError, ExportError
from tfds_torch.export.plan import (
    PREFIX,
    ExportPlan,
    Part,
    Shard,
    is_manifest,
    manifest_content,
    manifest_name,
    manifests_in,
    read_manifest,
    split_label,
)
from tfds_torch.runtime.atomic_file import AtomicFile, name_of_temporary, remove_left_behind
from tfds_torch.runtime.cached_property import cached_property
from tfds_torch.runtime.metrics import StageMetrics
from tfds_torch.runtime.printable import quoted

KEPT = "The shards that are complete stay: the same command goes on with the others."
_SUFFIXES_OF_FILES = (".tar", ".beton", ".tfrecord", ".array_record")
_RANDOM = "[0-9a-f]{16}"
_BLOCK_BYTES = 2**20
_WAIT_S = 5.0
"""How long workers of a killed export may take to end."""

_log_of_process: dict[int, str] = {}
"""This process -> the random part of its log's name."""


class OwnFiles:
    """The files of an export: shards, manifest, logs, and files that its writers leave when they are killed.

    Files of any other name are never changed or removed.

    Args:
        plan: of the export.
        metadata: names of TFDS's metadata that it writes.
    """

    def __init__(self, plan: ExportPlan, metadata: Iterable[str]) -> None:
        self._plan, self._metadata = plan, frozenset(metadata)
        stem = re.escape(f"{PREFIX}{plan.split}")
        self._log = _log_form(plan.split)
        self._job, self._temporary = (
            re.compile(rf"\.{stem}-{_RANDOM}\.job"),
            re.compile(rf"{stem}(-\d+|-{_RANDOM}\.job)?"),
        )

    def __contains__(self, name: str) -> bool:
        """Return whether a file of this name belongs to the export alone, which TFDS's metadata does not."""
        is_record = name == manifest_name(self._plan.split) or self._log.fullmatch(name) is not None
        return is_record or name in self._shards or self.is_unfinished(name)

    def is_metadata(self, name: str) -> bool:
        """Return whether it is TFDS's metadata, which exports of several splits share."""
        return name in self._metadata

    def is_unfinished(self, name: str) -> bool:
        """Return whether it was left by a killed writer: a temporary file of an attempt, or the file of a job."""
        place = name_of_temporary(name)
        return (self._job.fullmatch(name) if place is None else self._temporary.fullmatch(place)) is not None

    def conflicts(self, names: Iterable[str], others: Sequence["OwnFiles"]) -> list[str]:
        """Return the files among `names` that the export would write over and that none of the others owns."""
        return sorted(
            name
            for name in names
            if (name in self._shards and not any(name in other for other in others))
            or (self.is_metadata(name) and not any(other.is_metadata(name) for other in others))
        )

    @cached_property
    def _shards(self) -> frozenset[str]:
        return frozenset(map(self._plan.file_name, range(self._plan.num_shards)))


def _log_form(split: str) -> "re.Pattern[str]":
    return re.compile(rf"\.{re.escape(PREFIX + split)}(-{_RANDOM}|-part-\d+-of-(?P<of>\d+))?\.log")


def own_files_in(folder: Path) -> list[OwnFiles]:
    """Return the files of each export in a folder; raise ConfigError where a manifest cannot be read."""
    found = map(read_manifest, manifests_in(folder))
    return [OwnFiles(content.plan, content.metadata) for content in found]


class ShardFolder:
    """The folder of an export, which need not be there yet.

    Args:
        path: of the folder.
        split: in the plan's form.
        part: of the export that this process writes; None: all of it.
        is_shared: whether workers of another Executor write to it, who get this object.
    """

    def __init__(self, path: Path, split: str, part: Part | None = None, is_shared: bool = False) -> None:
        self.path = path = path.absolute() if is_shared else path
        self.manifest = path / manifest_name(split)
        self.stem = f".{PREFIX}{split}"
        self.part, self._is_shared, self._log_form = part, is_shared, _log_form(split)

    def check(self, plan: ExportPlan, metadata: Sequence[str] = ()) -> None:
        """Raise ConfigError where the plan's shards and TFDS's metadata cannot be written there; changes nothing."""
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
        names = sorted(os.listdir(self.path))  # Once: another part may begin now.
        there = [self.path / name for name in names if is_manifest(name)]
        if not there and (found := [name for name in names if not name.startswith(".")]):
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
        """Raise ConfigError where the plan would write over a file that is not of an export; changes nothing."""
        names = os.listdir(self.path)
        if found := OwnFiles(plan, metadata).conflicts(names, own_files_in(self.path)):
            raise ConfigError(
                f"{self.path / found[0]} is not of an export, and this one would write over it. Move it, or choose "
                f"another folder. Nothing was written."
            )

    def begin(self, plan: ExportPlan, metadata: Sequence[str] = ()) -> dict[int, Shard]:
        """Make the folder the plan's, and return the shards that were noted to be complete.

        The caller has the lock.

        Raises:
            ConfigError: another part has made it the folder of another plan just now.
        """
        self.remove_unfinished(plan, metadata)
        if not self.manifest.exists():
            if self.part is None:
                self._forget()
            file = ShardFile(self.manifest, f"{self.stem}.")
            try:
                file.write(manifest_content(plan, None, metadata))
                file.end()
                file.commit_if_first()
            finally:
                file.discard()
        self._check(plan)
        self._check_parts()
        noted = self.noted()
        if self.part is None and len(logs := self._logs()) > 1:  # One log is enough for earlier shards.
            write_for_good(self._log, b"".join(map(_line, noted.values())), f"{self.stem}.")
            _remove(log for log in logs if log != self._log)
        return noted

    def note(self, shard: Shard) -> None:
        """Note a shard that will be put in its place next; several processes may do so at once.

        A shard that a power failure takes back is written again.
        """
        with refusals_named():
            if self._is_shared and next(self.path.glob(f"{self.stem}-*.job"), None) is None:
                raise FileNotFoundError(errno.ENOENT, "the export was ended meanwhile")
            line = _line(shard)
            log = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            try:
                if os.write(log, line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            finally:
                os.close(log)

    def noted(self) -> dict[int, Shard]:
        """Return the shards of the manifest and of all logs, by number."""
        logs = list(chain.from_iterable(map(_read_lines, self._logs())))  # First: who completes it removes them last.
        return {shard.number: shard for shard in (*read_manifest(self.manifest).shards, *logs)}

    def is_there(self, plan: ExportPlan, shard: Shard | None) -> bool:
        """Return whether a shard that was noted lies in its place, by its size."""
        try:
            return shard is not None and (self.path / plan.file_name(shard.number)).stat().st_size == shard.num_bytes
        except OSError:
            return False

    def is_complete(self, plan: ExportPlan, shard: Shard, metrics: StageMetrics | None = None) -> bool:
        """Return whether a shard lies in its place as it was noted; all of it is read."""
        path = self.path / plan.file_name(shard.number)
        return self.is_there(plan, shard) and read_file(path, metrics) == (shard.num_bytes, shard.crc32c)

    def attempt(self, plan: ExportPlan, number: int) -> "ShardFile":
        """Return the file of a new attempt at a shard."""
        return ShardFile(self.path / plan.file_name(number), f"{self.stem}-{number:06d}.")

    def complete(self, plan: ExportPlan, shards: Sequence[Shard], metadata: Sequence[str] = ()) -> None:
        """Write the manifest of a complete export."""
        write_for_good(self.manifest, manifest_content(plan, shards, metadata), f"{self.stem}.")
        self._forget()

    def remove_unfinished(self, plan: ExportPlan, metadata: Sequence[str] = ()) -> None:
        """Remove the unfinished files that ended processes of an export have left; the caller has the lock.

        A part removes those of attempts at its own shards, and those of ended writers of the manifest.
        """
        if self.part is not None:
            remove_left_behind(self.path, f"{self.stem}.")
            for number in self.part.shards(plan.num_shards):
                remove_left_behind(self.path, f"{self.stem}-{number:06d}.")
            return
        own = OwnFiles(plan, metadata)
        for name in os.listdir(self.path):
            if own.is_unfinished(name):
                with suppress(OSError):
                    (self.path / name).unlink()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Make the folder, and keep others out of it until the block ends, and workers of this export with it.

        An export keeps out all others; a part keeps out itself, and exports of the whole. Those of other machines are
        not kept out where a network file system has no locks.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ExportError(f"The folder {self.path} cannot be made: {error.strerror}.") from error
        with ExitStack() as stack:
            how = fcntl.LOCK_EX if self.part is None else fcntl.LOCK_SH
            what = f"Another export writes to {self.path}: let it end, or choose another folder."
            _lock(self.path, os.O_RDONLY, how, what, stack)
            if self.part is not None:
                what = f"Part {self.part} of {self.path} is being written by another process: let it end."
                _lock(self._log, os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX, what, stack)
            try:
                yield
            finally:
                with suppress(FileNotFoundError):
                    if self.part is not None and not self._log.stat().st_size:  # It was refused, or had nothing to do.
                        self._log.unlink()

    @property
    def _log(self) -> Path:
        if self._is_shared:
            own = _log_of_process.setdefault(os.getpid(), secrets.token_hex(8))
            return self.path / f"{self.stem}-{own}.log"
        return self.path / f"{self.stem}{'' if self.part is None else self.part.suffix}.log"

    def _logs(self) -> list[Path]:
        """Return the logs; that of this machine, which may hold earlier shards, comes first."""
        names = sorted(os.listdir(self.path), reverse=True)
        return [self.path / name for name in names if self._log_form.fullmatch(name)]

    def _forget(self) -> None:
        _remove(self._logs())

    def _check_parts(self) -> None:
        """Raise ConfigError where the folder has parts of another number."""
        for log in self._logs() if self.part is not None else ():
            num_parts = self._log_form.fullmatch(log.name)["of"]  # type: ignore[index]
            if num_parts and int(num_parts) != self.part.of:  # type: ignore[union-attr]
                raise ConfigError(
                    f"{self.path} is being written in {num_parts} parts, and this is part {self.part}: give parts of "
                    f"{num_parts}, or leave part (--part) out when none of them runs, which writes what is left."
                )


class WriteRefusedError(OSError):
    """The system refused to write the export's own file; any other OSError may come from reading the samples."""


@contextmanager
def refusals_named() -> Iterator[None]:
    """Raise a block's OSError as a WriteRefusedError; also the decorator of a function."""
    try:
        yield
    except OSError as error:
        raise WriteRefusedError(error.errno, error.strerror or str(error)) from error


class ShardFile:
    """A file that one attempt writes from its beginning to its end, beside its place; there whole or not at all.

    All methods but `discard` raise WriteRefusedError.

    Args:
        path: the file's place.
        prefix: of the temporary name, which a random part makes the attempt's own.

    Attributes:
        beside: where the file lies until `commit`.
    """

    @refusals_named()
    def __init__(self, path: Path, prefix: str) -> None:
        self._file = AtomicFile(path, removes_left_behind=False, prefix=prefix)
        self.beside = self._file.beside
        self._parts: list[bytes] = []
        self._waiting = self._num_bytes = self._crc32c = 0

    def write(self, content: bytes) -> None:
        """Write the next bytes."""
        self._parts.append(content)
        self._waiting += len(content)
        if self._waiting >= _BLOCK_BYTES:
            self._flush()

    def end(self) -> tuple[int, int]:
        """Write the rest, and return the file's size in bytes and its crc32c."""
        self._flush()
        return self._num_bytes, self._crc32c

    @refusals_named()
    def check_is_wanted(self) -> None:
        """Check that the file has not been removed, as the end of an export does."""
        if not self.beside.exists():
            raise FileNotFoundError(errno.ENOENT, "the export was ended meanwhile")

    @refusals_named()
    def commit(self, *, syncs_folder: bool = True) -> None:
        """Put the file in its place, for good; see `AtomicFile.commit`."""
        self._file.commit(syncs_folder=syncs_folder)

    @refusals_named()
    def commit_if_first(self) -> None:
        """Put the file in its place, for good, unless there is one."""
        os.fsync(self._file.descriptor)
        try:
            os.link(self.beside, self._file.path)
        except FileExistsError:
            pass
        except OSError:  # A file system without links.
            if not self._file.path.exists():
                self._file.commit()

    def discard(self) -> None:
        """Leave the place as it was; may be called twice, and after `commit`."""
        self._file.discard()

    @refusals_named()
    def _flush(self) -> None:
        block = b"".join(self._parts)
        self._file.write(block, self._num_bytes)
        self._crc32c = google_crc32c.extend(self._crc32c, block)
        self._num_bytes += len(block)
        self._parts, self._waiting = [], 0


def read_file(path: str | os.PathLike[str], metrics: StageMetrics | None = None) -> tuple[int, int] | None:
    """Return a file's size in bytes and its crc32c; None where it cannot be read.

    `metrics` get the time of each part, so that the watch over workers sees the progress of a large file.
    """
    num_bytes = crc32c = 0
    began_s = time.monotonic()
    try:
        with open(path, "rb", buffering=0) as file:
            while block := file.read(_BLOCK_BYTES):
                num_bytes, crc32c = num_bytes + len(block), google_crc32c.extend(crc32c, block)
                if metrics is not None:
                    now_s = time.monotonic()
                    metrics.add("read", now_s - began_s)
                    began_s = now_s
    except OSError:
        return None
    return num_bytes, crc32c


def write_for_good(path: Path, content: bytes, prefix: str) -> None:
    """Put content in the place of a file, also if the power fails afterwards; an OSError leaves the earlier content."""
    file = ShardFile(path, prefix)
    try:
        file.write(content)
        file.end()
        file.commit()
    finally:
        file.discard()


def verify_shards(path: str | os.PathLike[str], split: str | None = None, part: str | None = None) -> None:
    """Read the shards of a folder again, and compare them with their checksums.

    Args:
        path: of the folder.
        split: whose export is verified: a split expression, or its name in names of files; None: all are.
        part: "3/16": only the shards of this part, which may be complete before the others; None: all.

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
        numbers = range(plan.num_shards) if part is None else Part.of_argument(part).shards(plan.num_shards)
        noted = folder.noted() if part is not None else {shard.number: shard for shard in shards}
        if not set(numbers) <= noted.keys():
            raise ExportError(f"{manifest}: the export is not complete: the same command goes on with it.")
        wrong = [plan.file_name(number) for number in numbers if not folder.is_complete(plan, noted[number])]
        if wrong:
            raise ExportError(
                f"{path}: {len(wrong)} of {len(numbers)} shards are damaged or missing, such as {wrong[0]}: run the "
                f"same command again, which writes these anew."
            )


def _lock(path: Path, flags: int, how: int, what: str, stack: ExitStack) -> None:
    """Lock a file until the stack ends; raise ExportError where another process keeps it for long."""
    deadline = time.monotonic() + _WAIT_S
    while True:
        try:
            descriptor = os.open(path, flags | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise ExportError(f"{path} cannot be opened: {error.strerror}.") from error
        try:
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
            is_ours = os.fstat(descriptor).st_nlink > 0  # Whoever completes the export removes the logs.
        except BlockingIOError:
            is_ours = False
        except OSError:  # Some file systems have no locks.
            is_ours = True
        if is_ours:
            stack.callback(os.close, descriptor)
            return
        os.close(descriptor)
        if time.monotonic() >= deadline:
            raise ExportError(what)
        time.sleep(0.05)


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
