"""Parsers of some of their examples: subsets, targets, balanced classes, weighted draws, epochs of any size."""

import pickle
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from storage.beton.made_files import flip
from tfds_fixtures import write_numbered

from tfds_torch import (
    ImageDataset,
    ParserMixture,
    ParserTfds,
    World,
)
from tfds_torch.engines.batch import Batch
from tfds_torch.errors import ConfigError, CorruptRecordError, ExampleNotFoundError, StateMismatchError
from tfds_torch.plan.passes import Passes
from tfds_torch.torch_data.indexed_image_dataset import IndexedImageDataset

NUM_EXAMPLES = 30


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`numbered`: 30 images in two shards, whose labels are their indices."""
    folder = tmp_path_factory.mktemp("selection")
    write_numbered(folder, {"train": (13, 17)})
    return folder


def make(root: Path, **arguments: Any) -> ParserTfds:
    return ParserTfds(root, "numbered", **arguments)


def classes(root: Path, **arguments: Any) -> ParserTfds:
    """Of four classes: 15 examples of class 0, and 5 of each other."""
    class_map = {str(i): 0 if i < 15 else 1 + i % 3 for i in range(NUM_EXAMPLES)}
    return make(root, class_map=class_map, is_training=True, batch_size=8, **arguments)


def indices(batches: Sequence[Batch]) -> list[int]:
    return [int(i) for batch in batches for i in batch.index[batch.valid]]


def read(parser: Any, epoch: int = 0) -> list[Batch]:
    return list(parser.batches(World(), epoch, fields=("label",)))


# Subsets


def test_a_subset_keeps_the_numbers_and_ids_of_the_split(root: Path) -> None:
    some = make(root).subset([20, 3, 7])
    assert (len(some), some.num_examples, some.indices.tolist()) == (3, 3, [20, 3, 7])
    batches = read(some)
    assert indices(batches) == [20, 3, 7]
    assert [int(label) for batch in batches for label in batch.label] == [20, 3, 7]
    whole = make(root)
    assert [id for batch in batches for id in batch.id] == list(whole.ids(np.array([20, 3, 7])))
    assert some.filenames() == whole.filenames()  # By `index`.


def test_places_count_within_the_subset_and_numbers_in_the_split(root: Path) -> None:
    some = make(root).subset([20, 3, 7])
    assert [some[0].index, some[-1].index, [one.index for one in some[1:]]] == [20, 7, [3, 7]]
    assert [one.index for one in some.examples_by_index([7, 20])] == [7, 20]
    assert [some[place].index for place in range(len(some))] == [20, 3, 7]
    dataset = IndexedImageDataset(some, fields=("index",))
    assert (len(dataset), [int(dataset[place][0]) for place in range(3)]) == (3, [20, 3, 7])
    id = some[1].id
    assert some[id].index == 3
    with pytest.raises(ExampleNotFoundError, match=r"there is no place 3 in the subset: its places are 0 to 2"):
        some[3]
    for other in (4, make(root)[4].id):
        with pytest.raises(ExampleNotFoundError, match=r"example 4 of the split is not one of the subset's 3"):
            some.examples_by_index([other])
    with pytest.raises(ConfigError, match=r"place=1\.5 must be an integer"):
        some[1.5]  # type: ignore[call-overload]


def test_subsets_of_folds_cover_the_split(root: Path) -> None:
    whole = make(root)
    fold = np.arange(NUM_EXAMPLES) % 5
    held_out = [indices(read(whole.subset(fold == number))) for number in range(5)]
    assert sorted(i for one in held_out for i in one) == list(range(NUM_EXAMPLES))
    rest = whole.subset(fold != 0)
    assert set(indices(read(rest))).isdisjoint(held_out[0])
    assert indices(read(rest.subset(rest.targets() < 4))) == [1, 2, 3]


def test_a_subset_is_part_of_the_fingerprint_and_of_states(root: Path) -> None:
    parser = make(root, is_training=True, batch_size=4)
    one, same, other = (parser.subset(some) for some in ([1, 2, 3, 4, 5], [1, 2, 3, 4, 5], [5, 4, 3, 2, 1]))
    assert one.fingerprint == same.fingerprint == pickle.loads(pickle.dumps(one)).fingerprint
    assert len({one.fingerprint, other.fingerprint, parser.fingerprint}) == 3
    state = ImageDataset(one, fields=("index",)).state_dict(1)
    ImageDataset(same, fields=("index",)).load_state_dict(state)
    with pytest.raises(StateMismatchError, match=r"subset: .* here\. Choose the same examples"):
        ImageDataset(other, fields=("index",)).load_state_dict(state)


def test_another_order_is_of_the_same_examples(root: Path) -> None:
    parser = make(root, is_training=True, batch_size=4)
    other = parser.with_order(Passes(NUM_EXAMPLES, seed=7))
    assert (other.seed, other.epoch_size, other.fingerprint) == (7, NUM_EXAMPLES, parser.fingerprint)
    assert sorted(indices(read(other))[:NUM_EXAMPLES]) == list(range(NUM_EXAMPLES))
    some = parser.subset([1, 2, 3, 4])
    assert some.with_order(Passes(NUM_EXAMPLES, subset=some.selected)).num_examples == 4
    for one, order, message in (
        (parser, Passes(3), rf"has {NUM_EXAMPLES} examples, and the order Passes numbers 3"),
        (some, Passes(NUM_EXAMPLES), rf"for 4 of {NUM_EXAMPLES} examples, and the order Passes has all of them"),
        (parser, Passes(NUM_EXAMPLES, subset=some.selected), "has 4 of them. Give it the same subset"),
    ):
        with pytest.raises(ConfigError, match=message):
            one.with_order(order)


def test_a_mixture_of_subsets_is_one_of_their_examples(root: Path) -> None:
    members = {"low": make(root).subset(range(6)), "high": make(root).subset([29, 25, 27])}
    mixed = ParserMixture(members, {"low": 1, "high": 1}, is_training=True, batch_size=6, stop="all_exhausted")
    assert mixed.member_sizes == {"low": 6, "high": 3}
    counts = Counter(indices(read(mixed)))
    assert counts == dict.fromkeys(range(6), 1) | dict.fromkeys((30 + 25, 30 + 27, 30 + 29), 2)
    whole = ParserMixture(members, batch_size=6)
    assert indices(read(whole)) == [*range(6), 59, 55, 57]
    assert whole.counts(20) == {"low": 14, "high": 6}
    assert indices(read(whole.subset([2, 57]))) == [2, 57]
    other = ParserMixture({**members, "high": make(root).subset([29, 25, 26])}, batch_size=6)
    assert whole.fingerprint != other.fingerprint
    with pytest.raises(ConfigError, match="has weights already"):
        mixed.subset([1])


# Targets


def test_targets_are_those_of_the_examples_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a cache's back a label is changed: what is kept has the old ones, and what is damaged is read again."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_numbered(tmp_path, {"train": (13, 17)})
    assert classes(tmp_path).targets().tolist() == [0 if i < 15 else 1 + i % 3 for i in range(NUM_EXAMPLES)]
    (kept,) = (tmp_path / "cache").rglob("*.npy")
    content = kept.read_bytes()
    shard = tmp_path / "numbered" / "1.0.0" / "numbered-train.tfrecord-00001-of-00002"
    flip(shard, 100)
    assert make(tmp_path).targets().dtype == np.int64
    assert make(tmp_path).subset([25, 2]).targets().tolist() == [25, 2]
    assert classes(tmp_path).subset([20, 0]).targets().tolist() == [3, 0]
    for damage in (b"", b"x" * 40, content[:-1] + bytes([content[-1] ^ 1])):
        kept.write_bytes(damage)
        with pytest.raises(CorruptRecordError):
            make(tmp_path).targets()
    flip(shard, 100)
    assert make(tmp_path).targets().tolist() == list(range(NUM_EXAMPLES))
    assert kept.read_bytes() == content


# Classes and weights


def test_balanced_batches_are_stratified_and_each_pass_of_a_class_is_whole(root: Path) -> None:
    parser = classes(root).balanced(epoch_size=40)
    came: Counter[int] = Counter()
    for epoch in range(6):
        for batch in read(parser, epoch):
            assert np.bincount(batch.label, minlength=4).tolist() == [2, 2, 2, 2]
            came.update(batch.index.tolist())
    assert {came[i] for i in range(15)} == {4}  # 240 slots, 60 of each class.
    assert {came[i] for i in range(15, 30)} == {12}


def test_a_temperature_is_between_the_classes_and_their_sizes(root: Path) -> None:
    shares = []
    for temperature in (None, 1e6, 2, 1):
        parser = classes(root).balanced(temperature=temperature, epoch_size=3000)
        labels = np.concatenate([batch.label for batch in read(parser)])
        shares.append(float((labels == 0).mean()))
    np.testing.assert_allclose(shares, [0.25, 0.25, 3**0.5 / (3**0.5 + 3), 0.5], atol=0.005)


def test_balanced_takes_a_subset(root: Path) -> None:
    parser = classes(root)
    some = parser.subset(parser.targets() < 2).balanced()
    assert (some.num_examples, some.epoch_size) == (20, 20)
    assert set(indices(read(some))) <= set(some.indices.tolist())
    assert some.fingerprint != parser.balanced().fingerprint != parser.fingerprint
    assert some.examples_by_index([0], epoch=1)[0].index == 0


def test_weighted_examples_come_as_often_as_asked(root: Path) -> None:
    weights = np.where(np.arange(NUM_EXAMPLES) % 2, 0.0, 1.0)
    parser = classes(root).weighted(weights, epoch_size=600)
    came = Counter(indices(read(parser)))
    assert set(came) == set(range(0, NUM_EXAMPLES, 2))
    assert len(set(came.values())) > 5  # Draws are independent.
    assert parser.fingerprint != classes(root).weighted(weights[::-1]).fingerprint


def test_tensors_choose_and_weigh_as_arrays_do(root: Path) -> None:
    parser = classes(root)
    targets = torch.from_numpy(parser.targets())
    assert parser.subset(targets > 0).fingerprint == parser.subset(parser.targets() > 0).fingerprint
    assert parser.subset(torch.arange(3)).indices.tolist() == [0, 1, 2]
    weights = (1.0 + targets).requires_grad_()
    assert parser.weighted(weights).fingerprint == parser.weighted(1.0 + parser.targets()).fingerprint


# Epoch sizes


def test_an_epoch_is_the_next_examples_of_the_passes(root: Path) -> None:
    parser = make(root, is_training=True, batch_size=5, epoch_size=25)
    assert (parser.epoch_size, parser.num_examples, parser.plan(World()).num_batches) == (25, 30, 5)
    came = [i for epoch in range(6) for i in indices(read(parser, epoch))]
    whole = make(root, is_training=True, batch_size=5)
    assert came == [i for number in range(5) for i in indices(read(whole, number))]


def test_a_concatenation_takes_an_epoch_size(root: Path) -> None:
    members = {"a": make(root), "b": make(root)}
    parser = ParserMixture(members, is_training=True, batch_size=5, epoch_size=20)
    came = [i for epoch in range(3) for i in indices(read(parser, epoch))]
    assert sorted(came) == list(range(60))
    assert parser.epoch_size == 20
