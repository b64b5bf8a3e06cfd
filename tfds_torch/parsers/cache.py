"""DecodedCache: a file of a split's decoded images. Where it does not exist, one process builds it for all.

A cache never ends a training that works without one: where it cannot be built, its images are decoded from the original
files, with one warning. The builder reports how far it is in a file beside it, which waiting processes read.
"""

import json
import logging
import os
import re
import secrets
import shutil
import socket
import sys
import time
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

from filelock import BaseFileLock, FileLock, Timeout

from tfds_torch.errors import ConfigError, CorruptRecordError, ExportError, ShardError
from tfds_torch.parsers.cache_building import CacheContent, Estimate, build, estimate, make_pixels, number_fields
from tfds_torch.runtime.arguments import check_integer
from tfds_torch.runtime.identity import digest_of
from tfds_torch.runtime.keyword_hints import explain_keywords
from tfds_torch.runtime.own_folder import ForeignFolderError, cache_folder, own_folder
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.beton.format import LARGEST_SIDE
from tfds_torch.storage.beton.source import BetonSource
from tfds_torch.storage.cached_source import CachedSource
from tfds_torch.storage.source import Source

SUFFIX = ".beton"

CACHED_MODES = ("RGB", "L")
"""Image modes that can be made of three channels exactly as from the files."""


@explain_keywords
@dataclass(frozen=True)
class DecodedCache:
    """Let a parser keep the decoded images of its split in a file, written once, and read them there.

    The file is a `.beton` of pixels, uint8 [h, w, 3], and the numbers of each example beside them. The first process
    that builds the parser writes it, whatever the number of ranks; workers never do. Number, order, ids and states are
    those of the original files, and so are the pixels, unless `max_resolution` is given.

    Attributes:
        folder: where the files lie; None: `decoded` in the user's cache folder for this package.
        max_resolution: longest side in pixels: larger images are made smaller, with antialiasing. It changes pixels,
            and so the parser's fingerprint. None: images are as they are.

    Raises:
        ConfigError: a folder that is not a path, or a max_resolution that is not 1 to 65,535.
    """

    folder: str | os.PathLike[str] | None = None
    max_resolution: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.folder, str | os.PathLike | None) or self.folder == "":
            raise ConfigError(f"DecodedCache: folder={quoted(self.folder)} must be the path of a folder, or None.")
        if self.max_resolution is None:
            return
        if check_integer("DecodedCache: max_resolution", self.max_resolution, 1) > LARGEST_SIDE:
            raise ConfigError(f"DecodedCache: max_resolution={self.max_resolution} must be at most {LARGEST_SIDE:,}.")

    @property
    def path(self) -> Path:
        """The folder, absolute."""
        if self.folder is None:
            return cache_folder("decoded")
        return Path(os.path.abspath(os.path.expanduser(os.fspath(self.folder))))


def status_path(path: Path) -> Path:
    """Return the file in which a cache's builder reports how far it is."""
    return path.with_suffix(".json")


def lock_path(path: Path) -> Path:
    """Return the lock under which a cache is built."""
    return path.with_suffix(".lock")


_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
READING, WRITING, COMPLETE, FAILED, DAMAGED = "reading", "writing", "complete", "failed", "damaged"
LONGEST_SILENCE_S = 300.0
"""A builder that decodes images and reports nothing for longer is stuck."""


@dataclass(frozen=True)
class CacheStatus:
    """What a builder reports. It stays beside a complete cache, as its description.

    Attributes:
        dataset: `name/config:version`.
        split: the split expression.
        max_resolution: longest side of the images in pixels; None: as they are.
        phase: `reading`, `writing`, `complete`, `failed`, or `damaged`: a reader found damage, and the cache is
            built again.
        num_done: examples that are decoded.
        num_examples: number of examples of the split.
        beat: number of the report, which grows with each.
        silence_s: seconds for which the builder may report nothing before it counts as stuck.
        reason: why it failed, or how it is damaged.
        pid: process number of the builder.
        host: its machine.
        build: a random name of this attempt.
    """

    dataset: str | None = None
    split: str | None = None
    max_resolution: int | None = None
    phase: str = READING
    num_done: int = 0
    num_examples: int = 0
    beat: int = 0
    silence_s: float = LONGEST_SILENCE_S
    reason: str = ""
    pid: int = field(default_factory=os.getpid)
    host: str = field(default_factory=socket.gethostname)
    build: str = field(default_factory=lambda: secrets.token_hex(8))


def write_status(path: Path, status: CacheStatus) -> None:
    """Report how far a builder is, where that can be written: building continues without the report.

    The file is written in place: a process that reads it at that moment finds no valid report, and reads again.
    """
    with suppress(OSError), open(os.open(path, _NEW, 0o600), "w", encoding="utf-8") as file:
        json.dump(asdict(status), file)


def note_damage(path: Path, reason: str) -> None:
    """Report that a complete cache is damaged, where that can be written."""
    write_status(path, replace(read_status(path) or CacheStatus(), phase=DAMAGED, reason=reason))


