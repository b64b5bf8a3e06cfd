"""Which dataset is opened, and what is built for it; nothing is really built here."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from check.machine import Machine
from tfds_torch import demo
from tfds_torch.check.arguments import parse_arguments
from tfds_torch.check.opening import is_built_here, open_parser
from tfds_torch.check.reference import CheckedParser
from tfds_torch.check.settings import Settings, resolve
from tfds_torch.errors import ConfigError, DatasetNotFoundError
from tfds_torch.parsers.tfds.parser import ParserTfds


def settings(*arguments: str | Path) -> Settings:
    return resolve(parse_arguments(list(map(str, arguments))))


def open_asked(asked: Settings) -> CheckedParser:
    return open_parser(asked.config, asked.root, num_fake=asked.num_fake, num_shards=asked.num_shards)


def is_ours(*arguments: str | Path) -> bool:
    asked = settings(*arguments)
    return is_built_here(asked.config, asked.root, asked.num_fake)


@pytest.fixture
def builds(digits: Path) -> Iterator[dict[str, Any]]:
    """Stands for the demo datasets: takes note of what is to be built, and hands out the digits."""
    asked: dict[str, Any] = {}

    def prepare(name: str, **arguments: Any) -> Path:
        asked.update(name=name, **arguments)
        return digits.parents[1]

    with mock.patch.object(demo, "prepare", prepare), mock.patch.object(demo, "prepare_fake", prepare):
        yield asked


@pytest.mark.parametrize(
    ("line", "built"),
    [
        ("--fake 7", {"num_examples": 7, "num_shards": None, "splits": ("train",), "root": None}),
        ("--fake 7 --eval", {"num_examples": 7, "num_shards": None, "splits": ("train",), "root": None}),
        ("--fake 7 --shards 3", {"num_examples": 7, "num_shards": 3, "splits": ("train",), "root": None}),
        ("--fake 7 --root /r", {"num_examples": 7, "num_shards": None, "splits": ("train",), "root": "/r"}),
    ],
)
def test_a_fake_is_built_as_it_was_asked_for(builds: dict[str, Any], line: str, built: dict[str, Any]) -> None:
    with pytest.raises(DatasetNotFoundError):  # The stand-in built something else.
        open_asked(settings("--name", "cifar10", *line.split()))
    assert builds == {"name": "cifar10", **built}


@pytest.mark.parametrize(
    ("split", "splits"),
    [
        ("train", ("train",)),
        ("test", ("train", "test")),
        ("train[:50%]+train[50%:]", ("train",)),
        ("validation[:10%] + test[5shard:7shard]", ("train", "validation", "test")),
        ("all", ("train",)),
        ("test+test", ("train", "test")),
    ],
)
def test_a_fake_has_the_splits_that_are_read(builds: dict[str, Any], split: str, splits: tuple[str, ...]) -> None:
    with pytest.raises(DatasetNotFoundError):
        open_asked(settings("--name", "cifar10", "--fake", "7", "--split", split))
    assert builds["splits"] == splits


@pytest.mark.parametrize("name", ["digits", "digits:1.0.0", "photos"])
def test_an_embedded_dataset_is_not_faked(builds: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigError, match=r"is embedded, with real content\. Drop --fake\."):
        open_asked(settings("--name", name, "--fake", "7"))
    assert builds == {}


def test_an_embedded_dataset_gets_its_shards(builds: dict[str, Any]) -> None:
    parser = open_asked(settings("--shards", "8"))
    assert builds == {"name": "digits", "num_shards": 8}
    assert (parser.dataset_name, parser.split) == ("digits:1.0.0", "train")


def test_shards_of_a_dataset_that_is_there_are_refused(builds: dict[str, Any], digits: Path) -> None:
    for line in (["--name", "cifar10"], ["--root", digits.parents[1]], ["--name", "photos", "--root", digits]):
        with pytest.raises(ConfigError, match=r"^--shards 3: .* with --fake, or digits, photos and episodes\.$"):
            open_asked(settings(*line, "--shards", "3"))
    assert builds == {}


@pytest.mark.parametrize(
    ("there", "line", "split"),
    [
        (["test", "train"], "", "train"),
        (["test", "train", "validation"], "--eval", "test"),
        (["train", "validation"], "--eval", "validation"),
        (["train"], "--eval", "train"),
        (["extra", "other"], "--eval", "extra"),
        (["extra", "other"], "", "extra"),
        (["test", "train"], "--eval --split train", "train"),
    ],
)
def test_without_a_split_the_usual_one_is_read(
    builds: dict[str, Any], monkeypatch: pytest.MonkeyPatch, there: list[str], line: str, split: str
) -> None:
    monkeypatch.setattr(ParserTfds, "split_names", staticmethod(lambda *_: there))
    wanted: list[str] = []

    def make_parser(config: Any, root: object) -> str:
        wanted.append(config.split)
        return "parser"

    monkeypatch.setattr("tfds_torch.parsers.recipes.Config.make_parser", make_parser)
    open_asked(settings(*line.split()))
    assert wanted == [split]


def test_the_split_of_a_config_file_is_kept(builds: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "train.toml"
    path.write_text("name = 'digits'\nis_training = true\nbatch_size = 9")
    assert open_asked(settings("--config", path)).split == "train"
    assert open_asked(settings("--config", path, "--eval")).split == "test"
    path.write_text("name = 'digits'\nis_training = true\nbatch_size = 9\nsplit = 'train'")
    assert open_asked(settings("--config", path, "--eval")).split == "train"
    assert open_asked(settings("--config", path, "--eval", "--split", "test")).split == "test"


def test_single_examples_are_read_without_the_preprocess_of_a_recipe(builds: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "train.toml"
    path.write_text("name = 'digits'\nis_training = true\nbatch_size = 9\n[preprocess]\nkind = 'train'\nsize = 8")
    asked = settings("--config", path)
    assert asked.config.preprocess is not None
    assert open_asked(asked).preprocess is None


def test_made_up_content_is_not_put_beside_real_data(builds: dict[str, Any], digits: Path, tmp_path: Path) -> None:
    """Later it would be found there under a real name."""
    shutil.copytree(digits, tmp_path / "digits" / "1.0.0")
    with pytest.raises(ConfigError, match=r"holds a real dataset \(1.0.0 in .*made-up content must not lie beside it"):
        open_asked(settings("--name", "cifar10", "--fake", "7", "--root", tmp_path))
    assert builds == {}


def test_only_what_is_embedded_or_fake_is_built_here(digits: Path) -> None:
    assert is_ours()
    assert is_ours("--name", "photos:1.0.0")
    assert is_ours("--name", "cifar10", "--fake", "3", "--root", "/r")
    assert not is_ours("--name", "cifar10")
    assert not is_ours("--root", digits)


def missing(*arguments: str | Path) -> str:
    with pytest.raises(DatasetNotFoundError) as caught:
        open_asked(settings(*arguments))
    return str(caught.value)


def test_what_is_not_prepared_is_said_with_both_ways_on(tmp_path: Path) -> None:
    for name in ("cifar10", "cifar10:3.0.2", "imagenet_v2/matched-frequency"):
        message = missing("--name", name, "--root", tmp_path)
        assert f"tfds build {name} --data_dir=" in message
        assert message.endswith(
            f" Or try it with made-up content of the same form: python -m tfds_torch.check --name {name} --fake 1000"
        )


def test_what_tfds_does_not_know_is_not_offered_as_a_fake(tmp_path: Path, machine: Machine) -> None:
    assert "--fake" not in missing("--name", "cifar11", "--root", tmp_path)
    assert "cifar10" in missing("--name", "cifar11", "--root", tmp_path)
    assert missing("--name", "digit").endswith(" Embedded: digits, photos and episodes.")
    assert "Embedded" not in missing("--name", "digit", "--root", tmp_path)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("--name cifar10 --fake 5 --shards 6", "num_shards=6 is more than num_examples=5"),
        ("--name ../cifar10 --fake 5", "'../cifar10'"),
        ("--name cifar10 --fake 5 --split=", "''"),
        ("--name cifar10 --fake 5 --split ../x", "'../x'"),
        ("--shards 1438", "num_shards=1438 is more than num_examples=1437"),
    ],
)
def test_what_cannot_be_built_is_refused_before_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, reason: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", os.fspath(tmp_path))
    with pytest.raises(ConfigError) as caught:
        open_asked(settings(*line.split()))
    assert reason in str(caught.value)
    assert os.listdir(tmp_path) == []


def test_a_fake_of_nothing_known_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match="cifar10"):
        open_asked(settings("--name", "cifar11", "--fake", "5", "--root", tmp_path / "r"))
    assert os.listdir(tmp_path) == []
