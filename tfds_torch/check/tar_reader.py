"""The samples of tars as Python's own `tarfile` finds them: what an index is held against.

No code of `storage`, `engines` or `parsers` runs here.
"""

import hashlib
import os
import re
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tfds_torch.check.tfds_reader import ReferenceExample
from tfds_torch.errors import ShardError

_METADATA = re.compile(r"__[^/]*__($|/)")  # WebDataset's rule, as it stands there.


class TarSample(NamedTuple):
    """A sample, as the names of consecutive files tell it.

    Attributes:
        path: of its tar.
        key: its name up to the first dot of the last part.
        members: extension in lower case -> where the file's content lies in the tar, in bytes.
    """

    path: Path
    key: str
    members: Mapping[str, range]


def list_samples(paths: Sequence[Path]) -> list[TarSample]:
    """Returns the samples of tars.

    Raises:
        ShardError: a tar cannot be read.
    """
    found: list[TarSample] = []
    for path in paths:
        try:
            with tarfile.open(path, "r:") as tar:
                found += _samples_of(path, tar)
        except (OSError, tarfile.TarError) as error:
            raise ShardError(f"{path} cannot be read by Python's tarfile: {error!r}.") from error
    return found


def ids_of(samples: Sequence[TarSample], paths: Sequence[Path]) -> list[str]:
    """Returns the ids of samples: their keys, or with their tars where a key is in two of them.

    Args:
        samples: of all tars.
        paths: of all tars, those without samples too: a tar is named from the folder of them all.
    """
    keys = [sample.key for sample in samples]
    if len(set(keys)) == len(keys):
        return keys
    folder = os.path.commonpath([path.parent for path in paths])
    return [f"{os.path.relpath(sample.path, folder)}/{sample.key}" for sample in samples]


def read_sample(
    samples: Sequence[TarSample], position: int, fields: Mapping[str, Sequence[str]], id: str
) -> ReferenceExample:
    """Returns a sample's id, the digest of its fields, and its image.

    Args:
        samples: of all tars.
        position: of the sample.
        fields: name -> extensions, of which the first one that the sample has is taken.
        id: of the sample.

    Raises:
        ShardError: its tar cannot be read, or it lacks a field.
    """
    sample = samples[position]
    stored: dict[str, bytes] = {}
    try:
        with sample.path.open("rb") as file:
            for name, extensions in fields.items():
                place = next(sample.members[one] for one in extensions if one in sample.members)
                file.seek(place.start)
                stored[name] = file.read(place.stop - place.start)
    except (OSError, StopIteration) as error:
        raise ShardError(f"{sample.path}: sample {sample.key!r} cannot be read: {error!r}.") from error
    return ReferenceExample(id, digest(list(stored.values())), stored.get("image"))


def digest(values: Sequence[bytes]) -> str:
    """Returns the digest of the values of a sample, as a `ReferenceExample` has it."""
    found = hashlib.blake2b(digest_size=16)
    for value in values:
        found.update(len(value).to_bytes(8, "little") + value)
    return found.hexdigest()


def _samples_of(path: Path, tar: tarfile.TarFile) -> list[TarSample]:
    found: list[TarSample] = []
    members: dict[str, range] = {}
    for item in tar:
        tar.members = []  # type: ignore[attr-defined]  # It would keep all of them.
        name = item.name
        folder, slash, base = name.rpartition("/")
        stem, _, extension = base.partition(".")
        if not item.isreg() or _METADATA.match(name) or "__MACOSX" in folder.split("/") or not stem or not extension:
            continue
        if not found or found[-1].key != folder + slash + stem:
            members = {}
            found.append(TarSample(path, folder + slash + stem, members))
        members[extension.lower()] = range(item.offset_data, item.offset_data + item.size)
    return found
