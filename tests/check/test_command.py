"""`python -m tfds_torch.check`: whole commands with real workers, exit codes, wrong usage, Ctrl-C, files and terminals.

What is proven, and how a report looks, is tested without the command: test_prove.py, test_render.py.
"""

import contextlib
import errno
import io
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import pytest
from conftest import INTERRUPTED
from encoded_images import photograph, save
from PIL import Image
from storage.beton.made_files import write_images
from storage.webdataset.made_tars import write_samples

from check import report_file
from check.machine import PLANTED_CHECK, ROOT, Checked, Checker, Machine, cut, no_control_characters, row
from check.page_file import load as load_page
from check.test_pictures import gallery, solid
from tfds_torch.check import command
from tfds_torch.check.arguments import parse_arguments
from tfds_torch.check.opening import open_parser
from tfds_torch.check.pictures import save_contact_sheet
from tfds_torch.check.prove import How, prove
from tfds_torch.check.render import Run
from tfds_torch.check.report import Report
from tfds_torch.check.settings import resolve
from tfds_torch.errors import ConfigError, DatasetNotFoundError
from tfds_torch.parsers.recipe_file import load_config

slow, campaign = pytest.mark.slow, pytest.mark.campaign
DEADLINE_S = 120
ONE_EVALUATION = ["--workers", "0", "--eval", "--epochs", "1", "--read-mode", "examples"]


def check(*arguments: object) -> Checked:
    """Runs the command in this process."""
    with contextlib.redirect_stdout(io.StringIO()) as output, contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            code: object = command.main(list(map(str, arguments)))
        except SystemExit as end:
            code = end.code
    return Checked(code, output.getvalue(), errors.getvalue())


@pytest.fixture
def reports(tmp_path: Path) -> list[object]:
    """Flags for both reports."""
    return ["--json", tmp_path / "r.json", "--html", tmp_path / "r.html"]


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


# Whole commands.


def test_the_digits_are_checked_from_nothing_by_the_loader_that_the_readme_recommends(
    machine: Machine, first_check: Checked
) -> None:
    assert first_check.code == 0, first_check.errors
    lines = first_check.errors.split("\n")
    assert lines[0].startswith("tfds_torch: building the demo dataset 'digits'")
    assert not any(lines[1:]), first_check.errors
    assert first_check.plan == [
        row(rank=0, worker=0, batches=23, examples=733, fill=3),
        row(rank=0, worker=1, batches=22, examples=704, fill=0),
    ]
    figures = {"batches": 45, "delivered": 1440, "valid": 1440, "padded": 0, "missing": 0, "twice": 3, "unknown": 0}
    assert first_check.table("Ledger") == [row(epoch=epoch, **figures) for epoch in ("planned", 0, 1)]
    assert (len(first_check.promises), first_check.broken) == (11, {})
    assert first_check.promises["the order does not depend on workers"][1] == "as planned; the same with 1 worker"
    assert first_check.promises["resume is exact"][1] == "6 points, with the same workers and with 1 worker"
    assert first_check.promises["the index is TFDS's own reader"][1] == "18 examples: the same ids and bytes"
    assert first_check.promises["pixels are Pillow's"][1] == "18 of 18 examples equal"
    starts = [
        "╭─ Dataset ",
        "Plan: Training",
        "╭─ Promises ",
        "Ledger: ",
        "Labels: 1,437 examples",
        "Reading: By create_",
    ]
    starts += ["Speed: ", "Stages: 45 batches ", "Memory: ", "╭─ Advice ", "All 11 promises kept."]
    printed = first_check.output.splitlines()
    found = [number for start in starts for number, line in enumerate(printed) if line.startswith(start)]
    assert found == sorted(found)
    assert len(found) == len(starts)
    assert no_control_characters(first_check.output + first_check.errors)


