"""Finding a dataset by its root and name, of this machine or at a URL, and preparing one that is not there."""

import importlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import Any

import tensorflow_datasets as tfds
from filelock import FileLock
from tensorflow_datasets.core import constants, registered
from tensorflow_datasets.core.utils import file_utils

from tfds_torch.engines.tensorflow_runtime import quiet_tensorflow
from tfds_torch.errors import ConfigError, DatasetNotFoundError, ShardError, TfdsTorchError
from tfds_torch.parsers.tfds.folder import (
    FEATURES,
    INFO,
    LABELS,
    DamagedError,
    Folder,
    UnreadableError,
    folder_at,
    one_line,
)
from tfds_torch.parsers.tfds.info import (
    IMAGE_FOLDER,
    IMAGE_FOLDER_VERSION,
    DatasetInfo,
    list_images,
    read_info,
)
from tfds_torch.parsers.tfds.not_found import describe_not_found, nearest_names, root_above
from tfds_torch.runtime import subprocess_call
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.map_style.image_folder import LAYOUT
from tfds_torch.storage.remote.store import ObjectStore, RefusedError, UnlistedError

_logger = logging.getLogger(__name__)
_Path = str | os.PathLike[str]


@dataclass
class _Asked:
    """A dataset's name as it was asked for, and the obstacles that were met in the search for it.

    Attributes:
        text: the whole name, for messages.
        name: the name of the dataset.
        arguments: `config` and `version`, as far as they were named; a version may have stars.
        refused: the errors of files that cannot be looked at, which are raised if nothing is found.
        empty: the folder of the version asked for, where it holds no dataset, and the other versions beside it.
    """

    text: str
    name: str
    arguments: Mapping[str, Any]
    refused: list[TfdsTorchError] = field(default_factory=list)
    empty: tuple[Folder, Sequence[str]] | None = None

    @property
    def config(self) -> str | None:
        """The config that was named."""
        return str(self.arguments["config"]) if self.arguments.get("config") else None

    @property
    def version(self) -> str | None:
        """The version that was named, or a pattern of it."""
        return str(self.arguments["version"]) if self.arguments.get("version") else None

    @property
    def exact(self) -> str | None:
        """The version that was named, without stars."""
        return self.version if self.version is not None and tfds.core.Version.is_valid(self.version) else None

    def has(self, folder: Folder, file: str = FEATURES) -> bool:
        """Return whether a folder has a file; note the error where it cannot be looked at."""
        folder.expect([INFO, FEATURES])
        try:
            return folder.read(file) is not None
        except DamagedError:
            return True  # Reading it raises the error.
        except (UnreadableError, RefusedError) as error:
            self.refused.append(error)
            return False

    def check_refused(self) -> None:
        """Raise the error of a file that could not be looked at; of several errors, the one nearest to a dataset."""
        if not self.refused:
            return
        error = max(self.refused, key=lambda one: len(str(one)))  # Its path is the longest.
        if isinstance(error, ShardError):
            raise error
        raise UnreadableError(f"The dataset {quoted(self.text)} was not found, and not all could be looked at: {error}")


def open_dataset(root: _Path | None, name: _Path, *, download: bool, store: ObjectStore | None = None) -> DatasetInfo:
    """Return a prepared dataset; no tensorflow is imported for it.

    Args:
        root: as ParserTfds takes it.
        name: as ParserTfds takes it.
        download: whether to prepare a dataset that is missing.
        store: reads the objects of a root or name that is a URL; without one, tensorflow does.

    Raises:
        ConfigError: the name does not have a valid form, or the dataset is stored in a format that is not read.
        DatasetNotFoundError: there is no such dataset, or it cannot be opened.
        ShardError: an object store refuses a file, or does not answer.
    """
    if not isinstance(name, str | os.PathLike):
        raise ConfigError(f"name={quoted(name)} must be a dataset's name, or the path of a version directory.")
    text = os.fspath(name)
    if "://" in text or os.path.isfile(os.path.join(text, INFO)):  # Unlike Path's, quiet where one may not look.
        return read_info(folder_at(text, store))
    try:
        parsed, arguments = tfds.core.naming.parse_builder_name_kwargs(text)
    except ValueError:
        folder_at(text).read(INFO)  # It raises where a version directory may not be looked into.
        near = nearest_names(text, registered_names())
        hint = f" The nearest names are: {', '.join(near)}." if near else ""
        raise ConfigError(
            f"The dataset name {quoted(text)} does not have the form name, name/config, name:version or "
            f"name/config:version, and it is not a directory with a dataset_info.json.{hint}"
        ) from None
    asked = _Asked(text, str(parsed), arguments)
    place = None if root is None else folder_at(os.fspath(root), store)
    if place is not None and not place.is_local:
        _check_far(asked, place, download)
    if place is not None and asked.has(place, INFO):
        return _check_is(asked, place, read_info(place))
    found = _find(asked, place)
    if found is None and asked.name == IMAGE_FOLDER:
        return _open_image_folder(asked, place, download)
    main = place or folder_at(constants.DATA_DIR)
    if found is None and main.is_local:
        if (above := root_above(asked.name, main.path)) is not None:
            raise DatasetNotFoundError(_describe_too_deep(asked, main.path, above))
        if download and asked.name in registered_names():
            _prepare(asked, main.path)
            found = _find(asked, place)
    if found is None:
        asked.check_refused()
        raise DatasetNotFoundError(
            describe_not_found(asked.text, asked.name, asked.arguments, main, registered_names()) + _hint_of(asked)
        )
    return read_info(found)


