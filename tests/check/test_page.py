"""The page for people: every part with the figures of the run, nothing of the data that acts, whole or not there."""

import base64
import io
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from image_folder_fixtures import NUM_TRAIN, write_image_folder
from PIL import Image
from storage.beton.made_files import write_images
from tensorflow_datasets.core.proto import dataset_info_pb2

from check import report_file
from check.machine import PLANTED_CHECK, Checker, Machine, Reported
from check.page_file import Page, load
from tfds_torch import ParserTfds
from tfds_torch.check import command, page
from tfds_torch.check.arguments import parse_arguments
from tfds_torch.check.command import save_output
from tfds_torch.check.content import LabelCount
from tfds_torch.check.expectation import expect
from tfds_torch.check.findings import Findings
from tfds_torch.check.json_report import make_report
from tfds_torch.check.verdict import NotJudged, Promise
from tfds_torch.errors import ShardError

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(2)>',
    "</style></title><b>",
    "\u202egnorw\u202c",
    "{{ 7 * 7 }}",
    "&lt;&amp;",
    "x" * 5000,
    "' onmouseover='alert(3)",
    "שלום",
    "猫",
]
PARTS = ["promises", "dataset", "ledger", "plan", "speed", "stages", "memory", "labels", "sheet", "order", "advice"]


def write_hostile(own_digits: Path) -> Path:
    """Gives the classes of a copy of the digits names that try to get out of the page."""
    (own_digits / "label.labels.txt").write_text("\n".join(HOSTILE) + "\n", encoding="utf-8")
    return own_digits.parents[1]


def save(path: Path, findings: Findings, exit_code: int = 0) -> Page:
    save_output("--html", path, findings, make_report(findings, ["--html", str(path)], time.time(), exit_code))
    return load(path)


@pytest.fixture(scope="module")
def both(two_ranks: Reported) -> tuple[Page, dict[str, Any]]:
    """The page and the JSON report of one check in training, with two ranks."""
    assert (two_ranks.checked.code, two_ranks.checked.errors.strip()) == (0, "")
    assert sorted(os.listdir(two_ranks.html.parent)) == ["r.html", "r.json"]
    return load(two_ranks.html), report_file.load(two_ranks.json)


# The parts, and their figures.


def test_every_part_is_there_once_and_can_be_gone_to(both: tuple[Page, dict[str, Any]]) -> None:
    page, _ = both
    assert [id for id in page.texts if id in PARTS] == PARTS
    assert [address for address in page.addresses if address.startswith("#")] == [f"#{id}" for id in PARTS]


def test_the_verdict_and_every_promise_are_those_of_the_run(both: tuple[Page, dict[str, Any]]) -> None:
    page, report = both
    assert page.texts["verdict"] == "All 11 promises kept 92 batches read in 2 epochs."
    assert page.title == "digits:1.0.0: All 11 promises kept"
    promises = report["promises"]
    assert len(promises) == 11
    assert page.table("promises") == [
        {"verdict": "kept", "promise": promise["name"], "detail": promise["detail"]} for promise in promises
    ]


def test_the_card_says_what_the_dataset_says_of_itself(both: tuple[Page, dict[str, Any]]) -> None:
    page, report = both
    card = page.texts["dataset"]
    for text in ("train: 1,437 examples in 1 shard", "image uint8[8, 8, 1]", "label int64", "all 8x8 (18 images"):
        assert text in card
    assert report["dataset"]["data_dir"] in card
    assert report["dataset"]["fingerprint"] in card
    assert "1,797 handwritten digits" in card
    assert "E. Alpaydin and C. Kaynak" in card
    assert "https://archive.ics.uci.edu/dataset/80" in page.addresses
    assert "227 kB, 158 bytes an example" in card


@pytest.mark.parametrize("content", [None, "{}", "{bad", '{"location": {}, "citation": ""}'])
def test_a_dataset_that_says_nothing_of_itself_has_a_page(
    own_digits: Path, tmp_path: Path, content: str | None
) -> None:
    parser = ParserTfds(own_digits.parents[1], "digits", is_training=True, batch_size=32)
    info = own_digits / "dataset_info.json"
    info.unlink() if content is None else info.write_text(content)
    card = save(tmp_path / "r.html", Findings(parser=parser)).texts["dataset"]
    assert "1,437 examples" in card
    assert not any(word in card for word in ("description", "credits", "license", "home page"))


