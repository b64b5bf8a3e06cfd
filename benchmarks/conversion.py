"""A dataset's TFRecord shards in other formats: shard by shard, in the same order, with the same encoded bytes.

FFCV's format is written by FFCV's own writer, from decoded images.
"""

import functools
import io
import json
import os
import shutil
import signal
import struct
import tarfile
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray
from PIL import Image

from benchmarks import machine
from benchmarks.task import FFCV_INSTALL
from tfds_torch.errors import ConfigError
from tfds_torch.runtime import subprocess_call
from tfds_torch.storage.array_record import writer as array_record
from tfds_torch.storage.example import ExampleReader
from tfds_torch.storage.source import FieldSpec
from tfds_torch.storage.tfrecord.framing import read_records
from tfds_torch.storage.webdataset.writer import TarWriter

_STAMP = "source.json"
_SMALL = 64  # Pixels: the images are icons.
_LABEL = struct.Struct("<q")
_EXAMPLES = ExampleReader({"image": FieldSpec((), object), "label": FieldSpec((), np.int64)})
_PNG_SIGNATURE = b"\x89PNG"


class DecodedImages:
    """The images of a folder of our tar files, decoded one at a time for FFCV's writer.

    The writer asks for them in forked processes, and waits for ever for one that fails: an error ends the writer.
    """

    def __init__(self, folder: str) -> None:
        shards = sorted(Path(folder).glob("*.tar"))
        self._examples = [example for shard in shards for example in _read_tar(shard)]
        self._writer = os.getpid()

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, number: int) -> tuple[NDArray[np.uint8], int]:
        """Returns uint8 [H, W, 3] and the label."""
        image, label = self._examples[number]
        try:
            return np.array(Image.open(io.BytesIO(image)).convert("RGB")), label
        except BaseException:
            traceback.print_exc()
            os.kill(self._writer, signal.SIGTERM)
            raise

    @property
    def are_small(self) -> bool:
        """Whether they are of the size of an icon, and better stored as pixels."""
        return max(Image.open(io.BytesIO(self._examples[0][0])).size) <= _SMALL


def write_with_ffcv(images: DecodedImages, path: Path, mode: str, num_images: int) -> None:
    """Writes the first images, with the fields `image` and `label`, in a mode of FFCV's writer: `raw` or `jpg`.

    `jpg` encodes photographs again, by FFCV's default quality: its writer takes no encoded images.
    """
    writer, image_field, int_field = load_ffcv()
    fields: dict[str, Any] = {"image": image_field(mode), "label": int_field()}
    writer(str(path), fields).from_indexed_dataset(images, indices=list(range(num_images)))


def load_ffcv() -> tuple[Any, Any, Any]:
    """Returns FFCV's writer, and its fields of images and integers.

    Raises:
        ConfigError: FFCV is not installed, or cannot be loaded.
    """
    try:
        import ffcv.writer
        from ffcv.fields import IntField, RGBImageField
    except (ImportError, OSError) as error:
        raise ConfigError(f"{error} ({FFCV_INSTALL})") from None

    ffcv.writer.tqdm = functools.partial(ffcv.writer.tqdm, disable=True)
    return ffcv.writer.DatasetWriter, RGBImageField, IntField


def _read_tar(shard: Path) -> Iterator[tuple[bytes, int]]:
    with tarfile.open(shard) as archive:
        members = archive.getmembers()
        for image, label in zip(members[::2], members[1::2], strict=True):
            yield _content(archive, image), int(_content(archive, label))


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    return b"" if file is None else file.read()