def registered_names() -> list[str]:
    """Return the names of the datasets that TFDS knows how to build."""
    # Community datasets are listed by a server: asking it would load tensorflow and wait for the network.
    return list(tfds.list_builders(with_community_datasets=False))


def _check_far(asked: _Asked, place: Folder, download: bool) -> None:
    """Raise ConfigError for options that need a local folder, and ask a store for all likely files at once."""
    if download:
        raise ConfigError(f"download=True prepares a dataset on this machine, and the root is {place}: leave it out.")
    if asked.name == IMAGE_FOLDER:
        raise ConfigError(
            f"{IMAGE_FOLDER}: the root {place} is remote, and only folders of this machine can be listed."
        )
    files = [INFO, FEATURES]
    if asked.exact is not None:
        folder = "/".join(filter(None, (asked.name, asked.config, asked.exact)))
        files += [f"{folder}/{file}" for file in (INFO, FEATURES, LABELS)]
    place.expect(files)


def _check_is(asked: _Asked, place: Folder, info: DatasetInfo) -> DatasetInfo:
    """Return the dataset of a root; raise where it is not the dataset asked for."""
    found = {"config": info.config, "version": info.version}
    if asked.name != info.base_name or any(found.get(key) != value for key, value in asked.arguments.items()):
        raise DatasetNotFoundError(
            f"The root {place} is the version directory of {info.name}, which is not {quoted(asked.text)}."
        )
    return info


# Versions


def _find(asked: _Asked, root: Folder | None) -> Folder | None:
    """Return the version directory of a dataset, where TFDS finds it; None if there is none.

    Raises:
        ConfigError: it is in several of TFDS's data directories; or a web server lists no versions.
        DatasetNotFoundError: its default config cannot be told.
        ShardError: its versions cannot be listed.
    """
    if not set(asked.arguments) <= {"config", "version"} or ":" in asked.name:
        return None  # Namespaces and the arguments of builders are known to code alone.
    roots = [root] if root is not None else [folder_at(os.fspath(one)) for one in file_utils.list_data_dirs()]
    found = [folder for one in roots if (folder := _find_below(asked, one)) is not None]
    if len(found) > 1:
        raise ConfigError(
            f"The dataset {quoted(asked.text)} is in several of TFDS's data directories: {', '.join(map(str, found))}. "
            f"Give root, one of {', '.join(map(str, roots))}."
        )
    return found[0] if found else None


def _find_below(asked: _Asked, root: Folder) -> Folder | None:
    """Return the version directory below a root: in the default config where none is named, of the highest version."""
    above, exact, config = root.below(asked.name), asked.exact, asked.config
    if exact is not None and asked.has(folder := above.below(*([config] if config else []), exact)):
        return folder
    if exact is None and not root.lists:
        asked.check_refused()
        raise ConfigError(
            f"{quoted(asked.text)} under {root}: a web server lists no folders, so that the version must be named: "
            f"{_with_version(asked)}, or the URL of the version directory as root."
        )
    default = config or _default_config(asked, above)
    if exact is not None:
        if default is None or default == config:
            return None
        folder = above.below(default, exact)
        return folder if asked.has(folder) else None
    below = above.below(default) if default else above
    versions = sorted(tfds.core.Version(one) for one in _listed(asked, below) if _is_version(one))
    fitting = [str(one) for one in versions if fnmatch(str(one), asked.version or "*")]
    if not fitting:
        return None
    highest = below.below(fitting[-1])
    if asked.has(highest):
        return highest
    named = f"{asked.name}/{default}" if default else asked.name
    asked.empty = highest, [f"{named}:{one}" for one in fitting[:-1]]
    return None


