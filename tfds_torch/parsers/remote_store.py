"""The object store of a parser whose files have URLs."""

import hashlib
import importlib.util
import os
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
from tfds_torch.storage.remote.urls import is_object_url, split, without_secrets
from tfds_torch.storage.shard_files import LOCAL, ShardFiles

_OF_CLIENTS = ("AWS_", "AZURE_", "GOOGLE_", "SSL_", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
"""How the names of environment variables begin that a client of stores reads."""

_stores: "weakref.WeakValueDictionary[str, ObjectStore]" = weakref.WeakValueDictionary()
"""Parsers of a process share a store, and so one fetcher and its connections."""
_lock = ProcessLock()

_STREAM_MODES = ("files", "examples")
_LONGEST_URL = 8192


def open_store(paths: Sequence[object], remote: RemoteOptions | None, read: ReadOptions) -> ObjectStore | None:
    """Returns the store of a parser's files; None: they are local, or tensorflow is to stream them.

    Args:
        paths: the paths and URLs that the parser was given.
        remote: how objects are fetched; None: the defaults.
        read: how examples are read.

    Raises:
        ConfigError: a URL is not that of an object; or a store is needed, and obstore is not installed or a mode was
            asked for that streams files of schemes which tensorflow does not open.
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
    """Returns the store of this process for some options and the environment, which has credentials and endpoints."""
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
    """Returns the paths or URLs of a parser's files, and where they lie.

    Raises:
        ConfigError: some files are local and others are not; or as `open_store` raises it.
    """
    store = open_store(paths, remote, read)
    if store is None:
        return tuple(paths), LOCAL
    local = next((path for path in paths if not is_object_url(path)), None)
    if local is not None:
        raise ConfigError(f"{quoted(local)} is a file of this machine, and others are URLs: give one kind.")
    return tuple(paths), ObjectFiles(store)