def test_page_and_json_say_what_was_printed(machine: Machine, first_check: Checked) -> None:
    values, page = report_file.load(machine.home / "first.json"), load_page(machine.home / "first.html")
    assert (values["exit_code"], values["num_batches_read"], values["is_interrupted"]) == (0, 90, False)
    assert {one["name"]: (one["kept"], one["detail"]) for one in values["promises"]} == first_check.promises
    assert page.texts["verdict"] == "All 11 promises kept 90 batches read in 2 epochs."
    assert page.title == "digits:1.0.0: All 11 promises kept"
    assert [row["detail"] for row in page.table("promises")] == [one["detail"] for one in values["promises"]]
    epochs = first_check.table("Ledger")
    assert [{key: text.replace(",", "") for key, text in row.items()} for row in page.table("epochs")] == epochs
    (rank,), (speed,) = values["throughput"], first_check.throughput
    assert speed["examples/s"] == page.table("throughput")[0]["examples/s"].replace(",", "")
    assert rank["examples_per_s"] == pytest.approx(float(speed["examples/s"]), rel=0.01)
    assert [epoch["num_batches"] for epoch in rank["epochs"]] == [45, 45]
    assert all(0 < epoch["first_batch_s"] <= epoch["whole_s"] for epoch in rank["epochs"])
    assert len(rank["processes"]) >= 3
    assert sum(one["num_examples"] for one in values["labels"]) == 1437
    assert values["dataset"]["class_names"] == [str(digit) for digit in range(10)]
    assert values["dataset"]["data_dir"] in first_check.output
    assert any("All decoded images of the split are 276 kB" in sentence for sentence in values["advice"])
    assert page.texts["advice"] == " ".join(["Advice", *values["advice"]])
    assert values["catalogue"]["home_page"] == ["https://archive.ics.uci.edu/dataset/80"]
    assert [path.count("h0") for path in page.paths["order"]] == [1437]
    assert (len(page.images), {image["class"] for image in page.images}) == (40, {"small"})


@pytest.mark.usefixtures("forked")
def test_made_up_content_is_checked_from_nothing_and_says_what_it_is(reports: list[object], tmp_path: Path) -> None:
    line = ["--name", "cifar10", "--fake", 60, "--shards", 4, "--replicas", 3, "--eval", "--batch-size", 8]
    checked = check(*line, "--workers", 0, *reports, "--images", tmp_path / "s.png")
    assert (checked.code, checked.broken, len(checked.promises)) == (0, {}, 11), checked.errors
    made_up = "made up: its form is the dataset's, its images and labels mean nothing"
    assert made_up in checked.output
    assert checked.plan[0] == row(rank=0, worker="-", batches=3, examples=24, fill=0)
    figures = {"batches": "3 on each of 3", "delivered": 72, "valid": 60, "padded": 12}
    assert checked.ledger[0] == row(epoch=0, **figures, missing=0, twice=0, unknown=0)
    assert f"Contact sheet: {tmp_path / 's.png'}" in checked.output.splitlines()
    with Image.open(tmp_path / "s.png") as sheet:
        assert len(sheet.getcolors(2**20) or ()) > 1000  # Pictures, not paper.
    values, page = report_file.load(tmp_path / "r.json"), load_page(tmp_path / "r.html")
    assert (values["dataset"]["is_fake"], values["dataset"]["num_shards"]) == (True, 4)
    assert values["images"] == str(tmp_path / "s.png")
    assert made_up in page.texts["dataset"]
    folder = Path(values["dataset"]["data_dir"])
    again = check("--name", "cifar10", "--root", folder.parents[1], "--workers", "0", "--eval", "--epochs", "1")
    assert (again.code, again.errors, made_up in again.output) == (0, "", True)
    shutil.copytree(folder.parents[1], tmp_path / "root")
    shard = sorted((tmp_path / "root").glob("cifar10/*/cifar10-train*"))[2]
    cut(shard, 7, 20)
    for flags in (["--fake", "60", "--shards", "4"], []):
        damaged = check("--name", "cifar10", "--root", tmp_path / "root", "--workers", "0", *flags)
        assert_names_the_damage(damaged, shard, "inside record 7")


OWN = """
from check.test_parser_check import ROWS

def make_rows():
    return ROWS

def make_damaged():
    return [*ROWS[:20], {"image": b"no image", "label": 1}, *ROWS[20:]]
"""


