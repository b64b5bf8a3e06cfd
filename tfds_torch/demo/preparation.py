"""prepare and prepare_fake: a dataset that needs no download, built at most once, whole or not at all."""

import json
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tfds_torch.demo.build import build
from tfds_torch.demo.installation import choose_data_dir, describe_conflict, install
from tfds_torch.demo.metadata import DemoMetadata
from tfds_torch.demo.spec import DEMO_NAMES, DemoSpec
from tfds_torch.errors import ConfigError, DatasetNotFoundError, ShardError
from tfds_torch.runtime import subprocess_call
from tfds_torch.runtime.arguments import did_you_mean
from tfds_torch.storage.tfrecord.shard_counts import check_shards

# What TFRecord adds to each record: its length, and a checksum of each of both.
_RECORD_OVERHEAD_BYTES = 16
# How the messages of storage end; here more is known.
_GENERAL_REMEDY = re.compile(r"[.;] [Pp]repare the dataset again\.$")


def prepare(
    name: str,
    *,
    root: str | os.PathLike[str] | None = None,
    num_examples: int | None = None,
    num_shards: int | None = None,
    seed: int = 0,
    progress: bool = True,
) -> Path:
    """Returns the data dir that holds a demo dataset, building it first where it is not there yet.

    The dataset then lies in `<returned>/<name>/1.0.0/`, for `ParserTfds(returned, name)` and for TFDS itself. It is
    built by TFDS, without a network, in another process (this one does not import tensorflow), under a lock, in a
    temporary folder that is renamed when it is complete: other processes see all of the dataset or nothing, and only
    one of them builds.

    Args:
        name: `digits` (1,797 real handwritten digits, PNG 8x8 gray, splits train and test), `photos` (JPEG RGB
            photographs, long side about 500, 60 to 120 KB each, split train), or `episodes` (a made-up robot that a
            small policy can learn from, RLDS, split train: one example is an episode of some 90 steps with two cameras,
            3.5 MB). The features of `episodes/bridge`, which is `episodes`, `episodes/droid` and `episodes/libero` are
            those of the robot data of these names.
        root: the data dir; None means a folder of its own in the user's cache for each combination of parameters.
        num_examples: examples of train, default 512 photographs or 64 episodes. Not for `digits`, which always has
            1,437 (and 360 in test).
        num_shards: shards of train, at most num_examples. Default: `digits` 1; others 8, or as many as there are
            examples.
        seed: which photographs or episodes are made, or which digits are kept for test. Photograph or episode i depends
            on seed and i alone.
        progress: show a build's progress on standard error.

    Returns:
        The data dir: root, or the folder in the cache.

    Raises:
        DatasetNotFoundError: no demo dataset has this name.
        ConfigError: an invalid parameter, a root that cannot be written, or a root that already holds a dataset of
            this name made with other parameters, or by someone else.
        ShardError: the dataset was prepared here, but its files have been damaged since; the message names the file.
        WorkerError: TFDS could not write the dataset (a full disk, for example).
    """
    return _prepare(DemoSpec.embedded(name, num_examples, num_shards, seed), root, progress)


def prepare_fake(
    name: str,
    *,
    num_examples: int,
    num_shards: int | None = None,
    splits: Sequence[str] | None = None,
    root: str | os.PathLike[str] | None = None,
    seed: int = 0,
    progress: bool = True,
) -> Path:
    """Returns a data dir with a dataset of TFDS's, of which only the content is made up; builds it if need be.

    Name, config, version, features, label names and supervised keys are the real ones, so that TFDS's own builder of
    this name reads it as well as `ParserTfds(returned, name)`. It lies in `<returned>/<name>[/<config>]/<version>/`,
    and is built as by `prepare`.

    Args:
        name: a dataset of TFDS: `name`, `name/config`, `name:version` or `name/config:version`.
        num_examples: examples of each split.
        num_shards: shards of each split, at most num_examples; None: 8, or as many as there are examples.
        splits: their names, which need not be those of the real dataset; None: all of the real dataset's, as far as
            TFDS's builder tells them without its download (else `train`).
        root: the data dir; None means a folder of its own in the user's cache for each combination of parameters.
        seed: which content is made up. Example i of a split depends on the seed, the split and i alone.
        progress: show a build's progress on standard error.

    Returns:
        The data dir: root, or the folder in the cache.

    Raises:
        DatasetNotFoundError: TFDS has no dataset of this name.
        ConfigError: an invalid parameter, an unknown config or version, a dataset whose builder does not start
            without a network or an optional package, a feature for which nothing can be made up, a root that cannot be
            written, or one that already holds the dataset with other parameters, or a real one of this name.
        ShardError: the dataset was prepared here, but its files have been damaged since; the message names the file.
        WorkerError: TFDS could not write the dataset (a full disk, for example).
    """
    return _prepare(DemoSpec.fake(name, num_examples, num_shards, splits, seed), root, progress)


