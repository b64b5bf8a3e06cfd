"""Which dataset is opened, and what is built for it; nothing is really built here."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from encoded_images import photograph
from encoded_images import save as png
from refused import said_of
from storage.webdataset.made_tars import write_samples

from tfds_torch import demo
from tfds_torch.check.arguments import parse_arguments
from tfds_torch.check.opening import open_parser
from tfds_torch.check.sections import is_made_up
from tfds_torch.check.settings import resolve
from tfds_torch.errors import ConfigError, DatasetNotFoundError, TfdsTorchError
from tfds_torch.parsers.parser import DatasetParser
from tfds_torch.parsers.recipes import Config
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.parsers.webdataset import ParserWebDataset


def open_asked(*arguments: str | Path) -> DatasetParser:
    """Opens what the command line asks for."""
    flags = parse_arguments(list(map(str, arguments)))
    config, _ = resolve(flags)
    return open_parser(config, flags.root, num_fake=flags.fake, num_shards=flags.shards)


@pytest.fixture
def builds(digits: Path) -> Iterator[dict[str, Any]]:
    """Stands for the demo datasets: takes note of what is to be built, and hands out the digits."""
    asked: dict[str, Any] = {}

    def prepare(name: str, **arguments: Any) -> Path:
        asked.update(name=name, **arguments)
        return digits.parents[1]

    with mock.patch.object(demo, "prepare", prepare), mock.patch.object(demo, "prepare_fake", prepare):
        yield asked


MEMBERS = """is_training = true
batch_size = 8
[[mixture]]
name = "digits"
weight = 1
[[mixture]]
name = "{}"
member = "b"
weight = 1
"""
FAKE = {"name": "cifar10", "num_examples": 7, "num_shards": None, "splits": ("train",), "root": None}


@pytest.mark.parametrize(
    ("line", "built"),
    [
        ("--eval", {}),
        ("--shards 3", {"num_shards": 3}),
        ("--root /r", {"root": "/r"}),
        ("--split test", {"splits": ("train", "test")}),
        ("--split train[:50%]+train[50%:]", {}),
        ("--split validation[:10%]+test[5shard:7shard]", {"splits": ("train", "validation", "test")}),
        ("--split all", {}),
    ],
)
def test_a_fake_is_built_as_it_was_asked_for_with_the_splits_that_are_read(
    builds: dict[str, Any], line: str, built: dict[str, Any]
) -> None:
    with pytest.raises(DatasetNotFoundError):  # The stand-in built something else.
        open_asked("--name", "cifar10", "--fake", "7", *line.split())
    assert builds == FAKE | built


def test_an_embedded_dataset_gets_its_shards(builds: dict[str, Any]) -> None:
    parser = open_asked("--shards", "8")
    assert builds == {"name": "digits", "num_shards": 8}
    assert (parser.dataset_name, parser.split) == ("digits:1.0.0", "train")


BESIDE = r"holds a real dataset \(1.0.0 in .*made-up content must not lie beside it"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--name digits:1.0.0 --fake 7", r"is embedded, with real content\. Drop --fake\.$"),
        ("--name photos --fake 7", r"is embedded, with real content\. Drop --fake\.$"),
        *[(f"{line} --shards 3", r"^--shards 3: .* with --fake, or digits, photos and episodes\.$")
          for line in ("--name cifar10", "--root DIGITS", "--name photos --root DIGITS")],
        ("--name cifar10 --fake 7 --root DIGITS", BESIDE),  # Later it would be found there under a real name.
        ("--config mix.toml --fake 20", "--fake 20: all members are embedded, with real content"),
    ],
)  # fmt: skip
def test_what_is_not_built_here_is_refused(
    builds: dict[str, Any], digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mix.toml").write_text(MEMBERS.format("digits"))
    shutil.copytree(digits, tmp_path / "digits" / "1.0.0")
    with pytest.raises(ConfigError, match=message):
        open_asked(*line.replace("DIGITS", str(tmp_path)).split())
    assert builds == {}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("--name cifar10 --fake 5 --shards 6", "num_shards=6 is more than num_examples=5"),
        ("--name ../cifar10 --fake 5", "'../cifar10'"),
        ("--name cifar10 --fake 5 --split=", "''"),
        ("--name cifar10 --fake 5 --split ../x", "'../x'"),
        ("--shards 1438", "num_shards=1438 is more than num_examples=1437"),
        ("--name cifar11 --fake 5", "cifar10"),
    ],
)
def test_what_cannot_be_built_is_refused_before_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, reason: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", os.fspath(tmp_path))
    assert reason in said_of(TfdsTorchError, open_asked, *line.split())
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("there", "line", "split"),
    [
        ("test train", "", "train"),
        ("test train validation", "--eval", "test"),
        ("train validation", "--eval", "validation"),
        ("train", "--eval", "train"),
        ("extra other", "--eval", "extra"),
        ("extra other", "", "extra"),
        ("test train", "--eval --split train", "train"),
        ("test train", "--eval --config train.toml", "train"),
    ],
)
def test_without_a_split_the_usual_one_is_read(
    builds: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: str, line: str, split: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.toml").write_text("name = 'digits'\nis_training = true\nbatch_size = 9\nsplit = 'train'")
    monkeypatch.setattr(ParserTfds, "split_names", staticmethod(lambda *_: there.split()))
    wanted: list[str] = []
    monkeypatch.setattr(Config, "make_parser", lambda config, root: wanted.append(config.split))
    open_asked(*line.split())
    assert wanted == [split]


def test_the_preprocess_of_a_recipe_is_left_to_who_reads(builds: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "train.toml"
    path.write_text("name = 'digits'\nis_training = true\nbatch_size = 9\n[preprocess]\nkind = 'train'\nsize = 8")
    assert open_asked("--config", path).preprocess is None


def test_what_is_not_prepared_is_said_with_the_ways_on(tmp_path: Path) -> None:
    def missing(*arguments: str | Path) -> str:
        return said_of(DatasetNotFoundError, open_asked, *arguments)

    for name in ("cifar10", "cifar10:3.0.2", "imagenet_v2/matched-frequency"):
        message = missing("--name", name, "--root", tmp_path)
        assert f"tfds.builder({name!r}, data_dir=" in message
        assert message.endswith(
            f" Or try it with made-up content of the same form: python -m tfds_torch.check --name {name} --fake 1000"
        )
    assert "--fake" not in missing("--name", "cifar11", "--root", tmp_path)  # TFDS does not know it.
    assert missing("--name", "digit").endswith(" Embedded: digits, photos and episodes.")
    assert "Embedded" not in missing("--name", "digit", "--root", tmp_path)


# One split each, and mixtures.


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    for number, name in enumerate(("a-0.tar", "a-1.tar", "B.TAR")):
        samples = [{"__key__": f"{number}-{n}", "x.png": png(photograph(), "PNG"), "kind.cls": b"1"} for n in range(3)]
        write_samples(tmp_path / name, samples)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "tars_of_it"),
    [
        ("a-{0..1}.tar", ["a-0.tar", "a-1.tar"]),
        ("{a-1.tar,B.TAR}", ["a-1.tar", "B.TAR"]),
        ("B.TAR", ["B.TAR"]),
        ("a-{1..1}.tar::FOLDER/a-0.tar", ["a-1.tar", "a-0.tar"]),
    ],
)
def test_tars_are_known_by_their_ending_whatever_its_case_and_its_braces(
    tars: Path, name: str, tars_of_it: list[str]
) -> None:
    path = tars / "recipe.toml"
    lines = f'name = "{tars}/{name.replace("FOLDER", str(tars))}"\nimage_key = "x.png"\ntarget_key = "kind.cls"\n'
    path.write_text(f"{lines}batch_size = 2\n")
    parser = open_asked("--config", path)
    assert isinstance(parser, ParserWebDataset)
    assert [Path(path).name for path in parser.paths] == tars_of_it
    assert parser.num_examples == 3 * len(tars_of_it)


@pytest.mark.usefixtures("forked")
def test_made_up_members_stand_beside_embedded_ones(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    for name, line, numbers in (("mnist", ["--fake", "20"], [1437, 20]), ("digits", [], [1437, 1437])):
        path.write_text(MEMBERS.format(name))
        parser = open_asked("--config", path, *line)
        assert [len(one) for one in parser.provenance().members.values()] == numbers
        assert is_made_up(parser) is (name == "mnist")
