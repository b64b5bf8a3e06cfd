"""What the command line asks for: flags beat the config file, and what cannot work is said before any work."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from tfds_torch.check.arguments import parse_arguments
from tfds_torch.check.settings import Settings, check_reports, resolve
from tfds_torch.engines.options import ReadOptions
from tfds_torch.errors import ConfigError
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


def settings(*arguments: str | Path) -> Settings:
    """Looks at the command line as the command does."""
    flags = parse_arguments(list(map(str, arguments)))
    list(check_reports(flags))
    return resolve(flags)


def refusal(*arguments: str | Path) -> str:
    with pytest.raises(ConfigError) as caught:
        settings(*arguments)
    return str(caught.value)


@pytest.fixture(autouse=True)
def no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of whoever runs the tests names no rank."""
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE)
    return path


def test_without_arguments_the_digits_are_trained_on() -> None:
    assert settings() == Settings(
        config=Config(name="digits", is_training=True, batch_size=32, num_workers=2),
        root=None,
        num_replicas=1,
        is_torchrun=False,
        is_plain=False,
        is_single=False,
        num_epochs=2,
        num_fake=None,
        num_shards=None,
        json_path=None,
        html_path=None,
        images_path=None,
    )


def test_how_the_examples_are_read_is_a_flag() -> None:
    for line, is_plain, is_single in ((["--plain-loader"], True, False), (["--single-examples"], False, True)):
        found = settings(*line)
        assert (found.is_plain, found.is_single) == (is_plain, is_single)


def test_a_config_file_alone_is_what_it_says(recipe: Path) -> None:
    found = settings("--config", recipe)
    assert found.config == IN_FILE
    assert (found.num_replicas, found.num_epochs, found.root) == (1, 2, None)


