"""ShardFile: a shard that is written from its beginning to its end, and its checksum; there whole or not at all."""

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import google_crc32c

from tfds_torch.runtime.atomic_file import AtomicFile
from tfds_torch.runtime.metrics import StageMetrics

_BLOCK_BYTES = 2**20


@dataclass(frozen=True)
class WrittenFile:
    """What a file holds.

    Attributes:
        num_bytes: its size.
        crc32c: of all of it.
    """

    num_bytes: int
    crc32c: int


class WriteRefusedError(OSError):
    """The system's refusal to write: unlike any other OSError, it is not of the samples that are read meanwhile."""


@contextmanager
def told_refusals() -> Iterator[None]:
    """Raises a block's OSError as a WriteRefusedError; also the decorator of a function."""
    try:
        yield
    except OSError as error:
        raise WriteRefusedError(error.errno, error.strerror or str(error)) from error


class ShardFile:
    """A file in the making, beside its place. What others have left there, the folder removes: `ShardFolder`.

    Args:
        path: its place.

    Attributes:
        beside: where it lies until `commit`.

    Raises:
        WriteRefusedError: nothing can be written there.
    """

    @told_refusals()
    def __init__(self, path: Path) -> None:
        self._file = AtomicFile(path, removes_left_behind=False)
        self.beside = self._file.beside
        self._parts: list[bytes] = []
        self._waiting = self._num_bytes = self._crc32c = 0

    def write(self, content: bytes) -> None:
        """Writes the next bytes.

        Raises:
            WriteRefusedError: they cannot be written.
        """
        self._parts.append(content)
        self._waiting += len(content)
        if self._waiting >= _BLOCK_BYTES:
            self._flush()

    def end(self) -> WrittenFile:
        """Writes what is left, and returns what the file holds.

        Raises:
            WriteRefusedError: it cannot be written.
        """
        self._flush()
        return WrittenFile(self._num_bytes, self._crc32c)

    @told_refusals()
    def check_is_wanted(self) -> None:
        """Checks that nobody has removed the file, as the end of an export does.

        Raises:
            WriteRefusedError: it was removed.
        """
        if not self.beside.exists():
            raise FileNotFoundError(errno.ENOENT, "the export was ended meanwhile")

    @told_refusals()
    def commit(self, *, syncs_folder: bool = True) -> None:
        """Puts the file in its place, for good; see `AtomicFile.commit`.

        Raises:
            WriteRefusedError: it cannot be put there; what was there is still there.
        """
        self._file.commit(syncs_folder=syncs_folder)

    def discard(self) -> None:
        """Leaves the place as it was; may be called twice, and after `commit`."""
        self._file.discard()

    @told_refusals()
    def _flush(self) -> None:
        block = b"".join(self._parts)
        self._file.write(block, self._num_bytes)
        self._crc32c = google_crc32c.extend(self._crc32c, block)
        self._num_bytes += len(block)
        self._parts, self._waiting = [], 0


def read_file(path: str | os.PathLike[str], metrics: StageMetrics | None = None) -> WrittenFile | None:
    """Returns what a file holds; None: there is none, or it cannot be read.

    Args:
        path: of the file.
        metrics: told of the time that each part takes, so that a large file is not taken for a hang.
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
    return WrittenFile(num_bytes, crc32c)


def write_for_good(path: Path, content: bytes) -> None:
    """Puts content in the place of a file, also if the power fails afterwards.

    Raises:
        OSError: it cannot be written; what was there is still there.
    """
    file = ShardFile(path)
    try:
        file.write(content)
        file.end()
        file.commit()
    finally:
        file.discard()
