"""Tensors of a TFDS dataset as its images: pixels are images as any, other numbers are cut and flipped."""

import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow_datasets as tfds
import torch
from picture_fixtures import write_pictures
from PIL import Image
from tensorflow_datasets.proto import tf_example_pb2
from tfds_fixtures import write_shard
from zygote import tensorflow_zygote

from parsers.robot_episodes import read_episodes, write_dataset
from parsers.structured_examples import encode
from parsers.tar_samples import png
from tfds_torch import (
    DecodedCache,
    EvalPreprocess,
    ImageDataset,
    IndexedImageDataset,
    ParserMapStyle,
    ParserMixture,
    ParserTfds,
    ParserWebDataset,
    TrainPreprocess,
    Windows,
    create_loader,
    export_dataset,
)
from tfds_torch.errors import ConfigError

SIDE, NUM = 12, 5
KINDS: Mapping[str, tuple[tuple[int | None, ...], Any, str]] = {
    "pixels": ((SIDE, SIDE, 3), np.uint8, "none"),
    "zipped": ((SIDE, SIDE, 3), np.uint8, "zlib"),
    "grey": ((SIDE, SIDE), np.uint8, "none"),
    "bands": ((SIDE, SIDE, 13), np.uint16, "none"),
    "bytes": ((SIDE, SIDE, 13), np.uint8, "bytes"),
    "floats": ((SIDE, SIDE, 3), np.float32, "none"),
    "sizes": ((None, None, 2), np.float32, "zlib"),
}
"""Name of a dataset -> shape, dtype and encoding of its `image`."""
PIXELS, NUMBERS = ("pixels", "zipped", "grey"), ("bands", "bytes", "floats")


def value_of(name: str, number: int) -> np.ndarray:
    """Returns the image of an example, whose first channel is its mask's."""
    shape, dtype, _ = KINDS[name]
    sides = tuple(SIDE + number if side is None else side for side in shape)
    values = np.random.default_rng(number).integers(0, 200, sides).astype(dtype)
    return values if dtype == np.uint8 else values * dtype(257)


def mask_of(name: str, number: int) -> np.ndarray:
    value = value_of(name, number)
    first = value if value.ndim == 2 else value[..., 0]
    return (first if first.dtype == np.uint8 else first / 257).astype(np.uint8)[..., None]


def record_of(name: str, number: int) -> bytes:
    """Returns an example as TFDS stores it."""
    (shape, _, encoding), value, example = KINDS[name], value_of(name, number), tf_example_pb2.Example()
    stored = example.features.feature
    if encoding == "none" and value.dtype.kind == "f":
        stored["image"].float_list.value.extend(value.ravel().tolist())
    elif encoding == "none":
        stored["image"].int64_list.value.extend(value.ravel().tolist())
    else:
        content = value.tobytes() if encoding == "bytes" else zlib.compress(value.tobytes())
        stored["image/value" if shape.count(None) > 1 else "image"].bytes_list.value.append(content)
        if shape.count(None) > 1:
            stored["image/shape"].int64_list.value.extend(value.shape)
    stored["label"].int64_list.value.append(number)
    stored["mask"].bytes_list.value.append(encode(mask_of(name, number)))
    return bytes(example.SerializeToString())


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tensors")
    f = tfds.features
    for name, (shape, dtype, encoding) in KINDS.items():
        features = f.FeaturesDict(
            {
                "image": f.Tensor(shape=shape, dtype=dtype, encoding=encoding),
                "label": f.ClassLabel(num_classes=NUM),
                "mask": f.Image(shape=(None, None, 1)),
            }
        )
        directory = folder / name / "1.0.0"
        directory.mkdir(parents=True)
        records = [record_of(name, number) for number in range(NUM)]
        write_shard(directory / f"{name}-train.tfrecord-00000-of-00001", records)
        tfds.folder_dataset.write_metadata(
            data_dir=str(directory),
            features=features,
            split_infos=[tfds.core.SplitInfo(name="train", shard_lengths=[NUM], num_bytes=1)],
            filename_template="{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
            check_data=False,
        )
    return folder


def open_tensors(root: Path, name: str, **arguments: Any) -> ParserTfds:
    return ParserTfds(root, name, **{"batch_size": NUM} | arguments)


