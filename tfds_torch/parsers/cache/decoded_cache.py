"""DecodedCache: where a dataset's decoded images are kept."""

import os
from dataclasses import dataclass
from pathlib import Path

from tfds_torch.errors import ConfigError
from tfds_torch.runtime.arguments import check_integer
from tfds_torch.runtime.keyword_hints import explain_keywords
from tfds_torch.runtime.own_folder import cache_folder
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.beton.format import LARGEST_SIDE

SUFFIX = ".beton"

CACHED_MODES = ("RGB", "L")
"""Image modes that come out of three channels exactly as the files have them."""


@explain_keywords
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
            return cache_folder("decoded")
        return Path(os.path.abspath(os.path.expanduser(os.fspath(self.folder))))


def status_path(path: Path) -> Path:
    """Returns the file in which a cache's builder reports how far it is."""
    return path.with_suffix(".json")


def lock_path(path: Path) -> Path:
    """Returns the lock under which a cache is built."""
    return path.with_suffix(".lock")
