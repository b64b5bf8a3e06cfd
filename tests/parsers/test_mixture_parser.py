"""ParserMixture over tars, a `.beton` file, an image folder and a TFDS dataset: what comes, and of which member."""

import threading
import warnings
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from storage.webdataset.made_tars import write_samples
from tfds_fixtures import write_numbered

from parsers.tar_samples import CLASSES, NUM_CLASSES, pixels_of, png, sample_of
from tfds_torch import (
    ImageDataset,
    ParserBeton,
    ParserMixture,
    ParserTfds,
    ParserWebDataset,
    ReadOptions,
    TrainPreprocess,
    World,
    create_loader,
)
from tfds_torch.engines.batch import Batch
from tfds_torch.errors import ConfigError, ExampleNotFoundError
from tfds_torch.plan.passes import Passes
from tfds_torch.storage.beton.fields import BetonInt
from tfds_torch.storage.beton.image_field import BetonImage
from tfds_torch.storage.beton.writer import BetonWriter

SIZES = {"tars": 25, "beton": 11, "folder": 7}
FIRST = {"tars": 0, "beton": 25, "folder": 36}
WEIGHTS = {"tars": 0.5, "beton": 0.3, "folder": 0.2}
FIELDS = ("image", "label", "member")
EVEN = {"a": 1, "b": 1}
TRAINING: dict[str, Any] = {"is_training": True, "batch_size": 4}


@dataclass(frozen=True)
class Files:
    """Members of three formats; example i of the mixture, by `index`, is `sample_of(numbers[i])`."""

    root: Path
    numbers: list[int]

    def members(self, **arguments: Any) -> dict[str, Any]:
        return {
            "tars": ParserWebDataset(str(self.root / "a-{00..01}.tar"), **arguments),
            "beton": ParserBeton(self.root / "b.beton", **arguments),
            "folder": ParserTfds(self.root / "folder", "image_folder", "train", **arguments),
        }

    def mixture(self, weights: Any = WEIGHTS, members: Mapping[str, Any] | None = None, **more: Any) -> ParserMixture:
        arguments = {"is_training": weights is not None, "batch_size": 6, **more}
        return ParserMixture(members or self.members(), weights, **arguments)

    def labels(self, index: Any) -> list[int]:
        return [self.numbers[number] % NUM_CLASSES for number in index]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    root = tmp_path_factory.mktemp("members")
    write_samples(root / "a-00.tar", map(sample_of, range(13)))
    write_samples(root / "a-01.tar", map(sample_of, range(13, 25)))
    fields = {"image": BetonImage("raw"), "label": BetonInt()}
    with BetonWriter(root / "b.beton", fields, 11) as writer:
        for number in range(25, 36):
            writer.add((pixels_of(number), number % NUM_CLASSES), id=f"raw/{number}")
    for number in range(36, 43):
        path = root / "folder" / "train" / str(number % NUM_CLASSES) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(pixels_of(number)))
    made = Files(root, list(range(36)))
    ids = made.members()["folder"].ids(np.arange(7))  # In TFDS's order.
    made.numbers.extend(int(Path(one).stem) for one in ids)
    return made


def epoch_of(parser: ParserMixture, epoch: int = 0, **more: Any) -> list[Batch]:
    return list(parser.batches(World(), epoch, **more))


def joined(batches: list[Batch], name: str) -> Any:
    return np.concatenate([getattr(batch, name) for batch in batches])


# What comes


@pytest.mark.parametrize("batch_size", [1, 6, 10])
def test_every_global_batch_has_within_two_of_each_share_and_every_prefix_within_one(
    files: Files, batch_size: int
) -> None:
    parser = files.mixture(batch_size=batch_size, epoch_size=200)
    members = np.concatenate([batch.features["member"] for batch in epoch_of(parser, fields=("member",))])
    prefixes = np.arange(1, len(members) + 1)
    for number, weight in enumerate(WEIGHTS.values()):
        assert np.abs(np.cumsum(members == number) - weight * prefixes).max() < 1
        each = (members.reshape(-1, batch_size) == number).sum(axis=1)
        assert np.abs(each - weight * batch_size).max() < 2


