"""Images beside the image keep their numbers, in every parser, with and without `also`, and through exports."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from images.test_beside import COLOURS, encoded, palette_of
from picture_fixtures import write_pictures
from PIL import Image
from storage.webdataset.made_tars import write_samples

from tfds_torch import (
    EvalPreprocess,
    ImageDataset,
    IndexedImageDataset,
    ParserBeton,
    ParserMapStyle,
    ParserMixture,
    ParserTfds,
    ParserWebDataset,
    TrainPreprocess,
    create_loader,
    export_dataset,
)
from tfds_torch.errors import ConfigError

SIDE, NUM = 16, 4
CLASSES = np.array([0, 1, 2, 255], np.uint8)
INDICES = np.kron(CLASSES.reshape(2, 2), np.ones((SIDE // 2, SIDE // 2), np.uint8))
DEPTHS = np.kron(np.array([[1, 256], [4096, 30000]], np.uint16), np.ones((SIDE // 2, SIDE // 2), np.uint16))
PICTURE = np.kron(COLOURS[:, :2], np.ones((SIDE // 2, SIDE // 2, 1), np.uint8))
BESIDE: dict[str, tuple[Image.Image, np.ndarray]] = {
    "seg": (palette_of(INDICES), INDICES),
    "bit": (Image.fromarray(INDICES > 1), (INDICES > 1).astype(np.uint8)),
    "grey": (Image.fromarray(INDICES), INDICES),
    "depth": (Image.fromarray(DEPTHS), DEPTHS),
}
"""Field -> what is stored, and its numbers."""
NAMES = (*BESIDE, "left")
WHOLE = EvalPreprocess(SIDE, crop_pct=1.0)
CROPPED = TrainPreprocess(SIDE // 2, scale=(0.9, 1.0), also=NAMES)


def make_tar(folder: Path, **arguments: Any) -> Any:
    path = folder / "beside.tar"
    if not path.exists():
        images = {name: image for name, (image, _) in BESIDE.items()} | {"left": Image.fromarray(PICTURE)}
        files = {f"{name}.png": encoded(image) for name, image in images.items()}
        files["png"] = encoded(Image.fromarray(PICTURE))
        write_samples(path, ({"__key__": f"{number}", "cls": b"0"} | files for number in range(NUM)))
    fields = {name: f"{name}.png" for name in NAMES} | {"image": "png", "label": "cls"}
    return ParserWebDataset(path, fields, batch_size=NUM, **arguments)


def own_rows() -> list[dict[str, Any]]:
    images = {name: image for name, (image, _) in BESIDE.items()}
    picture = Image.fromarray(PICTURE)
    return [{"image": picture, "label": 0, "left": picture} | images for _ in range(NUM)]


def make_own(folder: Path, **arguments: Any) -> Any:
    return ParserMapStyle(own_rows(), batch_size=NUM, **arguments)


def make_mixture(folder: Path, image_mode: str = "RGB", **arguments: Any) -> Any:
    members = {name: PARSERS[name](folder, image_mode=image_mode) for name in ("tar", "own")}
    return ParserMixture(members, batch_size=NUM, **arguments)


PARSERS: Mapping[str, Callable[..., Any]] = {"tar": make_tar, "own": make_own, "mixture": make_mixture}


def batch_of(parser: Any, fields: tuple[str, ...] = NAMES) -> dict[str, torch.Tensor]:
    fields = ("image", *fields)
    batch = next(iter(ImageDataset(parser, fields=fields, batched=True)))
    return dict(zip(fields, batch, strict=True))


@pytest.mark.parametrize("name", PARSERS)
@pytest.mark.parametrize("preprocess", [None, WHOLE], ids=["none", "without also"])
@pytest.mark.parametrize("image_mode", ["RGB", "L"])
def test_whole_images_have_the_numbers_that_are_stored(
    name: str, preprocess: Any, image_mode: str, tmp_path: Path
) -> None:
    batch = batch_of(PARSERS[name](tmp_path, preprocess=preprocess, image_mode=image_mode))
    for field, (_, wanted) in BESIDE.items():
        assert batch[field].shape == (len(batch["image"]), 1, SIDE, SIDE), field
        assert (batch[field].numpy() == wanted).all(), field
        assert str(batch[field].dtype) == f"torch.{wanted.dtype}"
    assert (batch["left"].permute(0, 2, 3, 1).numpy() == PICTURE).all()
    assert batch["image"].shape[1] == (3 if image_mode == "RGB" else 1)


@pytest.mark.parametrize("name", PARSERS)
def test_crops_of_numbers_have_no_others_and_pictures_are_those_of_the_image(name: str, tmp_path: Path) -> None:
    parser = PARSERS[name](tmp_path, preprocess=CROPPED, is_training=True)
    batch = batch_of(parser)
    for field, (_, wanted) in BESIDE.items():
        assert batch[field].shape == (len(batch["image"]), 1, SIDE // 2, SIDE // 2), field
        assert batch[field].dtype == torch.from_numpy(wanted).dtype
        assert set(np.unique(batch[field].numpy())) == set(np.unique(wanted)), field
    assert torch.equal(batch["left"], batch["image"])  # Bilinear, with the same crop.
    if name == "tar":
        image, mask = IndexedImageDataset(parser, fields=("image", "seg"))[0]
        assert image.shape == (3, *mask.shape[1:])
        assert set(mask.unique().tolist()) == set(CLASSES.tolist())


@pytest.mark.parametrize("name", PARSERS)
def test_also_says_otherwise_by_name(name: str, tmp_path: Path) -> None:
    kinds = {"left": "numbers", "grey": "picture", "seg": "numbers"}
    also = TrainPreprocess(SIDE // 2, scale=(0.9, 1.0), also=kinds)  # type: ignore[arg-type]
    batch = batch_of(PARSERS[name](tmp_path, preprocess=also, is_training=True), ("left", "grey", "seg"))
    assert batch["grey"].shape[1] == batch["left"].shape[1] == 3
    assert set(batch["left"].unique().tolist()) <= set(np.unique(PICTURE).tolist())
    assert not set(batch["grey"].unique().tolist()) <= set(CLASSES.tolist())
    assert set(batch["seg"].unique().tolist()) == set(CLASSES.tolist())


def test_a_palette_of_a_tfds_dataset_keeps_its_indices(tmp_path: Path) -> None:
    image = encoded(Image.fromarray(PICTURE))
    for channels in (1, 3):
        masks = [encoded(one) for one in (palette_of(INDICES), Image.fromarray(INDICES))]
        root = write_pictures(tmp_path, [image] * 2, masks, name=f"masked{channels}", mask_channels=channels)
        for also in ((), ("mask",)):
            preprocess = TrainPreprocess(SIDE // 2, scale=(0.9, 1.0), also=also) if also else WHOLE
            parser = ParserTfds(root, f"masked{channels}", batch_size=2, preprocess=preprocess, is_training=True)
            masks_found = batch_of(parser, ("mask",))["mask"]
            assert masks_found.shape[:2] == (2, channels)
            assert channels == 3 or set(masks_found.unique().tolist()) == set(CLASSES.tolist())
        as_stored = TrainPreprocess(SIDE // 2, scale=(0.9, 1.0), also={"mask": "numbers"})
        parser = parser.with_preprocess(as_stored)
        found = batch_of(parser, ("mask",))["mask"]
        assert found.shape[1] == 1
        assert set(found.unique().tolist()) == set(CLASSES.tolist())


def test_a_label_that_is_an_image_is_one_beside_the_image(tmp_path: Path) -> None:
    rows = [(Image.fromarray(PICTURE), palette_of(INDICES)) for _ in range(NUM)]
    also = TrainPreprocess(SIDE, crop_padding=1, also=("label",))
    with create_loader(ImageDataset(ParserMapStyle(rows, batch_size=NUM, is_training=True, preprocess=also))) as loader:
        ((_, labels),) = loader
    assert labels.shape == (NUM, 1, SIDE, SIDE)
    assert set(labels.unique().tolist()) == set(CLASSES.tolist())


def test_numbers_of_any_type_go_through_the_crop_of_an_own_dataset() -> None:
    heat = np.random.default_rng(0).normal(size=(SIDE, SIDE)).astype(np.float32)
    bands = np.random.default_rng(0).integers(0, 60000, (SIDE, SIDE, 13)).astype(np.uint16)
    rows = [{"image": PICTURE, "heat": heat, "bands": bands, "wide": torch.from_numpy(heat)[None]}] * NUM
    also = EvalPreprocess(SIDE // 2, crop_mode="squash", crop_pct=1, also=("heat", "bands", "wide"))
    batch = batch_of(ParserMapStyle(rows, batch_size=NUM, preprocess=also), ("heat", "bands", "wide"))
    assert torch.equal(batch["heat"][0, 0], torch.from_numpy(heat[1::2, 1::2]))
    assert torch.equal(batch["wide"], batch["heat"])
    assert (batch["bands"][0].numpy() == bands[1::2, 1::2].transpose(2, 0, 1)).all()
    with pytest.raises(ConfigError, match=r"also=\('label',\) names 'label', which is not an image"):
        ParserMapStyle([(PICTURE, 3)], batch_size=1, preprocess=EvalPreprocess(8, also=("label",)))


# Exports


@pytest.mark.parametrize("name", ["tar", "own", "rows"])
@pytest.mark.parametrize("format", ["webdataset", "beton"])
def test_an_export_has_the_same_numbers(name: str, format: str, tmp_path: Path) -> None:
    source = own_rows() if name == "rows" else PARSERS[name](tmp_path)
    export_dataset(source, tmp_path / "out", format=format, num_workers=1)
    arguments: dict[str, Any] = {"batch_size": NUM, "preprocess": EvalPreprocess(SIDE, crop_pct=1.0, also=NAMES)}
    parser: Any
    if format == "beton":
        parser = ParserBeton(tmp_path / "out", **arguments)
    else:
        tars = sorted((tmp_path / "out").glob("*.tar"))
        parser = ParserWebDataset(tars, {name: f"{name}.png" for name in NAMES} | {"image": "png"}, **arguments)
    batch = batch_of(parser)
    for field, (_, wanted) in BESIDE.items():
        assert (batch[field].numpy() == wanted).all(), field
        assert str(batch[field].dtype) == f"torch.{wanted.dtype}"
    assert (batch["left"].permute(0, 2, 3, 1).numpy() == PICTURE).all()