def _prepare(spec: DemoSpec, root: str | os.PathLike[str] | None, progress: bool) -> Path:
    data_dir = choose_data_dir(spec, root)

    def build_in(workplace: Path) -> Path:
        arguments = os.fspath(workplace), os.fspath(data_dir)
        version_dir = Path(subprocess_call.call(build, spec, *arguments, progress=progress))
        if (data_dir / version_dir).exists():
            # Another TFDS wrote it, and only now it is known that it has the same defaults.
            _check_same(spec, data_dir / version_dir)
        return version_dir

    if not _is_installed(spec, data_dir):
        if spec.is_fake:
            _check_known(spec.name)
        install(spec, data_dir, is_installed=lambda: _is_installed(spec, data_dir), build=build_in)
    return data_dir


def _is_installed(spec: DemoSpec, data_dir: Path) -> bool:
    """Whether the dataset that was asked for is there, whole.

    Raises:
        ConfigError: it is there with other parameters, or the data dir has a dataset of this name that was not built
            here: real and made-up data must not be mistaken for each other.
        ShardError: it is damaged.
    """
    # Of a damaged dataset one of the two files may be lost.
    patterns = [f"{depth}/{file}" for depth in ("*", "*/*") for file in ("dataset_info.json", "features.json")]
    for folder in sorted({path.parent for pattern in patterns for path in (data_dir / spec.name).glob(pattern)}):
        written = DemoMetadata.read(folder)
        if written is None:
            raise ConfigError(describe_conflict(spec, folder, None))
        if written.complete(spec).full_name == written.spec.full_name:
            _check_same(spec, folder)
            return True
    return False


def _check_same(spec: DemoSpec, folder: Path) -> None:
    """Raises unless the dataset in folder has the parameters that were asked for and is whole."""
    written = DemoMetadata.read(folder)
    if written is None:
        raise ConfigError(describe_conflict(spec, folder, None))
    splits = written.spec.splits if spec.splits is None and written.has_all_splits else spec.splits
    if written.spec != replace(spec, config=written.spec.config, version=written.spec.version, splits=splits):
        raise ConfigError(describe_conflict(spec, folder, written.spec))
    check_files(folder)


def _check_known(name: str) -> None:
    from tfds_torch.parsers.tfds.find import registered_names  # Imports TFDS.

    names = registered_names()
    if name not in names:
        hint = f" prepare({name!r}) has it." if name in DEMO_NAMES else did_you_mean(name, names)
        raise DatasetNotFoundError(
            f"TFDS has no dataset {name!r}.{hint} A fake takes its features from TFDS's own builder; "
            f"tfds.list_builders(with_community_datasets=False) lists the {len(names)} there are."
        )


def check_files(folder: Path) -> None:
    """Compares the sizes of the shards with `dataset_info.json`: cheap, and enough to see a lost or cut file.

    Only where they differ are the records counted, to name the shard.

    Raises:
        ShardError: `dataset_info.json` cannot be read, or a shard is missing, cut, grown or exchanged.
        CorruptRecordError: a shard ends inside a record.
    """
    remedy = "Delete that folder and prepare the dataset again."
    try:
        info = json.loads((folder / "dataset_info.json").read_text(encoding="utf-8"))
        for split in info["splits"]:
            _check_split(folder, info["name"], split)
    except ShardError as error:
        what = _GENERAL_REMEDY.sub(".", str(error))
        raise type(error)(f"The demo dataset in {folder} is damaged: {what} {remedy}") from None
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ShardError(
            f"The demo dataset in {folder} is damaged: dataset_info.json cannot be read ({error}). {remedy}"
        ) from error


def _check_split(folder: Path, name: str, split: dict[str, Any]) -> None:
    lengths = [int(length) for length in split["shardLengths"]]
    num_bytes = int(split["numBytes"]) + _RECORD_OVERHEAD_BYTES * sum(lengths)
    prefix = f"{name}-{split['name']}.tfrecord-"
    shards = [folder / f"{prefix}{shard:05}-of-{len(lengths):05}" for shard in range(len(lengths))]
    found = {path: path.stat().st_size for path in folder.glob(f"{prefix}*")}
    if set(found) == set(shards) and sum(found.values()) == num_bytes:
        return
    check_shards({os.fspath(path): length for path, length in zip(shards, lengths, strict=True)}, name)
    surplus = ", ".join(sorted(path.name for path in set(found) - set(shards)))
    raise ShardError(
        f"split '{split['name']}' has {len(found)} shard(s) with {sum(found.values())} bytes, and should have "
        f"{len(shards)} with {num_bytes}{f'; {surplus} does not belong to it' if surplus else ''}."
    )
