"""URLs in the place of a dataset's root or name: which ones are read, and the store of those."""

import os
import re

from tfds_torch.engines.options import ReadOptions
from tfds_torch.errors import ConfigError
from tfds_torch.parsers.remote_store import open_store
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.remote.options import RemoteOptions
from tfds_torch.storage.remote.store import ObjectStore
from tfds_torch.storage.remote.urls import SCHEMES, split

_scheme_of = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*)://").match
_COPY_COMMANDS = {
    "abfs": "az storage blob download-batch --source <container> --destination <a local folder>",
    "hf": "hf download <repository> --repo-type dataset --local-dir <a local folder>",
    "hdfs": "hdfs dfs -get {url} <a local folder>",
}
"""Scheme -> the usual command that copies a folder from there."""


def open_dataset_store(
    root: str | os.PathLike[str] | None,
    name: str | os.PathLike[str],
    remote: RemoteOptions | None = None,
    read: ReadOptions = ReadOptions(),
) -> ObjectStore | None:
    """Returns the store of a dataset that has a URL; its fetcher starts in the background. None: see `open_store`.

    Args:
        root: as ParserTfds takes it.
        name: as ParserTfds takes it.
        remote: how objects are fetched; None: the defaults.
        read: how examples are read.

    Raises:
        ConfigError: a URL that no dataset is opened from; or as `open_store` raises it.
    """
    for argument, path in (("root", root), ("name", name)):
        if isinstance(path, str | os.PathLike):
            _check_url(argument, os.fspath(path))
    return open_store((root, name), remote, read)


def _check_url(argument: str, path: str) -> None:
    """Raises ConfigError for a URL that no dataset is opened from, before anything asks a network."""
    found = _scheme_of(path)
    mistyped = re.match(r"([A-Za-z0-9]+):[/\\]", path)
    if found is None and mistyped and mistyped[1].lower() in SCHEMES and not os.path.exists(path):
        raise ConfigError(f"{argument}={quoted(path)}: write {mistyped[1].lower()}:// with two slashes.")
    if found is None:
        return
    if found[1] in SCHEMES:
        try:
            split(path)
        except ConfigError as error:
            raise ConfigError(f"{argument}={error}") from None
        return
    scheme, given = found[1].lower(), f"{argument}={quoted(path)}"
    if scheme == "file":
        raise ConfigError(f"{given} is a URL of a local folder: give its path, without 'file://'.")
    if scheme in SCHEMES:
        raise ConfigError(f"{given}: write {scheme}:// in small letters.")
    command = _COPY_COMMANDS.get(scheme)
    url = quoted(path)[1:-1]
    how = f", for example with: {command.format(url=url)}" if command else ""
    raise ConfigError(
        f"{given}: a dataset is read from local folders and from URLs of {', '.join(SCHEMES)}, not from {scheme}:// "
        f"ones. Copy it to this machine{how}; or mount it as a local folder. Then give the local path. See "
        f"docs/remote-files.md."
    )
