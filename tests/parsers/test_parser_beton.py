"""ParserBeton: a `.beton` file as batches, with every promise of read mode `index`. No tensorflow, no FFCV."""

import io
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from storage.beton.made_files import FIELDS, PAGE, sample_of, unpack, without_manifest, write_images, write_samples

from tfds_torch import (
    EvalPreprocess,
    ImageDataset,
    ParserBeton,
    ReadOptions,
    create_loader,
)
from tfds_torch.errors import CorruptRecordError, ExampleNotFoundError
from tfds_torch.storage.beton.fields import BetonInt
from tfds_torch.storage.beton.image_field import BetonImage
from tfds_torch.storage.beton.source import BetonSource
from tfds_torch.storage.beton.writer import BetonWriter

NUM_EXAMPLES, SIDE = 50, 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("beton")


@pytest.fixture(scope="module")
def pixels(folder: Path) -> Any:
    """Pixels of `images.beton`, uint8 [50, 8, 8, 3]; the labels are n % 10."""
    return write_images(folder / "images.beton", NUM_EXAMPLES, SIDE)


@pytest.fixture(scope="module")
def path(folder: Path, pixels: Any) -> Path:
    return folder / "images.beton"


@pytest.fixture(scope="module")
def mixed(folder: Path, pixels: Any) -> Path:
    """The first ten of them as JPEG files."""
    with BetonWriter(
        folder / "mixed.beton", {"image": BetonImage(), "label": BetonInt()}, 10, page_size=PAGE
    ) as writer:
        for number in range(10):
            writer.add((jpeg(pixels[number]), number))
    return folder / "mixed.beton"


def jpeg(one: Any, mode: str = "RGB") -> bytes:
    file = io.BytesIO()
    Image.fromarray(one).convert(mode).save(file, "JPEG", quality=95)
    return file.getvalue()


# What comes


def test_pixels_of_several_sizes_are_resized_into_the_batch(folder: Path) -> None:
    rng = np.random.default_rng(0)
    pixels = [rng.integers(0, 256, (10 + number, 9, 3), dtype=np.uint8) for number in range(6)]
    with BetonWriter(folder / "several.beton", {"image": BetonImage("raw")}, 6, page_size=PAGE) as writer:
        for one in pixels:
            writer.add((one,))
    parser = ParserBeton(
        folder / "several.beton", batch_size=6, preprocess=EvalPreprocess(size=6, crop_mode="squash", crop_pct=1.0)
    )
    ((images,),) = create_loader(ImageDataset(parser, fields=("image",)))
    for image, one in zip(images.permute(0, 2, 3, 1).numpy(), pixels, strict=True):
        expected = np.asarray(Image.fromarray(one).resize((6, 6), Image.Resampling.BILINEAR)).astype(int)
        assert np.abs(image - expected).max() <= 1


@pytest.mark.parametrize("mode", ["RGB", "L", None])
def test_jpeg_and_pixels_may_be_mixed(mode: str | None, folder: Path, pixels: Any) -> None:
    field = BetonImage("proportion", quality=95)
    with BetonWriter(folder / f"both {mode}.beton", {"image": field}, 20, page_size=PAGE) as writer:
        for number in range(20):
            writer.add((pixels[number],))
    (batch,) = ParserBeton(folder / f"both {mode}.beton", batch_size=20, image_mode=mode).batches(fields=("image",))
    kinds = Counter()
    for image, one in zip(batch.image, pixels, strict=False):
        expected = np.array(Image.fromarray(one).convert(mode or "RGB"))
        expected = expected[..., None] if mode == "L" else expected
        assert image.shape == expected.shape
        is_exact = bool((image == expected).all())
        kinds[is_exact] += 1
        assert is_exact or np.abs(image.astype(int) - expected).mean() < 60
    assert set(kinds) == {True, False}


