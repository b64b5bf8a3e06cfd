"""A decoded cache that is changed or cut while it is there, or in use: never other pixels or labels, never an end."""

import os
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from parsers.cached_pictures import (
    NUM_EXAMPLES,
    SIDE,
    WHOLE,
    assert_reads_right,
    assert_same_batches,
    caches,
    lines_of,
    open_parser,
    phase_of,
    read,
)
from tfds_torch import (
    DecodedCache,
    EvalPreprocess,
    ImageDataset,
    ReadOptions,
    TrainPreprocess,
    create_loader,
)
from tfds_torch.errors import WorkerError
from tfds_torch.parsers.cache import COMPLETE, DAMAGED
from tfds_torch.storage.beton.head import read_head
from tfds_torch.storage.beton.verify import verify
from tfds_torch.storage.cached_source import PIXELS, CachedPixels

IMAGE_BYTES = SIDE * SIDE * 3
NUM_FLIPS = {"pixels": 4, "rows": 8}
"""Each has the cache built again."""
ALL = np.arange(NUM_EXAMPLES)
PREPROCESSES = {
    "copied": WHOLE,
    "cut": TrainPreprocess(size=SIDE, crop_padding=4, hflip=0),
    "resized": EvalPreprocess(size=16),
    "none": None,
}


def path_of(cache: DecodedCache) -> Path:
    (path,) = caches(cache)
    return path


def flip(path: Path, at: int, bit: int = 0) -> None:
    """Changes a bit of a file in place; size and modification time stay."""
    stamp = path.stat()
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1 << bit]))
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))


def places(path: Path, what: str, rng: random.Random) -> list[int]:
    """Returns offsets of bytes of images, or of the samples' rows, where labels lie."""
    layout = read_head(str(path)).layout
    images = range(layout.pages_at, layout.pages_at + NUM_EXAMPLES * IMAGE_BYTES)
    rows = range(layout.metadata_at, layout.metadata_end)
    return rng.choices(images if what == "pixels" else rows, k=NUM_FLIPS[what])


# Bits


