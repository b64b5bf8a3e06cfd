"""Datasets that are named by a path, and are one split: a `.beton` file, or WebDataset's tars."""

from pathlib import Path
from typing import Any

from tfds_torch.errors import ConfigError, DatasetNotFoundError, ShardError
from tfds_torch.parsers.beton import ParserBeton
from tfds_torch.parsers.webdataset import ParserWebDataset
from tfds_torch.parsers.webdataset_fields import DEFAULT_EXTENSIONS
from tfds_torch.runtime.arguments import did_you_mean
from tfds_torch.storage.remote.urls import is_object_url
from tfds_torch.storage.webdataset.shard_paths import expand_urls, look_at, shard_paths

_BETON, _TAR = ".beton", ".tar"
_COMPRESSED_TARS = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")


def is_one_split(name: str) -> bool:
    """Return whether a name is the path of a `.beton` file or of tars, which have no splits to choose from."""
    return is_beton(name) or is_tars(name)


def is_beton(name: str) -> bool:
    """Return whether a name is the path of a `.beton` file."""
    return name.endswith(_BETON)


def is_tars(name: str) -> bool:
    """Return whether a name is a path of tars, or the first of several is: `{a,b}.tar`, `{a.tar,b.tar}`, `a.tar::b`."""
    try:
        name = next(expand_urls(name), name)
    except ConfigError:  # Braces that are not closed: opening the tars reports them.
        pass
    return name.lower().endswith((_TAR, *_COMPRESSED_TARS))


def open_one_split(name: str, **arguments: Any) -> ParserBeton | ParserWebDataset:
    """Return the parser of such a path.

    Args:
        name: a name for which `is_one_split` is true.
        arguments: as ParserTfds takes them, except those that only a dataset of TFDS has. For tars, an `image_key` or
            `target_key` that is not the usual one is an extension, and `missing` is that of ParserWebDataset.

    Raises:
        ConfigError: an argument cannot work.
        DatasetNotFoundError: there is no such file.
    """
    if isinstance(arguments["target_key"], tuple):
        what = "a .beton file" if is_beton(name) else "WebDataset's tars"
        raise ConfigError(f"target_key={arguments['target_key']}: the target of {what} is one field. Name one.")
    return _open_beton(name, arguments) if is_beton(name) else _open_tars(name, arguments)


def _open_beton(name: str, arguments: dict[str, Any]) -> ParserBeton:
    if is_object_url(name):
        return ParserBeton(name, **arguments)
    path = Path(name)
    _check_is_there(path)
    return ParserBeton(path, **arguments)


def _open_tars(name: str, arguments: dict[str, Any]) -> ParserWebDataset:
    paths = shard_paths(name)
    try:
        look_at([path for path in paths if not is_object_url(path)])
    except ShardError as error:  # A mistyped path is not a broken promise.
        raise DatasetNotFoundError(str(error)) from None
    keys = {"image": arguments.pop("image_key"), "label": arguments.pop("target_key")}
    if keys == {"image": "image", "label": "label"}:
        return ParserWebDataset(name, **arguments)
    extensions = {name: DEFAULT_EXTENSIONS[name] if key == name else key for name, key in keys.items() if key}
    return ParserWebDataset(name, extensions, **arguments)


def _check_is_there(path: Path) -> None:
    try:
        is_there = path.is_file()
    except OSError as error:  # No permission, or too long a name.
        raise DatasetNotFoundError(f"The file {str(path)!r} cannot be looked at: {error.strerror}.") from None
    if not is_there:
        there = sorted(found.name for found in path.parent.glob(f"*{path.suffix}"))
        hint = " Wildcards are not expanded: write a-{000..099}.tar." if "*" in path.name else ""
        raise DatasetNotFoundError(f"There is no file {str(path)!r}.{hint or did_you_mean(path.name, there)}")