def test_every_kind_of_field_comes_as_what_it_is(folder: Path) -> None:
    write_samples(folder / "all.beton", class_names={"label": ["a", "b", "c"]})
    parser = ParserBeton(folder / "all.beton", batch_size=7)
    fields = tuple(FIELDS)
    (batch,) = parser.batches(fields=fields)
    samples = [sample_of(number) for number in range(7)]
    assert batch.features["facts"] == [sample["facts"] for sample in samples]
    assert batch.features["text"] == [sample["text"] for sample in samples]
    assert batch.features["score"].tolist() == [sample["score"] for sample in samples]
    assert (batch.features["box"] == np.stack([sample["box"] for sample in samples])).all()
    assert batch.features["codes"].dtype == np.int16
    assert (parser.class_names, parser.class_to_idx) == (["a", "b", "c"], {"a": 0, "b": 1, "c": 2})
    assert parser["folder/4.png"].index == 4
    assert parser[-1].id == "folder/6.png"
    assert (parser[2].image == samples[2]["image"]).all()
    assert parser.filenames(basename=True)[:2] == ["0.png", "1.png"]
    assert parser.filenames(absolute=True)[0] == str(folder / "folder/0.png")
    with pytest.raises(ExampleNotFoundError, match="there is no example 7"):
        parser[7]


def test_files_of_ffcv_are_read(tmp_path: Path) -> None:
    path = unpack("regenerated_ffcv_1.0.2.beton.gz", tmp_path)
    parser = ParserBeton(path, batch_size=5, image_key="jpg", target_key="int", preprocess=EvalPreprocess(size=32))
    batches = list(parser.batches(fields=("image", "label", "json", "nd", "raw")))
    assert np.concatenate([batch.label for batch in batches]).tolist() == [7 * n - 3 for n in range(12)]
    assert batches[0].image.shape == (5, 32, 32, 3)
    assert batches[2].features["json"][1] == {"i": 11, "name": "ex 11 é"}
    assert [image.shape for image in batches[0].features["raw"]] == [(20 + 3 * n, 31 + 2 * n, 3) for n in range(5)]


# Promises


def test_a_damaged_image_is_named_or_replaced(folder: Path, pixels: Any) -> None:
    path = folder / "damaged.beton"
    with BetonWriter(path, {"image": BetonImage(), "label": BetonInt()}, 8, page_size=PAGE) as writer:
        for number in range(8):
            image = jpeg(np.kron(pixels[number], np.ones((4, 4, 1), np.uint8)))
            writer.add((image[: len(image) // 2] if number == 3 else image, number), id=f"image {number}")
    preprocess = EvalPreprocess(size=SIDE)
    cannot = r"damaged.beton: sample 3 \(id image 3\) of damaged.beton cannot be decoded"
    with pytest.raises(CorruptRecordError, match=f"{cannot}, though its checksum is right: it was written that way"):
        list(ParserBeton(path, batch_size=8, preprocess=preprocess).batches())
    unverified = ParserBeton(path, batch_size=8, preprocess=preprocess, read=ReadOptions(verify_checksums=False))
    with pytest.raises(
        CorruptRecordError, match=rf"{cannot}\. Its checksum was not verified \(verify_checksums=False\)"
    ):
        list(unverified.batches())
    assert "sample 3 (id damaged.beton__3) of damaged.beton cannot be decoded. It has no checksums" in str(
        without_checksums(path).undecodable(3, "It is bad.")
    )
    read = ReadOptions(on_error="replace")
    parser = ParserBeton(path, True, True, 8, preprocess=preprocess, read=read)
    assert Counter(next(iter(parser.batches())).label.tolist()) == Counter([0, 1, 2, 4, 4, 5, 6, 7])


def without_checksums(path: Path) -> BetonSource:
    copy = path.parent / "without" / path.name
    copy.parent.mkdir()
    copy.write_bytes(path.read_bytes())
    without_manifest(copy)
    return BetonSource(copy)
