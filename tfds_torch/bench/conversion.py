"""The photographs' TFRecord shards in other formats: shard by shard, in the same order, with the same encoded bytes."""

import io
import json
import os
import shutil
import struct
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock
from PIL import Image

from tfds_torch.demo.recipe import VERSION
from tfds_torch.errors import ConfigError
from tfds_torch.records.tfrecord import read_records
from tfds_torch.runtime import fresh_process

_STAMP = "source.json"
_LABEL = struct.Struct("<q")


def converted(data_dir: Path, file_format: str, cache_dir: Path | None = None) -> Path:
    """Returns the folder with the photographs in another format, converting them first where that is not done yet.

    It is done in a process of its own, under a lock, in a folder that is renamed when it is complete; and again when
    the source's files have changed.

    Args:
        data_dir: the data dir that `demo.prepare("photos", ...)` returned.
        file_format: `tar` (WebDataset's: `<number>.jpg` and `<number>.cls`) or `array_record` (see `decode_record`).
        cache_dir: where converted data is kept; None: in the user's cache folder.

    Raises:
        ConfigError: the folder cannot be written, or the format's package is not installed.
        ShardError: a shard of the source is damaged.
        WorkerError: the conversion failed.
    """
    source = data_dir / "photos" / VERSION
    target = (cache_dir or _default_cache_dir()) / data_dir.name / file_format
    stamp = _describe_source(source)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.with_name(f".{file_format}.lock")):
            if _read_stamp(target) != stamp:
                _convert_in_place(source, target, file_format, stamp)
    except OSError as error:
        raise ConfigError(
            f"The photographs cannot be converted to {file_format} in {target.parent}: {error}."
        ) from error
    return target


def decode_record(record: bytes) -> tuple[Image.Image, int]:
    """Returns the RGB image and the label of an ArrayRecord's record: the label as int64, then the JPEG file."""
    (label,) = _LABEL.unpack_from(record)
    return Image.open(io.BytesIO(record[_LABEL.size :])).convert("RGB"), label


def write_shards(source: str, target: str, file_format: str) -> None:
    """Converts every shard of a folder of TFRecord files; loads tensorflow to read them.

    Raises:
        ShardError: a shard is damaged.
    """
    write = _WRITERS[file_format]
    for shard in sorted(Path(source).glob("*.tfrecord-*")):
        write(Path(target) / f"{shard.name.replace('.tfrecord', '')}.{file_format}", _read_photographs(shard))


def _read_photographs(shard: Path) -> Iterator[tuple[bytes, int]]:
    """Yields the JPEG file and the label of every example."""
    import tensorflow as tf

    for record in read_records(shard):
        feature = tf.train.Example.FromString(record).features.feature
        yield feature["image"].bytes_list.value[0], feature["label"].int64_list.value[0]


def _write_tar(path: Path, photographs: Iterator[tuple[bytes, int]]) -> None:
    with tarfile.open(path, "w") as archive:
        for number, (jpeg, label) in enumerate(photographs):
            for suffix, data in (("jpg", jpeg), ("cls", str(label).encode())):
                member = tarfile.TarInfo(f"{number:06d}.{suffix}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))


def _write_array_record(path: Path, photographs: Iterator[tuple[bytes, int]]) -> None:
    try:
        from array_record.python.array_record_module import ArrayRecordWriter
    except ImportError as error:
        raise ConfigError(f"{error} (pip install 'tfds-torch[bench]')") from None

    # A group of one for random access, as TFDS writes it; JPEG does not get smaller by another compression.
    writer = ArrayRecordWriter(str(path), "group_size:1,uncompressed")
    for jpeg, label in photographs:
        writer.write(_LABEL.pack(label) + jpeg)
    writer.close()


_WRITERS: dict[str, Callable[[Path, Iterator[tuple[bytes, int]]], None]] = {
    "tar": _write_tar,
    "array_record": _write_array_record,
}


def _convert_in_place(source: Path, target: Path, file_format: str, stamp: Any) -> None:
    """The caller holds the lock, so any other conversion here is a dead one."""
    prefix = f".{file_format}.converting-"
    for leftover in target.parent.glob(f"{prefix}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    workplace = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
    try:
        fresh_process.call(write_shards, os.fspath(source), os.fspath(workplace), file_format)
        (workplace / _STAMP).write_text(json.dumps(stamp), encoding="utf-8")
        if target.exists():
            shutil.rmtree(target)
        workplace.rename(target)
    finally:
        shutil.rmtree(workplace, ignore_errors=True)


def _describe_source(source: Path) -> dict[str, list[int]]:
    """Returns what tells one state of the shards from another: file name -> size in bytes, time of change in ns."""
    found = {shard.name: shard.stat() for shard in sorted(source.glob("*.tfrecord-*"))}
    return {name: [status.st_size, status.st_mtime_ns] for name, status in found.items()}


def _read_stamp(target: Path) -> Any:
    try:
        return json.loads((target / _STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _default_cache_dir() -> Path:
    from platformdirs import user_cache_path

    return user_cache_path("tfds_torch") / "bench"
