"""Opening an image folder, `root/<split>/<label>/<image>.jpg`, as `tfds.ImageFolder` lists it, without tensorflow.

`tfds.ImageFolder` loads tensorflow, reads whole splits only, and takes no read_config.
"""

import os
from collections.abc import Mapping
from fnmatch import fnmatch
from typing import Any

import tensorflow_datasets as tfds

from tfds_torch.errors import ConfigError, DatasetNotFoundError
from tfds_torch.parsers.tfds.connectors import plain_features
from tfds_torch.parsers.tfds.dataset import TfdsDataset
from tfds_torch.parsers.tfds.shard_names import NamedSplit
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.map_style.image_folder import FILENAME, IMAGE, LABEL, LAYOUT, list_image_folder
from tfds_torch.storage.source import is_local

NAME, VERSION = "image_folder", "1.0.0"


def open_image_folder(root: str | None, arguments: Mapping[str, Any], *, download: bool) -> TfdsDataset:
    """Lists an image folder.

    Raises:
        ConfigError: no root, a remote root, or a download.
        DatasetNotFoundError: there is no image folder, or another version or a config is asked for.
    """
    if root is None:
        raise ConfigError(f"{NAME} needs root: the folder that holds the splits. {LAYOUT}")
    root = os.path.expanduser(os.fspath(root))
    if not is_local(root):
        raise ConfigError(f"{NAME}: the root {root} is remote, and only folders of this machine can be listed.")
    if download:
        raise ConfigError(f"{NAME}: download=True, and there is nothing to download: its images are those in {root}.")
    version = arguments.get("version") or VERSION
    if "config" in arguments or not fnmatch(VERSION, str(version)):
        asked = ", ".join(f"{key} {quoted(value)}" for key, value in sorted(arguments.items()))
        raise DatasetNotFoundError(f"{NAME} has no configs, and its only version is {VERSION}: asked for was {asked}.")
    listing = list_image_folder(root)
    features = tfds.features.FeaturesDict(
        {
            IMAGE: tfds.features.Image(),
            LABEL: tfds.features.ClassLabel(names=list(listing.class_names)),
            FILENAME: tfds.features.Text(),
        }
    )
    # TFDS's own arithmetic of split expressions: a split is one shard, its folder, and an image is one record.
    template = tfds.core.ShardedFileTemplate(
        data_dir=root, template="{SPLIT}", dataset_name=NAME, filetype_suffix="tfrecord"
    )
    splits = tfds.core.SplitDict(
        NamedSplit(name=name, shard_lengths=[split.num_examples], num_bytes=split.num_bytes, filename_template=template)
        for name, split in listing.splits.items()
    )
    return TfdsDataset(f"{NAME}:{VERSION}", root, plain_features(features), {}, splits, NAME, listing)
