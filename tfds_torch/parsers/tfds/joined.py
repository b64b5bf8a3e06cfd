"""One dataset in several directories: each split is one row, in the order of the directories."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import tensorflow_datasets as tfds

from tfds_torch.errors import ConfigError
from tfds_torch.parsers.tfds.feature_tree import list_leaves
from tfds_torch.parsers.tfds.find import open_dataset
from tfds_torch.parsers.tfds.folder import INFO
from tfds_torch.parsers.tfds.info import DatasetInfo
from tfds_torch.parsers.tfds.splits import JoinedSplit
from tfds_torch.plan.order import Int64Array
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.remote.store import ObjectStore
from tfds_torch.storage.source import is_local

_MOST_LISTED = 20


_Path = str | os.PathLike[str]


def open_joined(
    root: _Path | Sequence[_Path] | None,
    name: _Path | None,
    *,
    download: bool = False,
    store: ObjectStore | None = None,
) -> DatasetInfo:
    """Return the dataset of one root, or of several as one; see `open_dataset`.

    Args:
        root: as ParserTfds takes it.
        name: as ParserTfds takes it; None where each root is a version directory.
        download: whether to prepare a dataset that is not there.
        store: reads the objects of URLs.

    Raises:
        ConfigError: there is no root, a root comes twice, or the datasets cannot be joined.
        DatasetNotFoundError, ShardError: `open_dataset` raises them.
    """
    if root is None or isinstance(root, str | os.PathLike):
        return _open(root, name, download, store)
    paths = list(root) if isinstance(root, list | tuple) else []
    if not paths or not all(isinstance(one, str | os.PathLike) and os.fspath(one) for one in paths):
        raise ConfigError(f"root={quoted(root)} must be a path or a URL, or a list of these, with at least one.")
    if download and len(paths) > 1:
        raise ConfigError(
            "download=True prepares a dataset in one root: open each root with it once, and then the list."
        )
    infos = [_open(one, name, download, store) for one in paths]
    places = [os.path.realpath(one) if is_local(one) else one for one in (info.directory for info in infos)]
    twice = next((one for one, times in Counter(places).items() if times > 1), None)
    if twice is not None:
        raise ConfigError(f"root={quoted(root)} has {twice} more than once: an example would come twice. Name it once.")
    return infos[0] if len(infos) == 1 else join(infos)


def _open(root: _Path | None, name: _Path | None, download: bool, store: ObjectStore | None) -> DatasetInfo:
    if name is not None:
        return open_dataset(root, name, download=download, store=store)
    if root is None:
        raise ConfigError("name=None needs root, the version directory of a dataset: give its path, or a name.")
    if is_local(os.fspath(root)) and not os.path.isfile(os.path.join(os.path.expanduser(root), INFO)):
        what = f"has no {INFO}" if os.path.isdir(root) else "does not exist, or is no directory"
        raise ConfigError(
            f"name=None: {os.fspath(root)} {what}. Give a version directory, for example name/1.0.0, or the name of a "
            f"dataset below it."
        )
    return open_dataset(None, root, download=download, store=store)


def join(infos: Sequence[DatasetInfo]) -> DatasetInfo:
    """Return several datasets as one.

    Labels become those of the first directory, by the names of their classes.

    Raises:
        ConfigError: two datasets differ in features or file formats, or one is local and one in a store; or a directory
            has a class that the first one does not know.
    """
    first, *others = infos
    for other in others:
        _check_agree(first, other)
    names = dict.fromkeys(name for info in infos for name in info.splits)
    lacking = {name: [info.directory for info in infos if name not in info.splits] for name in names}
    splits = [JoinedSplit.of([info.splits[name] for info in infos]) for name in names if not lacking[name]]
    return replace(
        first,
        splits=tfds.core.SplitDict(splits),
        directories=tuple(info.directory for info in infos),
        others=tuple(dict.fromkeys(info.name for info in others if info.name != first.name)),
        lacking={name: directories for name, directories in lacking.items() if directories},
        labels=dict(_translations(infos)),
    )


def _check_agree(first: DatasetInfo, other: DatasetInfo) -> None:
    where = f"{first.directory} and {other.directory} cannot be one dataset"
    if first.file_format != other.file_format:
        raise ConfigError(
            f"{where}: their files are {first.file_format!r} and {other.file_format!r}. Prepare both in one format."
        )
    if first.listing is not None:
        raise ConfigError(f"{where}: image folders are read one by one. Mix them: ParserMixture without weights.")
    if type(first.files) is not type(other.files):
        raise ConfigError(f"{where}: one is of this machine, and the other is far away. Give one kind.")
    ours, theirs = (
        {key: (tuple(spec.shape), str(np.dtype(spec.dtype))) for key, spec in info.specs.items()}
        for info in (first, other)
    )
    for key in dict.fromkeys([*ours, *theirs]):
        if ours.get(key) != theirs.get(key):
            shown = [_shown(specs.get(key)) for specs in (ours, theirs)]
            raise ConfigError(
                f"{where}: the feature {quoted(key)} is {shown[0]} in the first, and {shown[1]} in the other."
            )


def _shown(spec: tuple[tuple[int | None, ...], str] | None) -> str:
    return "missing" if spec is None else f"{spec[1]} {list(spec[0])}"


def _translations(infos: Sequence[DatasetInfo]) -> Iterator[tuple[str, list[Int64Array | None]]]:
    """Yield features of labels by key, with the new labels of each directory's labels; None: they stay the same."""
    every = [_classes_of(info) for info in infos]
    for key, ours in every[0].items():
        found: list[Int64Array | None] = []
        for info, classes in zip(infos, every, strict=True):
            theirs = classes[key]
            number = {name: label for label, name in enumerate(ours.names)}
            if theirs.size > ours.size or (theirs != ours and not set(theirs.names) <= number.keys()):
                raise ConfigError(
                    f"{infos[0].directory} and {info.directory} cannot be one dataset: {quoted(key)} has other "
                    f"classes. The first has {ours}; the other {theirs}. Its classes must be among those of the first "
                    f"directory; or mix both as members of a ParserMixture, each with a class_map."
                )
            is_same = theirs.names == ours.names[: len(theirs.names)]
            if not is_same and ours.are_pixels:
                raise ConfigError(
                    f"{infos[0].directory} and {info.directory} cannot be one dataset: the pixels of {quoted(key)} are "
                    f"classes in another order. The first has {ours}; the other {theirs}."
                )
            found.append(None if is_same else np.array([number[name] for name in theirs.names], np.int64))
        if any(one is not None for one in found):
            yield key, found


@dataclass(frozen=True)
class _Classes:
    """The classes of a feature of labels: their number, 0 where it is unknown, and their names, if they have some."""

    size: int
    names: tuple[str, ...]
    are_pixels: bool = False

    def __str__(self) -> str:
        if not self.names:
            return f"{self.size:,} classes without names"
        more = f", ... ({len(self.names):,} of them)" if len(self.names) > _MOST_LISTED else ""
        return ", ".join(self.names[:_MOST_LISTED]) + more


def _classes_of(info: DatasetInfo) -> dict[str, _Classes]:
    return {
        key: _Classes(leaf.num_classes or 0, leaf.class_names or (), leaf.kind == "image")
        for key, leaf in list_leaves(info.features)
        if leaf.kind == "label" or leaf.class_names
    }
