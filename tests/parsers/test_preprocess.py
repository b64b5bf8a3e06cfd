"""Preprocessed batches, held against Pillow, torchvision and timm; what goes with them; and images that are none.

What loads tensorflow (a stream), and what loads torch, runs in the process of `call_reader`.
"""

import resource
import struct
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from picture_fixtures import (
    ENCODINGS,
    NAMES,
    crop_with_pillow,
    decode,
    difference,
    photograph,
    save,
    write_pictures,
)
from PIL import Image
from tfds_fixtures import NUM_TRAIN, Datasets, Read, call_reader, read_all

from parsers.preprocessing import Transformed, error_of, read_transformed
from tfds_torch import EvalPreprocess, TrainPreprocess
from tfds_torch.engines.options import ReadOptions
from tfds_torch.engines.request import ReadContext
from tfds_torch.errors import CorruptRecordError, TfdsTorchError
from tfds_torch.images.batch_buffer import ArrayBuffer
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.plan.world import World

SEED = 42
MOST_MEAN, LEAST_PSNR = 1.0, 40.0
slow = pytest.mark.slow
BUFFERS = ("tensor", pytest.param("array", marks=slow))


def transformed(root: Path, preprocess: Any, **options: Any) -> list[list[Transformed]]:
    """Returns epochs of a dataset of pictures, none of them empty."""
    arguments: dict[str, Any] = {"root": str(root), "name": "pictures", "batch_size": 4, "preprocess": preprocess}
    of_reading = {name: options.pop(name) for name in ("epochs", "fields", "buffer") if name in options}
    epochs: list[list[Transformed]] = call_reader(read_transformed, arguments | options, **of_reading)
    assert len(epochs) == len(of_reading.get("epochs", (0,)))
    assert all(epochs)
    return epochs


def crop_of(preprocess: Any, image: Image.Image, key: int, *, shrinkable: bool = False) -> tuple[Any, bool, bool]:
    """Returns the box, the flip and the filter that an example gets."""
    sizes = np.array([(image.height, image.width)], np.int64)
    rows = preprocess.crop_parameters(sizes, np.array([key]), SEED, np.array([shrinkable]))
    return rows.windows[0].tolist(), bool(rows.flips[0]), bool(rows.bicubic[0])


# Parity of crops


@pytest.fixture(scope="module")
def encoded() -> dict[str, list[bytes]]:
    """Encoding -> both photographs, in sizes of their own."""
    return {
        kind: [encode(photograph(name, size)) for name, size in zip(NAMES, ((500, 334), (301, 389)), strict=True)]
        for kind, encode in ENCODINGS.items()
    }


