"""The pixel contract: an undistorted image equals Pillow's of the same file, whatever the way it is read."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from encoded_images import encoded_images, pillow_pixels
from picture_fixtures import write_pictures
from tfds_fixtures import call_reader

from parsers.preprocessing import find_make_buffer, to_arrays
from tfds_torch import EvalPreprocess, TrainPreprocess
from tfds_torch.engines.batch import Batch
from tfds_torch.engines.options import ReadOptions
from tfds_torch.engines.request import ReadContext
from tfds_torch.parsers.tfds.parser import ParserTfds

MODES = ("RGB", "L", "RGBA")
BATCH_SIZE = 5
IN_FOLDERS = {"jpeg": ".jpg", "png": ".png"}


def size_of(name: str) -> tuple[int, int]:
    """Returns height and width."""
    height, width, _ = pillow_pixels(encoded_images()[name], "RGB").shape
    return height, width


NAMES = sorted(encoded_images(), key=size_of)
"""Of the images, those of one size together."""


@dataclass(frozen=True)
class Group:
    """Images of one size: first..last-1 of `NAMES`."""

    size: tuple[int, int]
    first: int
    last: int


def list_groups() -> list[Group]:
    groups, first = [], 0
    for size, names in groupby(NAMES, key=size_of):
        last = first + len(list(names))
        groups.append(Group(size, first, last))
        first = last
    return groups


GROUPS = list_groups()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All images as a dataset in shards of TFRecord, the same ones as the feature `mask` too."""
    images = [encoded_images()[name] for name in NAMES]
    shards = (30, 0, len(images) - 30)
    return write_pictures(tmp_path_factory.mktemp("pixels"), images, images, shards, mask_channels=3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The JPEG and PNG images as an image folder."""
    root = tmp_path_factory.mktemp("folder")
    for name in NAMES:
        extension = IN_FOLDERS.get(name.partition(" ")[0])
        if extension:
            path = root / "train" / "all" / f"{name}{extension}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encoded_images()[name])
    return root


def assert_pillows(index: Sequence[int], images: Sequence[np.ndarray], mode: str) -> None:
    for number, pixels in zip(index, images, strict=True):
        expected = pillow_pixels(encoded_images()[NAMES[number]], mode)
        np.testing.assert_array_equal(pixels, expected, err_msg=f"{NAMES[number]} as {mode}", strict=True)


def read(
    arguments: dict[str, Any], groups: Sequence[Group | None], make_buffer: str | None = None, identity: str = ""
) -> list[tuple[int, np.ndarray]]:
    """Returns index and pixels of a dataset's images, group by group; a stream loads tensorflow.

    Args:
        arguments: of ParserTfds.
        groups: what is read; None: all.
        make_buffer: whose memory images are decoded to: `array` or `tensor`; None: arrays of their own.
        identity: `train` or `eval`: a preprocess that changes nothing at the group's size.
    """
    context = ReadContext(make_buffer=find_make_buffer(make_buffer) if make_buffer else None)
    rows = []
    for group in groups:
        split = "train" if group is None else f"train[{group.first}:{group.last}]"
        preprocess = preprocess_of(group, identity) if group is not None and identity else None
        parser = ParserTfds(split=split, batch_size=BATCH_SIZE, preprocess=preprocess, **arguments)
        first = 0 if group is None else group.first
        for batch in parser.batches(context=context):
            rows += [(first + index, pixels) for index, pixels in pixels_of(batch)]
    return rows


def preprocess_of(group: Group, identity: str) -> TrainPreprocess | EvalPreprocess:
    if identity == "train":
        return TrainPreprocess(size=group.size, scale=(1.0, 1.0), ratio=(1.0, 1.0), crop_padding=0, hflip=0.0)
    return EvalPreprocess(size=group.size, crop_pct=1.0)


def pixels_of(batch: Batch) -> Iterator[tuple[int, np.ndarray]]:
    images = batch.image if isinstance(batch.image, list) else to_arrays(batch.image)
    yield from zip(batch.index.tolist(), images, strict=True)


def assert_all_pillows(rows: Sequence[tuple[int, np.ndarray]], mode: str) -> None:
    index = [number for number, _ in rows]
    assert index == list(range(len(NAMES)))
    assert_pillows(index, [pixels for _, pixels in rows], mode)


READ_MODES = [pytest.param("index", id="by index"), pytest.param("examples", id="streamed")]


def arguments_of(root: Path, mode: str, read_mode: str) -> dict[str, Any]:
    read_options = ReadOptions(mode=read_mode, num_threads=2)
    return {"root": str(root), "name": "pictures", "image_mode": mode, "read": read_options}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("read_mode", READ_MODES)
def test_images_of_their_own_sizes_are_pillows(read_mode: str, mode: str, root: Path) -> None:
    assert_all_pillows(call_reader(read, arguments_of(root, mode, read_mode), [None]), mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("read_mode", "make_buffer"),
    [("index", "array"), ("index", "tensor"), pytest.param("examples", "tensor", marks=pytest.mark.slow)],
)
def test_images_of_whole_batches_are_pillows(read_mode: str, make_buffer: str, mode: str, root: Path) -> None:
    assert len(GROUPS) < len(NAMES) / 3, "batches of several images"
    assert_all_pillows(call_reader(read, arguments_of(root, mode, read_mode), GROUPS, make_buffer), mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("identity", ["train", "eval"])
@pytest.mark.parametrize(
    ("read_mode", "make_buffer"),
    [("index", "array"), ("index", "tensor"), pytest.param("examples", "tensor", marks=pytest.mark.slow)],
)
def test_images_through_a_preprocess_that_changes_nothing_are_pillows(
    read_mode: str, make_buffer: str, identity: str, mode: str, root: Path
) -> None:
    assert_all_pillows(call_reader(read, arguments_of(root, mode, read_mode), GROUPS, make_buffer, identity), mode)


@pytest.mark.parametrize("mode", MODES)
def test_single_images_are_pillows(mode: str, root: Path) -> None:
    parser = ParserTfds(root, "pictures", image_mode=mode)
    assert_all_pillows([(number, parser[number].image) for number in range(len(NAMES))], mode)
    assert_all_pillows([(example.index, example.image) for example in parser[:]], mode)


def test_images_under_their_own_name_are_pillows(root: Path) -> None:
    parser = ParserTfds(root, "pictures", image_key=None)
    examples = parser.examples_by_index(range(len(NAMES)), ["mask"])
    assert_all_pillows([(example.index, example.features["mask"]) for example in examples], "RGB")


def test_images_as_they_are_stored_are_pillows(root: Path) -> None:
    modes = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
    seen = set()
    for example in ParserTfds(root, "pictures", image_mode=None):
        mode = modes[example.image.shape[-1]]
        assert_pillows([example.index], [example.image], mode)
        seen.add(mode)
    assert seen == set(modes.values())


@pytest.mark.parametrize("mode", MODES)
def test_images_of_a_folder_are_pillows_in_every_way(mode: str, folder: Path) -> None:
    parser = ParserTfds(folder, "image_folder", image_mode=mode, batch_size=BATCH_SIZE)
    names = [Path(name).stem for name in parser.filenames()]
    assert len(names) > 50
    numbers = [NAMES.index(name) for name in names]
    assert_pillows(numbers, [image for batch in parser.batches() for image in batch.image], mode)
    assert_pillows(numbers, [example.image for example in parser], mode)
    for make_buffer in ("array", "tensor"):
        context = ReadContext(make_buffer=find_make_buffer(make_buffer))
        alone = parser.with_batch_size(1)
        assert_pillows(numbers, [to_arrays(batch.image)[0] for batch in alone.batches(context=context)], mode)
