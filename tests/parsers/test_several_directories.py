"""One dataset in several directories: one row, one set of labels, one set of statistics."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow_datasets as tfds
from storage.example_writer import write_example
from tfds_fixtures import call_reader, write_numbered, write_shard

from parsers.robot_episodes import Robots
from tfds_torch import ParserTfds, ReadOptions, Windows, export_dataset
from tfds_torch.errors import ConfigError
from tfds_torch.parsers.recipe_file import load_config

SPLITS = ({"train": [5, 0, 3], "test": [2]}, {"train": [4, 2], "extra": [1]})


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    roots = [tmp_path_factory.mktemp(name) for name in "ab"]
    for root, splits in zip(roots, SPLITS, strict=True):
        write_numbered(root, splits)
    return roots


def labels(parser: ParserTfds) -> list[int]:
    return [label for batch in parser.batches(fields=("label",)) for label in batch.label]


def stream(roots: list[Path], name: str, split: str, **arguments: Any) -> list[int]:
    """Labels as tensorflow streams them, in its process."""
    return labels(ParserTfds(roots, name, split, batch_size=4, read=ReadOptions(mode="examples"), **arguments))


def test_a_slice_is_one_of_the_whole_row(roots: list[Path]) -> None:
    whole = [*range(8), *range(6)]
    for split, expected in (
        ("train", whole),
        ("train[:50%]", whole[:7]),
        ("train[6:10]", whole[6:10]),
        ("train[3shard:]", whole[8:]),
        ("train[-2:]+train[:1]", [4, 5, 0]),
    ):
        assert labels(ParserTfds(roots, "numbered", split)) == expected, split
        assert call_reader(stream, roots, "numbered", split) == expected, split
    even = [ParserTfds(roots, "numbered", part) for part in tfds.even_splits("train", 3)]
    assert [label for parser in even for label in labels(parser)] == whole
    assert ParserTfds.split_names(roots, "numbered") == ["train"]


def test_version_directories_need_no_name_and_one_of_them_is_itself(roots: list[Path]) -> None:
    directories = [root / "numbered" / "1.0.0" for root in roots]
    parser = ParserTfds(directories)
    assert (labels(parser), parser.data_dirs) == ([*range(8), *range(6)], directories)
    one, plain = ParserTfds(directories[:1]), ParserTfds(roots[0], "numbered")
    assert (one.fingerprint, one.data_dirs, one[3].id) == (plain.fingerprint, directories[:1], plain[3].id)
    paths = [Path(path) for path in parser.filenames(absolute=True)]
    assert [path.parent for path in paths] == [directories[0]] * 8 + [directories[1]] * 6
    assert parser.filenames(basename=True, absolute=True)[-1] == str(directories[1] / "5.jpg")
    assert [parser[-1].id, parser[0].id] == [
        "1/numbered-train.tfrecord-00001-of-00002__1",
        "0/numbered-train.tfrecord-00000-of-00003__0",
    ]


def test_a_recipe_names_several_roots_of_a_member(roots: list[Path], tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(f'[[mixture]]\nname = "numbered"\nroot = {[*map(str, roots)]}\n', encoding="utf-8")
    parser = load_config(recipe).make_parser()
    assert (parser.num_examples, parser[-1].id) == (14, "numbered/1/numbered-train.tfrecord-00001-of-00002__1")


def write_classes(root: Path, classes: Sequence[str], labels: Sequence[Sequence[int]], more: Any = None) -> None:
    directory = root / "toys" / "1.0.0"
    directory.mkdir(parents=True)
    records = [write_example({"label": [own[0]], "others": list(own)}) for own in labels]
    write_shard(directory / "toys-train.tfrecord-00000-of-00001", records)
    label = tfds.features.ClassLabel(names=classes) if classes else tfds.features.ClassLabel(num_classes=3)
    tfds.folder_dataset.write_metadata(
        data_dir=str(directory),
        features=tfds.features.FeaturesDict({"label": label, "others": tfds.features.Sequence(label), **(more or {})}),
        split_infos=[tfds.core.SplitInfo(name="train", shard_lengths=[len(records)], num_bytes=9)],
        filename_template="{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
        check_data=False,
    )


def test_labels_are_those_of_the_first_directory_by_name_also_in_sequences(tmp_path: Path) -> None:
    write_classes(tmp_path / "a", ["cat", "dog", "hen"], [[0], [2, 1]])
    write_classes(tmp_path / "b", ["hen", "cat"], [[0, 1], [1], [-1]])
    roots = [tmp_path / "a", tmp_path / "b"]
    parser = ParserTfds(roots, "toys", image_key=None, batch_size=5)
    (batch,) = parser.batches(fields=("label", "others"))
    assert batch.label is not None
    assert batch.label.tolist() == [0, 2, 2, 0, -1]
    assert [own.tolist() for own in batch.features["others"]] == [[0], [2, 1], [2, 0], [0], [-1]]
    assert call_reader(stream, roots, "toys", "train", image_key=None) == [0, 2, 2, 0, -1]
    assert parser.targets().tolist() == [0, 2, 2, 0, -1]
    assert (parser.class_names, parser.class_to_idx["hen"]) == (["cat", "dog", "hen"], 2)
    with pytest.raises(ConfigError, match="copies records as they are stored, and the directories of this dataset"):
        export_dataset(parser, tmp_path / "out" / "toys" / "1.0.0", format="tfrecord")
    before = parser.fingerprint
    (tmp_path / "b" / "toys" / "1.0.0" / "label.labels.txt").write_text("dog\ncat\n")
    parser = ParserTfds(roots, "toys", image_key=None)
    assert parser.targets().tolist() == [0, 2, 1, 0, -1]  # And not those that are kept of the classes before.
    assert parser.fingerprint != before


def test_windows_of_two_directories_are_one_member_with_joint_statistics(robots: Robots, tmp_path: Path) -> None:
    shutil.copytree(robots.root / "libero_like", tmp_path / "libero_like")
    one = ParserTfds(robots.root, "libero_like", windows=Windows("steps"))
    both = ParserTfds([robots.root, tmp_path], "libero_like", windows=Windows("steps"))
    own, joint = one.statistics(["action"]), both.statistics(["action"])
    assert (len(both), joint.num_transitions, joint.num_trajectories) == (2 * len(one), 2 * len(one), 10)
    np.testing.assert_allclose(joint["action"].mean, own["action"].mean)
    np.testing.assert_array_equal(joint["action"].max, own["action"].max)
    assert both[len(one)].id == f"1/{one[0].id}"
    np.testing.assert_array_equal(both[-1].features["action"], one[-1].features["action"])


def of(*roots: Any, name: Any = "toys", **arguments: Any) -> Callable[[Path], Any]:
    def open_them(path: Path) -> Any:
        return ParserTfds([path / one if isinstance(one, str) else one for one in roots], name, **arguments)

    return open_them


@pytest.mark.parametrize(
    ("opens", "message"),
    [
        (of(), "root=[] must be a path or a URL, or a list of these, with at least one"),
        (of("a", 3), "must be a path or a URL, or a list of these"),
        (of("a", "a"), "more than once: an example would come twice"),
        (
            of("a", "unknown"),
            "other classes. The first has cat, dog; the other cat, ox. Its classes must be",
        ),
        (of("a", "more"), "The first has cat, dog; the other cat, dog, hen."),
        (of("a", "nameless"), "The first has cat, dog; the other 3 classes without names."),
        (of("nameless", "a"), "The first has 3 classes without names; the other cat, dog."),
        (of("a", name=None), "has no dataset_info.json. Give a version directory"),
        (of("z", name=None), "z does not exist, or is no directory. Give a version directory"),
        (lambda path: ParserTfds([""], "toys"), "root=[''] must be a path"),
        (of("a", "link"), "more than once: an example would come twice"),
        (of("a", "b", download=True), "download=True prepares a dataset in one root"),
        (
            of("painted", "repainted", image_key=None),
            "the pixels of 'image' are classes in another order. The",
        ),
        (of("a", "mixed"), "the feature 'others' is int64 [None] in the first, and missing in the other"),
        (lambda path: ParserTfds(None), "name=None needs root, the version directory of a dataset"),
        (
            of("one", "two", name="numbered", split="test"),
            "'test' is not in {two}/numbered/1.0.0, and a dataset",
        ),
        (
            of("one", "two", name="numbered", split="train+extra"),
            "'extra' is not in {one}/numbered/1.0.0, and",
        ),
    ],
)
def test_directories_that_cannot_be_one_dataset_are_refused(
    opens: Callable[[Path], Any], message: str, tmp_path: Path, roots: list[Path]
) -> None:
    for name, classes in (("a", "cat dog"), ("unknown", "cat ox"), ("more", "cat dog hen"), ("nameless", "")):
        write_classes(tmp_path / name, classes.split(), [[0]])
    shutil.copytree(tmp_path / "a", tmp_path / "mixed")
    declared = tmp_path / "mixed" / "toys" / "1.0.0" / "features.json"
    declared.write_text(declared.read_text().replace('"others"', '"rest"'))
    for name, root in zip(("one", "two"), roots, strict=True):
        shutil.copytree(root, tmp_path / name)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    painted = tfds.features.LabeledImage(labels=["cat", "dog"], shape=(None, None, 1))
    for name in ("painted", "repainted"):
        write_classes(tmp_path / name, ["cat"], [[0]], more={"image": painted})
    (label,) = (tmp_path / "repainted" / "toys" / "1.0.0").glob("image*.labels.txt")
    label.write_text("dog\ncat\n")
    with pytest.raises(ConfigError) as caught:
        opens(tmp_path)
    assert message.format(one=tmp_path / "one", two=tmp_path / "two") in str(caught.value)


def test_windows_of_other_classes_are_refused(tmp_path: Path) -> None:
    for name, classes in (("a", "up down"), ("b", "down up")):
        directory = tmp_path / name / "arm" / "1.0.0"
        directory.mkdir(parents=True)
        write_shard(directory / "arm-train.tfrecord-00000-of-00001", [write_example({"steps/label": [0, 1]})])
        step = {"label": tfds.features.ClassLabel(names=classes.split())}
        tfds.folder_dataset.write_metadata(
            data_dir=str(directory),
            features=tfds.features.FeaturesDict({"steps": tfds.features.Dataset(step)}),
            split_infos=[tfds.core.SplitInfo(name="train", shard_lengths=[1], num_bytes=9)],
            filename_template="{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
            check_data=False,
        )
    with pytest.raises(ConfigError, match="need equal classes, and steps/label differ in their order"):
        ParserTfds([tmp_path / "a", tmp_path / "b"], "arm", windows=Windows("steps"))