@pytest.fixture(scope="module")
def photographs_root(encoded: dict[str, list[bytes]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same photographs as one kind of JPEG: all but the last chunk are decoded side by side."""
    return write_pictures(tmp_path_factory.mktemp("photographs"), encoded["jpeg 4:2:0"] * 5)


def assert_parity(
    images: Sequence[bytes], came: list[Transformed], preprocess: Any, epoch: int, *, shrinkable: bool = False
) -> None:
    height, width = preprocess.size
    assert sorted(example.index for example in came) == list(range(len(images)))
    for example in came:
        image = decode(images[example.index])
        box, flip, bicubic = crop_of(preprocess, image, epoch * len(images) + example.index, shrinkable=shrinkable)
        wanted = crop_with_pillow(image, box, (height, width), bicubic=bicubic, flip=flip)
        mean, psnr = difference(example.image, wanted)
        where = f"example {example.index} of epoch {epoch}: {mean:.2f} grey levels, {psnr:.1f} dB"
        assert mean <= MOST_MEAN, where
        assert psnr >= LEAST_PSNR, where


@pytest.mark.parametrize("buffer", BUFFERS)
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_many_crops_of_photographs_are_pillows(
    buffer: str, interpolation: str, encoded: dict[str, list[bytes]], photographs_root: Path
) -> None:
    preprocess = TrainPreprocess(size=(224, 224), interpolation=interpolation)
    images = encoded["jpeg 4:2:0"] * 5
    for epoch, came in enumerate(
        transformed(photographs_root, preprocess, buffer=buffer, epochs=range(5), batch_size=5)
    ):
        assert_parity(images, came, preprocess, epoch)


@pytest.mark.parametrize("buffer", BUFFERS)
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("side", [20, *(pytest.param(side, marks=slow) for side in (32, 64))])
def test_crops_that_are_shrunk_while_they_are_decoded_are_pillows(
    buffer: str, interpolation: str, side: int, tmp_path: Path
) -> None:
    images = [
        ENCODINGS[kind](photograph(name, (640, 427) if name == "china" else (427, 641)))
        for kind in ("jpeg 4:2:0", "jpeg 4:4:4", "jpeg gray", "jpeg progressive")
        for name in NAMES
    ]
    root = write_pictures(tmp_path, images)
    preprocess = TrainPreprocess(size=(side, side), interpolation=interpolation, scale=(0.3, 1.0))
    epochs = transformed(root, preprocess, buffer=buffer, epochs=range(2))
    for epoch, came in enumerate(epochs):
        assert_parity(images, came, preprocess, epoch, shrinkable=True)
    sizes = [decode(image) for image in images]
    assert any(crop_of(preprocess, one, 0) != crop_of(preprocess, one, 0, shrinkable=True) for one in sizes)


# Parity of evaluation


def evaluate_with_timm(images: Sequence[bytes], cases: Sequence[dict[str, Any]]) -> list[list[np.ndarray]]:
    """Returns what timm's own transforms make of images in several cases. Loads torch and torchvision."""
    from benchmarks.peers.timm_reader import declare_torchvision_operators

    held = declare_torchvision_operators()
    from timm.data.transforms_factory import transforms_imagenet_eval

    decoded = [decode(image) for image in images]
    results = []
    for case in cases:
        fill = tuple(level / 255 for level in case["fill"])
        arguments: dict[str, Any] = {name: case[name] for name in ("crop_pct", "crop_mode", "interpolation")}
        transform = transforms_imagenet_eval(img_size=case["size"], mean=fill, use_prefetcher=True, **arguments)
        results.append([np.asarray(transform(image)).transpose(1, 2, 0) for image in decoded])
    del held
    return results


MODES, FILTERS = ("center", "squash", "border"), ("bilinear", "bicubic")
SIZES = (((224, 224), 0.875), ((160, 224), 0.95), ((64, 64), 1.0))


@pytest.mark.parametrize(
    ("buffer", "interpolation", "sizes"),
    [
        ("tensor", "bilinear", SIZES[:1]),
        ("tensor", "bicubic", SIZES[1:2]),
        pytest.param("tensor", "bilinear", SIZES[1:], marks=slow),
        pytest.param("tensor", "bicubic", SIZES[::2], marks=slow),
        *(pytest.param("array", name, SIZES, marks=slow) for name in FILTERS),
    ],
)
def test_evaluation_is_timms(
    buffer: str, interpolation: str, sizes: Any, encoded: dict[str, list[bytes]], tmp_path: Path
) -> None:
    tiny = [ENCODINGS["png rgb"](photograph("china", size)) for size in ((40, 31), (9, 50))]
    images = encoded["jpeg 4:2:0"] + encoded["jpeg 4:4:4"][:1] + encoded["png rgb"][1:] + tiny
    root = write_pictures(tmp_path, images)
    cases = [
        {"size": size, "crop_pct": part, "crop_mode": mode, "interpolation": interpolation, "fill": (10, 120, 230)}
        for mode in MODES
        for size, part in sizes
    ]
    theirs = call_reader(evaluate_with_timm, images, cases)
    for case, wanted in zip(cases, theirs, strict=True):
        (came,) = transformed(root, EvalPreprocess(**case), buffer=buffer)
        assert len(came) == len(images)
        for example in came:
            mean, psnr = difference(example.image, wanted[example.index])
            assert mean <= MOST_MEAN, (case, example.index, mean, psnr)
            assert psnr >= LEAST_PSNR, (case, example.index, mean, psnr)


# Pad and crop


def pad_and_crop_with_torchvision(
    images: Sequence[bytes], places: Sequence[tuple[int, int, bool]], size: int, padding: int, fill: tuple[int, ...]
) -> list[np.ndarray]:
    """Returns windows of padded images, their top and left counted from the image's own. Loads torchvision."""
    from benchmarks.peers.timm_reader import declare_torchvision_operators

    held = declare_torchvision_operators()
    from torchvision.transforms import functional as F

    results = []
    for image, (top, left, flip) in zip(map(decode, images), places, strict=True):
        cut = F.crop(F.pad(image, padding, fill), top + padding, left + padding, size, size)
        results.append(np.array(F.hflip(cut) if flip else cut))
    del held
    return results


@pytest.mark.parametrize("buffer", BUFFERS)
def test_pad_and_crop_is_torchvisions_pixel_by_pixel(buffer: str, tmp_path: Path) -> None:
    images = [save(photograph(name, size), "PNG") for name in NAMES for size in ((32, 32), (40, 32), (57, 91))]
    preprocess = TrainPreprocess(size=32, crop_padding=4, fill=(9, 8, 7))
    epochs = transformed(write_pictures(tmp_path, images), preprocess, buffer=buffer, epochs=range(3))
    for epoch, came in enumerate(epochs):
        places = []
        for example in came:
            image = decode(images[example.index])
            rows = preprocess.crop_parameters(
                np.array([(image.height, image.width)]),
                np.array([epoch * len(images) + example.index]),
                SEED,
                np.array([False]),
            )
            begin = rows.windows[0, :2] + rows.offsets[0]
            places.append((*begin.tolist(), bool(rows.flips[0])))
        in_order = [images[example.index] for example in came]
        wanted = call_reader(pad_and_crop_with_torchvision, in_order, places, 32, 4, (9, 8, 7))
        for example, pixels in zip(came, wanted, strict=True):
            np.testing.assert_array_equal(example.image, pixels)


# What goes through the same crop


def save_mask(pixels: np.ndarray) -> bytes:
    return save(Image.fromarray(pixels), "PNG")


def test_deep_masks_keep_their_type_and_boxes_come_as_lists(datasets: Datasets) -> None:
    arguments: dict[str, Any] = {
        "root": str(datasets.root),
        "name": "shapes",
        "batch_size": 16,
        "preprocess": TrainPreprocess(size=16, also=("mask", "depth")),
    }
    (came,) = call_reader(read_transformed, arguments, fields=("image", "mask", "depth", "objects/bbox", "words"))
    assert len(came) == NUM_TRAIN
    for example in came:
        mask, depth = example.features["mask"], example.features["depth"]
        assert (depth.shape, depth.dtype) == ((16, 16, 1), np.uint16)
        np.testing.assert_array_equal(depth, mask.astype(np.uint16) * 257)
        assert isinstance(example.features["words"], list)
    boxes = [example.features["objects/bbox"] for example in came]
    assert {box.shape for box in boxes} == {(number, 4) for number in range(4)}


@pytest.mark.parametrize("mask_size", [(20, 30), (30, 20), (10, 15)])
def test_a_mask_of_another_size_than_its_image_is_refused(mask_size: tuple[int, int], tmp_path: Path) -> None:
    image = save(photograph("china", (20, 31)), "PNG")
    masks = [save_mask(np.zeros(size, np.uint8)) for size in ((31, 20), mask_size)]
    root = write_pictures(tmp_path, [image, image], masks)
    arguments = reading(root, EvalPreprocess(size=8, also=("mask",)))
    kind, text = call_reader(error_of, arguments, ("image", "mask"))
    assert kind == "CorruptRecordError"
    assert "record 1 (index 1, id pictures-train.tfrecord-00000-of-00001__1)" in text
    height, width = mask_size
    assert (
        f"Its 'mask' has {height} x {width} pixels, and its image 31 x 20: what goes through the same crop must be of "
        f"the same size."
    ) in text


# One example, one result


def read_of(arguments: dict[str, Any], world: World = World(), epoch: int = 0, start_batch: int = 0) -> Read:
    return Read(arguments, world, epoch, start_batch, fields=("image", "label"))


PREPROCESS = TrainPreprocess(size=16, interpolation="random")


def training(batch_size: int = 12, mode: str = "index", num_threads: int = 1, **arguments: Any) -> dict[str, Any]:
    read = ReadOptions(mode=mode, num_threads=num_threads)
    return {
        "name": "shapes",
        "is_training": True,
        "batch_size": batch_size,
        "preprocess": PREPROCESS,
        "read": read,
        **arguments,
    }


@pytest.mark.parametrize("mode", ["index", "examples"])
def test_a_resumed_epoch_has_the_same_pixels(mode: str, datasets: Datasets) -> None:
    arguments = training(mode=mode)
    whole, *tails = read_all(datasets.root, [read_of(arguments, epoch=1, start_batch=start) for start in (0, 1, 5, 17)])
    for start, tail in zip((1, 5, 17), tails, strict=True):
        assert len(tail) == len(whole) - start
        for ours, theirs in zip(tail, whole[start:], strict=True):
            np.testing.assert_array_equal(ours.index, theirs.index)
            np.testing.assert_array_equal(ours.image, theirs.image)


# Images that are none


def reading(root: Path, preprocess: Any, **arguments: Any) -> dict[str, Any]:
    return {"root": str(root), "name": "pictures", "batch_size": 2, "preprocess": preprocess, **arguments}


def png_that_claims(height: int, width: int) -> bytes:
    """Returns a PNG of a few bytes that says how large it is."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(b"\0" * 100)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )


def jpeg_that_claims(height: int, width: int) -> bytes:
    image = bytearray(WHOLE)
    frame = image.index(b"\xff\xc0")
    image[frame + 5 : frame + 9] = struct.pack(">HH", height, width)
    return bytes(image)


WHOLE = save(Image.new("RGB", (64, 48), (200, 100, 50)), "JPEG")
NOISE = save(Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)), "JPEG")
SMALL = 10_000
BAD: dict[str, tuple[bytes, str]] = {
    "a huge JPEG": (jpeg_that_claims(60_000, 50_000), "It has 60000 x 50000 pixels, and at most 10,000 are allowed"),
    "no height": (jpeg_that_claims(0, 64), "It has 0 x 64 pixels: there is nothing to decode."),
    "no bytes": (b"", "It is empty."),
    "a cut JPEG": (NOISE[: len(NOISE) // 4], "right: it was written that way. "),
    "a header alone": (NOISE[: NOISE.index(b"\xff\xda")], "right: it was written that way. "),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("mode", ["index", pytest.param("examples", marks=pytest.mark.slow)])
def test_an_image_that_is_none_is_an_error_with_file_record_and_id(case: str, mode: str, tmp_path: Path) -> None:
    image, reason = BAD[case]
    root = write_pictures(tmp_path, [WHOLE] * 4 + [image] + [WHOLE] * 2, shards=(3, 4))
    arguments = reading(root, EvalPreprocess(size=32, max_pixels=SMALL), read=ReadOptions(mode=mode, num_threads=1))
    kind, text = call_reader(error_of, arguments)
    assert kind == "CorruptRecordError"
    file = "pictures-train.tfrecord-00001-of-00002"
    assert f"{file}: record 1 (index 4, id {file}__1) of pictures:1.0.0 cannot be decoded" in text
    assert reason in text
    assert text.endswith(".")
    assert "\n" not in text
    assert "tensorflow" not in text.replace("tensorflow_datasets", "")


def read_whole(parser: ParserTfds) -> Any:
    return list(parser.batches(context=ReadContext(make_buffer=ArrayBuffer)))


def error_of_way(arguments: dict[str, Any], way: Callable[[ParserTfds], Any]) -> tuple[str, str]:
    """Returns type and text of what a way of reading raises."""
    try:
        way(ParserTfds(**arguments))
    except TfdsTorchError as error:
        return type(error).__name__, str(error)
    return "", ""


WAYS: list[Callable[[Any], Any]] = [
    lambda parser: list(parser.batches()),
    lambda parser: parser[1],
    lambda parser: parser.examples_by_index([2, 1, 0]),
    read_whole,
]


@pytest.mark.parametrize(
    "huge", [jpeg_that_claims(65_000, 65_000), png_that_claims(65_000, 65_000)], ids=["JPEG", "PNG"]
)
def test_an_image_that_claims_to_be_huge_is_refused_without_a_preprocess_too(huge: bytes, tmp_path: Path) -> None:
    parser = ParserTfds(write_pictures(tmp_path, [WHOLE, huge, WHOLE]), "pictures", batch_size=2)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for way in WAYS:
        with pytest.raises(
            CorruptRecordError, match=r"__1\) of pictures.*It has 65000 x 65000 pixels, and at most 178,9"
        ):
            way(parser)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500 * 1024  # Nothing of that size.


@pytest.mark.parametrize("mode", ["index", pytest.param("examples", marks=slow)])
@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_whole_batches_of_images_of_several_sizes_are_refused_with_the_example(
    batch_size: int, mode: str, tmp_path: Path
) -> None:
    other = save(Image.new("RGB", (64, 50)), "PNG")
    root = write_pictures(tmp_path, [WHOLE] * 3 + [other] + [WHOLE])
    arguments = reading(root, None, batch_size=batch_size, read=ReadOptions(mode=mode, num_threads=1))
    error, text = call_reader(error_of_way, arguments, read_whole)
    if batch_size == 1:  # A batch of its own.
        assert (error, text) == ("", "")
        return
    assert error == "ConfigError"
    assert text == (
        "Whole batches need images of one size: pictures-train.tfrecord-00000-of-00001__3 is of another one than the "
        "images before it. It has [H, W, C] = [50, 64, 3], and the first [48, 64, 3]. Give the parser a preprocess, "
        "such as TrainPreprocess(size=224), or leave out batched=True."
    )