def test_all_that_dataset_info_records_is_on_the_card(own_digits: Path, tmp_path: Path) -> None:
    info = own_digits / "dataset_info.json"
    texts = {
        "description": " What it is.\n",
        "configDescription": "This part of it.",
        "citation": "@misc{x}\n",
        "redistributionInfo": {"license": "CC BY 4.0"},
        "location": {"urls": ["https://a", "https://b", "https://c", "https://d"]},
    }
    info.write_text(json.dumps(json.loads(info.read_text()) | texts))
    parser = ParserTfds(own_digits.parents[1], "digits", is_training=True, batch_size=32)
    page = save(tmp_path / "r.html", Findings(parser=parser))
    card = {row["what"]: row["content"] for row in page.table("dataset")}
    assert card["description"] == "What it is. This part of it."
    assert (card["credits"], card["license"]) == ("@misc{x}", "CC BY 4.0")
    assert card["home page"] == "https://a https://b https://c"
    fields = dataset_info_pb2.DatasetInfo.DESCRIPTOR.fields
    messages = {field.json_name: field.message_type for field in fields}
    assert texts.keys() <= messages.keys()  # The keys are those that TFDS writes.
    assert "license" in messages["redistributionInfo"].fields_by_name
    assert "urls" in messages["location"].fields_by_name


def test_the_ledger_stands_beside_what_was_planned(both: tuple[Page, dict[str, Any]]) -> None:
    page, _ = both
    figures = {"batches": "23 on each of 2", "delivered": "1,472", "valid": "1,472", "padded": "0", "missing": "0"}
    figures |= {"twice": "35", "unknown": "0"}
    assert page.table("ledger") == [{"epoch": epoch, **figures} for epoch in ("planned", "0", "1")]


def test_the_plan_has_a_row_for_every_pipeline(both: tuple[Page, dict[str, Any]]) -> None:
    page, report = both
    assert page.table("plan") == [
        {
            "rank": str(pipeline["rank"]),
            "worker": "-",
            "batches": str(pipeline["num_batches"]),
            "examples": str(pipeline["num_examples"]),
            "fill": str(pipeline["num_fill"]),
        }
        for pipeline in report["plan"]["pipelines"]
    ]


def test_stages_memory_and_speed_are_those_of_the_report(both: tuple[Page, dict[str, Any]]) -> None:
    page, report = both
    assert [row["examples/s"] for row in page.table("speed")] == [
        f"{rank['examples_per_s']:,.0f}" for rank in report["throughput"]
    ]
    stages = report["throughput"][0]["stages"]
    assert [row["stage"] for row in page.table("stages")] == [stage.replace("_", "-") for stage in stages]
    heaviest = max(report["throughput"], key=lambda rank: sum(one["pss_bytes"] for one in rank["processes"]))
    first = f"rank {heaviest['rank']}, process {heaviest['processes'][0]['pid']}"
    assert page.table("memory")[0]["process"] == first
    assert len(page.table("memory")) == len(heaviest["processes"])
    assert page.texts["advice"] == " ".join(["Advice", *report["advice"]])


def test_labels_and_pictures_are_those_of_the_dataset(both: tuple[Page, dict[str, Any]]) -> None:
    page, report = both
    assert [(row["label"], row["examples"]) for row in page.table("labels")] == [
        (count["name"], str(count["num_examples"])) for count in report["labels"]
    ]
    most = max(count["num_examples"] for count in report["labels"])
    assert page.paths["labels"] == [f"M0 0H{round(1000 * c['num_examples'] / most)}V1H0z" for c in report["labels"]]
    assert len(page.images) == 40
    for image in page.images:
        assert (image["class"], image["alt"] in "0123456789") == ("small", True)
        with Image.open(io.BytesIO(base64.b64decode(image["src"].removeprefix("data:image/png;base64,")))) as picture:
            assert picture.size == (8, 8)


def test_of_many_labels_each_has_a_column(tmp_path: Path) -> None:
    findings = Findings(ledger=mock.Mock(counts={}, num_batches=1))
    findings.ledger.labels.counts.return_value = [LabelCount(n, f'"><b>{n}', n) for n in range(100)]
    page = save(tmp_path / "r.html", findings)
    columns = "".join(f"V{1000 - max(3, round(1000 * n / 99)) if n else 1000}h1" for n in range(100))
    assert page.paths["labels"][0] == f"M0 1000{columns}V1000z"
    assert [row["label"] for row in page.table("labels")] == [f'"><b>{n}' for n in (99, 98, 97, 96, 95, 4, 3, 2, 1, 0)]
    assert page.paths["labels"][-1] == "M0 0H0V1H0z"


