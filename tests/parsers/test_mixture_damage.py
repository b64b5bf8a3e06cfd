"""Damaged examples of a mixture: each member's own on_error, checksums and limits; errors name the member's file."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from picture_fixtures import write_pictures
from storage.webdataset.made_tars import write_samples
from tfds_fixtures import record_offsets, shard_files

from parsers.tar_samples import SIDE, pixels_of, png, sample_of
from tfds_torch import EvalPreprocess, ParserMixture, ParserTfds, ParserWebDataset, ReadOptions
from tfds_torch.errors import CorruptRecordError

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


def test_every_member_has_its_own_limit(tmp_path: Path) -> None:
    damaged = {"a": (0, 1), "b": (3, 4, 5)}
    more = ReadOptions(on_error="replace", max_replaced=3)
    assert len(list(mixture(tmp_path, damaged, {"a": REPLACE, "b": more}).batches())) == 4
    with pytest.raises(CorruptRecordError, match=r"id b/part/0005\) is damaged example number 3 .* max_replaced=2"):
        list(mixture(tmp_path, damaged, {"a": REPLACE, "b": REPLACE}).batches())


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