def read_status(path: Path) -> CacheStatus | None:
    """Return the report of a builder; None where there is no valid one."""
    with suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
        values = json.loads(path.read_bytes())
        if all(isinstance(values[name], kind) for name, kind in get_type_hints(CacheStatus).items()):
            return CacheStatus(**values)
    return None


_logger = logging.getLogger(__name__)
_VERSION = 1  # Of the content of a cache: another version has another file.
_LONGEST_SLUG = 30
_BEAT_EVERY_S, _LOOK_EVERY_S = 1.0, 0.5
_SLOWEST_DISK = 10_000_000  # Bytes a second: it limits how long a builder may take to bring its file to the disk.
_BAR_AFTER_S, _LINE_AFTER_S, _LINE_EVERY_S = 1.0, 10.0, 60.0


class CacheProgress(AbstractContextManager["CacheProgress"]):
    """Show the progress of a cache. As a context manager it removes the bar at the end."""

    def __init__(self, dataset: str) -> None:
        self._dataset = dataset
        self._is_terminal = sys.stderr.isatty()
        self._next_s = time.monotonic() + (_BAR_AFTER_S if self._is_terminal else _LINE_AFTER_S)
        self._bar: Any = None
        self._task: Any = None

    def show(self, what: str, num_done: int, num_examples: int) -> None:
        """Show a number of examples that are done."""
        if self._bar is not None:
            self._bar.update(self._task, description=self._words(what), completed=num_done, total=num_examples)
        elif time.monotonic() >= self._next_s:
            if self._is_terminal:
                self._begin_bar(what, num_examples)
                return
            self._next_s = time.monotonic() + _LINE_EVERY_S
            # Logging that is not set up shows warnings only, and training does not begin before this ends.
            words = self._words(what)
            _logger.warning(
                "%s: %s of %s examples.", words[0].upper() + words[1:], f"{num_done:,}", f"{num_examples:,}"
            )

    def __exit__(self, *details: object) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _words(self, what: str) -> str:
        return f"{what} the decoded cache of {self._dataset}"

    def _begin_bar(self, what: str, num_examples: int) -> None:
        from rich.console import Console

        from tfds_torch.runtime.terminal import ProgressBar

        self._bar = ProgressBar(Console(stderr=True))
        self._bar.start()
        self._task = self._bar.add_task(self._words(what), total=num_examples, rate="")


class _NotBuiltError(Exception):
    """A cache cannot be built; the message says why."""


def open_cached(source: Source, split: str, image_key: str, cache: DecodedCache) -> CachedSource:
    """Return the examples of a source with their decoded images, out of a cache, which is built where it is not there.

    Call it in the training process: it may take as long as an epoch.

    Raises:
        ConfigError: the files can only be streamed.
        ShardError: a file is missing, or does not hold the promised number of examples.
    """
    if source.obstacle is not None:
        raise ConfigError(
            f"{source.name}: a decoded cache is built from examples that are read by number, and {source.obstacle}. "
            f"Copy the dataset to this machine, or leave out cache=."
        )
    names = number_fields(source.specs)
    content = CacheContent(source, image_key, cache.max_resolution, _fingerprint(source, image_key, cache, names))
    slug = re.sub(r"[^\w.-]+", "_", source.name, flags=re.ASCII)[:_LONGEST_SLUG]
    file_name = f"{slug}-{content.fingerprint[:16]}{SUFFIX}"
    file = _open_or_build(content, split, cache, file_name) if len(source) else None
    maker = partial(make_pixels, cache.max_resolution)
    return CachedSource(source, image_key, file, names, cache.max_resolution, maker, _note_damage)


def _note_damage(path: str, reason: str) -> None:
    """Let the next opening of a cache build it again."""
    note_damage(status_path(Path(path)), reason)


def _fingerprint(source: Source, image_key: str, cache: DecodedCache, names: dict[str, str]) -> str:
    """Return a digest of the cached content; without paths, so that a dataset that was moved keeps its cache."""
    size = cache.max_resolution
    return digest_of(_VERSION, source.name, source.identity, source.stamps, image_key, size, list(names.items()))


def _open_or_build(content: CacheContent, split: str, cache: DecodedCache, file_name: str) -> BetonSource | None:
    """Return the cache; None, after a warning, where there is none and it cannot be built."""
    name = f"{content.source.name} ({split})"
    try:
        path = own_folder(cache.path) / file_name
        return _open(path, content) or _Building(content, split, path).open(name)
    except _NotBuiltError as error:
        reason = str(error)
    except ForeignFolderError as error:
        reason = (
            f"{error.filename} is not this user's own: {error.strerror}. Or name another folder, "
            f"DecodedCache(folder): one that does not exist yet is made for you alone."
        )
    except (OSError, NotImplementedError) as error:  # NotImplementedError: a file system without locks.
        reason = f"{cache.path} cannot be written to: {getattr(error, 'strerror', None) or error}."
    _logger.warning(
        "There is no decoded cache of %s, and its images are decoded from the original files: %s", name, reason
    )
    return None