def test_the_shuffle_is_drawn_of_all_that_came(both: tuple[Page, dict[str, Any]]) -> None:
    page, _ = both
    assert "batch after batch of all ranks: all 1,437 examples" in page.texts["order"]
    assert "in read mode index" in page.texts["order"]
    assert "In a perfect shuffle no pattern can be seen." in page.texts["order"]
    assert [path.count("h0") for path in page.paths["order"]] == [1437]


def test_an_order_that_is_not_shuffled_is_not_called_a_shuffle(evaluation: Reported) -> None:
    order = load(evaluation.html).texts["order"]
    assert order.startswith("Order ")
    assert "Correlation of position and index: 1.00." in order
    assert "shuffle" not in order


# Every kind of dataset.


def check_image_folder(checker: Checker, tmp_path: Path) -> Page:
    root = write_image_folder(tmp_path / "root")
    checker.check_line(f"--name image_folder --root {root} --workers 0 --batch-size 8 --html {tmp_path}/r.html")
    return load(tmp_path / "r.html")


def check_beton(checker: Checker, tmp_path: Path) -> Page:
    write_images(tmp_path / "Images.beton", 40, class_names={"label": [f"class {number}" for number in range(10)]})
    line = f"--name {tmp_path}/Images.beton --workers 0 --eval --batch-size 4 --html {tmp_path}/r.html"
    checker.check_line(line)
    return load(tmp_path / "r.html")


@pytest.mark.parametrize(
    ("check", "words", "num_promises"),
    [
        (check_image_folder, f"train: {NUM_TRAIN} examples in {NUM_TRAIN} files", 10),
        (check_beton, "40 examples in 1 shard", 10),
    ],
    ids=["image folder", "beton"],
)
def test_other_datasets_have_a_page_too(
    checker: Checker, tmp_path: Path, check: Callable[[Checker, Path], Page], words: str, num_promises: int
) -> None:
    page = check(checker, tmp_path)
    assert page.texts["verdict"].startswith(f"All {num_promises} promises kept ")
    assert words in page.texts["dataset"]
    assert "The head of Images.beton promises" in page.texts["ledger"] or check is not check_beton
    assert page.images


# Text from the data stays text.


def test_names_that_try_to_be_markup_are_shown_as_they_are(checker: Checker, own_digits: Path, tmp_path: Path) -> None:
    path = tmp_path / "r.html"
    root = write_hostile(own_digits)
    checked = checker.check("--root", root, "--workers", "0", "--eval", "--epochs", "1", "--html", path)
    assert checked.code == 0, checked.errors
    page = load(path)  # It knows no tag and no attribute that the page itself does not have.
    assert page.tags["img"] == len(page.images) == 40
    for name in HOSTILE:
        if len(name) < 100 and name.isprintable():
            assert name in page.texts["labels"]
            assert name in page.texts["dataset"]
    assert r"\u202egnorw\u202c" in page.texts["labels"]
    text = path.read_text()
    assert "\u202e" not in text
    assert "x" * 500 not in text


@pytest.mark.parametrize(
    "text", [*HOSTILE, "\x1b[31mred\x07\x00", "\udc80", "a\nb\r"], ids=lambda text: ascii(text)[:20]
)
def test_any_text_of_promises_advice_and_errors_is_harmless(tmp_path: Path, text: str) -> None:
    findings = Findings(
        promises=[Promise(text, False, text)],
        not_judged=[NotJudged(text, text)],
        advice=[text],
        error=ShardError(text),
    )
    page = save(tmp_path / "r.html", findings, 1)
    assert page.texts["verdict"].startswith("1 of 1 promise broken")
    assert all(character.isprintable() or character == "\n" for character in (tmp_path / "r.html").read_text())
    if len(text) < 100 and text.isprintable():
        assert page.texts["advice"] == f"Advice {' '.join(text.split())}"


def test_a_home_page_that_is_a_script_is_not_a_link(own_digits: Path, tmp_path: Path) -> None:
    info = own_digits / "dataset_info.json"
    info.write_text(info.read_text().replace("https://archive.ics.uci.edu/dataset/80", "javascript:alert(1)"))
    parser = ParserTfds(own_digits.parents[1], "digits", is_training=True, batch_size=32)
    page = save(tmp_path / "r.html", Findings(parser=parser))
    assert "javascript:alert(1)" in page.texts["dataset"]
    assert not any("javascript" in address for address in page.addresses)


