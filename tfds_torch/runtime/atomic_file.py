"""Files that are written whole or not at all."""

import fcntl
import glob
import logging
import os
import re
import secrets
import stat
import weakref
from contextlib import suppress
from pathlib import Path

_logger = logging.getLogger(__name__)
_SUFFIX = ".tmp"
_NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC  # Of the flags, O_EXCL follows no link.
_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{16}\.tmp", re.DOTALL)
MOST_LETTERS = 50
"""Of a file's name that the name of its temporary file repeats."""


def write_atomically(path: Path, content: bytes, *, follows_link: bool = True) -> None:
    """Replace the content of a file, whose mode stays; where that fails, the file is as it was.

    Args:
        path: path of the file.
        content: the whole content of the file.
        follows_link: whether a symbolic link there stays, and its target is replaced. False: whatever is there is
            replaced by a file that only this user can write to.
    """
    file = AtomicFile(path, removes_left_behind=False, follows_link=follows_link)
    try:
        file.write(content, 0)
        file.commit()
    finally:
        file.discard()


class AtomicFile:
    """A large file that is written in parts, at any offsets, beside its place, and put there when it is whole.

    If the process is killed at any moment, the place has the old file, or all of the new one. The temporary file
    `.<name>.<random>.tmp` that stays beside it then is removed when the next one is made for the same place: a file is
    locked as long as somebody writes to it. Forked processes may write too; only the process that made it puts it in
    place.

    Args:
        path: place of the file.
        removes_left_behind: whether temporary files of dead writers there are removed now. Where several machines
            write, somebody else has to remove them: a machine does not see another's locks on every file system.
        follows_link: whether a symbolic link there stays, and its target is replaced. False: whatever is there is
            replaced by a file that only this user can write to.
        prefix: beginning of the temporary name, before `<random>.tmp`; None: `.<name>.`.
    """

    def __init__(
        self,
        path: Path,
        *,
        removes_left_behind: bool = True,
        follows_link: bool = True,
        prefix: str | None = None,
    ) -> None:
        self.path = path.resolve() if follows_link else path.absolute()
        self._keeps_mode = follows_link
        prefix = _prefix(self.path) if prefix is None else prefix
        if removes_left_behind:
            remove_left_behind(self.path.parent, prefix)
        self.beside, self.descriptor = _open_beside(self.path, prefix, 0o666 if follows_link else 0o600)
        self._discard = weakref.finalize(self, _discard, self.beside, self.descriptor, os.getpid())

    def write(self, content: bytes | bytearray | memoryview, offset: int) -> None:
        """Write all of content at an offset; several processes may do so at once."""
        if not self._discard.alive:  # The descriptor may be another file's by now.
            raise ValueError(f"{self.path} is complete, or was given up: nothing more can be written.")
        view = memoryview(content).cast("B") if len(content) else memoryview(b"")
        start, num_bytes = offset, len(view)
        while view:
            num_written = os.pwrite(self.descriptor, view, offset)
            view, offset = view[num_written:], offset + num_written
        if num_bytes and hasattr(os, "posix_fadvise"):
            # The disk begins with it now, so that `commit` waits for less; bytes not on the disk yet stay cached.
            os.posix_fadvise(self.descriptor, start, num_bytes, os.POSIX_FADV_DONTNEED)

    def commit(self, *, syncs_folder: bool = True) -> None:
        """Put the file in its place, for good: also if the power fails afterwards.

        Raises:
            OSError: it cannot be put there; the old file is still there.
        """
        if self._keeps_mode and self.path.is_file():
            os.fchmod(self.descriptor, stat.S_IMODE(self.path.stat().st_mode))
        os.fsync(self.descriptor)
        os.replace(self.beside, self.path)
        self._discard.detach()
        os.close(self.descriptor)
        if not syncs_folder:
            return
        try:
            flush_to_disk(self.path.parent)
        except OSError as error:  # It is in place and whole; only a power failure could still undo that.
            _logger.warning("%s is written, but its folder could not be synced to the disk: %s.", self.path, error)

    def discard(self) -> None:
        """Leave the place as it was, and nothing beside it; may be called twice, and after `commit`."""
        self._discard()


def _discard(beside: Path, descriptor: int, owner: int) -> None:
    os.close(descriptor)
    if os.getpid() == owner:  # Not by a forked child that ends.
        beside.unlink(missing_ok=True)


def _open_beside(path: Path, prefix: str, mode: int) -> tuple[Path, int]:
    """Make a file of a mode beside a place, lock it, and return it with its descriptor."""
    while True:
        beside = path.with_name(f"{prefix}{secrets.token_hex(8)}{_SUFFIX}")
        descriptor = os.open(beside, _NEW_FILE, mode)
        with suppress(OSError):  # Some file systems have no locks: there nothing left behind is removed, either.
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return beside, descriptor
        os.close(descriptor)  # It was taken for one left behind before it was locked.


def remove_left_behind(folder: Path, prefix: str) -> None:
    """Remove the temporary files with a prefix in a folder whose writers are dead, as far as locks tell."""
    for beside in folder.glob(f"{glob.escape(prefix)}{'[0-9a-f]' * 16}{_SUFFIX}"):
        with suppress(OSError):
            descriptor = os.open(beside, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                beside.unlink()
            finally:
                os.close(descriptor)


def name_of_temporary(temporary: str) -> str | None:
    """Return the part of an AtomicFile's temporary name before the random one, without dots; None: it is not one."""
    found = _TEMPORARY.fullmatch(temporary)
    return None if found is None else found[1]


def _prefix(path: Path) -> str:
    return f".{path.name[:MOST_LETTERS]}."


def flush_to_disk(path: Path) -> None:
    """Write a file, or the names of a folder, to the disk, so that a power cut does not take them back."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
