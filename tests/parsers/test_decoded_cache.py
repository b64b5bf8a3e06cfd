"""A decoded cache changes nothing of what comes but its speed: pixels, ids, order, states, errors."""

import copy
import dataclasses
import logging
import os
import pickle
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conformance import check_resumes
from encoded_images import encoded_images
from picture_fixtures import NAME, photograph, save, write_pictures
from PIL import Image
from tfds_fixtures import Datasets, as_remote, shard_files, write_shard

from parsers.cached_pictures import NUM_EXAMPLES, SIDE, assert_same_batches, caches, read
from parsers.resuming import ParserLoader
from tfds_torch import (
    DecodedCache,
    EvalPreprocess,
    ImageDataset,
    IndexedImageDataset,
    ParserTfds,
    ReadOptions,
    TrainPreprocess,
    World,
    create_loader,
    demo,
)
from tfds_torch.errors import ConfigError, CorruptRecordError, ShardError, StateMismatchError
from tfds_torch.parsers.cache import COMPLETE, read_status, status_path
from tfds_torch.storage.beton.verify import verify
from tfds_torch.storage.cached_source import PIXELS
from tfds_torch.storage.stored_pixels import StoredPixels
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


def test_single_examples_are_those_of_the_original_files(small: Path, folder: Path) -> None:
    cached, plain = both(small, folder, batch_size=16, preprocess=WHOLE)
    for key in (0, -1, 37, plain.filenames()[5]):
        ours, theirs = cached[key], plain[key]
        np.testing.assert_array_equal(ours.image, theirs.image)
        assert (ours.label, ours.id, ours.index) == (theirs.label, theirs.id, theirs.index)
    image, label = IndexedImageDataset(cached)[7]
    assert (image.permute(1, 2, 0).numpy() == plain[7].image).all()  # Preprocessed, by one that changes nothing.
    assert label == 7


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_reads_whole_batches_out_of_the_cache(num_workers: int, small: Path, folder: Path) -> None:
    cached, plain = both(small, folder, is_training=True, batch_size=16)
    ours, theirs = (
        create_loader(ImageDataset(parser, batched=True), n) for parser, n in ((cached, num_workers), (plain, 0))
    )
    with ours, theirs:
        for _ in range(2):
            for (images, labels), (wanted, wanted_labels) in zip(ours, theirs, strict=True):
                assert torch.equal(images, wanted)
                assert torch.equal(labels, wanted_labels)


def test_images_of_one_size_are_copied_all_at_once(small: Path, folder: Path) -> None:
    source = both(small, folder)[0].source
    columns = source.read(np.array([3, 1, 3]), [PIXELS, "label"])
    assert isinstance(columns[PIXELS], StoredPixels)
    assert columns["label"].tolist() == [3, 1, 3]


def test_image_and_label_do_not_need_the_original_records(small: Path, folder: Path, tmp_path: Path) -> None:
    root = shutil.copytree(small, tmp_path / "data")
    cached, plain = both(root, folder, batch_size=16, preprocess=WHOLE)
    wanted, names = read(plain), plain.filenames()
    for path in shard_files(root / NAME / "1.0.0", "train"):
        path.unlink()
    assert_same_batches(read(cached), wanted)
    assert cached.filenames() == names
    assert sum(len(batch) for batch in read(cached, fields=("index",))) == NUM_EXAMPLES
    with pytest.raises(ShardError, match="missing"):
        cached.source.read(np.array([0]), ["image"])


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
    assert set(cached.source._names) == {
        "label",
        "weight",
        "precise",
        "flag",
        "small",
        "nested/count",
        "nested/inner/weight",
    }


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
    with pytest.raises(ConfigError, match=r"max_resolution=50 makes the cached image smaller, and not 'mask', which"):
        ParserTfds(photos, NAME, batch_size=9, preprocess=preprocess, cache=DecodedCache(folder, max_resolution=50))


def test_array_record_files_and_image_folders_are_cached_too(datasets: Datasets, folder: Path, tmp_path: Path) -> None:
    for number in range(6):
        path = tmp_path / "images" / "train" / f"label {number % 2}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        photograph("china", (20 + number, 30)).save(path)
    for root, name in ((datasets.array_record, "tiny"), (tmp_path / "images", "image_folder")):
        arguments: dict[str, Any] = {"batch_size": 4, "target_key": None if name == "tiny" else "label"}
        cached, plain = (
            ParserTfds(root, name, cache=cache, **arguments) for cache in (DecodedCache(tmp_path / "c"), None)
        )
        fields = ("image",) if name == "tiny" else ("image", "label")
        assert_same_batches(read(cached, fields=fields), read(plain, fields=fields))


# What stays the same


def test_a_cache_changes_neither_the_fingerprint_nor_the_names(small: Path, folder: Path) -> None:
    cached, plain = both(small, folder, batch_size=4)
    for name in ("fingerprint", "num_examples", "dataset_name", "num_shards", "class_names", "element_spec", "files"):
        assert getattr(cached, name) == getattr(plain, name), name
    assert cached.filenames() == plain.filenames()
    assert cached.read_mode(World()) == "index"


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


@pytest.mark.parametrize("grids", [((1, 1), (2, 2)), ((2, 1), (1, 2))])
def test_a_parser_with_a_cache_resumes_at_every_step(grids: Any, small: Path, folder: Path) -> None:
    arguments: dict[str, Any] = {"root": small, "name": NAME, "is_training": True, "cache": DecodedCache(folder)}
    make, make_other = (partial(ParserLoader, partial(ParserTfds, **arguments), grid, 16) for grid in grids)
    assert check_resumes(make, make_other) > 0