@pytest.mark.parametrize("what", ["pixels", "rows"])
@pytest.mark.parametrize("when", ["before it is opened", "while it is open"])
def test_a_flipped_bit_is_never_another_pixel_or_label(
    when: str, what: str, small: Path, cache: DecodedCache, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = read(open_parser(small, None))
    rng = random.Random(f"{when} {what}")
    open_parser(small, cache)
    for at in places(path_of(cache), what, rng):
        parser = open_parser(small, cache)
        assert_same_batches(read(parser), wanted)
        assert lines_of(caplog) == []
        flip(path_of(cache), at, rng.randrange(8))
        if when == "before it is opened":
            parser = open_parser(small, cache)
        assert_same_batches(read(parser), wanted)
        (line,) = lines_of(caplog)
        assert line.startswith("The decoded cache of pictures:1.0.0 ")
        open_parser(small, cache)
        assert verify(path_of(cache)).num_samples == NUM_EXAMPLES  # It was built again.
        caplog.clear()


def test_only_the_damaged_examples_are_read_from_the_original_files_with_one_warning(
    small: Path, cache: DecodedCache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    parser = open_parser(small, cache)
    path = path_of(cache)
    start = read_head(str(path)).layout.pages_at
    for number in (7, 40):
        flip(path, start + number * IMAGE_BYTES + 5)
    original, reads = parser.source.original, list[int]()
    read_one = type(original).read

    def count(self: Any, index: Any, fields: Any) -> Any:
        reads.extend(index.tolist())
        return read_one(self, index, fields)

    monkeypatch.setattr(type(original), "read", count)
    for _ in range(2):
        read(parser)
        assert sorted(set(reads)) == [7, 40]
    monkeypatch.undo()
    assert_reads_right(parser, small)
    (line,) = lines_of(caplog)
    assert re.fullmatch(
        r"The decoded cache of pictures:1\.0\.0 is damaged: what is damaged is read from the original files, and the "
        r"next start builds it again: .*\.beton: sample 7 .* do not have their checksum: the file is corrupt\. .*",
        line,
    )
    assert phase_of(path_of(cache)) == DAMAGED


@pytest.mark.parametrize("preprocess", PREPROCESSES)
def test_damaged_images_are_replaced_on_every_way_to_a_batch(preprocess: str, small: Path, cache: DecodedCache) -> None:
    parser = open_parser(small, cache, PREPROCESSES[preprocess])
    path = path_of(cache)
    start = read_head(str(path)).layout.pages_at
    for number in (0, 16, 17, NUM_EXAMPLES - 1):
        flip(path, start + number * IMAGE_BYTES)
    assert_reads_right(parser, small)
    np.testing.assert_array_equal(parser[17].image, open_parser(small, None, parser.preprocess)[17].image)


def test_a_cache_whose_images_are_smaller_gives_the_same_pixels_for_those_that_are_damaged(
    small: Path, cache: DecodedCache
) -> None:
    smaller = DecodedCache(cache.folder, max_resolution=11)
    parser = open_parser(small, smaller, None)
    wanted = read(parser)
    path = path_of(cache)
    flip(path, read_head(str(path)).layout.pages_at + 3 * 11 * 11 * 3)
    assert_same_batches(read(parser), wanted)
    assert phase_of(path) == DAMAGED


@pytest.mark.parametrize("num_workers", [0, 2])
def test_damage_that_workers_find_lets_the_next_start_build_the_cache_again(
    num_workers: int, small: Path, cache: DecodedCache, caplog: pytest.LogCaptureFixture
) -> None:
    parser, wanted = open_parser(small, cache), read(open_parser(small, None))
    path = path_of(cache)
    flip(path, read_head(str(path)).layout.pages_at)
    with create_loader(ImageDataset(parser), num_workers=num_workers) as loader:
        for (images, labels), batch in zip(loader, wanted, strict=True):
            assert torch.equal(images.permute(0, 2, 3, 1), torch.from_numpy(batch.image))
            assert labels.tolist() == batch.label.tolist()
    caplog.clear()
    open_parser(small, cache)
    (line,) = lines_of(caplog)
    assert line.startswith(f"The decoded cache of pictures:1.0.0 is damaged, and is built again: {path}: sample 0 ")
    assert verify(path).num_samples == NUM_EXAMPLES
    assert phase_of(path) == COMPLETE


# Cuts


CUTS = {"empty": 0.0, "in the rows": 0.001, "in the images": 0.51, "in the table": 0.9999}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("preprocess", ["copied", "none"])
def test_a_cache_that_is_cut_in_mid_epoch_is_gone_on_without(
    cut: str, preprocess: str, small: Path, cache: DecodedCache, caplog: pytest.LogCaptureFixture
) -> None:
    parser = open_parser(small, cache, PREPROCESSES[preprocess])
    path = path_of(cache)
    source, plain = parser.source, open_parser(small, None).source
    asked_before = source.read(ALL, [PIXELS])[PIXELS]
    os.truncate(path, int(path.stat().st_size * CUTS[cut]))
    asked_after = source.read(ALL, [PIXELS, "label"])
    assert asked_after["label"].tolist() == ALL.tolist()
    assert list(asked_after[PIXELS]) == plain.read(ALL, ["image"])["image"]
    for ours, theirs in zip(asked_before, open_parser(small, None, None), strict=True):  # type: ignore[call-overload]
        np.testing.assert_array_equal(ours, np.broadcast_to(theirs.image, ours.shape))
    assert_reads_right(parser, small)
    (line,) = lines_of(caplog)
    assert line.startswith(
        "The decoded cache of pictures:1.0.0 cannot be read any more, and its images are decoded from the original "
        f"files: The shard file {path} changed while it was in use: it had "
    )


def test_a_training_process_goes_on_where_its_cache_is_cut_in_mid_epoch(
    small: Path, cache: DecodedCache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is cut between two copies of the one thread that copies: nothing is in the midst of reading it."""
    parser = open_parser(small, cache).with_read(ReadOptions(num_threads=1))
    path, wanted, copies = path_of(cache), read(open_parser(small, None)), list[int]()
    copy_into = CachedPixels.copy_into

    def cut_and_copy(self: CachedPixels, out: Any, gather: Any) -> None:
        copies.append(len(out))
        if len(copies) == len(wanted) + 2:  # In the second epoch: then nothing is compared with its checksum.
            os.truncate(path, int(path.stat().st_size * CUTS["in the images"]))
        copy_into(self, out, gather)

    monkeypatch.setattr(CachedPixels, "copy_into", cut_and_copy)
    with create_loader(ImageDataset(parser)) as loader:
        for _ in range(3):
            for (images, labels), batch in zip(loader, wanted, strict=True):
                assert torch.equal(images.permute(0, 2, 3, 1), torch.from_numpy(batch.image))
                assert labels.tolist() == batch.label.tolist()
    assert len(wanted) + 2 <= len(copies) <= 2 * len(wanted)  # What had been asked for comes on the same way.
    (line,) = lines_of(caplog)
    assert f"decoded from the original files: The shard file {path} changed while it was in use: it had" in line


def test_workers_go_on_where_their_cache_is_cut_in_mid_epoch_or_the_error_names_it(
    small: Path, cache: DecodedCache
) -> None:
    """A worker that is in the midst of reading it at that moment is killed by the system."""
    parser, wanted = open_parser(small, cache), read(open_parser(small, None))
    path = path_of(cache)
    with create_loader(ImageDataset(parser), num_workers=2) as loader:
        batches = iter(loader)
        found = [next(batches)]
        os.truncate(path, int(path.stat().st_size * CUTS["in the images"]))
        said = ""
        try:
            found.extend(batches)
        except WorkerError as error:
            said = str(error)
    if said:
        assert f"was killed by SIGBUS ({path} was cut while it was read: it had " in said
        assert "/dev/shm" not in said
        assert "shared memory" not in said
    else:
        assert len(found) == len(wanted)
    for (images, labels), batch in zip(found, wanted, strict=False):
        assert torch.equal(images.permute(0, 2, 3, 1), torch.from_numpy(batch.image))
        assert labels.tolist() == batch.label.tolist()


def test_a_cache_that_was_cut_is_built_again_at_the_next_start(
    small: Path, cache: DecodedCache, caplog: pytest.LogCaptureFixture
) -> None:
    for share in CUTS.values():
        open_parser(small, cache)
        path = path_of(cache)
        os.truncate(path, int(path.stat().st_size * share))
        caplog.clear()
        assert_reads_right(open_parser(small, cache), small)
        (line,) = lines_of(caplog)
        assert line.startswith("The decoded cache of pictures:1.0.0 is damaged, and is built again: ")
