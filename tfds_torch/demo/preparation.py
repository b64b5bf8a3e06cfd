"""prepare: a demo dataset, built at most once, whole or not at all."""

import json
import os
from pathlib import Path

from tfds_torch.demo.build import build
from tfds_torch.demo.damage import check_files
from tfds_torch.demo.installation import choose_data_dir, describe_conflict, install
from tfds_torch.demo.spec import VERSION, DemoSpec
from tfds_torch.errors import ConfigError
from tfds_torch.runtime import fresh_process


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
        ShardError: the dataset was prepared here, but its files have been damaged since; the message names the file.
        WorkerError: TFDS could not write the dataset (a full disk, for example).
    """
    spec = DemoSpec.check(name, num_examples, num_shards, seed)
    data_dir = choose_data_dir(spec, root)
    version_dir = Path(spec.name, VERSION)

    def build_in(workplace: Path) -> Path:
        fresh_process.call(build, spec, os.fspath(workplace), progress=progress)
        return version_dir

    install(spec, data_dir, is_installed=lambda: _is_prepared(spec, data_dir / version_dir), build=build_in)
    return data_dir


def _is_prepared(spec: DemoSpec, folder: Path) -> bool:
    """Whether exactly this dataset lies in folder, whole; an error if something else does."""
    if not folder.exists():
        return False
    found = _read_spec(folder)
    if found != spec:
        raise ConfigError(describe_conflict(spec, folder, found))
    check_files(folder)
    return True


def _read_spec(folder: Path) -> DemoSpec | None:
    try:
        return DemoSpec(**json.loads((folder / "metadata.json").read_text(encoding="utf-8"))["tfds_torch_demo"])
    except (OSError, ValueError, LookupError, TypeError):
        return None
