"""The metadata of prepared datasets in object stores: found by URL, fetched, and read like that of a local one.

A version directory is found by its `dataset_info.json`. Folders are listed only where a name leaves something open.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import tensorflow_datasets as tfds
from tensorflow_datasets.core import constants
from tensorflow_datasets.core.features import feature as feature_lib

from tfds_torch.errors import ConfigError, DatasetNotFoundError, ShardError
from tfds_torch.parsers.tfds.features_json import load_class_names
from tfds_torch.parsers.tfds.info import Prepared, read_prepared
from tfds_torch.parsers.tfds.not_found import nearest_names
from tfds_torch.runtime.printable import quoted, shortened
from tfds_torch.storage.remote.store import ObjectStore, RefusedError, UnlistedError
from tfds_torch.storage.remote.urls import LISTED_SCHEMES, join, split, without_secrets

_INFO, _FEATURES = constants.DATASET_INFO_FILENAME, feature_lib.make_config_path("").name
_LABELS = "label.labels.txt"
"""What most datasets of classes have; which others there are, is known by the features only."""
_DEFAULT_CONFIG = (".config", constants.METADATA_FILENAME)
_SIDE_BY_SIDE = 8
_MOST_LISTED = 20


class MetadataObjects:
    """The small objects of a store that the opening of one dataset looks at; each is fetched once.

    Args:
        store: where they lie.

    Attributes:
        are_versioned: whether all answers had something that tells versions of an object apart.
    """

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self._contents: dict[str, bytes | None] = {}
        self._refused: dict[str, RefusedError] = {}
        self.are_versioned = True

    def read(self, urls: Sequence[str]) -> list[bytes | None]:
        """Returns the contents of objects, which are fetched side by side; None: there is none, or it is refused."""
        unknown = [url for url in dict.fromkeys(urls) if url not in self._contents]
        if unknown:
            with ThreadPoolExecutor(min(_SIDE_BY_SIDE, len(unknown)), "tfds_torch-metadata") as threads:
                self._contents |= dict(zip(unknown, threads.map(self._read, unknown), strict=True))
        return [self._contents[url] for url in urls]

    def check_refused(self, url: str | None = None) -> None:
        """Raises the error of an object that was refused; None: of any, for where nothing was found."""
        refused = [one for one in self._refused if url in (one, None)]
        if refused:
            told = max(refused, key=lambda one: (one.endswith(_INFO), len(one)))
            raise ShardError(
                f"{self._refused[told]} Where folders may not be listed, stores say the same of what is not there: "
                f"check the URL, the name and the version, too."
            )

    def _read(self, url: str) -> bytes | None:
        try:
            content, is_versioned = self.store.read_versioned(url)
            self.are_versioned &= is_versioned
            return content
        except RefusedError as error:
            self._refused[url] = error
            return None


def has_dataset(objects: MetadataObjects, url: str) -> bool:
    """Returns whether a URL is that of a version directory."""
    return objects.read([join(url, _INFO), join(url, _FEATURES)])[0] is not None


def look_at(objects: MetadataObjects, root: str, name: str, arguments: Mapping[str, Any]) -> None:
    """Fetches what tells whether a root is a version directory, and what a whole version below it holds, at once."""
    folders = [root]
    version, config = arguments.get("version"), arguments.get("config")
    if version is not None and "*" not in str(version):
        folders.append(join(root, name, *([config] if config else []), str(version)))
    objects.read([join(folder, file) for folder in folders for file in (_INFO, _FEATURES, _LABELS)])


def fetch_prepared(objects: MetadataObjects, url: str) -> tuple[Prepared, str]:
    """Fetches and reads the metadata of a version directory.

    Returns:
        The metadata, and the folder that the paths of its shards begin with in the place of the URL.

    Raises:
        ShardError: an object may not be read, or its store does not answer.
        DatasetNotFoundError: there is no `dataset_info.json`.
        ValueError: a file is damaged, or holds a value that cannot be.
    """
    with TemporaryDirectory(prefix="tfds_torch-") as name:
        return fetch_metadata(objects, url, Path(name)), name


def fetch_metadata(objects: MetadataObjects, url: str, folder: Path) -> Prepared:
    """Copies the metadata of a version directory into a folder, and returns it; see `fetch_prepared`."""
    there = _fetch(objects, url, [_INFO, _FEATURES], folder)
    if _FEATURES not in there:
        objects.check_refused(join(url, _FEATURES))
    if _INFO not in there:
        objects.check_refused(join(url, _INFO))
        raise DatasetNotFoundError(
            f"There is no dataset at {without_secrets(url)}: it has no {_INFO}. Give the folder "
            f"of a version, such as name/1.0.0."
        )
    prepared = read_prepared(folder)
    if _fetch(objects, url, list(_files_of(prepared.features, None)), folder):
        load_class_names(prepared.features, folder)
    return prepared


def find_version_url(objects: MetadataObjects, root: str, name: str, arguments: Mapping[str, Any]) -> str | None:
    """Returns the URL of a dataset's version directory below a root; None: there is none.

    As TFDS does locally, it takes the default config where none is named, and the highest version.

    Args:
        objects: of its store.
        root: URL of a TFDS data directory.
        name: name of the dataset.
        arguments: `config` and `version`, as far as they were named; a version may have stars.

    Raises:
        ConfigError: a plain web server, which lists nothing, and no whole version.
        DatasetNotFoundError: the highest of several versions is none.
        ShardError: the versions cannot be listed.
    """
    config, version = arguments.get("config"), arguments.get("version")
    version = None if version is None else str(version)
    above = join(root, name)
    is_whole = version is not None and tfds.core.Version.is_valid(version) and "*" not in version
    if is_whole and has_dataset(objects, exact := join(above, *([config] if config else []), str(version))):
        return exact
    if not is_whole and split(root)[0] not in LISTED_SCHEMES:
        objects.check_refused()
        raise ConfigError(
            f"{quoted(name)} under {without_secrets(root)}: a web server lists no folders, so that the version "
            f"must be named: {quoted(f'{name}:1.0.0')} or {quoted(f'{name}/config:1.0.0')}, or the URL of the version "
            f"directory as root."
        )
    if config is None:
        config = _default_config(objects, above)
        if is_whole:
            found = None if config is None else join(above, config, str(version))
            return found if found is not None and has_dataset(objects, found) else None
    below = above if config is None else join(above, config)
    if split(root)[0] not in LISTED_SCHEMES:
        return None
    versions = sorted(tfds.core.Version(one) for one in _folders_of(objects, below, name) if _is_version(one))
    fitting = [one for one in versions if version is None or one.match(version)]
    if not fitting:
        return None
    highest = join(below, str(fitting[-1]))
    if len(fitting) > 1 and not has_dataset(objects, highest):
        objects.check_refused(join(highest, _INFO))
        other = f"{name if config is None else f'{name}/{config}'}:{fitting[-2]}"
        raise DatasetNotFoundError(
            f"{without_secrets(highest)} is the highest version there, and has no {_INFO}. Name another version, such "
            f"as: {quoted(other)}."
        )
    return highest


def describe_remote(objects: MetadataObjects, root: str, name: str, arguments: Mapping[str, Any]) -> str:
    """Returns the message for a dataset that was not found: what was asked, what is there, what to do."""
    asked = f"{name}{''.join(f'/{arguments[key]}' if key == 'config' else '' for key in arguments)}"
    asked += f":{arguments['version']}" if arguments.get("version") else ""
    store = objects.store
    problem = f"There is no dataset {quoted(asked)} under {without_secrets(root)}."
    if split(root)[0] not in LISTED_SCHEMES:
        return f"{problem} There is no {without_secrets(join(root, name))}/.../{_INFO}: check the name and the version."
    try:
        there = [one for one in store.folders(root) if not one.startswith(".")]
        below = [one for one in store.folders(join(root, name)) if not one.startswith(".")] if name in there else []
    except UnlistedError as error:
        return f"{problem} What is there is not known: {error}"
    if name in there:
        return f"{problem} Configs and versions of {quoted(name)} there: {_listed(below)}."
    near = nearest_names(name, there)
    hint = f" The nearest names are: {', '.join(near)}." if near else ""
    found = f" Prepared there: {_listed(there)}." if there else " Nothing is there."
    return problem + hint + found


def _folders_of(objects: MetadataObjects, url: str, name: str) -> list[str]:
    """Returns the folders of a dataset; the error says that they need not be listed where the version is named."""
    try:
        return objects.store.folders(url)
    except UnlistedError as error:
        raise ShardError(
            f"{error} Or name the version, so that nothing has to be listed: {quoted(f'{name}:1.0.0')} or "
            f"{quoted(f'{name}/config:1.0.0')}."
        ) from None


def _is_version(name: str) -> bool:
    """Returns whether a folder is that of a version; TFDS takes a line break, and digits of other scripts, too."""
    return tfds.core.Version.is_valid(name) and str(tfds.core.Version(name)) == name


def _fetch(objects: MetadataObjects, url: str, names: Sequence[str], folder: Path) -> set[str]:
    """Writes small objects below a URL into a folder; returns the names of those that are there."""
    contents = objects.read([join(url, name) for name in names])
    there = {name: content for name, content in zip(names, contents, strict=True) if content is not None}
    for name, content in there.items():
        (folder / name).write_bytes(content)
    return set(there)


def _files_of(feature: Any, name: str | None) -> Iterator[str]:
    """Yields the names of the files that features keep their class names in."""
    if isinstance(feature, tfds.features.Sequence):
        yield from _files_of(feature.feature, name)
    elif isinstance(feature, tfds.features.FeaturesDict):
        for child, one in feature.items():
            yield from _files_of(one, feature_lib.convert_feature_name_to_filename(child, name))
    elif isinstance(feature, tfds.features.ClassLabel | tfds.features.LabeledImage):
        yield tfds.features.ClassLabel.get_names_filepath("", name).name


def _default_config(objects: MetadataObjects, dataset: str) -> str | None:
    (content,) = objects.read([join(dataset, *_DEFAULT_CONFIG)])
    try:
        declared = json.loads(content or b"{}")
    except ValueError:
        return None
    found = declared.get("default_config_name") if isinstance(declared, dict) else None
    return found if isinstance(found, str) and found else None


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_LISTED} others" if len(names) > _MOST_LISTED else ""
    return ", ".join(map(shortened, names[:_MOST_LISTED])) + more if names else "none"