def _open(path: Path, content: CacheContent, *, should_warn: bool = True) -> BetonSource | None:
    """Return a complete cache; None where it is absent or damaged."""
    source = content.source
    if not path.exists():
        return None
    try:
        file = BetonSource(path)
        manifest = file.head.manifest
        if manifest is None or manifest.facts.fingerprint != content.fingerprint or len(file) != len(source):
            raise CorruptRecordError(f"{path} is another file, or an earlier version of tfds_torch wrote it.")
        status = read_status(status_path(path))
        if status is not None and status.phase == DAMAGED:
            raise CorruptRecordError(status.reason)
        file.check()
    except (ShardError, ConfigError) as error:
        if should_warn:
            _logger.warning("The decoded cache of %s is damaged, and is built again: %s", source.name, error)
        return None
    return file


@dataclass(frozen=True)
class _Building:
    """One process's part in building a cache: it builds, or waits for the process that does."""

    content: CacheContent
    split: str
    path: Path

    def open(self, name: str) -> BetonSource | None:
        """Return the cache."""
        with CacheProgress(name) as progress:
            lock = FileLock(lock_path(self.path), mode=0o600)
            waited_for = self._take_turn(lock, progress)
            try:
                file = _open(self.path, self.content, should_warn=False)
                if file is None:
                    self._check_failure(waited_for)
                    self._build(progress)
                    file = _open(self.path, self.content)
                return file
            finally:
                lock.release()

    def _take_turn(self, lock: BaseFileLock, progress: CacheProgress) -> CacheStatus | None:
        """Take the lock, which ends with the process that holds it; return the latest holder's status."""
        latest, changed_s = None, time.monotonic()
        while True:
            with suppress(Timeout):
                lock.acquire(timeout=_LOOK_EVERY_S)
                return latest
            status = read_status(status_path(self.path))
            if status is not None and status != latest:
                latest, changed_s = status, time.monotonic()
                progress.show(f"process {latest.pid} builds", latest.num_done, latest.num_examples)
            silence_s = time.monotonic() - changed_s
            allowed_s = LONGEST_SILENCE_S if latest is None else latest.silence_s
            if silence_s > allowed_s:
                who = "the process" if latest is None else f"process {latest.pid} on {latest.host}"
                raise _NotBuiltError(
                    f"{who} that builds {self.path} has reported nothing for {silence_s:.0f} s: it is stuck. End it, "
                    f"and the next start builds the cache."
                )

    def _check_failure(self, waited_for: CacheStatus | None) -> None:
        """Raise _NotBuiltError where the builder that was waited for has failed: the waiting process need not try."""
        status = read_status(status_path(self.path))
        if waited_for is None or status is None or status.phase != FAILED or status.build != waited_for.build:
            return
        raise _NotBuiltError(status.reason)

    def _build(self, progress: CacheProgress) -> None:
        content, split, status_file = self.content, self.split, status_path(self.path)
        num_examples, name = len(content.source), content.source.name
        status = CacheStatus(name, split, content.max_resolution, num_examples=num_examples)
        beat = _Beat(status_file, status, progress)
        try:
            found = estimate(content)
            self._check_room(found)
            num_left_out = build(
                content, self.path, found, beat, before_closing=lambda: beat.begin_writing(found.num_bytes)
            )
        except (_NotBuiltError, ExportError, ConfigError) as error:  # ConfigError: a folder in the file's place.
            write_status(status_file, replace(beat.status, phase=FAILED, reason=str(error)))
            raise _NotBuiltError(str(error)) from error
        except BaseException:
            with suppress(OSError):
                status_file.unlink(missing_ok=True)
            raise
        write_status(status_file, replace(beat.status, phase=COMPLETE, num_done=num_examples))
        if num_left_out:
            _logger.warning(
                "%d of %d images of %s (%s) cannot be decoded, or are too large for its decoded cache: they are read "
                "from the original files.",
                num_left_out,
                num_examples,
                name,
                split,
            )

    def _check_room(self, found: Estimate) -> None:
        free = shutil.disk_usage(self.path.parent).free
        if found.num_bytes > free:
            raise _NotBuiltError(
                f"it needs about {found.num_bytes:,} bytes in {self.path.parent}, and {free:,} are free. Make room, "
                f"give DecodedCache another folder, or a max_resolution."
            )


class _Beat:
    """Report again and again how far a builder is."""

    def __init__(self, path: Path, status: CacheStatus, progress: CacheProgress) -> None:
        self.status = status
        self._path, self._progress = path, progress
        self._reported_s = time.monotonic()
        write_status(path, status)

    def __call__(self, num_done: int) -> None:
        self._progress.show("building", num_done, self.status.num_examples)
        if time.monotonic() - self._reported_s >= _BEAT_EVERY_S:
            self._report(replace(self.status, num_done=num_done))

    def begin_writing(self, num_bytes: int) -> None:
        """Report that the file is being brought to the disk, which cannot be watched."""
        silence_s = LONGEST_SILENCE_S + num_bytes / _SLOWEST_DISK
        self._report(replace(self.status, phase=WRITING, num_done=self.status.num_examples, silence_s=silence_s))

    def _report(self, status: CacheStatus) -> None:
        self.status, self._reported_s = replace(status, beat=status.beat + 1), time.monotonic()
        write_status(self._path, self.status)
