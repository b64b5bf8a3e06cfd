"""DecodedCache: where a dataset's decoded images are kept, which caches there are, and how they are deleted."""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import platformdirs
from filelock import Timeout

from tfds_torch.errors import ConfigError, ExportError, TfdsTorchError
from tfds_torch.parsers.cache.status import BUILDING, DAMAGED, FAILED, CacheStatus, read_status
from tfds_torch.plan.arguments import check_integer
from tfds_torch.runtime.own_files import ForeignFileError, check_own_file, check_own_folder, own_lock
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.beton.format import LARGEST_SIDE
from tfds_torch.storage.beton.head import read_head

SUFFIX = ".beton"

MAKE_OWN = (
    "Close it to others (chmod go-w) where it is yours, or name another folder: one that does not exist yet is made "
    "for you alone."
)
"""The advice about a folder that is not this user's own."""

CACHED_MODES = ("RGB", "L")
"""Image modes that come out of three channels exactly as the files have them."""


@dataclass(frozen=True)
class DecodedCache:
    """Lets a parser keep the decoded images of its split in a file, written once, and read them there.

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
            return platformdirs.user_cache_path("tfds_torch") / "decoded"
        return Path(os.path.abspath(os.path.expanduser(os.fspath(self.folder))))


@dataclass(frozen=True)
class CacheEntry:
    """A cache that is there.

    Attributes:
        path: path of its file; the one that it will have, where it is not complete.
        state: `complete`, `damaged`, `foreign` (another user may have written it, or it is a link), `building` (by a
            process that lives), `failed` (for lack of room, for example), or `unfinished` (its builder is gone).
        dataset: `name/config:version`; None: unknown, as are the following ones.
        split: the split expression that it was first built for.
        max_resolution: longest side in pixels; None also where images are as they are.
        num_examples: number of examples of the split.
        num_bytes: size of its files.
        last_used: when a parser opened it last, in seconds since 1970; None: never.
    """

    path: Path
    state: str
    dataset: str | None
    split: str | None
    max_resolution: int | None
    num_examples: int | None
    num_bytes: int
    last_used: float | None


def list_caches(folder: str | os.PathLike[str] | None = None) -> list[CacheEntry]:
    """Returns the caches of a folder, by dataset and split; none where the folder does not exist.

    Raises:
        ConfigError: the folder cannot be read, or is not this user's own.
    """
    entries = [_describe(path) for path in _cache_paths(DecodedCache(folder))]
    return sorted(entries, key=lambda entry: (entry.dataset or "", entry.split or "", entry.path))


def clear_caches(folder: str | os.PathLike[str] | None = None) -> list[CacheEntry]:
    """Deletes the caches of a folder, and what killed builders left, and returns them; none that is being built.

    A training that has one open goes on with it; workers that it starts afterwards read the original files.

    Raises:
        ConfigError: the folder cannot be read, or is not this user's own.
        ExportError: a file cannot be deleted; those that were deleted before are gone.
    """
    deleted = []
    for path in _cache_paths(DecodedCache(folder)):
        try:
            lock = own_lock(lock_path(path))
            lock.acquire(timeout=0)
        except Timeout:
            continue
        except OSError as error:
            raise ExportError(f"The caches in {path.parent} cannot be deleted: {error.strerror or error}.") from None
        try:
            entry = _describe(path, is_locked=True)
            for part in (path, status_path(path), *_unfinished(path), lock_path(path)):
                part.unlink(missing_ok=True)
            deleted.append(entry)
        except OSError as error:
            raise ExportError(f"{path} cannot be deleted: {error.strerror or error}.") from None
        finally:
            lock.release()
    return deleted


def status_path(path: Path) -> Path:
    """Returns the file in which a cache's builder reports how far it is."""
    return path.with_suffix(".json")


def lock_path(path: Path) -> Path:
    """Returns the lock under which a cache is built."""
    return path.with_suffix(".lock")


def _cache_paths(cache: DecodedCache) -> list[Path]:
    """Returns the places of all caches of a folder, whether their files are complete or not."""
    folder = cache.path.resolve()
    try:
        check_own_folder(folder, closes=cache.folder is None)
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    except ForeignFileError as error:
        raise ConfigError(f"The folder {folder} is not this user's own: {error.strerror}. {MAKE_OWN}") from None
    except OSError as error:
        raise ConfigError(f"The folder {folder} cannot be read: {error.strerror}.") from None
    stems = {Path(name).stem for name in names if _is_ours(name)}
    return [folder / f"{stem}{SUFFIX}" for stem in sorted(stems)]


def _is_ours(name: str) -> bool:
    """Whether a file belongs to a cache: `<dataset>-<16 hexadecimal digits>`, and one of three endings."""
    digits = Path(name).stem.rpartition("-")[2]
    is_named_so = len(digits) == 16 and not set(digits) - set("0123456789abcdef") and not name.startswith(".")
    return is_named_so and Path(name).suffix in (SUFFIX, ".json", ".lock")


def _unfinished(path: Path) -> Sequence[Path]:
    """Returns the files that a builder of a cache is writing, or has left."""
    return sorted(path.parent.glob(f".{path.name}.*.tmp"))


def _describe(path: Path, *, is_locked: bool = False) -> CacheEntry:
    status = read_status(status_path(path)) or CacheStatus()
    state, num_examples, last_used, parts = "unfinished", None, None, [status_path(path), *_unfinished(path)]
    dataset = status.dataset
    if os.path.lexists(path):
        parts.append(path)
        state, last_used = "complete", path.lstat().st_atime
        try:
            check_own_file(path)
            head = read_head(str(path))
            num_examples = head.layout.num_samples
            dataset = dataset or (head.manifest.facts.name if head.manifest is not None else None)
            state = "damaged" if status.phase == DAMAGED else state
        except OSError:
            state = "foreign"
        except TfdsTorchError:
            state = "damaged"
    if state != "complete" and status.phase in BUILDING and not is_locked and _is_held(path):
        state = "building"
    elif state == "unfinished" and status.phase == FAILED:
        state = "failed"
    return CacheEntry(
        path=path,
        state=state,
        dataset=dataset,
        split=status.split,
        max_resolution=status.max_resolution,
        num_examples=num_examples,
        num_bytes=sum(map(_size, parts)),
        last_used=last_used,
    )


def _is_held(path: Path) -> bool:
    try:
        check_own_file(lock_path(path))
        with own_lock(lock_path(path)).acquire(timeout=0):
            return False
    except Timeout:
        return True
    except OSError:
        return False


def _size(path: Path) -> int:
    with suppress(OSError):
        return path.lstat().st_size
    return 0
