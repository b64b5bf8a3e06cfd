"""A decoded cache changes nothing of what comes but its speed: pixels, ids, order, states, errors."""

import dataclasses
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from encoded_images import encoded_images
from picture_fixtures import NAME, photograph, save, write_pictures
from PIL import Image
from tfds_fixtures import Datasets, shard_files, write_shard

from parsers.cached_pictures import NUM_EXAMPLES, SIDE, assert_same_batches, caches, read
from tfds_torch import (
    DecodedCache,
    EvalPreprocess,
    ImageDataset,
    ParserTfds,
    TrainPreprocess,
    create_loader,
    demo,
)
from tfds_torch.errors import ConfigError, StateMismatchError
from tfds_torch.storage.tfrecord.framing import read_records

WHOLE = EvalPreprocess(size=SIDE, crop_pct=1.0)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs of several sizes and encodings, and their masks; shared."""
    images = [photograph(("china", "flower")[n % 2], (150 + 7 * n, 100 + 3 * n)) for n in range(9)]
    encoded = [
        save(image.convert("L" if n == 4 else "RGB"), ("JPEG", "PNG")[n % 3 == 2]) for n, image in enumerate(images)
    ]
    masks = [save(image.convert("L").point(lambda level: level // 64), "PNG") for image in images]
    return write_pictures(tmp_path_factory.mktemp("photos"), encoded, masks)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the caches of the shared datasets lie."""
    return tmp_path_factory.mktemp("caches")