@pytest.mark.parametrize(
    ("arguments", "changed"),
    [
        (["--name", "cifar10"], {"name": "cifar10"}),
        (["--split", "train[:9]"], {"split": "train[:9]"}),
        (["--batch-size", "1"], {"batch_size": 1}),
        (["--workers", "0"], {"num_workers": 0}),
        (["--eval"], {"is_training": False}),
        (["--read-mode", "auto"], {"read": ReadOptions(mode="auto", shuffle_buffer=99)}),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_flag_beats_the_config_file_and_leaves_the_rest(
    recipe: Path, arguments: list[str], changed: dict[str, Any]
) -> None:
    for line in ([*arguments, "--config", str(recipe)], ["--config", str(recipe), *arguments]):
        config = settings(*line).config
        assert structs.asdict(config) == structs.asdict(IN_FILE) | changed
        assert config != IN_FILE


def test_a_flag_that_repeats_a_default_beats_the_config_file_too(recipe: Path) -> None:
    line = ["--name", "digits", "--split", "train", "--batch-size", "32", "--workers", "2", "--read-mode", "auto"]
    config = settings("--config", recipe, *line).config
    assert (config.name, config.split, config.batch_size, config.num_workers) == ("digits", "train", 32, 2)
    assert config.read.mode == "auto"


def test_every_flag_reaches_its_setting(tmp_path: Path) -> None:
    line = ["--replicas", "3", "--epochs", "4", "--fake", "5", "--shards", "2", "--root", "/data", "--split", "test"]
    line += ["--json", str(tmp_path / "r.json"), "--images", str(tmp_path / "s.PNG"), "--html", str(tmp_path / "r.HTM")]
    found = settings(*line)
    assert (found.num_replicas, found.num_epochs, found.num_fake, found.num_shards) == (3, 4, 5, 2)
    assert (found.root, found.config.split) == ("/data", "test")
    paths = (found.json_path, found.images_path, found.html_path)
    assert paths == (tmp_path / "r.json", tmp_path / "s.PNG", tmp_path / "r.HTM")
    assert os.listdir(tmp_path) == []


def test_evaluation_over_a_training_config_is_an_evaluation(tmp_path: Path) -> None:
    """What a file says about training only, no flag could take back: `--eval` promises every example exactly once."""
    path = tmp_path / "train.toml"
    path.write_text(
        "name = 'digits'\nis_training = true\nbatch_size = 7\nshuffle = true\nrepeats = 3\nremainder = 'drop'\n"
        "[read]\nmode = 'files'\ncycle_length = 3"
    )
    config = settings("--config", path, "--eval").config
    assert (config.is_training, config.shuffle, config.repeats, config.remainder) == (False, None, 0, None)
    assert config.read == ReadOptions(cycle_length=3)
    assert settings("--config", path, "--eval", "--read-mode", "files").config.read.mode == "files"


def test_evaluation_over_an_evaluation_config_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "eval.toml"
    path.write_text("name = 'digits'\nbatch_size = 7\nshuffle = true\nremainder = 'drop'\n[read]\nmode = 'examples'")
    assert settings("--config", path, "--eval") == settings("--config", path)


@pytest.mark.parametrize("name", ["--workers", "--replicas", "--torchrun", "--epochs", "--fake", "--shards"])
def test_numbers_have_a_least_value(name: str) -> None:
    least = 0 if name == "--workers" else 1
    settings(name, str(least))
    for number in (least - 1, -1, -(10**30)):
        assert refusal(name, str(number)) == f"{name} {number}: must be at least {least}."


def test_evaluation_over_a_recipe_drops_a_preprocess_of_training(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    for kind, size in (("train", None), ("eval", 32)):
        text = f"name = 'x'\nis_training = true\nbatch_size = 2\n[preprocess]\nkind = '{kind}'\nsize = 32"
        path.write_text(text)
        assert getattr(settings("--config", path, "--eval").config.preprocess, "size", None) == size
        assert getattr(settings("--config", path).config.preprocess, "size", None) == 32


def test_ranks_of_torchrun_are_counted_once() -> None:
    assert (settings("--replicas", "3").num_replicas, settings("--replicas", "3").is_torchrun) == (3, False)
    for line in (["--torchrun", "3"], ["--torchrun", "3", "--replicas", "3"]):
        assert (settings(*line).num_replicas, settings(*line).is_torchrun) == (3, True)
    assert (settings("--torchrun", "1").num_replicas, settings("--torchrun", "1").is_torchrun) == (1, True)
    for number in ("1", "4"):
        assert refusal("--torchrun", "3", "--replicas", number) == (
            f"--torchrun 3 and --replicas {number} contradict each other: both say how many ranks there are. Leave out "
            f"--replicas."
        )


def test_more_ranks_than_the_machine_can_run_are_refused() -> None:
    said = refusal("--torchrun", "100000")
    assert said.startswith("--torchrun 100000: each rank is a process")
    assert "Ask for at most " in said


@pytest.mark.parametrize("arguments", [[], ["--torchrun", "2"]], ids=["", "--torchrun"])
def test_a_check_that_torchrun_started_is_refused(monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert refusal(*arguments).startswith("The environment sets WORLD_SIZE=4, as under torchrun, and check starts ")
    monkeypatch.setenv("RANK", "1")
    assert refusal(*arguments) == (
        "The environment sets RANK=1 and WORLD_SIZE=4, as under torchrun, and check starts its own ranks. Start it by "
        "itself, with --torchrun 4 for ranks of torch.distributed; where something else set them, unset RANK and "
        "WORLD_SIZE."
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("bach_size = 3", "unknown key 'bach_size'. Did you mean 'batch_size'?"),
        ("[loader]\nnum_workers = -1", "[loader] num_workers = -1 is not valid: expected `int` >= 0."),
    ],
)
def test_a_config_that_cannot_be_used_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    message = refusal("--config", path, "--name", "digits")
    assert message.startswith(f"The config {str(path)!r}")
    assert reason in message


def test_a_config_outside_its_folder_is_refused(recipe: Path) -> None:
    outside = f"{recipe.parent}/inside/../recipe.toml"
    (recipe.parent / "inside").mkdir()
    assert Path(outside).is_file()
    assert "leads out of its folder by '..'" in refusal("--config", outside)
    assert "does not exist" in refusal("--config", recipe.parent / "recpie.toml")
    assert "Did you mean 'recipe.toml'?" in refusal("--config", recipe.parent / "recpie.toml")


# Outputs.


UNWRITABLE: dict[str, Callable[[Path], Path]] = {
    "in no folder": lambda folder: folder / "nowhere" / "x.png",
    "below a file": lambda folder: folder / "file.png" / "x.png",
    "a folder": lambda folder: folder / "folder.png",
    "a link to a folder": lambda folder: folder / "link.png",
    "a device": lambda folder: folder / "null.png",
    "no path": lambda folder: folder / "x\0.png",
    "too long": lambda folder: folder / f"{'x' * 300}.png",
}


@pytest.mark.parametrize("flag", ["--json", "--html", "--images"])
@pytest.mark.parametrize("where", UNWRITABLE)
def test_an_output_that_cannot_be_written_is_refused_with_its_flag(tmp_path: Path, flag: str, where: str) -> None:
    (tmp_path / "file.png").write_text("old")
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "link.png").symlink_to("folder.png")
    (tmp_path / "null.png").symlink_to("/dev/null")
    before = sorted(tmp_path.rglob("*"))
    path = UNWRITABLE[where](tmp_path)
    message = refusal(flag, path)
    assert message.startswith(f"{flag} {os.fspath(path)!r} ")
    assert " Give " in message
    assert "\0" not in message
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("flag", ["--json", "--html", "--images"])
def test_an_output_in_a_folder_without_permission_is_refused(
    tmp_path: Path, flag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Played, because the superuser may write everywhere."""

    def refuse(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    message = refusal(flag, tmp_path / "x.png")
    assert message == (
        f"{flag} {os.fspath(tmp_path / 'x.png')!r} cannot be written: Permission denied. Give a file in a folder that "
        f"exists and may be written."
    )


@pytest.mark.parametrize("flag", ["--json", "--images"])
def test_asking_for_an_output_writes_nothing_yet(tmp_path: Path, flag: str) -> None:
    old = tmp_path / "old.png"
    old.write_text("old")
    settings(flag, old)
    settings(flag, tmp_path / "new.png")
    assert os.listdir(tmp_path) == ["old.png"]
    assert old.read_text() == "old"


def test_an_output_may_lie_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = settings("--json", "report", "--images", "sheet.png")
    assert (found.json_path, found.images_path) == (Path("report"), Path("sheet.png"))


@pytest.mark.parametrize("name", ["sheet.jpg", "sheet", "png", ".png", "sheet.png.gz"])
def test_a_contact_sheet_is_a_png(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    assert refusal("--images", path) == (f"--images {path}: the contact sheet is a PNG file; end its name with .png.")


@pytest.mark.parametrize("name", ["r.txt", "r", "html", ".html", "r.html.gz"])
def test_a_page_is_an_html_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    assert refusal("--html", path) == f"--html {path}: the report page is an HTML file; end its name with .html."


@pytest.mark.parametrize("other", ["x.png", "./x.png", "sub/../x.png"])
def test_two_outputs_in_one_file_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "x.png").write_text("old")
    assert "the same file" in refusal("--images", "x.png", "--json", other)
    assert "the same file" in refusal("--json", tmp_path / "x.png", "--images", other)
    page = other.replace("png", "html")
    assert "--json and --html name the same file" in refusal("--html", tmp_path / "x.html", "--json", page)


@pytest.mark.parametrize(("flag", "code"), [("--help", 0), ("--no-such-flag", 2)])
def test_help_and_misuse_load_nothing_that_takes_time(flag: str, code: int) -> None:
    run = f"""
import runpy, sys
for name in ("torch", "tensorflow", "tensorflow_datasets", "numpy", "PIL"):
    sys.modules[name] = None
sys.argv = ["check", {flag!r}]
runpy.run_module("tfds_torch.check", run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stderr
    assert "usage: python -m tfds_torch.check" in done.stdout + done.stderr