def test_a_dataset_that_a_recipe_names_is_checked(
    tmp_path: Path, reports: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rows_of_mine_checked.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    recipe = tmp_path / "own.toml"
    recipe.write_text('source = "rows_of_mine_checked:make_rows"\nis_training = true\nbatch_size = 8\n')
    checked = check("--config", recipe, "--workers", "0", "--replicas", "2", *reports)
    assert (checked.code, checked.errors) == (0, "")
    assert "The length of the dataset promises 50 examples per pass" in checked.output
    assert checked.output.endswith("All 10 promises kept.\n")
    assert report_file.load(tmp_path / "r.json")["dataset"]["data_dir"] is None
    assert "all: 50 examples" in load_page(tmp_path / "r.html").texts["dataset"]
    for flag in ("--fake", "--root", "--shards"):
        refused = check("--config", recipe, flag, "3")
        assert f"a dataset of your own, which has neither splits nor a folder. Drop {flag}." in refused.errors
    recipe.write_text(recipe.read_text().replace("make_rows", "make_damaged"))
    checked = check("--config", recipe, "--workers", "0")
    assert checked.code == 1
    assert "item 20 cannot be used" in checked.errors


@pytest.mark.usefixtures("forked")
def test_a_mixture_of_three_formats_is_checked_and_reported(tmp_path: Path, reports: list[object]) -> None:
    """Of the digits, a `.beton` file and tars, whose labels mean nothing together; and in evaluation."""
    write_images(tmp_path / "images.beton", 40, class_names={"label": [f"class {number}" for number in range(10)]})
    samples = [{"__key__": f"{n:03d}", "jpg": save(photograph((40, 30 + n)), "JPEG"), "cls": b"1"} for n in range(18)]
    write_samples(tmp_path / "tars.tar", samples)
    entries = [("digits", "digits", 'split = "test"'), ("beton", tmp_path / "images.beton", ""),
               ("tars", tmp_path / "tars.tar", "")]  # fmt: skip
    tables = [
        f'[[mixture]]\nmember = "{member}"\nname = "{name}"\ntarget_key = false\nweight = {weight}\n{more}\n'
        for weight, (member, name, more) in enumerate(entries, 1)
    ]
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        "is_training = true\nbatch_size = 8\nepoch_size = 400\n"
        + "".join(tables)
        + "[[schedule]]\nstart = 200\nweights = { digits = 1, beton = 1, tars = 0 }\n"
    )
    sheet = tmp_path / "r.png"
    checked = check("--config", recipe, "--workers", "0", "--replicas", "2", *reports, "--images", sheet)
    assert (checked.code, len(checked.promises)) == (0, 12), checked.errors
    detail = checked.promises["the index is TFDS's own reader"][1]
    assert "the same ids and bytes; not compared: beton (TFDS does not read .beton files), tars" in detail
    values = report_file.load(tmp_path / "r.json")
    assert [one["name"] for one in values["dataset"]["members"]] == ["digits", "beton", "tars"]
    shares = [{"digits": 1 / 6, "beton": 2 / 6, "tars": 3 / 6}, {"digits": 0.5, "beton": 0.5, "tars": 0}]
    assert values["plan"]["schedule"] == [
        {"start": at, "weights": own} for at, own in zip([0, 200], shares, strict=True)
    ]
    members = [one for epoch in values["epochs"] for one in epoch["members"]]
    assert [one["num_valid"] for one in members] == [133, 167, 100, 200, 200, 0]
    assert all(one["num_valid"] == one["num_planned"] and one["is_within"] for one in members)
    page = load_page(tmp_path / "r.html")
    assert [row["member"].strip() for row in page.table("mixture")] == ["digits", "beton", "tars"] * 2
    assert len(page.paths["mixture"]) == 6  # Three members, this run and random draws.
    assert "shuffle" not in page.texts["order"]
    assert sheet.stat().st_size > 0
    config, how = resolve(
        parse_arguments(["--config", str(recipe), "--workers=0", "--eval", "--replicas=3", "--epochs=1"])
    )
    evaluation = prove(open_parser(config), how)  # The weights are those of training.
    assert evaluation.is_kept, evaluation
    assert "every example exactly once" in {one.name for one in evaluation.promises}
    assert [one.num_valid for one in evaluation.counts[0].members] == [360, 40, 18]


