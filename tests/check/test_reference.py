"""A sample of examples, read by index and by TFDS's own reader."""

import json
import shutil
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tfds_fixtures import Datasets, cache_home, datasets, replace_bytes_feature, shard_files

from tfds_torch.check.expected import ExpectedIds, IdRun, ids_of
from tfds_torch.check.reference import (
    TFDS_PROMISE,
    ComparedExample,
    choose_examples,
    judge_sample,
    judge_tfds,
    read_sample,
)
from tfds_torch.check.report import NotJudged, Promise
from tfds_torch.check.tfds_reader import Question, ReferenceExample, ask_tfds, digest, find_image_key
from tfds_torch.errors import ShardError
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.runtime import subprocess_call
from tfds_torch.storage.source import FileInstruction
from tfds_torch.storage.tfrecord.framing import read_records

__all__ = ["cache_home", "datasets"]

MIB = 2**20


def runs_of(cuts: Sequence[tuple[int, int]]) -> list[FileInstruction]:
    """Returns runs of (skip, take) records, each of a shard of its own."""
    runs, first = [], 0
    for number, (skip, take) in enumerate(cuts):
        runs.append(FileInstruction(f"/x-{number}", skip, take, first, skip + take))
        first += take
    return runs


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 10**6)), max_size=60), st.integers(1, 10**7))
def test_a_sample_is_small_and_of_the_split(cuts: list[tuple[int, int]], size: int) -> None:
    runs = runs_of(cuts)
    sample = choose_examples(runs, size, seed=1)
    assert sample == sorted(set(sample))
    assert len(sample) <= 48
    assert bool(sample) is bool(runs)
    places = [next(run for run in reversed(runs) if run.first_index <= index) for index in sample]
    passed = [run.skip + index - run.first_index + 1 for run, index in zip(places, sample, strict=True)]
    assert all(record <= run.skip + run.take for record, run in zip(passed, places, strict=True))
    assert len(sample) <= 1 or sum(passed) * size <= 256 * MIB


def test_the_first_and_the_last_example_of_every_shard_is_in_the_sample() -> None:
    runs = runs_of([(0, 50)] * 16)
    ends = {index for run in runs for index in (run.first_index, run.first_index + run.take - 1)}
    sample = choose_examples(runs, 1000, seed=1)
    assert ends < set(sample)
    assert sample != choose_examples(runs, 1000, seed=2)
    many = choose_examples(runs_of([(0, 50)] * 1000), 1000, seed=1)
    assert {0, 49, 49_950, 49_999} <= set(many)


def read_samples(reads: Sequence[tuple[str, str, str, str | None]], damaged: str) -> list[tuple[int, bool, bool, bool]]:
    """Returns how many examples were compared, whether all had the same bytes, the same ids, and an image each.

    A damaged folder is one message.

    For a fresh process: with tensorflow loaded, TFDS is asked there, without starting another one.
    """
    import tensorflow  # noqa: F401

    found = []
    with pytest.raises(ShardError, match=r"TFDS's own reader cannot read split 'train' of .*1\.0\.0: .*Error: "):
        ask_tfds([Question(damaged, "train", [0, 40], "image")])
    for root, name, split, image_key in reads:
        parser = ParserTfds(root, name, split, image_key=image_key)
        indices = choose_examples(parser.files, parser.mean_example_bytes, parser.seed)
        sample = read_sample(parser, ids_of(parser.dataset), indices, by_index=True)
        ids = parser.ids(np.array(indices, np.int64))
        same_bytes = all(example.digest == example.theirs.digest for example in sample)
        same_ids = ids == [example.theirs.id for example in sample]
        found.append((len(sample), same_bytes, same_ids, all(example.theirs.image for example in sample)))
    return found


@pytest.mark.slow  # TFDS reads, in a process of its own.
def test_what_tfds_reads_is_what_the_index_gives(datasets: Datasets, tmp_path: Path) -> None:
    damaged = Path(shutil.copytree(datasets.shapes, tmp_path / "shapes" / "1.0.0"))
    for shard in shard_files(damaged, "train"):
        shard.write_bytes(b"")
    root, gaps, array_record = map(str, (datasets.root, datasets.gaps, datasets.array_record))
    reads = [
        (root, "shapes", "train", "image"),
        (root, "shapes", "train[10:37]+test[-3:]", "image"),
        (gaps, "shapes", "test+train[30%:]", None),
        (root, "sentences", "train", None),
        (root, "channels/png_l", "train+train", "image"),
        (array_record, "tiny", "train", "image"),
    ]
    *tfrecord, by_array_record = subprocess_call.call(read_samples, reads, str(damaged))
    assert [row[1:3] for row in tfrecord] == [(True, True)] * 5
    assert [row[3] for row in tfrecord] == [True, True, False, False, True]
    assert all(number > 10 for number, *_ in tfrecord)
    assert "tensorflow" not in sys.modules
    assert by_array_record == (3, True, False, True)  # TFDS gives no ids there.


def test_a_dataset_that_only_a_newer_tfds_opens_is_checked_without_tfds(datasets: Datasets, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(datasets.shapes, tmp_path / "shapes" / "1.0.0"))
    declared = json.loads((folder / "features.json").read_text())
    (folder / "features.json").write_text(json.dumps(declared | {"newKey": 1}))
    parser = ParserTfds(None, folder, "test")
    ids = ids_of(parser.dataset)
    sample = read_sample(parser, ids, [0, 3], by_index=True)
    assert [one.theirs.image is not None for one in sample] == [True, True]
    judged = judge_tfds(parser, ids, sample)
    assert isinstance(judged, NotJudged)
    assert "TFDS's own reader cannot open it (ParseError: " in judged.reason


def test_the_bytes_of_an_image_are_compared_where_tfds_hands_them_over(datasets: Datasets) -> None:
    folder = str(datasets.shapes)
    assert find_image_key(folder, "image") == "image"
    for key in (None, "label", "nowhere", "objects"):
        assert find_image_key(folder, key) is None
    for image_key in (None, "image"):
        first, second = islice(read_records(shard_files(datasets.shapes, "train")[0]), 2)
        assert digest(first, image_key) == digest(first, image_key) != digest(second, image_key)
    labelled = replace_bytes_feature(first, "caption", lambda text: text + b"!")
    assert digest(labelled, "image") == digest(first, "image")
    assert digest(labelled, None) != digest(first, None)


@pytest.mark.parametrize(
    ("theirs", "detail"),
    [
        (ReferenceExample("x__1", "d"), "2 examples: the same ids and bytes"),
        (ReferenceExample(None, "d"), "2 examples: the same bytes"),
        (ReferenceExample("x__2", "d"), "index 1: x__1 is expected, and TFDS has x__2"),
        (ReferenceExample("x__1", "e"), "index 1: x__1 has other bytes than TFDS reads"),
        (ReferenceExample(None, "e"), "index 1: x__1 has other bytes than TFDS reads"),
    ],
)
def test_another_id_or_other_bytes_than_tfds_has_are_told(theirs: ReferenceExample, detail: str) -> None:
    ids = ExpectedIds([IdRun("x", 0, 3)])
    sample = [ComparedExample(0, "d", ReferenceExample("x__0", "d")), ComparedExample(1, "d", theirs)]
    assert judge_sample(ids, sample) == Promise(TFDS_PROMISE, "same" in detail, detail)