def _default_config(asked: _Asked, above: Folder) -> str | None:
    """Return the config of a dataset where none is named: that of its code, or the one that TFDS has noted."""
    if above.is_local:
        # Without folders of configs nothing else can be found, and the code of all datasets need not be imported.
        if all(map(_is_version, _listed(asked, above))):
            return None
        try:
            builder = registered.imported_builder_cls(asked.name)
        except Exception:  # There is none, or its code needs other packages.
            builder = None
        if builder is not None and builder.BUILDER_CONFIGS:
            return str(builder.default_builder_config.name)
    folder = above.below(".config")
    try:
        declared = json.loads(folder.read(constants.METADATA_FILENAME) or b"{}")
    except RefusedError:  # Where objects may not be listed, stores answer so for missing objects, too.
        return None
    except (ValueError, RecursionError) as error:
        raise DamagedError(
            f"The dataset {quoted(asked.text)} cannot be looked for: {constants.METADATA_FILENAME} in {folder}, which "
            f"names its default config, is damaged ({one_line(error)}). Ask for {quoted(f'{asked.name}/<config>')}, or "
            f"prepare it again."
        ) from None
    found = declared.get("default_config_name") if isinstance(declared, dict) else None
    return found if isinstance(found, str) and found else None


def _listed(asked: _Asked, folder: Folder) -> list[str]:
    """Return the folders of a dataset; an error says that naming the version avoids the listing."""
    try:
        return folder.folders()
    except UnlistedError as error:
        raise ShardError(
            f"{error} Or name the version, so that nothing has to be listed: {_with_version(asked)}."
        ) from None
    except UnreadableError as error:
        asked.refused.append(error)
        return []


def _with_version(asked: _Asked) -> str:
    return f"{quoted(f'{asked.name}:1.0.0')} or {quoted(f'{asked.name}/config:1.0.0')}"


def _is_version(name: str) -> bool:
    """Return whether a folder is that of a version; TFDS takes a line break, and digits of other scripts, too."""
    return tfds.core.Version.is_valid(name) and str(tfds.core.Version(name)) == name


def _hint_of(asked: _Asked) -> str:
    """Return a hint for the case that the folder of the highest version holds no dataset."""
    if asked.empty is None:
        return ""
    folder, others = asked.empty
    hint = f" {folder} is the highest version there, and has no {FEATURES}."
    return hint + (f" Name another version, such as: {quoted(others[-1])}." if others else "")


def _describe_too_deep(asked: _Asked, path: str, root: str) -> str:
    what = "the own folder of a dataset" if os.path.dirname(path) == root else "a config's folder of a dataset"
    return (
        f"The root {path} of dataset {quoted(asked.text)} is {what}, and a root is a folder above: it holds a folder "
        f"for each dataset. Give root={quoted(root)}."
    )


def _open_image_folder(asked: _Asked, place: Folder | None, download: bool) -> DatasetInfo:
    if place is None:
        raise ConfigError(f"{IMAGE_FOLDER} needs root: the folder that holds the splits. {LAYOUT}")
    if download:
        raise ConfigError(
            f"{IMAGE_FOLDER}: download=True, and there is nothing to download: its images are those in {place}."
        )
    if "config" in asked.arguments or not fnmatch(IMAGE_FOLDER_VERSION, asked.version or IMAGE_FOLDER_VERSION):
        what = ", ".join(f"{key} {quoted(value)}" for key, value in sorted(asked.arguments.items()))
        raise DatasetNotFoundError(
            f"{IMAGE_FOLDER} has no configs, and its only version is {IMAGE_FOLDER_VERSION}: asked for was {what}."
        )
    return list_images(place.path)


# Preparing


def _prepare(asked: _Asked, data_dir: str) -> None:
    """Download and build a dataset, in one process however many ask for it at the same time."""
    module = tfds.builder_cls(asked.name).__module__
    lock_name = "".join(letter if letter.isalnum() else "_" for letter in asked.text)
    _logger.warning("Preparing %s under %s, or waiting for the process that does.", asked.text, data_dir)
    lock = FileLock(os.path.join(data_dir, f".{lock_name}.prepare.lock"))
    try:
        os.makedirs(data_dir, exist_ok=True)
        lock.acquire()
    except OSError as error:
        raise DatasetNotFoundError(
            f"download=True: {quoted(asked.text)} is not prepared under {data_dir}, and cannot be prepared there: "
            f"{error.strerror or error} ({error.filename or data_dir}). Give a root that can be written to; or prepare "
            f"it on another disk (tfds.builder({asked.text!r}, data_dir=...).download_and_prepare()), and open it "
            f"there or copy it here."
        ) from error
    try:
        subprocess_call.call(_download_and_prepare, module, asked.text, data_dir)
    finally:
        lock.release()


def _download_and_prepare(module: str, name: str, data_dir: str) -> None:
    with quiet_tensorflow():
        importlib.import_module(module)  # Registers datasets that TFDS itself does not know.
        tfds.builder(name, data_dir=data_dir).download_and_prepare()  # Returns at once where it is prepared.