def refuse_to_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets building be a failure of the test."""

    def refuse(*arguments: Any, **options: Any) -> int:
        raise AssertionError("a cache was built")

    monkeypatch.setattr("tfds_torch.parsers.cache.build", refuse)


def both(root: Path, folder: Path, split: str = "train", **arguments: Any) -> tuple[ParserTfds, ParserTfds]:
    """Returns the parser with a cache, and without."""
    name = "pictures"
    return (
        ParserTfds(root, name, split, cache=DecodedCache(folder), **arguments),
        ParserTfds(root, name, split, **arguments),
    )


# What comes


@pytest.mark.parametrize("preprocess", [
    None,
    WHOLE,
    TrainPreprocess(size=SIDE, crop_padding=4, fill=7),
    TrainPreprocess(size=24, crop_padding=0),
    TrainPreprocess(size=16),
], ids=repr)  # fmt: skip
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_small_images_are_those_of_the_original_files(preprocess: Any, mode: str, small: Path, folder: Path) -> None:
    arguments: dict[str, Any] = {
        "is_training": True,
        "batch_size": 16,
        "preprocess": preprocess,
        "image_mode": mode,
        "seed": 3,
    }
    cached, plain = both(small, folder, **arguments)
    for epoch in range(2):
        assert_same_batches(read(cached, epoch), read(plain, epoch))


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_whole_photographs_are_those_of_the_original_files(mode: str, photos: Path, folder: Path) -> None:
    cached, plain = both(photos, folder, batch_size=4, image_mode=mode)
    assert_same_batches(read(cached), read(plain))
    assert len({image.shape for batch in read(cached) for image in batch.image}) == 9


def test_images_in_every_encoding_are_those_of_the_original_files(tmp_path: Path) -> None:
    images = encoded_images()
    root = write_pictures(tmp_path / "data", list(images.values()))
    for mode in ("RGB", "L"):
        cached, plain = both(root, tmp_path / "cache", batch_size=len(images), image_mode=mode)
        assert_same_batches(read(cached), read(plain))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), [("digits", {}), ("photos", {"num_examples": 24, "num_shards": 2})])
def test_the_demo_datasets_are_those_of_the_original_files(
    name: str, options: Any, folder: Path, tmp_path: Path
) -> None:
    root = demo.prepare(name, progress=False, **options)
    for split in ("train", "train[:10%]", "train[5:9]+train[:3]", *(["train+test"] if name == "digits" else [])):
        cached = ParserTfds(root, name, split, batch_size=64, cache=DecodedCache(folder))
        assert_same_batches(read(cached), read(ParserTfds(root, name, split, batch_size=64)))


def test_resized_crops_keep_the_pixel_contract(photos: Path, folder: Path) -> None:
    """Whole images are resized there, and shrunk ones here: a grey level apart on average."""
    preprocess = TrainPreprocess(size=32)
    cached, plain = both(photos, folder, is_training=True, batch_size=9, preprocess=preprocess)
    (ours,), (theirs,) = read(cached), read(plain)
    assert np.abs(ours.image.astype(int) - theirs.image).mean() < 1


def test_image_and_label_do_not_need_the_original_records(small: Path, folder: Path, tmp_path: Path) -> None:
    root = shutil.copytree(small, tmp_path / "data")
    cached, plain = both(root, folder, batch_size=16, preprocess=WHOLE)
    wanted, names = read(plain), plain.filenames()
    for path in shard_files(root / NAME / "1.0.0", "train"):
        path.unlink()
    assert_same_batches(read(cached), wanted)
    assert cached.filenames() == names
    assert sum(len(batch) for batch in read(cached, fields=("index",))) == NUM_EXAMPLES


def test_what_is_not_cached_is_read_from_the_original_files(datasets: Datasets, tmp_path: Path) -> None:
    fields = ("image", "label", "weight", "flag", "small", "precise", "caption", "objects", "nested", "mask", "frames")
    cached, plain = (
        ParserTfds(datasets.root, "shapes", "test", batch_size=8, cache=cache)
        for cache in (DecodedCache(tmp_path), None)
    )
    ours, theirs = read(cached, fields=fields), read(plain, fields=fields)
    assert_same_batches(ours, theirs)
    for one, other in zip(ours, theirs, strict=True):
        for name in fields[2:]:
            np.testing.assert_equal(one.features[name], other.features[name])
            assert type(one.features[name]) is type(other.features[name])
            assert getattr(one.features[name], "dtype", None) == getattr(other.features[name], "dtype", None)


def test_the_cached_feature_asked_for_by_its_own_name_is_the_original(photos: Path, tmp_path: Path) -> None:
    cached, plain = (
        ParserTfds(photos, NAME, batch_size=9, image_key="mask", cache=cache)
        for cache in (DecodedCache(tmp_path), None)
    )
    fields = ("image", "mask")
    (ours,), (theirs,) = read(cached, fields=fields), read(plain, fields=fields)
    for one, other in zip(ours.features["mask"], theirs.features["mask"], strict=True):
        np.testing.assert_array_equal(one, other)
    assert_same_batches([ours], [theirs])


def test_masks_go_through_the_same_crop(photos: Path, folder: Path) -> None:
    preprocess = TrainPreprocess(size=32, also=("mask",))
    cached, plain = both(photos, folder, is_training=True, batch_size=9, preprocess=preprocess)
    (ours,), (theirs,) = (read(parser, fields=("image", "label", "mask")) for parser in (cached, plain))
    for one, other in zip(ours.features["mask"], theirs.features["mask"], strict=True):
        assert one.shape == (32, 32, 1)
        assert (one != other).mean() < 0.05  # Of the whole image here, of a shrunk one there.
    with pytest.raises(ConfigError, match=r"max_resolution=50 makes the cached image smaller, but not 'mask', which"):
        ParserTfds(photos, NAME, batch_size=9, preprocess=preprocess, cache=DecodedCache(folder, max_resolution=50))


# What stays the same


def test_max_resolution_changes_the_fingerprint_and_the_pixels_as_pillow_does(photos: Path, folder: Path) -> None:
    parsers = [ParserTfds(photos, NAME, batch_size=9, cache=DecodedCache(folder, size)) for size in (None, 50, 60)]
    assert len({parser.fingerprint for parser in parsers}) == 3
    (whole,), (smaller,), _ = map(read, parsers)
    for image, original in zip(smaller.image, whole.image, strict=True):
        ratio = 50 / max(original.shape)
        size = (int(original.shape[1] * ratio), int(original.shape[0] * ratio))  # As FFCV rounds.
        assert 49 <= max(image.shape) <= 50
        wanted = np.asarray(Image.fromarray(original).resize(size, Image.Resampling.BILINEAR))
        np.testing.assert_array_equal(image, wanted)


def test_images_below_max_resolution_are_as_they_are(small: Path, folder: Path) -> None:
    parser = ParserTfds(small, NAME, batch_size=16, cache=DecodedCache(folder, max_resolution=SIDE))
    assert_same_batches(read(parser), read(ParserTfds(small, NAME, batch_size=16)))


def test_states_go_on_with_a_cache_and_without_one(small: Path, folder: Path) -> None:
    arguments: dict[str, Any] = {"is_training": True, "batch_size": 16}
    for saved, resumed in (both(small, folder, **arguments), both(small, folder, **arguments)[::-1]):
        with create_loader(ImageDataset(saved, fields=("index",))) as loader:
            epoch = [index.tolist() for (index,) in loader]
        with create_loader(ImageDataset(saved, fields=("index",))) as loader:
            next(iter(loader))
            state = loader.state_dict()
        with create_loader(ImageDataset(resumed, fields=("index",))) as loader:
            loader.load_state_dict(state)
            assert [index.tolist() for (index,) in loader] == epoch[1:]
    smaller = ParserTfds(small, NAME, **arguments, cache=DecodedCache(folder, max_resolution=8))
    with (
        create_loader(ImageDataset(smaller, fields=("index",))) as loader,
        pytest.raises(StateMismatchError, match="a decoded cache with the same max_resolution"),
    ):
        loader.load_state_dict(state)


# Which cache is read


def test_a_cache_is_built_once_for_the_same_examples(
    small: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both(small, folder)
    refuse_to_build(monkeypatch)
    for split in ("train", "train[:100%]", "train[0:]"):
        both(small, folder, split)
    both(small, Path(os.path.relpath(folder)))
    for split, other in (("train[1:]", folder), ("train", tmp_path)):
        with pytest.raises(AssertionError, match="a cache was built"):
            both(small, other, split)


def test_a_dataset_that_was_moved_keeps_its_cache_and_one_that_changed_does_not(small: Path, tmp_path: Path) -> None:
    root = shutil.copytree(small, tmp_path / "data")
    cache = DecodedCache(tmp_path / "cache")
    ParserTfds(root, NAME, cache=cache)
    moved = shutil.move(root, tmp_path / "moved")
    ParserTfds(moved, NAME, cache=cache)
    assert len(caches(cache)) == 1
    shard = shard_files(moved / NAME / "1.0.0", "train")[0]  # type: ignore[operator]
    records = list(read_records(shard))
    records[0], records[1] = records[1], records[0]
    write_shard(shard, records)
    os.utime(shard, ns=(0, 0))
    changed, plain = (ParserTfds(moved, NAME, batch_size=16, cache=one) for one in (cache, None))
    assert len(caches(cache)) == 2
    assert_same_batches(read(changed), read(plain))


def test_an_image_that_was_exchanged_for_one_of_its_size_is_not_read_out_of_the_old_cache(tmp_path: Path) -> None:
    path = tmp_path / "images" / "train" / "label" / "0.png"
    path.parent.mkdir(parents=True)
    for level in (1, 2):
        path.write_bytes(save(Image.new("RGB", (8, 8), (level, 0, 0)), "PNG", compress_level=0))
        os.utime(path, ns=(level, level))
        parser = ParserTfds(tmp_path / "images", "image_folder", cache=DecodedCache(tmp_path / "cache"))
        assert (parser[0].image[..., 0] == level).all()
    assert len(caches(tmp_path / "cache")) == 2


# What is refused


def test_a_cache_that_cannot_be_is_refused() -> None:
    for arguments, words in (
        ({"folder": 3}, r"DecodedCache: folder=3 must be the path of a folder, or None"),
        ({"folder": ""}, r"DecodedCache: folder='' must be the path"),
        ({"max_resolution": 0}, "DecodedCache: max_resolution"),
        ({"max_resolution": "64"}, "DecodedCache: max_resolution"),
        ({"max_resolution": 70_000}, "DecodedCache: max_resolution=70000 must be at most 65,535"),
    ):
        with pytest.raises(ConfigError, match=words):
            DecodedCache(**arguments)
    with pytest.raises(dataclasses.FrozenInstanceError):
        DecodedCache().folder = "a"  # type: ignore[misc]


# Examples that a cache lacks


def test_an_image_that_is_larger_than_a_page_comes_from_the_original_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first image alone is looked at, and the second one is larger than the smallest page, 2 MiB."""
    monkeypatch.setattr("tfds_torch.parsers.cache_building._NUM_SAMPLED", 1)
    images = [save(photograph("china", size), "JPEG") for size in ((60, 40), (1000, 800), (50, 40))]
    cached, plain = both(write_pictures(tmp_path / "data", images), tmp_path / "cache", batch_size=3)
    assert "1 of 3 images of pictures:1.0.0 (train) cannot be decoded, or are too large" in caplog.text
    assert_same_batches(read(cached), read(plain))
