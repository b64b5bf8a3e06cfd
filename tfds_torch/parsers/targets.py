"""The targets of a split without its images, kept in the user's cache folder: what subsets are chosen by."""

import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfds_torch.engines.direct import read_examples
from tfds_torch.engines.fields import Content
from tfds_torch.parsers.class_map import ClassMap
from tfds_torch.parsers.examples import examples_at_once
from tfds_torch.parsers.kept_values import kept_path, load_kept, store_kept
from tfds_torch.plan.order import Int64Array
from tfds_torch.storage.source import Source


def cache_file(source: Source, target_key: object) -> Path:
    """Returns where the targets of a split are kept: another place once a file has changed."""
    return kept_path("targets", (1, source.name, source.identity, source.stamps, target_key), ".npy")


def read_targets(source: Source, content: Content, index: Int64Array, num_threads: int) -> NDArray[Any] | list[Any]:
    """Returns the labels of examples, int64 [n], in the order asked: an array where each is one number, else a list."""
    found = read_examples(source, content, index, num_threads, examples_at_once(source))
    parts = [decoded["label"] for _, decoded in found]
    if parts and all(isinstance(part, np.ndarray) for part in parts):
        return np.concatenate(parts)
    return [value for part in parts for value in part]


def map_targets(class_map: ClassMap, targets: NDArray[np.int64], source: Source, index: Int64Array) -> Int64Array:
    """Returns the new labels of integers, int64 [n]: each different one is looked up once."""
    values, firsts, places = np.unique(targets, return_index=True, return_inverse=True)
    new = class_map.remap_values(values, list(source.ids(index[firsts])))
    mapped: Int64Array = np.asarray(new, np.int64)[places]
    return mapped


def load_targets(file: Path, size: int) -> Int64Array | None:
    """Returns the targets that are kept, int64 [size]; None: there are none, or they are not whole or not one's own."""
    content = load_kept(file)
    if content is None:
        return None
    try:
        targets = np.load(io.BytesIO(content), allow_pickle=False)
    except (OSError, ValueError):
        return None
    return targets if targets.dtype == np.int64 and targets.shape == (size,) else None


def store_targets(file: Path, targets: Int64Array) -> None:
    """Keeps targets, int64 [n]; without a writable cache folder they are read again next time."""
    body = io.BytesIO()
    np.save(body, targets)
    store_kept(file, body.getvalue(), "Targets")
