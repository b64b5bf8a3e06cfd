"""Pictures in many encodings, what Pillow makes of them, and TFDS datasets of them, written at once by hand."""

import functools
import io
import struct
import zlib
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image
from tensorflow_datasets.proto import tf_example_pb2
from tfds_fixtures import write_shard

NAME = "pictures"
NAMES = ("china", "flower")


@functools.cache
def photograph(name: str, size: tuple[int, int] = (640, 427)) -> Image.Image:
    """Returns a real photograph as RGB, of (width, height)."""
    with resources.files("tfds_torch.demo").joinpath("data", f"{name}.jpg").open("rb") as file:
        return Image.open(file).convert("RGB").resize(size, Image.Resampling.BICUBIC)


def save(image: Image.Image, file_format: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, file_format, **options)
    return file.getvalue()


def _with_alpha(image: Image.Image) -> Image.Image:
    """Returns an image whose opacity changes from place to place."""
    image = image.convert("LA" if image.mode == "L" else "RGBA")
    across = np.linspace(40, 255, image.width)[None] * np.ones((image.height, 1))
    image.putalpha(Image.fromarray(across.astype(np.uint8)))
    return image


def save_16_bit_rgb(image: Image.Image) -> bytes:
    """Returns a PNG of 16 bits a channel, which Pillow can read and not write: as many low bits as there are."""
    pixels = np.asarray(image)
    deep = (pixels.astype(np.uint16) << 8) | np.uint16(0x7F)
    lines = b"".join(b"\0" + line.astype(">u2").tobytes() for line in deep)
    header = struct.pack(">IIBBBBB", image.width, image.height, 16, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in ((b"IHDR", header), (b"IDAT", zlib.compress(lines, 1)), (b"IEND", b""))
    )


ENCODINGS: dict[str, Callable[[Image.Image], bytes]] = {
    "jpeg 4:2:0": lambda image: save(image, "JPEG", quality=92, subsampling=2),
    "jpeg 4:2:2": lambda image: save(image, "JPEG", quality=92, subsampling=1),
    "jpeg 4:4:4": lambda image: save(image, "JPEG", quality=92, subsampling=0),
    "jpeg gray": lambda image: save(image.convert("L"), "JPEG", quality=92),
    "jpeg progressive": lambda image: save(image, "JPEG", quality=92, progressive=True),
    "jpeg restarts": lambda image: save(image, "JPEG", quality=92, restart_marker_rows=2),
    "png gray": lambda image: save(image.convert("L"), "PNG", compress_level=1),
    "png gray alpha": lambda image: save(_with_alpha(image.convert("L")), "PNG", compress_level=1),
    "png rgb": lambda image: save(image, "PNG", compress_level=1),
    "png rgba": lambda image: save(_with_alpha(image), "PNG", compress_level=1),
    "png palette": lambda image: save(image.quantize(64), "PNG", compress_level=1),
    "png 16 bit": save_16_bit_rgb,
    "gif": lambda image: save(image.quantize(64), "GIF"),
    "bmp": lambda image: save(image, "BMP"),
    "jpeg cmyk": lambda image: save(image.convert("CMYK"), "JPEG", quality=92),
    "webp": lambda image: save(image, "WEBP", quality=90),
}


def decode(encoded: bytes, mode: str = "RGB") -> Image.Image:
    """Returns what Pillow decodes."""
    image = Image.open(io.BytesIO(encoded))
    return image.convert(mode)


def write_pictures(
    root: Path,
    images: Sequence[bytes],
    masks: Sequence[bytes] = (),
    shards: Sequence[int] = (),
    name: str = NAME,
    mask_channels: int = 1,
) -> Path:
    """Writes a dataset of encoded images, whose labels are the examples' indices.

    Args:
        root: TFDS data directory.
        images: what is stored, as it is.
        masks: other images, the feature `mask`; none: the dataset has no such feature.
        shards: lengths of the shards; none: one holds all.
        name: of the dataset.
        mask_channels: channels that are declared of the masks.
    """
    directory = root / name / "1.0.0"
    directory.mkdir(parents=True)
    records = [_record(image, number, masks[number : number + 1]) for number, image in enumerate(images)]
    lengths = list(shards) or [len(images)]
    rest = iter(records)
    for number, length in enumerate(lengths):
        path = directory / f"{name}-train.tfrecord-{number:05}-of-{len(lengths):05}"
        write_shard(path, [next(rest) for _ in range(length)])
    features = {
        "image": tfds.features.Image(shape=(None, None, 3)),
        "label": tfds.features.ClassLabel(num_classes=max(1, len(images))),
    }
    if masks:
        features["mask"] = tfds.features.Image(shape=(None, None, mask_channels))
    split = tfds.core.SplitInfo(name="train", shard_lengths=lengths, num_bytes=sum(map(len, images)))
    tfds.folder_dataset.write_metadata(
        data_dir=str(directory),
        features=tfds.features.FeaturesDict(features),
        split_infos=[split],
        filename_template="{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
        check_data=False,
    )
    return root


def _record(image: bytes, number: int, masks: Sequence[bytes]) -> bytes:
    example = tf_example_pb2.Example()
    example.features.feature["image"].bytes_list.value.append(image)
    example.features.feature["label"].int64_list.value.append(number)
    for mask in masks:
        example.features.feature["mask"].bytes_list.value.append(mask)
    return example.SerializeToString()


# How far images are from each other


def difference(ours: np.ndarray, theirs: np.ndarray) -> tuple[float, float]:
    """Returns the mean difference of two images in grey levels, and their PSNR in dB."""
    apart = ours.astype(np.float64) - theirs.astype(np.float64)
    square = float((apart**2).mean())
    return float(np.abs(apart).mean()), 99.0 if square == 0 else 10 * float(np.log10(255**2 / square))


RESAMPLING = {False: Image.Resampling.BILINEAR, True: Image.Resampling.BICUBIC}


def crop_with_pillow(
    image: Image.Image, box: Sequence[int], size: tuple[int, int], *, bicubic: bool, flip: bool
) -> np.ndarray:
    """Returns a box (top, left, height, width) of an image, resized to (height, width), as timm and torchvision do."""
    top, left, height, width = box
    cut = image.crop((left, top, left + width, top + height)).resize((size[1], size[0]), RESAMPLING[bicubic])
    pixels = np.asarray(cut)
    pixels = pixels[..., None] if pixels.ndim == 2 else pixels
    return pixels[:, ::-1] if flip else pixels
