"""Small `.beton` files for tests."""

import gzip
import os
from pathlib import Path
from typing import Any

import numpy as np

from tfds_torch.storage.beton.fields import (
    BetonArray,
    BetonBytes,
    BetonField,
    BetonFloat,
    BetonInt,
    BetonJson,
    BetonTensor,
)
from tfds_torch.storage.beton.head import read_head
from tfds_torch.storage.beton.image_field import BetonImage
from tfds_torch.storage.beton.reader import BetonReader
from tfds_torch.storage.beton.writer import BetonWriter

DATA = Path(__file__).with_name("data")
PAGE = 2**21
FIELDS: dict[str, BetonField] = {
    "image": BetonImage("raw"),
    "label": BetonInt(),
    "score": BetonFloat(),
    "text": BetonBytes(),
    "facts": BetonJson(),
    "box": BetonArray("float32", (2, 2)),
    "codes": BetonTensor("int16", (3,)),
}


def unpack(name: str, folder: Path) -> Path:
    """Writes a file of FFCV, unpacked, into a folder."""
    path = folder / name.removesuffix(".gz")
    path.write_bytes(gzip.decompress((DATA / name).read_bytes()))
    return path


def sample_of(number: int, size: tuple[int, int] = (6, 5)) -> dict[str, Any]:
    """Returns a sample with a value for each of FIELDS."""
    return {
        "image": np.random.default_rng(number).integers(0, 256, (*size, 3), dtype=np.uint8),
        "label": number % 3,
        "score": number / 8,
        "text": b"text" * number,
        "facts": {"number": number, "name": "ä"},
        "box": np.full((2, 2), number, np.float32),
        "codes": np.arange(3, dtype=np.int16) * number,
    }


def write_samples(path: Path, num_samples: int = 7, *, with_ids: bool = True, **options: Any) -> list[dict[str, Any]]:
    """Writes samples with ids, and returns them."""
    samples = [sample_of(number) for number in range(num_samples)]
    with BetonWriter(path, FIELDS, num_samples, page_size=PAGE, **options) as writer:
        for number, sample in enumerate(samples):
            writer.add(sample, id=f"folder/{number}.png" if with_ids else None)
    return samples


def write_images(path: Path, num_samples: int, side: int = 8, **options: Any) -> "np.ndarray[Any, np.dtype[np.uint8]]":
    """Writes raw images of one size with the labels n % 10, and returns the pixels, uint8 [n, side, side, 3]."""
    pixels = np.random.default_rng(0).integers(0, 256, (num_samples, side, side, 3), dtype=np.uint8)
    fields: dict[str, BetonField] = {"image": BetonImage("raw"), "label": BetonInt()}
    with BetonWriter(path, fields, num_samples, page_size=PAGE, **options) as writer:
        for number in range(num_samples):
            writer.add((pixels[number], number % 10))
    return pixels


def places_of(path: Path, name: str) -> list[tuple[int, int]]:
    """Returns where the payloads of a field lie, and their sizes in bytes, by sample."""
    reader = BetonReader(read_head(str(path)))
    rows = reader.rows_of(name)
    pointers = rows if rows.dtype.names is None else rows["pointer"]
    table = np.frombuffer(path.read_bytes()[reader.head.table_at :], "<u8").reshape(-1, 3).tolist()
    size_at = {pointer: size for _, pointer, size in table}
    return [(pointer, size_at[pointer]) for pointer in pointers.tolist()]


def flip(path: Path, at: int, mask: int = 1) -> None:
    """Changes bits of a byte of a file in its place, and restores its modification time."""
    status = os.stat(path)
    with path.open("r+b", buffering=0) as file:
        (byte,) = os.pread(file.fileno(), 1, at)
        os.pwrite(file.fileno(), bytes([byte ^ mask]), at)
    is_dated = False
    while not is_dated:  # The system's clock for the last change ticks every few milliseconds.
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        is_dated = os.stat(path).st_ctime_ns != status.st_ctime_ns


def without_manifest(path: Path) -> None:
    """Leaves the manifest of a file out, as in those of FFCV itself."""
    head, content = read_head(str(path)), bytearray(path.read_bytes())
    assert head.manifest is not None
    del content[head.manifest.at : head.table_at]
    content[16:24] = head.manifest.at.to_bytes(8, "little")
    path.write_bytes(content)
    assert read_head(str(path)).manifest is None


def left_behind(folder: Path) -> list[str]:
    """Returns the temporary files in a folder."""
    return [name for name in os.listdir(folder) if name.endswith(".tmp")]