RECIPES = sorted((ROOT / "configs").glob("*.toml"))


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(
    "path",
    [  # TFDS builds the episodes, for many seconds.
        pytest.param(path, marks=slow if path.stem.startswith("episodes") else (), id=path.stem) for path in RECIPES
    ],
)
def test_the_recipes_that_come_with_the_project_can_be_read(path: Path) -> None:
    assert len(RECIPES) >= 6
    config = load_config(path)
    if path.stem.startswith(("digits", "episodes")):  # Embedded.
        how = How(num_workers=0, num_epochs=1, as_made=False, preprocess=config.preprocess)
        assert prove(open_parser(config), how).is_kept
    else:  # Not prepared: the message names both ways on.
        with pytest.raises(DatasetNotFoundError, match=r"tfds\.builder.*--fake 1000"):
            open_parser(config)


def test_a_broken_promise_is_exit_code_1_and_in_every_report(
    checker: Checker, reports: list[object], tmp_path: Path
) -> None:
    """An example comes twice in the place of another one, read by tf.data."""
    checked = checker.check_planted("replacement", [*ONE_EVALUATION, *reports])
    assert checked.code == 1, checked.errors
    assert list(checked.broken) == ["every example exactly once", "every rank reads its own share"]
    figures = {"delivered": 360, "valid": 360, "padded": 0, "missing": 1, "twice": 1, "unknown": 0}
    assert checked.ledger == [row(epoch=0, batches=12, **figures)]
    assert checked.output.endswith("2 of 7 promises broken.\n")
    values, page = report_file.load(tmp_path / "r.json"), load_page(tmp_path / "r.html")
    (epoch,) = values["epochs"]
    first, second = (f"digits-test.tfrecord-00000-of-00001__{number}" for number in range(2))
    assert (values["exit_code"], epoch["missing"], epoch["twice"]) == (1, [second], [first])
    assert page.texts["verdict"].startswith("2 of 7 promises broken")
    assert f"Epoch 0: 1 missing{second}" in page.texts["epochs"]


def assert_names_the_damage(checked: Checked, shard: Path, reason: str) -> None:
    assert checked.code == 1, checked.errors
    message = checked.errors.strip()
    assert message.startswith("BROKEN: ")
    assert len(message.splitlines()) == 1
    assert str(shard) in message
    assert reason in message


@pytest.mark.parametrize("mode", ["--eval", "--read-mode examples", "--read-mode files"])
def test_a_damaged_shard_is_one_message_and_the_reports_have_what_was_known(
    checker: Checker, own_digits: Path, reports: list[object], tmp_path: Path, mode: str
) -> None:
    (shard,) = own_digits.glob("digits-test*")
    cut(shard, 300, 20)
    line = ["--root", own_digits, "--split", "test", "--workers", "0", *mode.split(), *reports]
    assert_names_the_damage(checker.check_planted("none", line), shard, "inside record 300")
    values, page = report_file.load(tmp_path / "r.json"), load_page(tmp_path / "r.html")
    assert (values["exit_code"], values["error"]["type"]) == (1, "CorruptRecordError")
    assert (values["dataset"]["num_examples"], values["plan"]["num_batches"]) == (360, 12)
    assert [values[key] for key in ("epochs", "labels", "throughput", "promises", "advice")] == [[]] * 5
    assert page.texts["verdict"].startswith("The check ended with a CorruptRecordError")
    assert "360 examples" in page.texts["dataset"]


@slow
def test_uneven_files_over_three_epochs(machine: Machine, photos: Path) -> None:
    line = ["--name", "photos", "--root", photos, "--epochs", "3", "--batch-size", "8", "--read-mode", "files"]
    checked = machine.check(*line, "--replicas", "2")
    assert (checked.code, checked.broken, len(checked.promises)) == (0, {}, 8), checked.errors
    assert sum(int(one["available"]) for one in checked.plan) == 100
    assert sum(int(one["examples"]) + int(one["fill"]) for one in checked.plan) == 112
    for one in checked.ledger:
        assert (one["batches"], one["valid"], one["unknown"]) == ("7 on each of 2", "112", "0")
        assert 0 < int(one["twice"]) <= 112 - (100 - int(one["missing"]))


