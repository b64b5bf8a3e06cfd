"""Small tars for tests, written by Python's tarfile or by webdataset itself."""

import io
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import webdataset
from webdataset import tariterators

Files = Iterable[tuple[str, bytes]]


def write_tar(path: Path, files: Files, tar_format: int = tarfile.USTAR_FORMAT, **headers: Any) -> Path:
    """Writes a tar of plain files; headers are further attributes of every member."""
    with tarfile.open(path, "w", format=tar_format) as tar:
        for name, content in files:
            add(tar, name, content, **headers)
    return path


def add(tar: tarfile.TarFile, name: str, content: bytes = b"", **headers: Any) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for key, value in headers.items():
        setattr(info, key, value)
    tar.addfile(info, io.BytesIO(content))


def write_samples(path: Path, samples: Iterable[Mapping[str, Any]]) -> Path:
    """Writes samples as webdataset's own writer does."""
    with webdataset.TarWriter(str(path)) as writer:
        for sample in samples:
            writer.write(dict(sample))
    return path


def files_of(path: Path) -> list[tuple[str, int, bytes]]:
    """Returns name, offset and content of every plain file, as Python's tarfile finds them."""
    with tarfile.open(path, "r:") as tar:
        return [(one.name, one.offset_data, tar.extractfile(one).read()) for one in tar if one.isreg()]


def samples_of(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """Returns the samples as webdataset's own reader finds them, without what it adds of the shard."""
    found = []
    for path in paths:
        with path.open("rb") as stream:  # Its own opener leaves closing to the garbage collector.
            files = tariterators.tar_file_expander([{"url": str(path), "stream": stream}])
            found += list(tariterators.group_by_keys(files))
    return [{name: value for name, value in sample.items() if name != "__url__"} for sample in found]


def patched(header: bytes, **changes: bytes) -> bytes:
    """Returns a header of 512 bytes with other fields, and the checksum that belongs to it."""
    places = {"name": 0, "size": 124, "kind": 156, "magic": 257, "prefix": 345}
    block = bytearray(header)
    for name, value in changes.items():
        block[places[name] : places[name] + len(value)] = value
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)
