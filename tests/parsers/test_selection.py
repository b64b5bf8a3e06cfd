"""Parsers of some of their examples: subsets, targets, balanced classes, weighted draws, epochs of any size."""

import json
import pickle
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tfds_fixtures import Datasets, as_remote, write_numbered
from zygote import forked_instead_of_fresh, tensorflow_zygote

from tfds_torch import (
    EvalPreprocess,
    ImageDataset,
    ParserBeton,
    ParserMixture,
    ParserTfds,
    ReadOptions,
    World,
    create_loader,
    export_dataset,
)
from tfds_torch.check import command
from tfds_torch.engines.batch import Batch
from tfds_torch.errors import ConfigError, ExampleNotFoundError, StateMismatchError
from tfds_torch.parsers import targets
from tfds_torch.plan.passes import Passes
from tfds_torch.torch_data.indexed_image_dataset import IndexedImageDataset

NUM_EXAMPLES, NUM_CLASSES = 30, 4


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


def test_a_subset_of_any_format_with_any_loader(root: Path, tmp_path: Path, datasets: Datasets) -> None:
    exported = tmp_path / "a.beton"
    export_dataset(make(root), exported, format="beton")
    for parser in (make(root, batch_size=4), ParserBeton(exported, batch_size=4)):
        some = parser.subset(range(0, NUM_EXAMPLES, 3)).with_preprocess(EvalPreprocess(8))
        loader = create_loader(ImageDataset(some, fields=("image", "label", "index")), num_workers=2)
        found = [int(i) for _, label, index in loader for i in index]
        assert sorted(found) == list(range(0, NUM_EXAMPLES, 3))


def test_the_next_whole_example_of_the_subset_takes_the_place_of_a_damaged_one(tmp_path: Path) -> None:
    """And none outside it: a fold must not be read by the others."""
    write_numbered(tmp_path, {"train": (12,)})
    (shard,) = tmp_path.glob("numbered/*/numbered-train*")
    content = bytearray(shard.read_bytes())
    size = len(content) // 12
    content[3 * size + size // 2] ^= 1
    shard.write_bytes(content)
    read_on = ReadOptions(on_error="replace", num_threads=1)
    damaged = [i for i in range(12) if _is_damaged(tmp_path, i)]
    some = make(tmp_path, is_training=True, batch_size=3, read=read_on).subset([*damaged, *range(0, 12, 2)][:7])
    for epoch in range(3):
        assert set(indices(read(some, epoch))) <= set(some.indices.tolist()) - set(damaged)


def _is_damaged(root: Path, index: int) -> bool:
    try:
        make(root).examples_by_index([index])
    except Exception:
        return True
    return False


def test_streams_cannot_be_chosen_from(root: Path) -> None:
    parser = make(root)
    with pytest.raises(
        ConfigError, match=r"a subset needs every example by its number, and .* Copy it to this machine"
    ):
        as_remote(parser).subset([1])
    with pytest.raises(ConfigError, match=r"mode='examples'. Use mode 'index' or 'auto'"):
        make(root, read=ReadOptions(mode="examples")).subset([1])
    with pytest.raises(ConfigError, match=r"epoch_size=3 needs every example by its number"):
        make(root, is_training=True, batch_size=2, epoch_size=3, read=ReadOptions(mode="examples")).read_mode(World())


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


def test_targets_are_those_of_the_examples_and_kept(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parser = classes(root)
    assert parser.targets().tolist() == [0 if i < 15 else 1 + i % 3 for i in range(NUM_EXAMPLES)]
    assert make(root).targets().tolist() == list(range(NUM_EXAMPLES))
    monkeypatch.setattr(targets, "read_examples", None)  # From here on nothing is read.
    assert make(root).targets().dtype == np.int64
    assert make(root).subset([5, 2]).targets().tolist() == [5, 2]
    assert classes(root).subset([20, 0]).targets().tolist() == [3, 0]


@pytest.mark.parametrize("damage", [b"", b"x" * 40, None])
def test_kept_targets_that_are_damaged_are_read_again(root: Path, damage: bytes | None) -> None:
    parser = make(root)
    parser.targets()
    file = targets.cache_file(parser.dataset_name, parser.source.identity, parser.source.stamps, parser.target_key)
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]) if damage is None else damage)
    assert make(root).targets().tolist() == list(range(NUM_EXAMPLES))
    assert file.read_bytes() == content