@slow
@pytest.mark.parametrize(
    ("fault", "promises"),
    [
        ("swapped ranks", {"every rank reads its own share": "rank 1, epoch 0: "}),
        ("order by workers", {"the order does not depend on workers": "", "pixels are Pillow's": ""}),
        ("skip on resume", {"resume is exact": ""}),
    ],
)
def test_a_fault_planted_into_real_workers_breaks_its_promises(
    machine: Machine, photos: Path, fault: str, promises: dict[str, str]
) -> None:
    """Another seed also gives other crops."""
    line = ["--name", "photos", "--root", photos, "--split", "train[:96]", "--batch-size", "8", "--epochs", "1"]
    if fault == "swapped ranks":
        line += ["--eval", "--replicas", "2", "--read-mode", "examples"]
    with machine.start(PLANTED_CHECK) as process:  # Of its own: its workers are forked before it loads tensorflow.
        checked = Checker(process).check_planted(fault, line)
        process.communicate()
    assert checked.code == 1, checked.errors
    assert checked.broken.keys() == promises.keys()
    assert all(text in checked.broken[name] for name, text in promises.items())


@slow
def test_real_workers_find_the_cut_of_made_up_content(tmp_path: Path) -> None:
    own = Machine(tmp_path)
    (tmp_path / "data").mkdir()
    line = ["--name", "imagenet2012", "--fake", "200", "--json", tmp_path / "r.json", "--images", tmp_path / "s.png"]
    checked = own.check(*line)
    assert (checked.code, checked.broken, len(checked.promises)) == (0, {}, 11), checked.errors
    assert checked.errors.startswith("tfds_torch: building the demo dataset 'imagenet2012' (fake)")
    values = report_file.load(tmp_path / "r.json")
    assert all(len(rank["processes"]) >= 3 for rank in values["throughput"])
    shard = sorted(Path(values["dataset"]["data_dir"]).glob("imagenet2012-train*"))[5]
    cut(shard, 22, 20)
    root = shard.parents[2]
    damaged = own.check("--name", "imagenet2012", "--root", root, "--eval", "--split", "train")  # Not looked at before.
    assert_names_the_damage(damaged, shard, "inside record 22")


# Wrong usage: one message, before any work.


