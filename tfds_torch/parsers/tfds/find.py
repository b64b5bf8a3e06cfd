"""Opening a prepared TFDS dataset from its files alone; it is prepared first where that is asked for."""

import contextlib
import importlib
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow_datasets as tfds
from filelock import FileLock

from tfds_torch.engines.tensorflow_runtime import quiet_tensorflow
from tfds_torch.errors import ConfigError, DatasetNotFoundError, TfdsTorchError
from tfds_torch.parsers.tfds import image_folder
from tfds_torch.parsers.tfds.connectors import plain_features, stored_specs
from tfds_torch.parsers.tfds.dataset import TfdsDataset
from tfds_torch.parsers.tfds.features_json import find_version_dir
from tfds_torch.parsers.tfds.info import Prepared, read_prepared
from tfds_torch.parsers.tfds.not_found import describe_not_found, describe_too_deep, nearest_names, root_above
from tfds_torch.parsers.tfds.remote_metadata import (
    MetadataObjects,
    describe_remote,
    fetch_prepared,
    find_version_url,
    has_dataset,
    look_at,
)
from tfds_torch.parsers.tfds.targets import check_class_names
from tfds_torch.runtime import subprocess_call
from tfds_torch.runtime.printable import QUOTED, quoted, shortened
from tfds_torch.storage.object_files import ObjectFiles
from tfds_torch.storage.remote.store import ObjectStore
from tfds_torch.storage.remote.urls import is_object_url, without_secrets
from tfds_torch.storage.shard_files import LOCAL, ShardFiles
from tfds_torch.storage.source import is_local, source_type

_logger = logging.getLogger(__name__)


def open_dataset(
    root: str | os.PathLike[str] | None,
    name: str | os.PathLike[str],
    *,
    download: bool,
    store: ObjectStore | None = None,
) -> TfdsDataset:
    """Returns a prepared dataset; no dataset code is imported, and no tensorflow.

    Args:
        root: as ParserTfds takes it.
        name: as ParserTfds takes it.
        download: whether to prepare what is not there.
        store: where a root or name that is a URL lies; None: tensorflow reads it.

    Raises:
        ConfigError: the name has not the form of one, or the dataset is stored in a format that is not read.
        DatasetNotFoundError: there is no such dataset, or it cannot be read.
    """
    if not isinstance(name, str | os.PathLike):
        raise ConfigError(f"name={quoted(name)} must be a dataset's name, or the path of a version directory.")
    if store is not None and is_object_url(os.fspath(name)):
        return _fetch_dataset(MetadataObjects(store), os.fspath(name), os.fspath(name))[0]
    if store is None and _is_version_directory(name):
        return _dataset_in(name, name)
    try:
        parsed, arguments = tfds.core.naming.parse_builder_name_kwargs(os.fspath(name))
    except ValueError:
        near = nearest_names(os.fspath(name), registered_names())
        hint = f" The nearest names are: {', '.join(near)}." if near else ""
        raise ConfigError(
            f"The dataset name {quoted(os.fspath(name))} does not have the form name, name/config, name:version or "
            f"name/config:version, and it is not a directory with a dataset_info.json.{hint}"
        ) from None
    if store is not None and root is not None:
        return _open_remote(
            MetadataObjects(store), os.fspath(root), os.fspath(name), str(parsed), arguments, download=download
        )
    root = None if root is None else _absolute(root)
    if root is not None and _is_version_directory(root):
        return _dataset_at(root, os.fspath(name), str(parsed), arguments)
    dataset = _find_prepared(root, str(parsed), arguments)
    if dataset is None and str(parsed) == image_folder.NAME:
        return image_folder.open_image_folder(root, arguments, download=download)
    if dataset is None and (above := root_above(str(parsed), _data_dir(root))) is not None:
        raise DatasetNotFoundError(describe_too_deep(os.fspath(name), _data_dir(root), above))
    if dataset is None and download:
        _prepare(root, os.fspath(name), str(parsed))
        dataset = _find_prepared(root, str(parsed), arguments)
    if dataset is None:
        message = describe_not_found(os.fspath(name), _data_dir(root), registered_names(), arguments)
        raise DatasetNotFoundError(message)
    return dataset


def registered_names() -> list[str]:
    """Returns the names of the datasets that TFDS knows how to build."""
    # Community datasets are listed by a server: asking it would load tensorflow and wait for the network.
    return list(tfds.list_builders(with_community_datasets=False))


def _open_remote(
    objects: MetadataObjects, root: str, name: str, parsed_name: str, arguments: dict[str, Any], *, download: bool
) -> TfdsDataset:
    where = without_secrets(root)
    if download:
        raise ConfigError(f"download=True prepares a dataset on this machine, and the root is {where}: leave it out.")
    if parsed_name == image_folder.NAME:
        raise ConfigError(
            f"{image_folder.NAME}: the root {where} is remote, and only folders of this machine can be listed."
        )
    look_at(objects, root, parsed_name, arguments)
    if has_dataset(objects, root):
        dataset, prepared = _fetch_dataset(objects, root, root)
        _check_is(prepared, where, name, parsed_name, arguments)
        return dataset
    found = _guard(lambda: find_version_url(objects, root, parsed_name, arguments), name, where, is_search=True)
    if found is None:
        objects.check_refused()
        raise DatasetNotFoundError(describe_remote(objects, root, parsed_name, arguments))
    return _fetch_dataset(objects, found, name)[0]


def _fetch_dataset(objects: MetadataObjects, url: str, asked: str) -> tuple[TfdsDataset, Prepared]:
    prepared, mirror = _guard(lambda: fetch_prepared(objects, url), asked, without_secrets(url))
    files = ObjectFiles(objects.store, is_doubtful=not objects.are_versioned)
    return _dataset_of(prepared, url.rstrip("/"), files, mirror), prepared


