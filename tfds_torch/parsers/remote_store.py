"""The object store of a parser whose files have URLs, and which URLs those are."""

import hashlib
import importlib.util
import os
import re
import weakref
from collections.abc import Sequence
from dataclasses import fields

from tfds_torch.engines.options import ReadOptions
from tfds_torch.errors import ConfigError
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.object_files import ObjectFiles
from tfds_torch.storage.open_files import ProcessLock
from tfds_torch.storage.remote.options import RemoteOptions
from tfds_torch.storage.remote.store import ObjectStore
from tfds_torch.storage.remote.urls import SCHEMES, is_object_url, split, without_secrets
from tfds_torch.storage.shard_files import LOCAL, ShardFiles

_OF_CLIENTS = ("AWS_", "AZURE_", "GOOGLE_", "SSL_", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
"""Beginnings of the names of environment variables that a client of stores reads."""

_stores: "weakref.WeakValueDictionary[str, ObjectStore]" = weakref.WeakValueDictionary()
"""Parsers of a process share a store, and so one fetcher and its connections."""
_lock = ProcessLock()
_Path = str | os.PathLike[str]

_STREAM_MODES = ("files", "examples")
_LONGEST_URL = 8192
_scheme_of = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*)://").match
_COPY_COMMANDS = {
    "abfs": "az storage blob download-batch --source <container> --destination <a local folder>",
    "hf": "hf download <repository> --repo-type dataset --local-dir <a local folder>",
    "hdfs": "hdfs dfs -get {url} <a local folder>",
}
"""Scheme -> the usual command that copies a folder from a store of this scheme."""


def open_store(paths: Sequence[object], remote: RemoteOptions | None, read: ReadOptions) -> ObjectStore | None:
    """Return the store of a parser's files, or None if they are local or tensorflow streams them.

    Args:
        paths: the paths and URLs that the parser was given.
        remote: how objects are fetched; the default is RemoteOptions().
        read: how examples are read.

    Raises:
        ConfigError: a URL does not name an object; or a store is needed, and obstore is not installed, or the read mode
            streams files and tensorflow does not open their scheme.
    """
    if remote is not None and not isinstance(remote, RemoteOptions):
        raise ConfigError(f"remote={quoted(remote)} must be RemoteOptions, such as RemoteOptions(max_bytes=10**11).")
    urls = [str(path) for path in paths if is_object_url(path)]
    if not urls:
        return None
    url = urls[0]
    if len(url) > _LONGEST_URL:
        raise ConfigError(f"{quoted(url)} has {len(url):,} characters, and {_LONGEST_URL:,} is the most of a URL.")
    for one in urls:
        split(one)  # It raises before a process starts.
    is_opened_by_tensorflow = url.startswith("gs://")
    secret = next((one for one in urls if without_secrets(one) != one), None)
    if secret is not None:
        raise ConfigError(
            f"{without_secrets(secret)} has a query, a user name or a password, which names and messages would "
            f"show. Pass what it is signed with as RemoteOptions(storage_options=...), or in the environment."
        )
    if read.mode in _STREAM_MODES:
        if is_opened_by_tensorflow:
            return None
        raise ConfigError(
            f"{without_secrets(url)}: read mode {read.mode!r} streams files by tensorflow, which opens no URLs of this "
            f"scheme. Use mode 'index' or 'auto'."
        )
    if importlib.util.find_spec("obstore") is None:
        if is_opened_by_tensorflow and read.mode == "auto" and remote is None:
            return None
        raise ConfigError(
            f"{without_secrets(url)} is read through obstore, which is not installed. Install it with "
            f"`pip install 'tfds_torch[remote]'`."
        )
    return _shared_store(remote or RemoteOptions())


def _shared_store(options: RemoteOptions) -> ObjectStore:
    """Return this process's store for some options and the environment, which has credentials and endpoints."""
    environment = {name: value for name, value in os.environ.items() if name.upper().startswith(_OF_CLIENTS)}
    own = {one.name: getattr(options, one.name) for one in fields(options)} | {"cache_dir": options.folder}
    own["storage_options"] = sorted((options.storage_options or {}).items(), key=str)
    key = hashlib.blake2b(repr((os.getpid(), own, sorted(environment.items()))).encode()).hexdigest()  # No secrets.
    with _lock:
        store = _stores.get(key)
        if store is None:
            store = _stores[key] = ObjectStore(options)
            store.begin()
        return store


def open_files(
    paths: Sequence[str], remote: RemoteOptions | None, read: ReadOptions
) -> tuple[tuple[str, ...], ShardFiles]:
    """Return the paths or URLs of a parser's files, and where they lie.

    Raises:
        ConfigError: some files are local and others are not; or `open_store` raises it.
    """
    store = open_store(paths, remote, read)
    if store is None:
        return tuple(paths), LOCAL
    local = next((path for path in paths if not is_object_url(path)), None)
    if local is not None:
        raise ConfigError(f"{quoted(local)} is a file of this machine, and others are URLs: give one kind.")
    return tuple(paths), ObjectFiles(store)


def open_dataset_store(
    root: _Path | Sequence[_Path] | None,
    name: _Path | None,
    remote: RemoteOptions | None = None,
    read: ReadOptions = ReadOptions(),
) -> ObjectStore | None:
    """Return the store of a dataset that has a URL, as `open_store` does; its fetcher starts in the background.

    Args:
        root: as ParserTfds takes it, or several of these.
        name: as ParserTfds takes it.
        remote: how objects are fetched; the default is RemoteOptions().
        read: how examples are read.

    Raises:
        ConfigError: no dataset can be opened from a URL; or `open_store` raises it.
    """
    roots = list(root) if isinstance(root, list | tuple) else [root]
    for argument, path in (*(("root", one) for one in roots), ("name", name)):
        if isinstance(path, str | os.PathLike):
            _check_url(argument, os.fspath(path))
    return open_store((*roots, name), remote, read)


def _check_url(argument: str, path: str) -> None:
    """Raise ConfigError for a URL from which no dataset can be opened, before any request to a network."""
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