TYPOS = {
    "--name digit": "digits",
    "--name nothing_like_it": "'nothing_like_it'",
    "--name mnist": "tfds.builder('mnist', data_dir=",
    "--name [bold]x": "'[bold]x'",
    "--name x:smile:": "'x:smile:'",
    "--name /": "'/'",
    "--name=": "''",
    "--name image_folder": "image_folder needs root",
    "--name image_folder --root .": "is not an image folder: no image lies two folders below it.",
    "--root /nowhere": "The root /nowhere of dataset 'digits' does not exist",
    "--root /dev/null": "The root /dev/null of dataset 'digits' does not exist",
    "--split trian": "Did you mean 'train'?",
    "--split [red]:smile:": "'[red]:smile:'",
    "--split train[:0]": "no examples",
    "--split train[": "'train['",
    "--split train+": "'train+'",
    "--split=": "''",
    "--batch-size 0": "batch_size=0",
    "--workers -1": "--workers -1: must be at least 0",
    "--fake 5": "'digits' is embedded, with real content. Drop --fake.",
    "--name cifar10": "python -m tfds_torch.check --name cifar10 --fake 1000",
    "--config nowhere.toml": "The config 'nowhere.toml': it does not exist",
    "--config member.toml": "Member 'b' of the mixture: There is no file 'nowhere.beton'",
    "--config mix.toml --read-mode files": "a mixture needs every example by its number",
    "--json /nowhere/x.json": "--json '/nowhere/x.json' cannot be written: No such file or directory",
    "--json /dev/null": "--json '/dev/null' names something else than a file",
    "--read-mode sideways": "auto, index, files, examples",
    "--read-mode files --eval": "evaluation takes 'index', 'examples' or 'auto'",
    # One split each.
    **{f"--name {name} {flag}": f"Drop {flag.split()[0]}" for name in ("images.beton", "a-{0..1}.tar")
       for flag in ("--root x", "--fake 3", "--shards 3", "--split train")},
    "--name images.beton --read-mode files": "only read by index",
    "--name imagse.beton": "Did you mean 'images.beton'",
    "--name a-00.tar": "Did you mean 'a-0.tar'",
    "--name a-{0..2}.tar": "a-2.tar'. Did you mean",
    "--name a-{0...1}.tar": "{0...1} is not a range: write {0..1}.",
    "--name a-*.tar": "Stars are not expanded",
    "--name B.TAR": "B.TAR'.",
    "--name hf://bucket/a.tar": "is neither a file of this machine nor a URL",
}  # fmt: skip
MISUSE = {
    "--batch-size many": "invalid int value: 'many'",
    "--workers 2.5": "invalid int value: '2.5'",
    "--nam cifar10": "unrecognized arguments: --nam cifar10",
    "photos": "unrecognized arguments: photos",
}


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a `.beton` file, tars, and recipes of mixtures."""
    folder = tmp_path_factory.mktemp("named")
    write_images(folder / "images.beton", 4)
    for tar in range(2):
        write_samples(folder / f"a-{tar}.tar", [{"__key__": f"{tar}", "jpg": save(photograph(), "JPEG"), "cls": b"1"}])
    entries = '[[mixture]]\nname = "digits"\n[[mixture]]\nmember = "b"\nname = "{}"\n'
    (folder / "member.toml").write_text(entries.format("nowhere.beton"))
    (folder / "mix.toml").write_text(f"is_training = true\nbatch_size = 2\n{entries.format('digits')}")
    return folder


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("line", [*TYPOS, *MISUSE])
def test_a_typo_is_one_message_and_exit_code_2(named: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    monkeypatch.chdir(named)
    checked = check(*line.split(" "))
    assert (checked.code, checked.output) == (2, "")
    assert (TYPOS | MISUSE)[line] in checked.errors
    if line in TYPOS:
        assert checked.errors.startswith("error: ")
        assert len(checked.errors.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "line",
    ["--workers -1", "--split trian\x1b<b>", "--config nowhere.toml", "--images sheet.jpg", "--name cifar10 --root ."],
)
def test_the_reports_of_an_earlier_check_do_not_pass_for_one_that_went_wrong(
    tmp_path: Path, reports: list[object], monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("r.json", "r.html"):
        (tmp_path / name).write_text("earlier")
    checked = check(*line.split(), *reports)
    values, page = report_file.load(tmp_path / "r.json"), load_page(tmp_path / "r.html")
    assert (checked.code, values["exit_code"], values["dataset"], values["plan"]) == (2, 2, None, None)
    kind = "DatasetNotFoundError" if "cifar10" in line else "ConfigError"
    assert values["error"]["type"] == kind
    assert page.texts["verdict"].startswith(f"The check ended with a {kind}")
    assert values["command"][: len(line.split())] == line.split()


# Terminals.


def test_a_bar_shows_the_progress_on_a_terminal_and_goes_away(checker: Checker) -> None:
    line = ["--workers", "0", "--eval", "--epochs", "2", "--batch-size", "1", "--split", "test[:100]"]
    shown = checker.check_planted("none", line, is_terminal=True)
    assert shown.code == 0
    assert "rank 0" in shown.errors
    assert "examples/s" in shown.errors
    assert re.search(r"\d+/200", shown.errors)
    assert shown.errors.count("\x1b[?25l") == shown.errors.count("\x1b[?25h")  # The cursor came back.
    assert "\x1b[2K" in shown.errors  # The bar was wiped away.
    assert checker.check_planted("none", line).errors.strip() == ""


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
def test_names_are_printed_as_they_are_in_any_width_and_encoding(
    own_digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    """A log file on Windows, a terminal of old: names and bars may look poor, but they are there; nothing is cut."""
    names = ["[bold]zero", "[/]", "[/red]one", ":smile:", "[link=x]y[/link]", "\\", "猫", "ñ", "\x1b[31mred", "9"]
    (own_digits / "label.labels.txt").write_text("\n".join(names) + "\n", encoding="utf-8")
    root = tmp_path / "[blue]:smile:"
    shutil.move(own_digits.parents[0], root / "digits")
    output = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="\n")
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setattr(sys, "stdout", output)
    line = ["--root", str(root), "--workers", "0", "--eval", "--epochs", "1", "--json", str(tmp_path / "r.json")]
    assert command.main(line) == 0
    output.flush()
    printed = output.buffer.getvalue().decode(encoding)
    assert printed.endswith("All 10 promises kept.\n")
    if encoding == "utf-8":
        assert no_control_characters(printed)
        assert "…" not in printed
        assert max(map(len, printed.splitlines())) <= 50
        everything = re.sub(r"[│\s]", "", printed)
        assert all(name.replace("\x1b", r"\x1b") in everything for name in [*names, str(root)])
    values = report_file.load(tmp_path / "r.json")
    assert values["dataset"]["class_names"] == [one["name"] for one in values["labels"]] == names


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


# Files.


def write_report(flag: str, path: Path) -> None:
    command.save_report(flag, path, Report(), Run([], time.time(), 0))


def write_sheet(flag: str, path: Path) -> None:
    save_contact_sheet(gallery([solid(1, 2, 3)]), path, "title")


@pytest.mark.parametrize(
    ("write", "flag", "name"),
    [(write_report, "--json", "report"), (write_report, "--html", "page"), (write_sheet, "--images", "contact sheet")],
    ids=["json", "html", "images"],
)
def test_a_file_has_the_users_own_mode_or_keeps_its_own_and_what_cannot_be_written_is_said(
    tmp_path: Path, write: Callable[[str, Path], None], flag: str, name: str
) -> None:
    path = tmp_path / "out"
    before = os.umask(0o027)
    try:
        write(flag, path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    for mode in (0o600, 0o664):
        path.chmod(mode)
        write(flag, path)
        assert stat.S_IMODE(path.stat().st_mode) == mode
    (tmp_path / "folder" / "inside").mkdir(parents=True)
    for wrong in (tmp_path / "folder", tmp_path / "nowhere" / "out"):
        with pytest.raises(ConfigError, match=re.escape(f"The {name} {wrong} cannot be written: ")):
            write(flag, wrong)
    assert sorted(os.listdir(tmp_path)) == ["folder", "out"]


def test_a_page_that_is_not_finished_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while it is put together."""
    path = tmp_path / "r.html"
    path.write_text("old")
    monkeypatch.setattr(command, "as_page", mock.Mock(side_effect=KeyboardInterrupt))
    checked = check("--html", path, "--workers", "-1")
    assert (checked.code, checked.errors.splitlines()[-1]) == (130, "Interrupted.")
    assert (os.listdir(tmp_path), path.read_text()) == (["r.html"], "old")


