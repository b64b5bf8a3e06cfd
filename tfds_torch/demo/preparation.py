"""prepare: a demo dataset, built at most once, whole or not at all."""

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from filelock import FileLock

from tfds_torch.demo.build import build
from tfds_torch.demo.recipe import VERSION, Recipe
from tfds_torch.errors import ConfigError, ShardError
from tfds_torch.runtime import fresh_process

# What TFRecord adds to each record: its length, and a checksum of each of both.
_RECORD_OVERHEAD_BYTES = 16


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
    built by TFDS in another process (this one does not import tensorflow), under a lock, in a temporary folder that
    is renamed when it is complete: other processes see all of the dataset or nothing, and only one of them builds.

    Args:
        name: `digits` (1,797 real handwritten digits, PNG 8x8 gray, splits train and test) or `photos` (JPEG RGB
            photographs, long side about 500, 60 to 120 KB each, split train).
        root: the data dir; None means a folder of its own in the user's cache for each combination of parameters.
        num_examples: examples of train, default 512. Not for `digits`, which always has 1,437 (and 360 in test).
        num_shards: shards of train, at most num_examples. Default: `digits` 1, `photos` 8.
        seed: which photographs are made, or which digits are kept for test. Photograph i depends on seed and i alone.
        progress: show a build's progress on standard error.

    Returns:
        The data dir: root, or the folder in the cache.

    Raises:
        DatasetNotFoundError: no demo dataset has this name.
        ConfigError: a parameter that cannot be, a root that cannot be written, or a root that already holds a dataset
            of this name made with other parameters, or by someone else.
        ShardError: the dataset was prepared here, but its files have been damaged since.
        WorkerError: TFDS could not write the dataset (a full disk, for example).
    """
    recipe = Recipe.check(name, num_examples, num_shards, seed)
    data_dir = _default_root(recipe) if root is None else Path(root).expanduser()
    try:
        if _is_prepared(recipe, data_dir):
            return data_dir
        data_dir.mkdir(parents=True, exist_ok=True)
        with FileLock(data_dir / f".{recipe.name}.lock"):
            if not _is_prepared(recipe, data_dir):  # Another process may have built it meanwhile.
                _build_in_place(recipe, data_dir, progress)
    except OSError as error:
        raise ConfigError(
            f"The demo dataset {recipe} cannot be prepared under root={os.fspath(data_dir)!r}: {error}."
        ) from error
    return data_dir


def _default_root(recipe: Recipe) -> Path:
    from platformdirs import user_cache_path

    return user_cache_path("tfds_torch") / "demo" / recipe.folder_name


def _is_prepared(recipe: Recipe, data_dir: Path) -> bool:
    """Whether exactly this dataset lies under data_dir, whole; an error if something else does."""
    folder = data_dir / recipe.name / VERSION
    if not folder.exists():
        return False
    found = _read_recipe(folder)
    if found != recipe:
        raise ConfigError(
            f"Asked for the demo dataset {recipe}, but {folder} already holds "
            f"{found or 'a dataset that tfds_torch.demo did not write'}. "
            "Choose another root (root=None keeps a folder for each combination), or delete that folder."
        )
    _check_sizes(folder)
    return True


def _read_recipe(folder: Path) -> Recipe | None:
    try:
        return Recipe(**json.loads((folder / "metadata.json").read_text(encoding="utf-8"))["tfds_torch_demo"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _check_sizes(folder: Path) -> None:
    """Holds the size of the shards against `dataset_info.json`: cheap, and enough to see a lost or cut file."""
    try:
        info = json.loads((folder / "dataset_info.json").read_text(encoding="utf-8"))
        damage = "; ".join(filter(None, (_describe_damage(folder, info["name"], split) for split in info["splits"])))
    except (OSError, ValueError, LookupError, TypeError) as error:
        damage = f"dataset_info.json cannot be read ({error})"
    if damage:
        raise ShardError(
            f"The demo dataset in {folder} is damaged: {damage}. Delete that folder and prepare the dataset again."
        )


def _describe_damage(folder: Path, name: str, split: dict[str, Any]) -> str:
    num_shards, num_records = len(split["shardLengths"]), sum(map(int, split["shardLengths"]))
    num_bytes = int(split["numBytes"]) + _RECORD_OVERHEAD_BYTES * num_records
    sizes = [shard.stat().st_size for shard in folder.glob(f"{name}-{split['name']}.tfrecord-*")]
    if (len(sizes), sum(sizes)) == (num_shards, num_bytes):
        return ""
    return (
        f"split '{split['name']}' has {len(sizes)} shard(s) with {sum(sizes)} bytes, "
        f"and should have {num_shards} with {num_bytes}"
    )


def _build_in_place(recipe: Recipe, data_dir: Path, progress: bool) -> None:
    """Builds beside the target and renames. The caller holds the lock, so any other build here is a dead one."""
    prefix = f".{recipe.name}.building-"
    for leftover in data_dir.glob(f"{prefix}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    workplace = Path(tempfile.mkdtemp(prefix=prefix, dir=data_dir))
    try:
        fresh_process.call(build, recipe, os.fspath(workplace), progress=progress)
        built, target = workplace / recipe.name / VERSION, data_dir / recipe.name / VERSION
        for path in [*built.iterdir(), built]:
            _flush_to_disk(path)
        target.parent.mkdir(exist_ok=True)
        built.rename(target)
        _flush_to_disk(target.parent)
    finally:
        shutil.rmtree(workplace, ignore_errors=True)


def _flush_to_disk(path: Path) -> None:
    """After a power cut, too, a renamed dataset has its bytes."""
    if path.is_dir() and os.name == "nt":  # Windows opens no folders.
        return
    descriptor = os.open(path, os.O_RDONLY if os.name != "nt" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
