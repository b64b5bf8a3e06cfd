"""Damaged examples of a mixture: each member's own on_error, checksums and limits; errors name the member's file."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from picture_fixtures import write_pictures
from storage.webdataset.made_tars import write_samples
from tfds_fixtures import record_offsets, shard_files

from parsers.tar_samples import SIDE, pixels_of, png, sample_of
from tfds_torch import EvalPreprocess, ParserBeton, ParserMixture, ParserTfds, ParserWebDataset, ReadOptions, World
from tfds_torch.errors import CorruptRecordError, ShardError
from tfds_torch.parsers.protocol import error_context_of
from tfds_torch.storage.beton.fields import BetonInt
from tfds_torch.storage.beton.image_field import BetonImage
from tfds_torch.storage.beton.writer import BetonWriter

SIZE = 12
REPLACE = ReadOptions(on_error="replace", max_replaced=2)
WHOLE = EvalPreprocess(size=SIDE, crop_pct=1.0)


def write_damaged(path: Path, damaged: tuple[int, ...]) -> str:
    samples = [sample_of(number) for number in range(SIZE)]
    for number in damaged:
        samples[number]["png"] = b"no image"
    write_samples(path, samples)
    return str(path)


def mixture(tmp_path: Path, damaged: dict[str, tuple[int, ...]], read: dict[str, ReadOptions], **more: Any) -> Any:
    members = {
        name: ParserWebDataset(
            write_damaged(tmp_path / f"{name}.tar", damaged.get(name, ())), read=read.get(name, ReadOptions())
        )
        for name in ("a", "b")
    }
    return ParserMixture(members, **{"batch_size": 6, **more})


def index_of(batches: Any) -> list[int]:
    return np.concatenate([batch.index for batch in batches]).tolist()


@pytest.mark.parametrize("preprocess", [None, WHOLE])
def test_damaged_examples_are_replaced_within_their_member(
    tmp_path: Path, preprocess: Any, caplog: pytest.LogCaptureFixture
) -> None:
    parser = mixture(tmp_path, {"b": (10, 11)}, {"b": REPLACE}, preprocess=preprocess)
    with caplog.at_level(logging.WARNING):
        batches = list(parser.batches())
    assert index_of(batches) == [*range(22), 12, 12]  # Behind the member's last example comes its first one.
    valid = np.concatenate([batch.valid for batch in batches])
    assert valid.tolist() == [True] * 22 + [False] * 2
    for batch in batches:
        assert (np.stack(batch.image) == np.stack([pixels_of(number % SIZE) for number in batch.index])).all()
    assert "The place of example 22 (id b/part/0010) is taken by example 12 (id b/part/0000)" in caplog.text


def test_another_members_damage_is_an_error_all_the_same(tmp_path: Path) -> None:
    parser = mixture(tmp_path, {"a": (7,)}, {"b": REPLACE})
    with pytest.raises(CorruptRecordError, match=r"a\.tar.*part/0007") as caught:
        list(parser.batches())
    assert "max_replaced" not in str(caught.value)


@pytest.mark.parametrize("damaged", [0, 5, 11])
def test_another_image_that_is_damaged_is_named(tmp_path: Path, damaged: int) -> None:
    for name, number in (("a", -1), ("b", damaged)):
        samples = [sample_of(number) for number in range(SIZE)]
        if number >= 0:
            samples[number]["seg.png"] = b"no image"
        write_samples(tmp_path / f"{name}.tar", samples)
    fields = {"image": "png", "mask": "seg.png"}
    members = {name: ParserWebDataset(str(tmp_path / f"{name}.tar"), fields) for name in ("a", "b")}
    parser = ParserMixture(members, {"a": 1, "b": 1}, is_training=True, batch_size=24)
    with pytest.raises(CorruptRecordError, match=rf"b\.tar: sample 'part/{damaged:04d}' \(index {damaged}\) cannot"):
        list(parser.batches(fields=("image", "mask")))


def test_every_member_has_its_own_limit(tmp_path: Path) -> None:
    damaged = {"a": (0, 1), "b": (3, 4, 5)}
    more = ReadOptions(on_error="replace", max_replaced=3)
    assert len(list(mixture(tmp_path, damaged, {"a": REPLACE, "b": more}).batches())) == 4
    with pytest.raises(CorruptRecordError, match=r"id b/part/0005\) is damaged example number 3 .* max_replaced=2"):
        list(mixture(tmp_path, damaged, {"a": REPLACE, "b": REPLACE}).batches())


def test_what_replaces_does_not_depend_on_ranks(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"weights": {"a": 1, "b": 3}, "is_training": True, "epoch_size": 24}
    read = dict.fromkeys(("a", "b"), ReadOptions(on_error="replace"))
    parsers = [mixture(tmp_path, {"a": (1,), "b": (3, 4)}, read, batch_size=size, **arguments) for size in (12, 6)]
    alone = list(parsers[0].batches(World(), 1))
    ranks = [list(parsers[1].batches(World(rank, 2), 1)) for rank in range(2)]
    for number, batch in enumerate(alone):
        assert batch.index.tolist() == index_of([ranks[0][number], ranks[1][number]])
    assert not {1, 15, 16} & set(index_of(alone))


def test_checksums_are_each_members_own(tmp_path: Path) -> None:
    images = [png(pixels_of(number)) for number in range(SIZE)]
    for name in ("kept", "spoiled"):
        write_pictures(tmp_path / name, images, shards=[SIZE])
    (path,) = shard_files(tmp_path / "spoiled" / "pictures" / "1.0.0", "train")
    offset = record_offsets(path)[5]
    content = bytearray(path.read_bytes())
    content[offset + 12 + len(images[0]) // 2] ^= 1  # Within the pixels: the record can still be read.
    path.write_bytes(content)

    def read(verify: bool) -> Iterator[Any]:
        members = {
            "kept": ParserTfds(tmp_path / "kept", "pictures"),
            "spoiled": ParserTfds(tmp_path / "spoiled", "pictures", read=ReadOptions(verify_checksums=verify)),
        }
        return ParserMixture(members, batch_size=4).batches(fields=("label",))

    assert [one for batch in read(verify=False) for one in batch.index] == list(range(2 * SIZE))
    came = []
    with pytest.raises(CorruptRecordError, match="checksum"):
        came.extend(batch.batch for batch in read(verify=True))
    assert came == [0, 1, 2, 3]  # Those before the damaged one, though all are read together.


def test_a_member_whose_file_is_gone_is_named_before_the_first_batch(tmp_path: Path) -> None:
    parser = mixture(tmp_path, {}, {}, weights={"a": 1, "b": 1}, is_training=True)
    (tmp_path / "b.tar").unlink()
    with pytest.raises(ShardError, match=r"b\.tar"):
        next(parser.batches())


def test_a_member_that_was_cut_while_it_was_read_is_named(tmp_path: Path) -> None:
    with BetonWriter(tmp_path / "b.beton", {"image": BetonImage("raw"), "label": BetonInt()}, SIZE) as writer:
        for number in range(SIZE):
            writer.add((pixels_of(number), 0))
    members = {
        "tars": ParserWebDataset(write_damaged(tmp_path / "a.tar", ())),
        "beton": ParserBeton(tmp_path / "b.beton"),
    }
    context = error_context_of(ParserMixture(members, batch_size=4), "Loader", "multiprocessing_context")
    assert context.find_cut() is None
    size = (tmp_path / "b.beton").stat().st_size
    os.truncate(tmp_path / "b.beton", 100)
    assert context.find_cut() == f"{tmp_path / 'b.beton'} was cut while it was read: it had {size} bytes and has 100"
    assert context.find_id(3) == "tars/part/0003"
