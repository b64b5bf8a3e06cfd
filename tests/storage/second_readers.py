"""Second readers of `.beton` files and of tars, without code of `storage`: ours are compared with them."""

import os
import re
import struct
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

IMAGE = 2
ROW_BYTES = {0: 8, 1: 8, IMAGE: 13, 3: 16, 4: 8, 5: 16, 6: 8}
UNALIGNED = (IMAGE, 3, 5)  # Rows of several numbers; plain numbers lie at multiples of eight.
DESCRIPTOR_BYTES, HEADER, ALLOCATION = 1041, struct.Struct("<HHIQQ"), struct.Struct("<QQQ")
METADATA = re.compile(r"__[^/]*__($|/)")  # WebDataset's rule.


class BetonImage(NamedTuple):
    """An image of a `.beton` file: mode (0 encoded, 1 raw), size in pixels, and the bytes that are stored."""

    mode: int
    width: int
    height: int
    stored: bytes


def read_beton_images(path: Path, key: str, positions: Sequence[int]) -> list[BetonImage]:
    """Returns the images of a field, found by the table of the format."""
    content = path.read_bytes()
    _, num_fields, _, _, table_at = HEADER.unpack_from(content)
    rows_at = HEADER.size + num_fields * DESCRIPTOR_BYTES
    kinds = [content[at] for at in range(HEADER.size, rows_at, DESCRIPTOR_BYTES)]
    names = [content[at + 1 : at + 17].rstrip(b"\0").decode() for at in range(HEADER.size, rows_at, DESCRIPTOR_BYTES)]
    offsets, end = {}, 0
    for name, kind in zip(names, kinds, strict=True):
        offsets[name] = end if kind in UNALIGNED else -(-end // 8) * 8
        end = offsets[name] + ROW_BYTES[kind]
    row_bytes = end if all(kind in UNALIGNED for kind in kinds) else -(-end // 8) * 8
    sizes = {pointer: size for _, pointer, size in ALLOCATION.iter_unpack(content[table_at:])}
    found = []
    for position in positions:
        *shape, pointer = struct.unpack_from("<BHHQ", content, rows_at + position * row_bytes + offsets[key])
        found.append(BetonImage(*shape, content[pointer : pointer + sizes[pointer]]))  # type: ignore[call-arg]
    return found


class TarSample(NamedTuple):
    """A sample of consecutive members: its tar, its key, and its content by extension in lower case."""

    path: Path
    key: str
    members: Mapping[str, bytes]


def read_tar_samples(paths: Sequence[Path]) -> list[TarSample]:
    """Returns the samples of tars as Python's `tarfile` finds them."""
    return [sample for path in paths for sample in _samples_of(path)]


def _samples_of(path: Path) -> list[TarSample]:
    found: list[TarSample] = []
    with tarfile.open(path, "r:") as tar:
        for item in tar:
            folder, slash, base = item.name.rpartition("/")
            stem, _, extension = base.partition(".")
            is_hidden = METADATA.match(item.name) or "__MACOSX" in folder.split("/")
            if not item.isreg() or is_hidden or not stem or not extension:
                continue
            if not found or found[-1].key != folder + slash + stem:
                found.append(TarSample(path, folder + slash + stem, {}))
            file = tar.extractfile(item)
            assert file
            found[-1] = found[-1]._replace(members={**found[-1].members, extension.lower(): file.read()})
    return found


def tar_ids(samples: Sequence[TarSample], paths: Sequence[Path]) -> list[str]:
    """Returns the keys of samples, or with their tars where a key is in two: a tar is named from the folder of all."""
    keys = [sample.key for sample in samples]
    if len(set(keys)) == len(keys):
        return keys
    folder = os.path.commonpath([path.parent for path in paths])
    return [f"{os.path.relpath(sample.path, folder)}/{sample.key}" for sample in samples]
