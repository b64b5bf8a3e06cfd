"""What the command line asks for: flags beat the config file, and what cannot work is said before any work."""

import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from msgspec import structs
from refused import said_of

from tfds_torch.check.arguments import parse_arguments
from tfds_torch.check.prove import How
from tfds_torch.check.settings import check_reports, resolve
from tfds_torch.engines.options import ReadOptions
from tfds_torch.errors import ConfigError
from tfds_torch.images.preprocess import EvalPreprocess, TrainPreprocess
from tfds_torch.parsers.recipes import Config

RECIPE = """
name = "mnist"
split = "test"
is_training = true
batch_size = 7
seed = 5
image_mode = "L"

[read]
mode = "examples"
shuffle_buffer = 99

[loader]
num_workers = 6
"""
IN_FILE = Config(
    name="mnist",
    split="test",
    is_training=True,
    batch_size=7,
    seed=5,
    image_mode="L",
    read=ReadOptions(mode="examples", shuffle_buffer=99),
    num_workers=6,
)


def settings(*arguments: str | Path) -> tuple[Config, How]:
    """Looks at the command line as the command does."""
    flags = parse_arguments(list(map(str, arguments)))
    list(check_reports(flags))
    return resolve(flags)


def refusal(*arguments: str | Path) -> str:
    return said_of(ConfigError, settings, *arguments)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE)
    return path


USUAL = How(num_workers=2, num_epochs=2, as_made=False, is_built_here=True)


@pytest.mark.parametrize(
    ("line", "changed"),
    [
        ("", {}),
        ("--plain-loader", {"is_plain": True}),
        ("--single-examples", {"is_single": True}),
        ("--replicas 3", {"num_replicas": 3}),
        ("--torchrun 3", {"num_replicas": 3, "is_torchrun": True}),
        ("--torchrun 3 --replicas 3", {"num_replicas": 3, "is_torchrun": True}),
        ("--torchrun 1", {"num_replicas": 1, "is_torchrun": True}),
        ("--epochs 4", {"num_epochs": 4}),
        ("--html r.HTM", {"has_pictures": True}),
        ("--json report --images sheet.PNG", {}),
        ("--root /data", {"is_built_here": False}),
        ("--name cifar10", {"is_built_here": False}),
        ("--name cifar10 --fake 3 --root /r", {}),
        ("--name photos:1.0.0 --shards 2", {}),
        ("--workers 0", {"num_workers": 0}),
    ],
)
def test_every_flag_reaches_its_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, changed: dict[str, Any]
) -> None:
    """Without any, the digits are trained on; nothing is written yet."""
    monkeypatch.chdir(tmp_path)
    config, how = settings(*line.split())
    assert how == replace(USUAL, **changed)
    if "--name" not in line:
        assert config == Config(name="digits", is_training=True, batch_size=32, num_workers=how.num_workers)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("line", "changed"),
    [
        ("", {}),
        ("--name cifar10", {"name": "cifar10"}),
        ("--split train[:9]", {"split": "train[:9]"}),
        ("--batch-size 1", {"batch_size": 1}),
        ("--workers 0", {"num_workers": 0}),
        ("--eval", {"is_training": False}),
        ("--read-mode auto", {"read": ReadOptions(mode="auto", shuffle_buffer=99)}),
        ("--name digits --split train --batch-size 32 --workers 2",  # Defaults, but they were said.
         {"name": "digits", "split": "train", "batch_size": 32, "num_workers": 2}),
    ],
)  # fmt: skip
def test_a_flag_beats_the_config_file_and_leaves_the_rest(recipe: Path, line: str, changed: dict[str, Any]) -> None:
    for arguments in ([*line.split(), "--config", str(recipe)], ["--config", str(recipe), *line.split()]):
        config, how = settings(*arguments)
        assert structs.asdict(config) == structs.asdict(IN_FILE) | changed
        assert (how.num_workers, how.num_replicas, how.num_epochs) == (config.num_workers, 1, 2)


def test_evaluation_over_a_training_config_is_an_evaluation(tmp_path: Path) -> None:
    """What a file says about training only, no flag could take back: `--eval` promises every example exactly once."""
    path = tmp_path / "train.toml"
    path.write_text(
        "name = 'digits'\nis_training = true\nbatch_size = 7\nshuffle = true\nrepeats = 3\nremainder = 'drop'\n"
        "[read]\nmode = 'files'\ncycle_length = 3\n[preprocess]\nkind = 'train'\nsize = 32"
    )
    assert settings("--config", path)[1].preprocess == TrainPreprocess(32)
    config, how = settings("--config", path, "--eval")
    assert (config.is_training, config.shuffle, config.repeats, config.remainder) == (False, None, 0, None)
    assert (config.read, config.preprocess, how.preprocess) == (ReadOptions(cycle_length=3), None, None)
    assert settings("--config", path, "--eval", "--read-mode", "files")[0].read.mode == "files"
    text = path.read_text().replace("is_training = true\n", "").replace("repeats = 3\n", "")
    path.write_text(text.replace("'files'", "'examples'").replace("'train'", "'eval'"))
    assert settings("--config", path, "--eval") == settings("--config", path)
    assert settings("--config", path, "--eval")[1].preprocess == EvalPreprocess(32)