# Every way in which a check ends.


def test_a_broken_promise_is_on_the_page(broken: Reported) -> None:
    checked, page = broken.checked, load(broken.html)
    assert checked.code == 1
    assert page.texts["verdict"].startswith(f"{len(checked.broken)} of {len(checked.promises)} promises broken")
    assert page.texts["promises"].count("BROKEN") == len(checked.broken)
    (row,) = [row for row in page.table("ledger") if row["epoch"] == "0"]
    assert (row["missing"], row["twice"]) == ("1", "1")
    assert "Epoch 0: 1 missingdigits-test.tfrecord-00000-of-00001__1" in page.texts["ledger"]


def test_a_damaged_shard_is_on_the_page_with_what_was_known(damaged: Reported) -> None:
    page = load(damaged.html)
    assert page.texts["verdict"].startswith("The check ended with a ShardError")
    assert "digits-test.tfrecord-00000-of-00001" in page.texts["verdict"]
    assert "360 examples" in page.texts["dataset"]
    assert [row["batches"] for row in page.table("plan")] == ["12"]
    assert {"promises", "ledger", "speed", "labels", "sheet", "order"} & page.texts.keys() == set()


@pytest.mark.parametrize("arguments", [["--workers", "-1"], ["--split", "trian<b>"], ["--images", "sheet.jpg"]])
def test_the_page_of_an_earlier_check_does_not_pass_for_one_that_went_wrong(
    checker: Checker, tmp_path: Path, arguments: list[str]
) -> None:
    path = tmp_path / "r.html"
    path.write_text("earlier")
    assert checker.check(*arguments, "--html", path).code == 2
    page = load(path)
    assert page.texts["verdict"].startswith("The check ended with a ConfigError")
    assert "exit code 2" in path.read_text()


@pytest.mark.slow
def test_ctrl_c_leaves_a_page_of_what_was_known(machine: Machine, digits: Path, tmp_path: Path) -> None:
    path = tmp_path / "r.html"
    process = machine.start(PLANTED_CHECK, "--interrupt", "--eval", "--epochs", "100", "--workers", "0", "--html", path)
    process.communicate()
    assert process.returncode == 130
    assert os.listdir(tmp_path) == ["r.html"]
    page = load(path)
    words = "Interrupted 30 of 1,200 batches had come, 2 whole epochs; no promise broken until then."
    assert page.texts["verdict"] == words
    assert len(page.table("ledger")) == 3


def test_ctrl_c_before_anything_was_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "r.html"
    flags = parse_arguments(["--html", str(path), "--name", "nowhere"])
    assert command.run(flags, ["--name", "nowhere"], is_interrupted=True) == 130
    assert load(path).texts["verdict"] == "Interrupted Nothing had been read."


def test_ctrl_c_before_the_pipelines_are_counted(own_digits: Path, tmp_path: Path) -> None:
    parser = ParserTfds(own_digits.parents[1], "digits", is_training=True, batch_size=32)
    findings = Findings(parser=parser, expected=expect(parser, 1, 0, 1), is_interrupted=True)
    page = save(tmp_path / "r.html", findings, 130)
    assert page.texts["verdict"] == "Interrupted Nothing had been read."
    assert "1,437 examples" in page.texts["dataset"]
    assert "plan" not in page.texts


# The file.


def test_a_page_that_is_not_finished_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C while it is put together."""
    path = tmp_path / "r.html"
    path.write_text("old")
    monkeypatch.setattr(page, "render_page", mock.Mock(side_effect=KeyboardInterrupt))
    flags = parse_arguments(["--html", str(path), "--workers", "-1"])
    assert command.run(flags, []) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "Interrupted."
    assert (os.listdir(tmp_path), path.read_text()) == (["r.html"], "old")


def test_a_check_whose_folder_goes_away_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    flags = parse_arguments(["--html", str(folder / "r.html")])

    def check(*_: object) -> int:
        shutil.rmtree(folder)
        return 0

    monkeypatch.setattr(command, "_check", check)
    assert command.run(flags, []) == 2
    assert capsys.readouterr().err.startswith("error: The page ")


@pytest.mark.slow
def test_jinja_is_loaded_for_a_page_alone(machine: Machine) -> None:
    code = "import sys; from tfds_torch.check import command; print('jinja2' in sys.modules)"
    output, errors = machine.start("-c", code).communicate()
    assert output == "False\n", errors