@pytest.mark.parametrize("name", PIXELS)
def test_pixels_are_images_as_those_of_files(name: str, root: Path) -> None:
    parser = open_tensors(root, name)
    (batch,) = ImageDataset(parser, batched=True)
    wanted = [np.asarray(Image.fromarray(value_of(name, number)).convert("RGB")) for number in range(NUM)]
    assert (batch[0].permute(0, 2, 3, 1).numpy() == np.stack(wanted)).all()
    assert (parser[3].image == wanted[3]).all()
    image, label = next(iter(ImageDataset(parser)))
    assert isinstance(image, Image.Image)
    assert label == 0
    preprocess = TrainPreprocess(8, scale=(0.3, 1.0))
    root_of_files = write_pictures(root / f"{name} in files", list(map(png, wanted)))
    files = ParserTfds(root_of_files, "pictures", batch_size=NUM, is_training=True, preprocess=preprocess)
    tensors = open_tensors(root, name, is_training=True, preprocess=preprocess)
    for ours, theirs in zip(tensors.batches(epoch=1), files.batches(epoch=1), strict=True):
        assert (ours.image == theirs.image).all()


@pytest.mark.parametrize("name", NUMBERS)
def test_other_numbers_come_as_they_are(name: str, root: Path) -> None:
    wanted = np.stack([value_of(name, number) for number in range(NUM)])
    parser = open_tensors(root, name)
    assert (parser[2].image == wanted[2]).all()
    for num_workers in (0, 1):
        with create_loader(ImageDataset(parser, batched=True), num_workers=num_workers) as loader:
            ((images, labels),) = loader
        assert str(images.dtype) == f"torch.{wanted.dtype}"
        assert (images.permute(0, 2, 3, 1).numpy() == wanted).all()
        assert labels.tolist() == list(range(NUM))
    with create_loader(ImageDataset(parser)) as loader:  # Single examples, collated.
        ((images, _),) = loader
    assert (images.permute(0, 2, 3, 1).numpy() == wanted).all()


def test_numbers_of_several_sizes_are_a_list(root: Path) -> None:
    ((images, _),) = ImageDataset(open_tensors(root, "sizes"), batched=True)
    assert [image.shape for image in images] == [(2, SIDE + number, SIDE + number) for number in range(NUM)]
    with pytest.raises(ConfigError, match="only uint8 of 1, 3 or 4 channels is resized"):
        list(open_tensors(root, "sizes", preprocess=EvalPreprocess(8)).batches())
    (batch,) = open_tensors(root, "sizes", preprocess=TrainPreprocess(SIDE, crop_padding=0)).batches()
    assert (batch.image.shape, batch.image.dtype) == ((NUM, SIDE, SIDE, 2), np.float32)


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize(
    "preprocess",
    [TrainPreprocess(8, crop_padding=2, also=("mask",)), EvalPreprocess(8, crop_pct=8 / SIDE, also=("mask",))],
    ids=["train", "eval"],
)
def test_other_numbers_are_cut_and_flipped_with_what_goes_along(name: str, preprocess: Any, root: Path) -> None:
    parser = open_tensors(root, name, is_training=True, preprocess=preprocess)
    scale = 1 if KINDS[name][1] == np.uint8 else 257
    seen = []
    for epoch in range(3):
        for batch in parser.batches(epoch=epoch, fields=("image", "mask")):
            assert (batch.image.dtype, batch.image.shape[1:3]) == (KINDS[name][1], (8, 8))
            assert (batch.image[..., :1] == np.stack(batch.features["mask"]).astype(float) * scale).all()
            seen.append(batch.image[batch.index.tolist().index(0)])
    assert (seen[0] == seen[1]).all() == isinstance(preprocess, EvalPreprocess)
    if isinstance(preprocess, EvalPreprocess):
        assert (seen[0] == value_of(name, 0)[2:10, 2:10]).all()
    dataset = IndexedImageDataset(parser, fields=("image", "mask"))
    image, mask = dataset[1]
    assert (image.shape[1:], mask.shape) == ((8, 8), (1, 8, 8))
    assert torch.equal(image[:1].double(), mask.double() * scale)


def test_what_would_be_resized_is_refused_with_what_cuts(root: Path) -> None:
    parser = open_tensors(root, "bands", is_training=True, preprocess=TrainPreprocess(8))
    with pytest.raises(ConfigError, match=r"Its image is uint16 \[12, 12, 13\], and only .*crop_padding=0"):
        next(iter(parser.batches()))
    with pytest.raises(ConfigError, match="is stored as numbers, not as an image file"):
        open_tensors(root, "pixels", cache=DecodedCache())