# What is refused.


@pytest.mark.parametrize("name", ["--workers", "--replicas", "--torchrun", "--epochs", "--fake", "--shards"])
def test_numbers_have_a_least_value(name: str) -> None:
    least = 0 if name == "--workers" else 1
    settings(name, str(least))
    for number in (least - 1, -(10**30)):
        assert refusal(name, str(number)) == f"{name} {number}: must be at least {least}."


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--torchrun 3 --replicas 4", "--torchrun 3 and --replicas 4 contradict each other: both say how many ranks"),
        ("--torchrun 3 --replicas 1", "--torchrun 3 and --replicas 1 contradict each other"),
        ("--torchrun 100000", "--torchrun 100000: each rank is a process with workers of its own"),
        ("--config bad.toml", "unknown key 'bach_size'. Did you mean 'batch_size'?"),
        ("--config recpie.toml", "Did you mean 'recipe.toml'?"),
        ("--config sub/../recipe.toml", "leads out of its folder by '..'"),
        ("--images sheet.jpg", "--images sheet.jpg: the contact sheet is a PNG file; end its name with .png."),
        ("--images .png", "--images .png: the contact sheet is a PNG file"),
        ("--html r.html.gz", "--html r.html.gz: the report page is an HTML file; end its name with .html."),
        ("--html html", "--html html: the report page is an HTML file"),
        ("--json x.png --images sub/../x.png", "--json and --images name the same file x.png: give two."),
        ("--json x.html --html ./x.html", "--json and --html name the same file x.html: give two."),
        ("--name x --config mix.toml", "--name x: mix.toml is the recipe of a mixture, whose entries [[mixture]] name"),
        ("--split x --config mix.toml", "--split x: mix.toml is the recipe of a mixture"),
        ("--name x --config own.toml", "own.toml has source = 'm:f', a dataset of your own, without names and splits."),
        ("--split x --config own.toml", "Leave out --split."),
    ],
)
def test_what_cannot_work_is_said_before_any_work(
    recipe: Path, monkeypatch: pytest.MonkeyPatch, line: str, message: str
) -> None:
    monkeypatch.chdir(recipe.parent)
    Path("sub").mkdir()
    Path("bad.toml").write_text("bach_size = 3")
    Path("mix.toml").write_text('[[mixture]]\nname = "digits"\n')
    Path("own.toml").write_text('source = "m:f"\n')
    assert message in refusal(*line.split())


@pytest.mark.parametrize("arguments", [[], ["--torchrun", "2"]], ids=["", "--torchrun"])
def test_a_check_that_torchrun_started_is_refused(monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert refusal(*arguments).startswith("The environment sets WORLD_SIZE=4, as under torchrun, and check starts its")
    monkeypatch.setenv("RANK", "1")
    assert refusal(*arguments) == (
        "The environment sets RANK=1 and WORLD_SIZE=4, as under torchrun, and check starts its own ranks. Start it by "
        "itself, with --torchrun 4 for ranks of torch.distributed; where something else set them, unset RANK and "
        "WORLD_SIZE."
    )


# Outputs.


UNWRITABLE: dict[str, Callable[[Path], Path]] = {
    "in no folder": lambda folder: folder / "nowhere" / "x.png",
    "below a file": lambda folder: folder / "file.png" / "x.png",
    "a folder": lambda folder: folder / "folder.png",
    "a link to a folder": lambda folder: folder / "link.png",
    "a device": lambda folder: folder / "null.png",
    "no path": lambda folder: folder / "x\0.png",
    "too long": lambda folder: folder / f"{'x' * 300}.png",
    "without permission": lambda folder: folder / "x.png",
}


@pytest.mark.parametrize("flag", ["--json", "--html", "--images"])
@pytest.mark.parametrize("where", UNWRITABLE)
def test_an_output_that_cannot_be_written_is_refused_with_its_flag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flag: str, where: str
) -> None:
    (tmp_path / "file.png").write_text("old")
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "link.png").symlink_to("folder.png")
    (tmp_path / "null.png").symlink_to("/dev/null")
    before = sorted(tmp_path.rglob("*"))
    path = UNWRITABLE[where](tmp_path)
    if where == "without permission":  # Played, because the superuser may write everywhere.
        denied = mock.Mock(side_effect=PermissionError(13, "Permission denied"))
        monkeypatch.setattr(tempfile, "TemporaryFile", denied)
    message = refusal(flag, path)
    assert message.startswith(f"{flag} {os.fspath(path)!r} ")
    assert " Give " in message
    assert "\0" not in message
    assert sorted(tmp_path.rglob("*")) == before