def converted(data_dir: Path, file_format: str, cache_dir: Path | None = None, dataset: str = "photos") -> Path:
    """Returns the folder with a dataset's split `train` in another format; converts it first where need be.

    The conversion runs in a process of its own, under a lock, in a folder that is renamed when it is complete. It runs
    again when the source's files have changed.

    Args:
        data_dir: the data dir that `demo.prepare("photos", ...)` or `demo.prepare_fake` returned.
        file_format: `tar` (WebDataset's: `<number>.jpg` or `.png` and `<number>.cls`), `array_record` (see
            `decode_record`), or `beton` (FFCV's, made from the tar files).
        cache_dir: where converted data is kept; None: in the user's cache folder.
        dataset: its name; its features `image` and `label` are taken.

    Raises:
        ConfigError: the folder cannot be written, or the format's package is not installed.
        ShardError: a shard of the source is damaged.
        WorkerError: the conversion failed.
    """
    is_made_of_tar = file_format == "beton"
    version = max((data_dir / dataset).glob("[0-9]*.[0-9]*.[0-9]*"))
    source = converted(data_dir, "tar", cache_dir, dataset) if is_made_of_tar else version
    target = (cache_dir or machine.cache_dir()) / data_dir.name / file_format
    stamp = _describe_source(version)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.with_name(f".{file_format}.lock")):
            if _read_stamp(target) != stamp:
                _convert_in_place(source, target, file_format, stamp)
    except OSError as error:
        raise ConfigError(f"{dataset} cannot be converted to {file_format} in {target.parent}: {error}.") from error
    return target


def decode_record(record: bytes) -> tuple[Image.Image, int]:
    """Returns the RGB image and the label of an ArrayRecord's record: the label as int64, then the image file."""
    (label,) = _LABEL.unpack_from(record)
    return Image.open(io.BytesIO(record[_LABEL.size :])).convert("RGB"), label


def write_shards(source: str, target: str, file_format: str) -> None:
    """Converts every shard of a folder of TFRecord files. For `beton`: of tar files.

    Raises:
        ShardError: a shard is damaged.
        ConfigError: the format's package is not installed.
    """
    if file_format == "beton":
        load_ffcv()  # Where it is missing, nothing is read.
        images = DecodedImages(source)
        write_with_ffcv(images, Path(target) / "images.beton", "raw" if images.are_small else "jpg", len(images))
        return
    write = _WRITERS[file_format]
    for shard in sorted(Path(source).glob("*-train.tfrecord-*")):
        write(Path(target) / f"{shard.name.replace('.tfrecord', '')}.{file_format}", _read_images(shard))


def _read_images(shard: Path) -> Iterator[tuple[bytes, int]]:
    """Yields the image file and the label of every example."""
    for record in read_records(shard):
        example = _EXAMPLES.read([record], ("image", "label"))
        yield example["image"][0], int(example["label"][0])


def _write_tar(path: Path, images: Iterator[tuple[bytes, int]]) -> None:
    with path.open("wb") as file:
        tar = TarWriter(file.write)
        for number, (image, label) in enumerate(images):
            suffix = "png" if image.startswith(_PNG_SIGNATURE) else "jpg"
            tar.add(f"{number:06d}.{suffix}", image)
            tar.add(f"{number:06d}.cls", str(label).encode())
        tar.close()


def _write_array_record(path: Path, images: Iterator[tuple[bytes, int]]) -> None:
    array_record.check_package()
    # An image file does not get smaller by another compression.
    writer = array_record.ArrayRecordFileWriter(str(path), f"{array_record.OPTIONS},uncompressed")
    for image, label in images:
        writer.add(_LABEL.pack(label) + image)
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
        subprocess_call.call(write_shards, os.fspath(source), os.fspath(workplace), file_format)
        (workplace / _STAMP).write_text(json.dumps(stamp), encoding="utf-8")
        if target.exists():
            shutil.rmtree(target)
        workplace.rename(target)
    finally:
        shutil.rmtree(workplace, ignore_errors=True)


def _describe_source(source: Path) -> dict[str, list[int]]:
    """Returns file name -> [size in bytes, time of change in ns] of the shards: it differs when they change."""
    found = {shard.name: shard.stat() for shard in sorted(source.glob("*.tfrecord-*"))}
    return {name: [status.st_size, status.st_mtime_ns] for name, status in found.items()}


def _read_stamp(target: Path) -> Any:
    try:
        return json.loads((target / _STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
