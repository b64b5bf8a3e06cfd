"""prepare and prepare_fake: a dataset that needs no download, built at most once, whole or not at all."""

import contextlib
import io
import json
import logging
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from filelock import FileLock

from tfds_torch.demo.spec import DEMO_NAMES, DemoMetadata, DemoSpec
from tfds_torch.errors import ConfigError, DatasetNotFoundError, ShardError
from tfds_torch.runtime import subprocess_call
from tfds_torch.runtime.arguments import did_you_mean
from tfds_torch.runtime.atomic_file import flush_to_disk
from tfds_torch.runtime.own_folder import cache_folder
from tfds_torch.runtime.progress import shown_progress
from tfds_torch.storage.tfrecord.shard_counts import check_shards

_NO_PROXY = "http://no-network.invalid:9"  # A name that no resolver knows.
_RECORD_OVERHEAD_BYTES = 16  # TFRecord adds its length to each record, and a checksum of each of both.
# The end of messages of storage; here more is known.
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
    """Return the data dir that holds a demo dataset; build the dataset first where it is not there yet.

    The dataset then lies in `<returned>/<name>/1.0.0/`, for `ParserTfds(returned, name)` and for TFDS itself. It is
    built by TFDS, without a network, in another process (this one does not import tensorflow), under a lock, in a
    temporary folder that is renamed when it is complete: other processes see all of the dataset or nothing, and only
    one process builds.

    Args:
        name: `digits` (1,797 real handwritten digits, PNG 8x8 gray, splits train and test), `photos` (JPEG RGB
            photographs, long side about 500, 60 to 120 KB each, split train), or `episodes` (a made-up robot that a
            small policy can learn from, RLDS, split train: one example is an episode of some 90 steps with two cameras,
            3.5 MB). The features of `episodes/bridge`, which is `episodes`, `episodes/droid` and `episodes/libero` are
            those of the robot data of these names.
        root: the data dir; None means a separate folder in the user's cache for each combination of parameters.
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
    """Return a data dir with a dataset of TFDS, of which only the content is made up; build it if need be.

    Name, config, version, features, label names and supervised keys are the real ones, so that TFDS's own builder of
    this name reads it as well as `ParserTfds(returned, name)`. It lies in `<returned>/<name>[/<config>]/<version>/`,
    and is built as by `prepare`.

    Args:
        name: a dataset of TFDS: `name`, `name/config`, `name:version` or `name/config:version`.
        num_examples: examples of each split.
        num_shards: shards of each split, at most num_examples; None: 8, or as many as there are examples.
        splits: their names, which need not be those of the real dataset; None: all of the real dataset's, as far as
            TFDS's builder tells them without its download (else `train`).
        root: the data dir; None means a separate folder in the user's cache for each combination of parameters.
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
    data_dir = cache_folder("demo") / spec.folder_name if root is None else Path(root).expanduser()
    if _is_prepared(spec, data_dir):
        return data_dir
    if spec.is_fake:
        _check_known(spec.name)
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        with FileLock(data_dir / f".{spec.name}.lock"):
            if not _is_prepared(spec, data_dir):  # Another process may have built it meanwhile.
                _build_in_place(spec, data_dir, progress)
    except OSError as error:
        raise ConfigError(
            f"The demo dataset {spec} cannot be prepared under root={os.fspath(data_dir)!r}: {error}. Give a "
            f"root that can be written to."
        ) from error
    return data_dir


def _check_known(name: str) -> None:
    from tfds_torch.parsers.tfds.find import registered_names  # Imports TFDS.

    names = registered_names()
    if name not in names:
        hint = f" prepare({name!r}) has it." if name in DEMO_NAMES else did_you_mean(name, names)
        raise DatasetNotFoundError(
            f"TFDS has no dataset {name!r}.{hint} A fake takes its features from TFDS's own builder; "
            f"tfds.list_builders(with_community_datasets=False) lists the {len(names)} there are."
        )


# Existing datasets


def _is_prepared(spec: DemoSpec, data_dir: Path) -> bool:
    """Return whether the requested dataset is there, whole.

    Raises:
        ConfigError: it is there with other parameters, or the data dir has a dataset of this name that was not built
            here: real and made-up data must not be mistaken for each other.
        ShardError: it is damaged.
    """
    # Of a damaged dataset one of the two files may be lost.
    patterns = [f"{depth}/{file}" for depth in ("*", "*/*") for file in ("dataset_info.json", "features.json")]
    for folder in sorted({path.parent for pattern in patterns for path in (data_dir / spec.name).glob(pattern)}):
        written = DemoMetadata.read(folder)
        if written is None or written.complete(spec).full_name == written.spec.full_name:
            _check_same(spec, folder)
            return True
    return False