def test_tensors_of_mixtures_and_exports(root: Path, tmp_path: Path) -> None:
    members = {name: ParserTfds(root, name) for name in ("pixels", "zipped")}
    (batch,) = ParserMixture(members, batch_size=2 * NUM, preprocess=EvalPreprocess(SIDE, crop_pct=1)).batches()
    assert (batch.image[:NUM] == np.stack([value_of("pixels", number) for number in range(NUM)])).all()
    assert (batch.image[NUM:] == np.stack([value_of("zipped", number) for number in range(NUM)])).all()
    deep = {name: ParserTfds(root, "bands") for name in "ab"}
    with pytest.raises(ConfigError, match="Ask for it by its own name, or as 'stored/image'"):
        ParserMixture(deep, batch_size=2).check_fields(["image"])
    export_dataset(ParserTfds(root, "bands"), tmp_path / "bands", format="webdataset", num_workers=1)
    tars = ParserWebDataset(sorted((tmp_path / "bands").glob("*.tar")), {"bands": "image.npy"}, batch_size=NUM)
    (batch,) = tars.batches(fields=("bands",))
    assert (np.stack(batch.features["bands"])[4] == value_of("bands", 4)).all()


def test_what_is_no_image_is_named_and_comes_as_stored(root: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape("ask for it as 'stored/label' among fields")):
        open_tensors(root, "pixels", image_key="label")
    vectors = ParserMapStyle([{"image": np.arange(3.0), "label": number} for number in range(2)])
    with pytest.raises(ConfigError, match="This one comes as 'stored/image', too"):
        vectors.check_fields(["image"])
    assert vectors[1].features["stored/image"].tolist() == [0, 1, 2]
    assert vectors[1].label == 1


def test_numbers_of_an_own_dataset_are_images() -> None:
    bands = [value_of("bands", number) for number in range(NUM)]
    rows = [(band, number) for number, band in enumerate(bands)]
    for given in (rows, [(torch.from_numpy(band).permute(2, 0, 1), number) for band, number in rows]):
        parser = ParserMapStyle(given, names=("image", "label"), batch_size=NUM)
        ((images, labels),) = ImageDataset(parser, batched=True)
        assert (images.permute(0, 2, 3, 1).numpy() == np.stack(bands)).all()
        assert labels.tolist() == list(range(NUM))
        cut = parser.with_preprocess(EvalPreprocess(8, crop_pct=8 / SIDE))
        ((images, _),) = ImageDataset(cut)
        assert (images[1].permute(1, 2, 0).numpy() == bands[1][2:10, 2:10]).all()


def write_robot(root: str) -> np.ndarray:
    """Writes episodes whose steps have a camera as a tensor; returns those of the first one, as TFDS reads them."""
    f = tfds.features
    camera, state = f.Tensor(shape=(6, 8, 3), dtype=np.uint8), f.Tensor(shape=(4,), dtype=np.float32)
    observation = {"camera": camera, "state": state}
    flags = {"is_first": np.bool_, "is_last": np.bool_}
    features = f.FeaturesDict({"steps": f.Dataset({"observation": observation, "action": np.float32, **flags})})
    write_dataset(root, "tensor_robot", features, (3, 4))
    first, _ = read_episodes(root, "tensor_robot")
    return np.stack([step["observation"]["camera"] for step in first["steps"]])


def test_tensors_of_steps_are_cameras(tmp_path: Path) -> None:
    wanted = tensorflow_zygote().call(write_robot, str(tmp_path))
    for preprocess, size in ((None, (6, 8)), ({"camera": EvalPreprocess(4)}, (4, 4))):
        parser = ParserTfds(
            tmp_path,
            "tensor_robot",
            batch_size=7,
            windows=Windows("steps", offsets={"camera": range(-1, 1)}),
            fields={"camera": "observation/camera"},
            preprocess=preprocess,
        )
        ((cameras,),) = ImageDataset(parser, fields=("camera",))
        assert (cameras.shape, cameras.dtype) == ((7, 2, 3, *size), torch.uint8)
        if preprocess is None:
            assert (cameras[1].permute(0, 2, 3, 1).numpy() == wanted[:2]).all()
