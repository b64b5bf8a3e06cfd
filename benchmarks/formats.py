"""A dataset in the formats of peers: as tar files by this package's export, and in a peer's own format by its script.

What was written is kept in the user's cache folder, and written anew when the dataset's files have changed.
"""

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from filelock import FileLock

from benchmarks import machine
from tfds_torch.errors import ConfigError
from tfds_torch.runtime import subprocess_call

_STAMP = "source.json"


def kept(data_dir: Path, dataset: str, name: str, write: Callable[[Path], object]) -> Path:
    """Returns the folder of a format; it is written first where need be, under a lock, whole or not at all.

    Args:
        data_dir: of the dataset.
        dataset: its name.
        name: of the format.
        write: fills an empty folder.

    Raises:
        ConfigError: the folder cannot be written.
    """
    source = max((data_dir / dataset).glob("[0-9]*.[0-9]*.[0-9]*"))
    shards = {shard.name: shard.stat() for shard in sorted(source.glob("*.tfrecord-*"))}
    stamp = {shard: [status.st_size, status.st_mtime_ns] for shard, status in shards.items()}
    target = machine.cache_dir() / data_dir.name / dataset / name
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.with_name(f".{name}.lock")):
            if _read_stamp(target) == stamp:
                return target
            with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{name}-") as workplace:
                made = Path(workplace) / "made"
                made.mkdir()
                write(made)
                (made / _STAMP).write_text(json.dumps(stamp), encoding="utf-8")
                shutil.rmtree(target, ignore_errors=True)
                made.rename(target)
    except OSError as error:
        raise ConfigError(f"{dataset} cannot be written as {name} in {target.parent}: {error}.") from error
    return target


def tars_of(data_dir: Path, dataset: str, num_shards: int) -> Path:
    """Returns a folder of tar files of a dataset's split `train`, which `transform.read_tars` reads."""
    return kept(
        data_dir,
        dataset,
        f"tars-{num_shards}",
        lambda folder: subprocess_call.call(write_tars, str(data_dir), dataset, str(folder), num_shards),
    )


def write_tars(data_dir: str, dataset: str, folder: str, num_shards: int) -> None:
    """Exports images and labels, in the order of the files."""
    from tfds_torch import ParserTfds, export_dataset

    fields = {"id": None, "file_name": None}
    parser = ParserTfds(data_dir, dataset)
    known = {name: choice for name, choice in fields.items() if name in parser.source.specs}
    out = Path(folder) / "out"
    export_dataset(parser, out, format="webdataset", fields=known, num_shards=num_shards)
    for path in out.glob("*.tar"):
        path.rename(Path(folder) / path.name)
    shutil.rmtree(out)


def _read_stamp(target: Path) -> Any:
    try:
        return json.loads((target / _STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
