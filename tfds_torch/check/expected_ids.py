"""The ids that a split must yield, from `dataset_info.json` alone: what is proven must not come from the plan.

An image folder has no such file: there it is the folder itself, listed anew.
"""

import json
import os
import random
from collections.abc import Sequence
from pathlib import Path

from tfds_torch.errors import ShardError
from tfds_torch.storage.file_instruction import FileInstruction

_USUAL_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"


def expected_ids(data_dir: Path, split: str, files: Sequence[FileInstruction]) -> list[str]:
    """Returns the ids of a split's examples, `<shard file>__<record>`, by index.

    Whole splits, and sums of them, come from `dataset_info.json` alone. For slices, TFDS's file instructions say which
    records are meant; every one of them is held against the file. The ids of an image folder are the paths of its
    images.

    Args:
        data_dir: the dataset's version directory, or the root of an image folder.
        split: a TFDS split expression.
        files: TFDS's file instructions for it.

    Raises:
        ShardError: an instruction names a shard or a record that `dataset_info.json`, or the folder, does not have.
    """
    if is_image_folder(data_dir):
        return _expected_images(data_dir, split, files)
    shards = _shard_lengths(data_dir)
    names = [name.strip() for name in split.split("+")]
    if all(name in shards for name in names):
        return [f"{file}__{i}" for name in names for file, length in shards[name].items() for i in range(length)]
    lengths = {file: length for files_of_split in shards.values() for file, length in files_of_split.items()}
    ids = []
    for run in files:
        file = os.path.basename(run.path)
        if run.skip + run.take > lengths.get(file, 0):
            raise ShardError(
                f"Split {split!r} reads records {run.skip}..{run.skip + run.take - 1} of {file}, and dataset_info.json "
                f"gives it {lengths.get(file, 0)} examples."
            )
        ids += [f"{file}__{i}" for i in range(run.skip, run.skip + run.take)]
    return ids


def is_image_folder(data_dir: Path) -> bool:
    """Whether a dataset is an image folder, without a `dataset_info.json`."""
    return not (data_dir / "dataset_info.json").is_file()


def _expected_images(root: Path, split: str, files: Sequence[FileInstruction]) -> list[str]:
    images = {folder.name: _ordered_images(folder) for folder in root.iterdir() if folder.is_dir()}
    names = [name.strip() for name in split.split("+")]
    if all(name in images for name in names):
        return [id for name in names for id in images[name]]
    ids: list[str] = []
    for run in files:
        there = images.get(os.path.basename(run.path), [])
        if run.skip + run.take > len(there):
            raise ShardError(
                f"Split {split!r} reads images {run.skip}..{run.skip + run.take - 1} of {run.path}, and that folder "
                f"holds {len(there)} images."
            )
        ids += there[run.skip : run.skip + run.take]
    return ids


def _ordered_images(split: Path) -> list[str]:
    """Returns `<split>/<label>/<image>` in TFDS's order: as `tfds.ImageFolder` lists, sorts and shuffles them."""
    is_image = (".jpg", ".jpeg", ".png")
    labels = sorted(label.name for label in split.iterdir() if label.is_dir())
    ids = [
        f"{split.name}/{label}/{name}"
        for label in labels
        for name in sorted(name for name in os.listdir(split / label) if name.lower().endswith(is_image))
    ]
    random.Random(split.name).shuffle(ids)  # noqa: S311 (TFDS's order)
    return ids


def _shard_lengths(data_dir: Path) -> dict[str, dict[str, int]]:
    """Returns split -> shard file -> number of examples."""
    info = json.loads((data_dir / "dataset_info.json").read_text())
    splits = {}
    for split in info.get("splits", []):
        lengths = [int(length) for length in split.get("shardLengths", [])]
        template = split.get("filepathTemplate") or _USUAL_TEMPLATE
        splits[split["name"]] = {
            _shard_name(template, info, split["name"], number, len(lengths)): length
            for number, length in enumerate(lengths)
        }
    return splits


def _shard_name(template: str, info: dict[str, str], split: str, number: int, num_shards: int) -> str:
    width = max(5, len(str(num_shards)))
    index, total = f"{number:0{width}d}", f"{num_shards:0{width}d}"
    parts = {
        "DATASET": info["name"],
        "SPLIT": split,
        "FILEFORMAT": info.get("fileFormat", "tfrecord"),
        "SHARD_INDEX": index,
        "NUM_SHARDS": total,
        "SHARD_X_OF_Y": f"{index}-of-{total}",
    }
    for key, value in parts.items():
        template = template.replace(f"{{{key}}}", value)
    return os.path.basename(template)