def test_counts_say_what_came_over_epochs_and_segments(files: Files) -> None:
    parser = files.mixture([(0, WEIGHTS), (40, {"tars": 0, "beton": 1, "folder": 1})], epoch_size=30)
    for one in (parser, files.mixture(None, is_training=True, epoch_size=30)):  # The other is shuffled.
        came: Counter[str] = Counter()
        for epoch in range(4):
            for batch in epoch_of(one, epoch, fields=("member",)):
                came.update(one.member_names[number] for number in batch.features["member"])
            assert one.counts(30 * (epoch + 1)) == {name: came[name] for name in SIZES}
    assert parser.weights == [(0, WEIGHTS), (40, {"tars": 0.0, "beton": 0.5, "folder": 0.5})]
    assert files.mixture(None).counts(43 + 30) == {"tars": 50, "beton": 16, "folder": 7}


def test_every_example_of_a_member_comes_once_in_each_of_its_passes(files: Files) -> None:
    parser = files.mixture(epoch_size=96)
    came: dict[int, list[int]] = {number: [] for number in range(3)}
    for epoch in range(3):
        for batch in epoch_of(parser, epoch, fields=("member",)):
            for member, index in zip(batch.features["member"].tolist(), batch.index.tolist(), strict=True):
                came[member].append(index)
    for member, (name, size) in enumerate(SIZES.items()):
        passes = [came[member][start : start + size] for start in range(0, len(came[member]), size)]
        assert len(passes) > 2
        for one in passes[:-1]:
            assert sorted(one) == list(range(FIRST[name], FIRST[name] + size))
        assert passes[0] != passes[1]


@pytest.mark.parametrize(("stop", "size"), [("first_exhausted", 35), ("all_exhausted", 50)])
def test_an_epoch_ends_with_the_first_member_or_with_the_last_one(files: Files, stop: str, size: int) -> None:
    parser = files.mixture(stop=stop, batch_size=1)
    found = epoch_of(parser, fields=("member",))
    assert len(found) == parser.epoch_size == parser.plan(World()).num_batches
    counts = parser.counts(parser.epoch_size)
    exhausted = {name for name, size in SIZES.items() if counts[name] >= size}
    before = parser.counts(parser.epoch_size - 1)
    assert exhausted if stop == "first_exhausted" else exhausted == set(SIZES)
    assert any(before[name] < SIZES[name] == counts[name] for name in SIZES)
    assert abs(parser.epoch_size - size) <= 3


def test_repeats_make_an_epoch_so_many_times_as_long(files: Files) -> None:
    once, twice = files.mixture(epoch_size=36), files.mixture(epoch_size=36, repeats=2)
    two_epochs = [joined(epoch_of(once, epoch), "index").tolist() for epoch in (2, 3)]
    assert joined(epoch_of(twice, 1), "index").tolist() == two_epochs[0] + two_epochs[1]


# Worlds and states


def test_crops_depend_on_seed_member_pass_and_example_alone(files: Files) -> None:
    preprocess = TrainPreprocess(size=4, scale=(0.2, 0.9))

    def crops_of(parser: ParserMixture, epoch: int) -> dict[tuple[int, int], Any]:
        found: dict[tuple[int, int], Any] = {}
        came = Counter({FIRST[name]: count for name, count in parser.counts(epoch * parser.epoch_size).items()})
        for batch in epoch_of(parser, epoch, fields=FIELDS):
            members = batch.features["member"].tolist()
            for index, member, image in zip(batch.index.tolist(), members, batch.image, strict=True):
                name = parser.member_names[member]
                number, came[FIRST[name]] = came[FIRST[name]] // SIZES[name], came[FIRST[name]] + 1
                found[index, number] = image
        return found

    one = crops_of(files.mixture(preprocess=preprocess, epoch_size=60), 0)
    other_weights = crops_of(files.mixture("sizes", preprocess=preprocess, epoch_size=60, batch_size=4), 0)
    shared = one.keys() & other_weights.keys()
    assert len(shared) > 20
    assert all((one[key] == other_weights[key]).all() for key in shared)
    again = {index for index, number in one if number and (index, 0) in one}
    assert any((one[index, 0] != one[index, 1]).any() for index in again if (index, 1) in one)