def test_targets_without_a_label_are_refused(root: Path) -> None:
    with pytest.raises(ConfigError, match="target_key=None"):
        make(root, target_key=None).targets()


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


def test_groups_of_blocks_work_in_a_subset_and_are_refused_beside_weights(root: Path) -> None:
    parser = classes(root, read=ReadOptions(block_records=4, block_groups=2))
    assert parser.subset(range(8)).plan(World()).order.num_groups == 2
    for choose in (lambda: parser.balanced(), lambda: parser.weighted([1] * len(parser))):
        with pytest.raises(ConfigError, match="has block_groups=2 beside weights, which choose what is in a global"):
            choose()


def test_what_cannot_be_weighted_is_refused(root: Path) -> None:
    with pytest.raises(ConfigError, match=r"Evaluation needs each example exactly once, .* Leave out the weights"):
        make(root, batch_size=2).balanced()
    with pytest.raises(ConfigError, match="by='image' must be 'label'"):
        classes(root).balanced(by="image")
    with pytest.raises(ConfigError, match=r"by=array\(\[1\., 1\.\]\) must be 'label'"):
        classes(root).balanced(np.ones(2))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="shuffle=False beside weights of examples"):
        classes(root, shuffle=False).weighted(np.ones(NUM_EXAMPLES))
    with pytest.raises(ConfigError, match=r"weights=tensor\(.*must be a list of numbers"):
        classes(root).weighted(torch.ones(NUM_EXAMPLES, dtype=torch.bfloat16))
    with pytest.raises(ConfigError, match="temperature=0 must be a number > 0"):
        classes(root).balanced(temperature=0)
    with pytest.raises(ConfigError, match="has weights already"):
        classes(root).balanced().weighted(np.ones(NUM_EXAMPLES))
    with pytest.raises(ConfigError, match="2 were given, and there are 30 examples"):
        classes(root).weighted([1, 2])
    with pytest.raises(ConfigError, match="the member 'a' has weights of its own"):
        ParserMixture({"a": classes(root).balanced()}, is_training=True, batch_size=8)


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
    with pytest.raises(ConfigError, match="the member 'a' has epoch_size=7"):
        ParserMixture({"a": make(root, is_training=True, batch_size=5, epoch_size=7)}, is_training=True, batch_size=5)


def test_check_judges_epochs_of_any_size(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A pass ends within an epoch, and the fill of each comes again."""
    recipe, report = tmp_path / "recipe.toml", tmp_path / "r.json"
    recipe.write_text('name = "numbered"\nis_training = true\nbatch_size = 4\nepoch_size = 17\n')
    flags = ["--root", str(root), "--workers", "0", "--epochs", "5", "--json", str(report), "--replicas", "2"]
    with forked_instead_of_fresh(tensorflow_zygote):
        assert command.main(["--config", str(recipe), *flags]) == 0
    names = [promise["name"] for promise in json.loads(report.read_text())["promises"]]
    assert "every example once in each pass, and the wrapped few" in names
    assert "epoch_size 16 or epoch_size 24" in " ".join(capsys.readouterr().out.replace("│", " ").split())
    with forked_instead_of_fresh(tensorflow_zygote):
        assert command.main(["--config", str(recipe), *flags, "--eval"]) == 0


def test_an_export_of_a_subset_has_its_examples_in_their_order(root: Path, tmp_path: Path) -> None:
    export_dataset(make(root).subset([20, 3, 7]), tmp_path / "a.beton", format="beton")
    assert [int(label) for batch in read(ParserBeton(tmp_path / "a.beton")) for label in batch.label] == [20, 3, 7]
