"""The targets of all examples of a dataset: read without an image, and kept from run to run."""

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tfds_torch.engines.direct import read_examples
from tfds_torch.engines.fields import Content, FieldDecoder, UnmappedLabelError
from tfds_torch.errors import ConfigError
from tfds_torch.parsers.examples import examples_at_once
from tfds_torch.parsers.kept_values import kept_path, load_kept, store_kept
from tfds_torch.plan.order import Int64Array

if TYPE_CHECKING:
    from tfds_torch.parsers.dataset import Dataset


def read_all_targets(dataset: "Dataset", labels: FieldDecoder, kept_by: object) -> Any:
    """Return the targets of a dataset's examples, as `Dataset.targets` does.

    Args:
        dataset: the dataset whose targets are read.
        labels: decodes the targets, before the class map.
        kept_by: the stored field behind them, by which targets of whole splits are kept; None: they cannot be kept.
    """
    source, index = dataset.source, dataset.indices
    if source.obstacle is not None:
        raise ConfigError(f"targets: {dataset.dataset_name} is read as a stream: {source.obstacle}.")
    file = None if kept_by is None else cache_file(source.name, source.identity, source.stamps, kept_by)
    found: Any = None if file is None else _load(file, len(source))
    if found is not None:
        found = found[index]
    else:
        found = read_targets(dataset, Content({"label": labels}, has_label=False))
        is_plain = isinstance(found, np.ndarray) and found.dtype == np.int64 and found.ndim == 1
        if file is not None and is_plain and dataset.selected is None:
            _store(file, found)
    if dataset.class_map is None:
        return found
    try:
        return dataset.class_map.new_labels(found)
    except UnmappedLabelError as error:
        (name,) = dataset.ids(index[error.position : error.position + 1])
        raise ConfigError(f"{error.reason}, the target of the example {name}. Add it to the map.") from None


def cache_file(*identity: Any) -> Path:
    """Return where the targets of a split are kept: in another place once a file has changed."""
    return kept_path("targets", (2, *identity), ".npy")


def read_targets(dataset: "Dataset", content: Content) -> NDArray[Any] | list[Any]:
    """Return the field `label` of all examples: an array where each is one number, else a list."""
    source = dataset.source
    num_threads = dataset.read.threads_of_worker(1)
    found = read_examples(source, content, dataset.indices, num_threads, examples_at_once(source))
    parts = [decoded["label"] for _, decoded in found]
    if parts and all(isinstance(part, np.ndarray) for part in parts):
        return np.concatenate(parts)
    return [value for part in parts for value in part]


def _load(file: Path, size: int) -> Int64Array | None:
    """Return the kept targets, int64 [size]; None where there are none, or they are damaged or another user's."""
    content = load_kept(file)
    if content is None:
        return None
    try:
        targets = np.load(io.BytesIO(content), allow_pickle=False)
    except (OSError, ValueError):
        return None
    return targets if targets.dtype == np.int64 and targets.shape == (size,) else None


def _store(file: Path, targets: Int64Array) -> None:
    """Keep targets, int64 [n]; without a writable cache folder they are read again next time."""
    body = io.BytesIO()
    np.save(body, targets)
    store_kept(file, body.getvalue(), "Targets")