def test_the_file_is_a_whole_beton_file(small: Path, folder: Path, tmp_path: Path) -> None:
    ParserTfds(small, NAME, cache=DecodedCache(tmp_path))
    (path,) = caches(tmp_path)
    assert verify(path).num_samples == NUM_EXAMPLES
    status = read_status(status_path(path))
    assert status is not None
    assert (status.dataset, status.split, status.phase) == ("pictures:1.0.0", "train", COMPLETE)


# Which cache is read


def test_a_cache_is_built_once_for_the_same_examples(
    small: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both(small, folder)
    refuse_to_build(monkeypatch)
    for split in ("train", "train[:100%]", "train[0:]"):
        assert both(small, folder, split)[0].source.file is not None
    assert both(small, Path(os.path.relpath(folder)))[0].source.file is not None
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


def test_a_parser_that_was_pickled_reads_the_cache_and_builds_none(
    small: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached, plain = both(small, folder, batch_size=16, preprocess=WHOLE)
    refuse_to_build(monkeypatch)
    for parser in (pickle.loads(pickle.dumps(cached)), copy.copy(cached), cached.with_batch_size(7)):
        assert parser.source.file is not None  # type: ignore[union-attr]
        assert_same_batches(read(parser.with_batch_size(16)), read(plain))


def test_another_way_of_reading_keeps_the_cache(small: Path, folder: Path) -> None:
    cached, _ = both(small, folder, batch_size=16)
    other = cached.with_read(ReadOptions(mode="index", verify_checksums=False))
    assert other.source.file is cached.source.file
    assert other.source.original.verify_checksums is False
    with pytest.raises(ConfigError, match="a decoded cache is read by index, and read mode 'examples' streams the"):
        cached.with_read(ReadOptions(mode="examples"))


# What is refused


def test_what_cannot_work_is_refused_before_anything_is_built(
    small: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_to_build(monkeypatch)
    cache = DecodedCache(folder / "none")
    for arguments, words in (
        ({"cache": True}, r"cache=True must be a DecodedCache, for example DecodedCache\(\), or None"),
        ({"cache": str(folder)}, r"cache='.*' must be a DecodedCache"),
        (
            {"read": ReadOptions(mode="files")},
            "pictures:1.0.0: a decoded cache is read by index, and read mode 'files'",
        ),
        ({"image_mode": "RGBA"}, "holds three channels, from which image_mode='RGBA' cannot be made .* 'RGB' or 'L'"),
        ({"image_mode": None}, "holds three channels, from which image_mode=None cannot be made"),
        ({"image_key": None}, r"The field 'image' was asked for, but the parser has image_key=None"),
        ({"image_key": "label"}, "the feature 'label' is not a single uint8 image"),
    ):
        given: dict[str, Any] = {"cache": cache, **arguments}
        with pytest.raises(ConfigError, match=words):
            ParserTfds(small, NAME, **given)
    assert not (folder / "none").exists()


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


def test_remote_files_are_refused(small: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remote = as_remote(ParserTfds(small, NAME))
    monkeypatch.setattr("tfds_torch.parsers.tfds.dataset.TfdsDataset.source", lambda *args, **options: remote.source)
    with pytest.raises(
        ConfigError, match=r"built from examples that are read by number, and gs://.* is remote\. Copy the"
    ):
        ParserTfds(small, NAME, cache=DecodedCache(folder))


# Examples that a cache lacks


@pytest.fixture
def damaged(small: Path, tmp_path: Path) -> Path:
    """The small dataset, of which example 7 is not an image, and record 40 is damaged."""
    root = shutil.copytree(small, tmp_path / "damaged")
    first, second = shard_files(root / NAME / "1.0.0", "train")
    records = list(read_records(first))
    image = records[7][records[7].index(b"\x89PNG") :][:60]
    records[7] = records[7].replace(image, b"no image".ljust(60))
    write_shard(first, records)
    content = bytearray(second.read_bytes())
    offset = sum(16 + len(record) for record in list(read_records(second))[:15])
    content[offset + 40] ^= 1
    second.write_bytes(content)
    return root


def test_a_damaged_example_is_the_same_error_with_a_cache(
    damaged: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        cached, plain = both(damaged, tmp_path / "cache")
    assert (
        "2 of 60 images of pictures:1.0.0 (train) cannot be decoded, or are too large for its decoded cache"
        in caplog.text
    )
    for number in (7, 40):
        with pytest.raises(CorruptRecordError) as ours:
            cached[number]
        with pytest.raises(CorruptRecordError) as theirs:
            plain[number]
        assert str(ours.value) == str(theirs.value)
    assert cached[8].label == 8


def test_damaged_examples_are_replaced_with_a_cache_as_without_one(damaged: Path, tmp_path: Path) -> None:
    arguments: dict[str, Any] = {
        "is_training": True,
        "batch_size": 16,
        "read": ReadOptions(on_error="replace"),
        "preprocess": WHOLE,
    }
    cached, plain = both(damaged, tmp_path / "cache", **arguments)
    assert_same_batches(read(cached), read(plain))


def test_an_image_that_is_larger_than_a_page_comes_from_the_original_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first image alone is looked at, and the second one is larger than the smallest page, 2 MiB."""
    monkeypatch.setattr("tfds_torch.parsers.cache_building._NUM_SAMPLED", 1)
    images = [save(photograph("china", size), "JPEG") for size in ((60, 40), (1000, 800), (50, 40))]
    cached, plain = both(write_pictures(tmp_path / "data", images), tmp_path / "cache", batch_size=3)
    assert "1 of 3 images of pictures:1.0.0 (train) cannot be decoded, or are too large" in caplog.text
    assert_same_batches(read(cached), read(plain))
    assert cached.source._rows.left_out.tolist() == [1]
