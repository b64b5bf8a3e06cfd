"""Replacing a folder by another one: the old or the new one lies at its path, whole."""

import ctypes
import errno
import os
import shutil
import stat
import sys
from contextlib import suppress
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

from tfds_torch.errors import ConfigError
from tfds_torch.runtime.atomic_file import fsync_folder

MARKER = ".replaces"
"""A file of the new folder, from its first to its last moment beside the old one."""
_AT_CURRENT_FOLDER = -100
_EXCHANGE = 2
"""RENAME_EXCHANGE of Linux, and RENAME_SWAP of macOS."""
_UNAVAILABLE = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP)
_LONGEST_NAME_BYTES = 200


class AtomicFolder:
    """A folder that is written beside the one that it replaces, and put in its place when it is complete.

    The new folder is `.<name>.new`, and holds the file MARKER. One call of the system exchanges the two folders, and
    the old one then lies at that name. Where the system has no such call, two renames do it: the old folder becomes
    `.<name>.old`, and the new one takes its place. A kill between them leaves nothing at the path until `settle` does
    the second rename. The marker leaves the new folder when the old one is gone.

    A path that is a link stays one. The caller has a lock: one process at a time. `settle` needs none.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        name = self.path.name
        if len(os.fsencode(name)) > _LONGEST_NAME_BYTES:
            name = blake2b(os.fsencode(name), digest_size=16).hexdigest()
        self.new, self.old = (self.path.parent / f".{name}.{what}" for what in ("new", "old"))

    def check(self) -> None:
        """Raises ConfigError where the folder cannot be replaced; changes nothing."""
        parent = self.path.parent
        if os.path.ismount(self.path):
            raise ConfigError(
                f"{self.path} is a mount point, and a folder that is replaced is exchanged for a new one beside it: "
                f"choose a folder inside of it."
            )
        owners = {parent.stat().st_uid, self.path.stat().st_uid, 0}
        is_sticky = parent.stat().st_mode & stat.S_ISVTX and os.geteuid() not in owners
        if is_sticky or not os.access(parent, os.W_OK | os.X_OK):
            raise ConfigError(
                f"{self.path} cannot be replaced: the new folder is written beside it, and {parent} may not be written "
                f"to. Allow it, or choose another folder."
            )
        for beside in (self.new, self.old):
            if self._is_foreign(beside):
                raise ConfigError(
                    f"{self.path} cannot be replaced: {beside} is in the way, which was not left by an export that "
                    f"was ended. Move it, or remove it."
                )

    def settle(self) -> None:
        """Puts the new folder in its place if a kill came between the two renames; any process may do so."""
        if os.path.lexists(self.path) or not self.old.is_dir():
            return
        with suppress(FileNotFoundError):  # Another process was faster.
            os.rename(self.new if self._is_marked(self.new) else self.old, self.path)
            fsync_folder(self.path.parent)

    def begin(self, note: str) -> None:
        """Makes the new folder, or takes the one that an earlier process left; `note_of` returns the note."""
        self.new.mkdir(exist_ok=True)
        with open(self.new / MARKER, "wb", 0) as file:
            file.write(note.encode())
            os.fsync(file.fileno())

    def discard(self) -> None:
        """Removes the new folder, if it was begun."""
        if not self._is_marked(self.new):
            return
        for entry in list(os.scandir(self.new)):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            elif entry.name != MARKER:
                os.unlink(entry.path)
        os.unlink(self.new / MARKER)  # Last: without it, what is left there would be a foreign folder.
        os.rmdir(self.new)

    def put(self) -> None:
        """Puts the new folder in the place of the old one, also if the power fails afterwards.

        Raises:
            OSError: it cannot be put there, or not for good: `is_put` tells which.
        """
        status = self.path.stat()
        with suppress(PermissionError):
            os.chown(self.new, status.st_uid, status.st_gid)
        self.new.chmod(stat.S_IMODE(status.st_mode))
        fsync_folder(self.new)
        if not exchange(self.new, self.path):
            os.rename(self.path, self.old)
            try:
                self.settle()
            finally:
                if not self.is_put():
                    os.rename(self.old, self.path)
        fsync_folder(self.path.parent)

    def is_put(self) -> bool:
        """Whether the new folder is in its place, and the old one may still lie beside it."""
        return self._is_marked(self.path)

    def left(self) -> list[Path]:
        """Returns the folders beside it that were replaced; only where `is_put`."""
        return [beside for beside in (self.new, self.old) if beside.is_dir()]

    def note_of(self, folder: Path) -> str:
        """Returns the note of a folder, of `path` or `new`; empty: it has none."""
        try:
            return (folder / MARKER).read_text()
        except (OSError, ValueError):
            return ""

    def end(self) -> None:
        """Forgets the old folder, which was removed."""
        (self.path / MARKER).unlink(missing_ok=True)
        fsync_folder(self.path)  # Another new folder may be begun only when this one is known to be in its place.

    def _is_foreign(self, beside: Path) -> bool:
        if not os.path.lexists(beside) or (self.is_put() and not beside.is_symlink() and beside.is_dir()):
            return False
        if beside.is_symlink() or not beside.is_dir():
            return True
        return beside == self.old or not (self._is_marked(beside) or not os.listdir(beside))

    def _is_marked(self, folder: Path) -> bool:
        return not folder.is_symlink() and stat.S_ISREG(_mode(folder / MARKER))


def settle_folder(path: str | os.PathLike[str]) -> None:
    """Lets a reader find a folder whose replacement was killed between two renames; see `AtomicFolder.settle`."""
    with suppress(OSError, RuntimeError, ValueError):  # Without permission, or of no such path: the reader reports it.
        if not os.path.lexists(os.path.realpath(path)):
            AtomicFolder(Path(path)).settle()


def exchange(one: Path, other: Path) -> bool:
    """Exchanges two folders by one call of the system.

    Returns:
        False: the system, or the file system, has no such call; nothing was changed.
    """
    call = _exchanging_call()
    if call is None:
        return False
    if call(os.fsencode(one), os.fsencode(other)) == 0:
        return True
    number = ctypes.get_errno()
    if number in _UNAVAILABLE:
        return False
    raise OSError(number, os.strerror(number), str(one), None, str(other))


@cache
def _exchanging_call() -> Any:
    """Returns a function of two paths, which returns 0 or sets errno; None: the system has none."""
    try:
        library: Any = ctypes.CDLL(None, use_errno=True)
        call = library.renamex_np if sys.platform == "darwin" else library.renameat2
    except (OSError, AttributeError):
        return None
    call.restype = ctypes.c_int
    if sys.platform == "darwin":
        call.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint]
        return lambda one, other: call(one, other, _EXCHANGE)
    call.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    return lambda one, other: call(_AT_CURRENT_FOLDER, one, _AT_CURRENT_FOLDER, other, _EXCHANGE)


def _mode(path: Path) -> int:
    try:
        return path.lstat().st_mode
    except OSError:
        return 0