def _check_same(spec: DemoSpec, folder: Path) -> None:
    """Raise unless the dataset in a version directory has the parameters that were asked for and is whole."""
    written = DemoMetadata.read(folder)
    if written is not None:
        splits = written.spec.splits if spec.splits is None and written.has_all_splits else spec.splits
        if written.spec == replace(spec, config=written.spec.config, version=written.spec.version, splits=splits):
            check_files(folder)
            return
    found = "a dataset that tfds_torch.demo did not write" if written is None else written.spec
    remedy = "" if written is None else ", or delete that folder"
    raise ConfigError(
        f"Asked for the demo dataset {spec}, but {folder} already holds {found}. "
        f"Choose another root (root=None keeps a folder for each combination){remedy}."
    )


def check_files(folder: Path) -> None:
    """Compare the sizes of the shards with `dataset_info.json`: cheap, and enough to see a lost or cut file.

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
        reason = _GENERAL_REMEDY.sub(".", str(error))
        raise type(error)(f"The demo dataset in {folder} is damaged: {reason} {remedy}") from None
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


# Building


def _build_in_place(spec: DemoSpec, data_dir: Path, progress: bool) -> None:
    """Build beside the target and rename. The caller holds the lock, so any other build here is a dead one."""
    prefix = f".{spec.name}.building-"
    for leftover in data_dir.glob(f"{prefix}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    workplace = Path(tempfile.mkdtemp(prefix=prefix, dir=data_dir))
    try:
        folders = os.fspath(workplace), os.fspath(data_dir)
        version_dir = subprocess_call.call(build, spec, *folders, progress=progress)
        built, target = workplace / version_dir, data_dir / version_dir
        if target.exists():
            # Another TFDS wrote it, and only now it is known that it has the same defaults.
            _check_same(spec, target)
            return
        for path in [*built.iterdir(), built]:
            flush_to_disk(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        default_config = workplace / spec.name / ".config"  # Its name, for reading without TFDS's code.
        if default_config.is_dir():
            shutil.copytree(default_config, data_dir / spec.name / ".config", dirs_exist_ok=True)
        built.rename(target)
        flush_to_disk(target.parent)
    finally:
        shutil.rmtree(workplace, ignore_errors=True)


def build(spec: DemoSpec, data_dir: str, existing: str, *, progress: bool) -> str:
    """Write a dataset with TFDS. For a fresh process only: it changes how TFDS writes, and quiets it.

    Args:
        spec: which dataset.
        data_dir: an empty folder to become TFDS's data dir.
        existing: nothing is written where this data dir has the version directory already.
        progress: show on standard error how far the build is.

    Returns:
        The version directory, relative to the data dir: `voc/2007/5.0.0`.

    Raises:
        DatasetNotFoundError: TFDS itself does not have the dataset of a fake.
        ConfigError: of a fake: an unknown config or version, a builder that does not start, or a feature for which
            nothing can be made up.
    """
    if progress and not sys.stderr.isatty():
        # One line, so that a log file shows what took the seconds.
        sys.stderr.write(f"tfds_torch: building the demo dataset {spec}\n")
    _silence_tensorflow()
    _cut_network()
    from tfds_torch.demo.builder import make_builder

    builder = make_builder(spec, data_dir=data_dir)
    version_dir = Path(builder.data_dir).relative_to(data_dir)
    if not Path(existing, version_dir).exists():
        total = sum(builder.spec.split_sizes.values())
        with contextlib.ExitStack() as stack:
            if progress:
                shown = shown_progress(f"building {spec.full_name}", total, lambda: builder.num_done, patience_s=0.0)
                stack.enter_context(shown)
            # TFDS prints where it writes: here a temporary folder.
            stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
            builder.write()
    return os.fspath(version_dir)


def _silence_tensorflow() -> None:
    from tfds_torch.runtime.terminal import QUIET_ENVIRON  # Imports rich.

    os.environ.update(QUIET_ENVIRON)
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # A build needs no GPU; tensorflow would take all of its memory.
    import tensorflow_datasets as tfds

    tfds.disable_progress_bar()
    logging.getLogger("absl").setLevel(logging.ERROR)


def _cut_network() -> None:
    """Let every request fail at once: TFDS, and some of its builders, would ask a bucket about the dataset.

    A proxy that no resolver knows fails at once in Python's and in tensorflow's HTTP clients; one that refuses the
    connection would be tried again for minutes.
    """
    for variable in ("http_proxy", "https_proxy", "all_proxy"):
        os.environ[variable] = os.environ[variable.upper()] = _NO_PROXY
    for variable in ("no_proxy", "NO_PROXY"):
        os.environ.pop(variable, None)
