"""The targets of a split without its images, kept in the user's cache folder: what subsets are chosen by."""

import hashlib
import io
import logging
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
from numpy.typing import NDArray

from tfds_torch.engines.direct import read_examples
from tfds_torch.engines.fields import Content
from tfds_torch.parsers.class_map import ClassMap
from tfds_torch.parsers.examples import examples_at_once
from tfds_torch.plan.order import Int64Array
from tfds_torch.runtime.atomic_file import write_atomically
from tfds_torch.runtime.own_files import ForeignFileError, check_own_folder, own_folder, read_own, remove_foreign
from tfds_torch.storage.source import Source

_DIGEST_BYTES = 16
_logger = logging.getLogger(__name__)


def cache_file(source: Source, target_key: object) -> Path:
    """Returns where the targets of a split are kept: another place once a file has changed."""
    identity = repr((1, source.name, source.identity, source.stamps, target_key))
    name = hashlib.blake2b(identity.encode(), digest_size=16).hexdigest()
    return platformdirs.user_cache_path("tfds_torch") / "targets" / f"{name}.npy"


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
    try:
        check_own_folder(file.parent, closes=True)
        content = read_own(file)
        digest, body = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        if hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest() != digest:
            return None
        targets = np.load(io.BytesIO(body), allow_pickle=False)
    except (OSError, ValueError):  # ForeignFileError is an OSError.
        return None
    return targets if targets.dtype == np.int64 and targets.shape == (size,) else None


def store_targets(file: Path, targets: Int64Array) -> None:
    """Keeps targets, int64 [n]; without a writable cache folder they are read again next time."""
    body = io.BytesIO()
    np.save(body, targets)
    content = body.getvalue()
    try:
        own_folder(file.parent, closes=True)
        remove_foreign(file)
        write_atomically(
            file, hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest() + content, follows_link=False
        )
    except ForeignFileError as error:
        _logger.warning("Targets are not kept: %s is not this user's own: %s.", error.filename, error.strerror)
    except OSError as error:
        _logger.info("The targets could not be kept in %s: %s", file, error)