def _dataset_at(root: str, name: str, parsed_name: str, arguments: dict[str, Any]) -> TfdsDataset:
    prepared: Prepared = _guard(lambda: read_prepared(root), root, root)
    _check_is(prepared, root, name, parsed_name, arguments)
    return _dataset_of(prepared, root)


def _check_is(prepared: Prepared, root: str, name: str, parsed_name: str, arguments: dict[str, Any]) -> None:
    """Raises DatasetNotFoundError where a root is the version directory of another dataset than the one asked for."""
    found = {"config": prepared.config_name, "version": prepared.version}
    if parsed_name != prepared.name or any(found.get(key) != value for key, value in arguments.items()):
        raise DatasetNotFoundError(
            f"The root {root} is the version directory of {prepared.full_name}, which is not {quoted(name)}."
        )


def _find_prepared(root: str | None, name: str, arguments: dict[str, Any]) -> TfdsDataset | None:
    try:
        found = _guard(lambda: find_version_dir(name, root, **arguments), name, root or _data_dir(None), is_search=True)
    except tfds.core.DatasetNotFoundError:
        return None
    return None if found is None else _dataset_in(found, name)


def _dataset_in(version_dir: str | os.PathLike[str], asked: str | os.PathLike[str]) -> TfdsDataset:
    directory = _absolute(version_dir)
    return _dataset_of(_guard(lambda: read_prepared(directory), asked, directory), directory)


def _dataset_of(
    prepared: Prepared, directory: str, files: ShardFiles = LOCAL, mirror: str | None = None
) -> TfdsDataset:
    name, file_format = prepared.full_name, prepared.file_format
    features = plain_features(prepared.features)
    try:
        check_class_names(features)
    except ValueError as error:
        raise DatasetNotFoundError(f"{name} in {directory} is damaged: {error} Prepare it again.") from None
    try:
        source_type(file_format)
    except ConfigError as error:
        raise ConfigError(f"{name} in {directory}: {error}") from None
    specs = stored_specs(prepared.features)
    return TfdsDataset(name, directory, features, specs, prepared.splits, file_format, files=files, mirror=mirror)


def _guard(
    load: Callable[[], Any], asked: str | os.PathLike[str], where: str | os.PathLike[str], *, is_search: bool = False
) -> Any:
    """Returns what `load` does; TFDS reads its metadata unchecked, so that anything may come out of a damaged file.

    A search reads none of it but the name of a default config: what else it raises is of its surroundings.
    """
    try:
        with contextlib.nullcontext() if is_local(os.fspath(where)) else quiet_tensorflow():
            return load()
    except (tfds.core.DatasetNotFoundError, ImportError, TfdsTorchError):
        raise
    except Exception as error:
        first_line = shortened((str(error).splitlines() or [""])[0], 2 * QUOTED)
        what = f"The dataset {quoted(os.fspath(asked))} under {os.fspath(where)}"
        reason = f"{type(error).__name__}: {first_line}"
        if isinstance(error, OSError | MemoryError) or type(error).__module__.startswith("tensorflow."):
            raise DatasetNotFoundError(f"{what} cannot be read ({reason}).") from None
        if isinstance(error, json.JSONDecodeError | UnicodeDecodeError) and is_search:
            raise DatasetNotFoundError(
                f"{what} cannot be looked for: its .config/metadata.json, which names the default config, is damaged "
                f"({reason}). Ask for {quoted(f'{asked}/<config>')}, or prepare it again."
            ) from error
        if is_search:
            raise DatasetNotFoundError(f"{what} cannot be looked for ({reason}).") from error
        raise DatasetNotFoundError(
            f"{what} cannot be opened: its dataset_info.json or features.json is damaged ({reason}). Prepare it again."
        ) from error


def _prepare(root: str | None, name: str, registered_name: str) -> None:
    """Downloads and builds a dataset, in one process however many ask for it at the same time."""
    if registered_name not in registered_names():
        return  # Said with the nearest names by the caller.
    data_dir = _data_dir(root)
    module = tfds.builder_cls(registered_name).__module__
    lock_name = "".join(letter if letter.isalnum() else "_" for letter in name)
    _logger.warning("Preparing %s under %s, or waiting for the process that does.", name, data_dir)
    lock = FileLock(data_dir / f".{lock_name}.prepare.lock")
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except OSError as error:
        raise DatasetNotFoundError(
            f"download=True: {quoted(name)} is not prepared under {data_dir}, and cannot be prepared there: "
            f"{error.strerror or error} ({error.filename or data_dir}). Give a root that can be written to; or prepare "
            f"it on another disk (tfds build {name} --data_dir=...), and open it there or copy it here."
        ) from error
    try:
        subprocess_call.call(_download_and_prepare, module, name, str(data_dir))
    finally:
        lock.release()


def _download_and_prepare(module: str, name: str, data_dir: str) -> None:
    with quiet_tensorflow():
        importlib.import_module(module)  # Registers datasets that TFDS itself does not know.
        tfds.builder(name, data_dir=data_dir).download_and_prepare()  # Returns at once where it is prepared.


def _data_dir(root: str | None) -> Path:
    return Path(_absolute(root if root is not None else tfds.core.constants.DATA_DIR))


def _absolute(path: str | os.PathLike[str]) -> str:
    """Returns a path that stays right when the process changes its directory; a URL as it is."""
    path = os.path.expanduser(os.fspath(path))
    return os.path.abspath(path) if is_local(path) else path


def _is_version_directory(path: str | os.PathLike[str]) -> bool:
    return os.path.isfile(os.path.join(path, "dataset_info.json"))  # Unlike Path's, quiet where one may not look.
