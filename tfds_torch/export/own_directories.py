"""check_is_not_read: a dataset is never written to by its own export."""

import os
from collections.abc import Iterable
from pathlib import Path

from tfds_torch.errors import ConfigError
from tfds_torch.export.samples import ParserSamples, SampleSource
from tfds_torch.parsers.tfds.parser_tfds import ParserTfds
from tfds_torch.storage.source import is_local

_Identity = tuple[int, int]
"""Device and number of a file or folder, whatever path leads to it."""


def check_is_not_read(samples: SampleSource, path: Path, is_folder: bool = False) -> None:
    """Raises ConfigError where an export to a path, of a file or of a folder of shards, would write to what it reads.

    Of a TFDS dataset, that is everything in its directory; of an image folder, everything in its root; of files, such
    as tars, these and, for a file, others of their form beside them; for a folder, the one that they are in.
    """
    place = Path(os.path.realpath(path))
    own = _identity(place)
    files = {one for one in samples.paths if is_local(one)}
    # Of links, the folders that they lead to as well.
    folders = {os.path.dirname(one) for one in files}
    folders |= {os.path.dirname(os.path.realpath(one)) for one in files if os.path.islink(one)}
    directories = _identities(_dataset_directories(samples, folders))
    for folder in (place, *place.parents):
        if (identity := _identity(folder)) in directories:
            raise ConfigError(
                f"{path} is in {directories[identity]}, the directory of {samples.name}, which is the source of this "
                f"export: nothing there is written to. Choose a path outside of it."
            )
    if own is not None and own in _identities(folders if is_folder else files):
        what = "another folder for the shards" if is_folder else "another path for the file that is written"
        raise ConfigError(f"{path} is the source of this export: choose {what}.")
    is_like_them = place.suffix == ".tar" and _identity(place.parent) in _identities(folders)
    if not is_folder and own is not None and is_like_them:
        raise ConfigError(
            f"{path} is a tar beside those of {samples.name}, which is exported: choose another path for the file that "
            f"is written."
        )


def _dataset_directories(samples: SampleSource, folders: Iterable[str]) -> set[str]:
    """Returns the directories that a dataset has for itself."""
    found = {folder for folder in folders if os.path.isfile(os.path.join(folder, "dataset_info.json"))}
    parser = samples.parser if isinstance(samples, ParserSamples) else None
    if isinstance(parser, ParserTfds) and is_local(str(parser.data_dir)):
        found.add(str(parser.data_dir))
    return found


def _identities(paths: Iterable[str]) -> dict[_Identity | None, str]:
    found = {_identity(path): path for path in paths}
    found.pop(None, None)
    return found


def _identity(path: str | Path) -> _Identity | None:
    try:
        status = os.stat(path)
    except (OSError, ValueError):  # ValueError: a null character.
        return None
    return status.st_dev, status.st_ino