def test_a_check_whose_folder_goes_away_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.setattr(command, "_check", lambda *_: shutil.rmtree(folder))
    checked = check("--html", folder / "r.html", "--json", folder / "r.json")
    assert checked.errors.count("cannot be written: ") == 2
    assert checked.code == 1  # No promise was judged.


@slow
def test_a_reader_that_goes_away_is_no_traceback_and_the_report_is_written(
    machine: Machine, digits: Path, tmp_path: Path
) -> None:
    path = tmp_path / "r.json"
    with machine.start("-m", "tfds_torch.check", "--workers", "0", "--epochs", "1", "--json", path) as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        process.stdin.close()
        process.stdout.readline()
        process.stdout.close()
        assert "Traceback" not in process.stderr.read()
    assert report_file.load(path)["exit_code"] == 0


def test_a_full_standard_output_is_one_message_and_the_report_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(command, "_check", full)
    assert command.main(["--json", str(tmp_path / "r.json")]) == 1
    assert "error: The report cannot be printed: No space left on device." in capsys.readouterr().err
    assert report_file.load(tmp_path / "r.json")["exit_code"] == 1


# Interruptions.


def assert_interrupted(
    process: "subprocess.Popen[str]", family: Sequence[psutil.Process], errors: str | None = None
) -> str:
    if errors is None:
        _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode in INTERRUPTED, errors
    assert errors.startswith("Interrupted.")
    assert "Traceback" not in errors
    group = [other for other in psutil.process_iter() if is_in_group(other, process.pid)]
    _, alive = psutil.wait_procs([*family, *group], timeout=DEADLINE_S)
    assert alive == []
    return errors


def is_in_group(process: psutil.Process, group: int) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and os.getpgid(process.pid) == group
    except (psutil.NoSuchProcess, ProcessLookupError):
        return False