def test_the_fingerprint_is_that_of_members_weights_and_schedule(files: Files) -> None:
    members = files.members()
    renamed = {name.upper(): parser for name, parser in members.items()}
    others = [
        files.mixture(),
        files.mixture("sizes"),
        files.mixture(None),
        files.mixture([(0, WEIGHTS), (10, "sizes")]),
        files.mixture([(0, WEIGHTS), (11, "sizes")]),
        files.mixture({name.upper(): weight for name, weight in WEIGHTS.items()}, renamed),
        files.mixture(WEIGHTS, dict(reversed(members.items()))),
        files.mixture(members=files.members(read=ReadOptions(block_records=4))),
    ]
    fingerprints = [parser.fingerprint for parser in others]
    assert len(set(fingerprints)) == len(others)
    assert files.mixture({"tars": 5, "beton": 3, "folder": 2}).fingerprint == fingerprints[0]


# Single examples


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (43, "there is no example 43: its indices are 0 to 42"),
        ("raw/30", "ids are <member>/<id in the member>, and the members are tars, beton, folder"),
        ("betn/raw/30", "Did you mean 'beton'"),
        ("beton/raw/99", "split 'all', member 'beton': .*there is no example 'raw/99'"),
    ],
)
def test_what_is_not_there_is_named(files: Files, key: Any, message: str) -> None:
    with pytest.raises(ExampleNotFoundError, match=message):
        files.mixture()[key]


def test_examples_are_handed_over_as_they_are_stored(files: Files) -> None:
    parser = files.mixture()
    assert parser.dataset.encoded_names()[:2] == ["image", "label"]
    examples = parser.dataset.encoded_examples(np.array([40, 3, 27]), ["image", "label", "member"])
    assert [example.features.get("member") for example in examples] == [2, 0, 1]
    assert [example.label for example in examples] == files.labels([40, 3, 27])
    assert bytes(examples[1].image) == png(pixels_of(3))
    assert (examples[2].image == pixels_of(27)).all()


# Fields of members


@pytest.fixture(scope="module")
def two_kinds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tars whose samples have texts, JSON, arrays and bytes, and others with only some of them."""
    root = tmp_path_factory.mktemp("kinds")
    write_samples(root / "all.tar", map(sample_of, range(6)))
    some = ("__key__", "png", "cls", "txt", "json", "bin")
    write_samples(root / "some.tar", [{k: v for k, v in sample_of(n).items() if k in some} for n in range(6, 10)])
    return root


def kinds_of(root: Path, **fields: str) -> ParserMixture:
    of = {"image": "png", "label": "cls", "text": "txt", "facts": "json", "raw": "bin"}
    members = {
        "all": ParserWebDataset(str(root / "all.tar"), of | fields),
        "some": ParserWebDataset(str(root / "some.tar"), of),
    }
    return ParserMixture(members, batch_size=4)


def test_other_fields_of_all_members_come_in_the_order_of_the_batch(two_kinds: Path) -> None:
    parser = kinds_of(two_kinds, vector="npy")
    assert {"text", "facts", "raw"} <= set(parser.element_spec.fields)
    assert not parser.dataset.has_field("vector")
    shuffled = ParserMixture(parser.members, batch_size=4, shuffle=True)
    for batch in shuffled.batches(fields=("text", "facts", "raw")):
        assert batch.features["text"] == [f"text {number} ä" for number in batch.index]
        assert batch.features["facts"] == [{"number": number} for number in batch.index]
        assert batch.features["raw"] == [bytes([number]) for number in batch.index]


def test_class_maps_of_the_members_give_common_labels(files: Files, tmp_path: Path) -> None:
    write_numbered(tmp_path, {"train": (9,)})
    class_map = {f"{number}.jpg": number % 3 for number in range(9)}
    words = ParserTfds(tmp_path, "numbered", "train", target_key="file_name", class_map=class_map)
    numbers = ParserBeton(files.root / "b.beton", class_map={label: 7 + label for label in range(NUM_CLASSES)})
    members = {"words": words, "numbers": numbers}
    parser = ParserMixture(members, {"words": 1, "numbers": 1}, is_training=True, batch_size=5)
    for batch in parser.batches(fields=("label", "member")):
        assert batch.label.dtype == np.int64
        expected = [n % 3 if n < 9 else 7 + (n + 16) % NUM_CLASSES for n in batch.index.tolist()]
        assert batch.label.tolist() == expected
    assert parser[3].label == 0
    assert parser.dataset.encoded_examples(np.array([14]), ["label"])[0].label == 7
    del class_map["2.jpg"]
    members["words"] = ParserTfds(tmp_path, "numbered", "train", target_key="file_name", class_map=class_map)
    with pytest.raises(ConfigError, match=r"no label for '2\.jpg', the target of the example words/numbered-train"):
        list(ParserMixture(members, batch_size=5).batches(fields=("label",)))


@pytest.mark.parametrize("mapped", [("a",), ("b",), ("a", "b")])
def test_a_class_map_holds_where_all_members_store_labels_alike(files: Files, mapped: tuple[str, ...]) -> None:
    class_map = {label: label + 100 for label in range(NUM_CLASSES)}
    members = {
        name: ParserWebDataset(str(files.root / "a-00.tar"), class_map=class_map if name in mapped else None)
        for name in ("a", "b")
    }
    for batch in ParserMixture(members, batch_size=8, shuffle=True).batches(fields=("label",)):
        own = [("a", number) if number < 13 else ("b", number - 13) for number in batch.index.tolist()]
        assert batch.label.tolist() == [number % NUM_CLASSES + 100 * (name in mapped) for name, number in own]


def test_class_names_are_those_that_all_members_have(files: Files) -> None:
    other = [*CLASSES[:3], "zebra", CLASSES[4]]

    def names_of(names: list[str], class_map: dict[str, int] | None) -> Any:
        tars = str(files.root / "a-{00..01}.tar")
        members = {
            "a": ParserWebDataset(tars, class_names=CLASSES),
            "b": ParserWebDataset(tars, class_names=names, class_map=class_map),
        }
        return ParserMixture(members, batch_size=2).class_names

    assert names_of(CLASSES, None) == CLASSES
    assert names_of(other, {name: number for number, name in enumerate(other)}) is None
    assert names_of(CLASSES[::-1], {name: number for number, name in enumerate(CLASSES)}) == CLASSES
    assert files.mixture().class_names is None


# Weights, members that say the same, and blocks


def pair(files: Files, of_a: dict[str, Any] = {}, of_b: dict[str, Any] = {}) -> dict[str, Any]:  # noqa: B006 (read only)
    path = str(files.root / "a-00.tar")
    return {"a": ParserWebDataset(path, **of_a), "b": ParserWebDataset(path, **of_b)}


def test_members_that_say_the_same_are_taken(files: Files) -> None:
    same: dict[str, Any] = {**TRAINING, "seed": 3, "remainder": "drop", "preprocess": TrainPreprocess(8), "repeats": 2}
    same["read"] = ReadOptions(num_threads=2)
    parser = ParserMixture(pair(files, same), EVEN, **same)
    assert parser.plan(World()).num_own_slots == 2 * parser.epoch_size


def test_a_weight_of_zero_is_a_segment_without_the_member(files: Files) -> None:
    schedule = [(0, {"a": 1, "b": 0}), (8, EVEN)]
    parser = ParserMixture(pair(files), schedule, **TRAINING, epoch_size=16)
    members = [batch.features["member"].tolist() for batch in parser.batches(fields=("member",))]
    assert members[:2] == [[0] * 4] * 2
    assert sorted(members[2] + members[3]) == [0] * 4 + [1] * 4


def test_a_weight_that_is_rounded_and_an_epoch_smaller_than_a_batch_are_warned_of(files: Files) -> None:
    with pytest.warns(UserWarning, match=r"rounded to 1/65,536, which moves some by more than 1 %: 'b': 1e-05 became"):
        ParserMixture(pair(files), {"a": 0.99999, "b": 0.00001}, **TRAINING)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ParserMixture(pair(files), {"a": 0.7, "b": 0.30001}, **TRAINING)
    small = ParserMixture(pair(files), EVEN, is_training=True, batch_size=32, epoch_size=10)
    with pytest.warns(UserWarning, match="has 10 examples in an epoch, fewer than a batch of 32"):
        ImageDataset(small)


def test_a_concatenation_has_the_blocks_and_groups_of_its_members(files: Files) -> None:
    blocks, groups = ({"read": ReadOptions(block_records=4, block_groups=number)} for number in (1, 2))
    for options, number in ((blocks, 1), (groups, 2)):
        parser = ParserMixture(pair(files, options, options), **TRAINING)
        for one in (parser, parser.with_read(ReadOptions(num_threads=1))):
            assert one.plan(World()).order.num_groups == number
    with pytest.raises(ConfigError, match="or another shuffle_buffer or block_groups"):
        ParserMixture(pair(files, blocks, groups), **TRAINING)
    assert ParserMixture(pair(files, {}, blocks), batch_size=2).num_examples == 26


# Threads, blocks and metrics


def test_64_members_take_no_more_threads_than_one(files: Files) -> None:
    def most_threads(num_members: int) -> int:
        tars = files.members()["tars"]
        members = {f"m{number}": tars.with_read(ReadOptions()) for number in range(num_members)}
        weights = dict.fromkeys(members, 1)
        read = ReadOptions(num_threads=2)
        parser = ParserMixture(members, weights, is_training=True, batch_size=16, epoch_size=128, read=read)
        return max(threading.active_count() for _ in parser.batches())

    num_before = threading.active_count()
    assert most_threads(64) <= num_before + 2
    assert most_threads(1) <= num_before + 2


def test_what_will_be_read_is_announced_to_each_member_by_its_own_numbers(files: Files) -> None:
    parser = files.mixture(epoch_size=48, batch_size=8)
    announced: dict[str, set[int]] = {name: set() for name in SIZES}
    with ExitStack() as stack:
        for name, member in parser.members.items():
            note = partial(_note, announced[name])
            stack.enter_context(mock.patch.object(type(member.source), "announce", note))
        came = joined(epoch_of(parser, fields=("label",)), "index").tolist()
    for name, size in SIZES.items():
        assert announced[name] == {number - FIRST[name] for number in came if 0 <= number - FIRST[name] < size}


def _note(seen: set[int], index: Any) -> None:
    seen.update(index.tolist())


def test_members_are_read_in_blocks_where_their_parsers_say_so(files: Files) -> None:
    blocks = ReadOptions(block_records=5, shuffle_buffer=5)
    members = files.members()
    members["tars"] = members["tars"].with_read(blocks)
    parser = files.mixture(members=members, epoch_size=50, batch_size=50)
    (batch,) = epoch_of(parser, fields=("member",))
    of_tars = batch.index[batch.features["member"] == 0]
    assert sorted(of_tars.tolist()) == list(range(25))
    assert all(len(set((of_tars[start : start + 5] // 5).tolist())) == 1 for start in range(0, 25, 5))
    alike = files.mixture(None, files.members(read=blocks), is_training=True, batch_size=5)
    assert isinstance(alike.order, Passes)
    assert alike.order.blocks == blocks.blocks


def test_stats_count_examples_passes_and_seconds_of_reading_by_member(files: Files) -> None:
    for num_workers in (0, 2):
        dataset = ImageDataset(files.mixture(epoch_size=60), fields=("label", "member"))
        with create_loader(dataset, num_workers) as loader:
            came: Counter[str] = Counter()
            for _ in range(2):
                for _, members in loader:
                    came.update(dataset.parser.member_names[number] for number in members.tolist())
            stats = loader.stats()
        assert [one.name for one in stats.members] == list(SIZES)
        assert {one.name: one.examples for one in stats.members} == dict(came)
        for one in stats.members:
            assert one.passes == one.examples / SIZES[one.name]
            assert 0 < one.read_s < stats.read_s
        assert stats.to_dict()["members"][1]["name"] == "beton"