def test_ctrl_c_among_batches_ends_everything_and_what_was_known_is_in_the_reports(
    machine: Machine, digits: Path, tmp_path: Path, reports: list[object]
) -> None:
    """Thirty batches of twelve an epoch: two epochs are whole."""
    process = machine.start(PLANTED_CHECK, "--interrupt", "--eval", "--epochs", "100", *reports)
    known = "30 of 1,200 batches had come, 2 whole epochs; no promise broken until then."
    assert assert_interrupted(process, []) == f"Interrupted. {known}\n"
    values, page = report_file.load(tmp_path / "r.json"), load_page(tmp_path / "r.html")
    assert (values["exit_code"], values["is_interrupted"], values["error"]) == (130, True, None)
    assert (values["num_batches_read"], [epoch["epoch"] for epoch in values["epochs"]]) == (30, [0, 1])
    assert all(epoch["num_valid"] == 360 and epoch["num_missing"] == 0 for epoch in values["epochs"])
    assert all(promise["kept"] for promise in values["promises"])
    assert page.texts["verdict"] == f"Interrupted {known}"
    assert len(page.table("epochs")) == 3


def test_ctrl_c_before_anything_was_looked_at_is_in_the_reports(tmp_path: Path, reports: list[object]) -> None:
    """While torch and TFDS were loaded: the reports of an earlier check must not pass for this one's."""
    (tmp_path / "r.json").write_text("earlier")
    flags = parse_arguments([*map(str, reports), "--name", "nowhere"])
    assert command.run(flags, ["--name", "nowhere"], is_interrupted=True) == 130
    values = report_file.load(tmp_path / "r.json")
    assert (values["exit_code"], values["is_interrupted"], values["dataset"]) == (130, True, None)
    assert load_page(tmp_path / "r.html").texts["verdict"] == "Interrupted Nothing had been read."


@slow
@pytest.mark.parametrize("num_workers", [pytest.param(0, marks=campaign), 2])
def test_ctrl_c_among_batches_of_torchrun_ends_every_rank(machine: Machine, digits: Path, num_workers: int) -> None:
    line = ["--torchrun", "2", "--workers", str(num_workers), "--epochs", "100"]
    process = machine.start(PLANTED_CHECK, "--interrupt", *line)
    assert process.stdout
    while not (output := process.stdout.readline()).startswith("family:"):
        assert process.poll() is None
    family = []
    for pid in map(int, output.split()[1:]):
        with contextlib.suppress(psutil.NoSuchProcess):
            family.append(psutil.Process(pid))
    assert_interrupted(process, family)


_LOST = "Exception ignored in: <function _get_module_lock"
"""A callback of Python's imports, which swallows an interrupt that comes just then."""


@slow
def test_ctrl_c_while_workers_start_ends_everything(machine: Machine, digits: Path) -> None:
    errors = _LOST
    while _LOST in errors:
        process = machine.start("-m", "tfds_torch.check", "--epochs", "100")
        assert process.stdout
        while not process.stdout.readline().startswith("└"):  # The end of the plan.
            assert process.poll() is None
        family = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=DEADLINE_S)
    assert_interrupted(process, family, errors)


@slow
def test_ctrl_c_while_a_fake_is_built_leaves_nothing_half_built(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    process = machine.start(
        "-m", "tfds_torch.check", "--name", "mnist", "--fake", "100000", "--json", tmp_path / "r.json"
    )
    assert process.stderr
    assert process.stderr.readline().startswith("tfds_torch: building the demo dataset 'mnist' (fake)")
    (workplace,) = (tmp_path / "cache" / "tfds_torch" / "demo").glob("fake-mnist-*/.mnist.building-*")
    family = psutil.Process(process.pid).children(recursive=True)
    assert family
    os.killpg(process.pid, signal.SIGINT)
    assert_interrupted(process, family)
    assert not workplace.exists()
    assert [path.name for path in workplace.parent.iterdir() if path.suffix != ".lock"] == []
    values = report_file.load(tmp_path / "r.json")
    assert (values["exit_code"], values["dataset"], values["promises"]) == (130, None, [])


def test_workers_that_cannot_be_ended_do_not_hold_up_an_interrupted_check(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()  # By the watchdog: in its place the process would end.

    class Stuck:
        def __del__(self) -> None:
            assert ended.wait(DEADLINE_S)

    def read() -> None:
        stuck = Stuck()  # noqa: F841
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "_GRACE_S", 0.01)
    monkeypatch.setattr(command, "_end_at_once", ended.set)
    try:
        read()
    except KeyboardInterrupt as interrupt:
        command._release_workers(interrupt)
    assert ended.is_set()
