"""`python -m tfds_torch.check`, end to end: what it prints, and its exit code."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import INTERRUPTED
from PIL import Image, ImageDraw
from zygote import torch_zygote

from check.machine import (
    NUM_PHOTOS,
    NUM_SHARDS,
    PLANTED_CHECK,
    ROOT,
    Checked,
    Checker,
    FakeCheck,
    Machine,
    Reported,
    cut,
    forked_checker,
    no_control_characters,
    row,
)
from check.page_file import load as load_page
from check.report_file import load
from tfds_torch.check import command
from tfds_torch.check.contact_sheet import save_contact_sheet
from tfds_torch.parsers.tfds.parser import ParserTfds

slow, campaign = pytest.mark.slow, pytest.mark.campaign
DEADLINE_S = 120
ONE_EVALUATION = "--workers 0 --eval --epochs 1 --read-mode examples"
"""The least work for a check of which only the surroundings matter."""
UNFAKEABLE = "wmt_translate"
"""TFDS lists it, but only as a base of others: its builder has no version."""


def test_the_digits_are_checked_from_nothing(first_check: Checked) -> None:
    assert first_check.code == 0, first_check.errors
    lines = first_check.errors.split("\n")
    assert lines[0].startswith("tfds_torch: building the demo dataset 'digits'")
    assert not any(lines[1:]), first_check.errors
    assert "1,437 examples in 1 shard" in first_check.output
    assert first_check.plan == [
        row(rank=0, worker=0, batches=23, examples=733, fill=3),
        row(rank=0, worker=1, batches=22, examples=704, fill=0),
    ]
    assert first_check.ledger == [
        row(epoch=epoch, batches=45, valid=1440, padded=0, missing=0, twice=3, unknown=0) for epoch in range(2)
    ]
    assert len(first_check.promises) == 11
    assert first_check.broken == {}
    assert first_check.promises["the order does not depend on workers"][1] == "as planned; the same with 1 worker"
    assert first_check.promises["resume is exact"][1] == "6 points, with the same workers and with 1 worker"
    assert first_check.promises["the index is TFDS's own reader"][1] == "18 examples: the same ids and bytes"
    assert "All 11 promises kept." in first_check.output
    assert no_control_characters(first_check.output)
    assert no_control_characters(first_check.errors)


def test_the_digits_are_checked_without_workers(evaluation: Reported) -> None:
    checked = evaluation.checked
    assert (checked.code, checked.errors.strip()) == (0, "")
    assert checked.plan == [row(rank=0, worker="-", batches=12, examples=360, fill=0)]
    assert checked.ledger == [row(epoch=0, batches=12, valid=360, padded=0, missing=0, twice=0, unknown=0)]
    assert checked.promises["every batch full"] == (True, "batches of 32, the last of 8")


@slow
@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=campaign)])
def test_a_good_check_writes_nothing_to_standard_error(machine: Machine, digits: Path, num_workers: int) -> None:
    """Nothing of tensorflow, in whatever process it runs; no empty lines."""
    checked = machine.check("--workers", str(num_workers), "--eval", "--epochs", "1")
    assert (checked.code, checked.errors) == (0, "")


@slow
def test_three_ranks_and_two_workers_in_evaluation(machine: Machine, digits: Path) -> None:
    checked = machine.check("--replicas", "3", "--workers", "2", "--eval")
    assert checked.code == 0, checked.errors
    examples = {(0, 0): 64, (0, 1): 64, (1, 0): 64, (1, 1): 64, (2, 0): 64, (2, 1): 40}
    assert checked.plan == [
        row(rank=rank, worker=worker, batches=2, examples=number, fill=64 - number)
        for (rank, worker), number in examples.items()
    ]
    figures = {"valid": 360, "padded": 24, "missing": 0, "twice": 0, "unknown": 0}
    assert checked.ledger == [row(epoch=epoch, batches="4 on each of 3", **figures) for epoch in range(2)]
    assert checked.broken == {}


@slow
@pytest.mark.parametrize(
    ("mode", "num_replicas"),
    [
        ("examples", 1),
        pytest.param("files", 2, marks=campaign),
        pytest.param("files", 1, marks=campaign),
        pytest.param("examples", 2, marks=campaign),
    ],
)
def test_photos_in_eight_shards_over_three_epochs(machine: Machine, photos: Path, mode: str, num_replicas: int) -> None:
    arguments = ["--name", "photos", "--root", photos, "--epochs", "3", "--batch-size", "8", "--read-mode", mode]
    checked = machine.check(*arguments, "--replicas", str(num_replicas))
    assert checked.code == 0, checked.errors
    assert f"{NUM_PHOTOS} examples in {NUM_SHARDS} shards" in checked.output
    num_batches = -(-NUM_PHOTOS // (8 * num_replicas))
    num_slots = num_batches * 8 * num_replicas
    assert sum(int(row["batches"]) for row in checked.plan) == num_batches * num_replicas
    assert sum(int(row["examples"]) + int(row["fill"]) for row in checked.plan) == num_slots
    if mode == "files":
        assert sum(int(row["in its files"]) for row in checked.plan) == NUM_PHOTOS
    assert len(checked.ledger) == 3
    for line in checked.ledger:
        assert line["batches"].split()[0] == str(num_batches)
        assert (line["valid"], line["padded"], line["unknown"]) == (str(num_slots), "0", "0")
        num_copies = num_slots - (NUM_PHOTOS - int(line["missing"]))
        assert 0 < int(line["twice"]) <= num_copies
        if mode == "examples":
            assert (line["missing"], line["twice"]) == ("0", str(num_slots - NUM_PHOTOS))
    assert checked.broken == {}
    assert len(checked.promises) == 8


def test_labels_speed_and_memory_are_shown(first_check: Checked) -> None:
    assert list(first_check.labels) == [str(digit) for digit in range(10)]
    assert sum(first_check.labels.values()) == 1437
    (rank,) = first_check.throughput
    assert rank["rank"] == "0"
    assert float(rank["first batch s"]) > 0
    assert float(rank["later first batch s"]) >= 0
    assert int(rank["examples/s"]) > 0
    assert float(rank["tail s"]) >= 0
    assert "Images: all 8x8 (18 images looked at)" in first_check.output.splitlines()
    memory = re.search(r"^Memory \(PSS, MB\): this process (\d+), its children (.*)$", first_check.output, re.MULTILINE)
    assert memory
    assert len(memory[2].split(" + ")) >= 2
    assert not any("lies in" in sentence for sentence in first_check.advice)  # By index, it does no harm.


def test_the_loader_that_the_readme_recommends_is_what_is_read_through(first_check: Checked) -> None:
    how = "Read by create_loader, whole batches, preprocess=TrainPreprocess(size=8, crop_padding=4) (the usual one; a"
    assert any(line.startswith(how) for line in first_check.output.splitlines())
    assert first_check.promises["pixels are Pillow's"][1] == "18 of 18 examples equal"


def test_a_recipes_preprocess_is_what_is_proved(checker: Checker, tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(
        "name = 'digits'\nis_training = true\nbatch_size = 50\n[loader]\nnum_workers = 0\n"
        "[preprocess]\nkind = 'train'\nsize = 16\nhflip = 0"
    )
    checked = checker.check("--config", path, "--epochs", "1", "--json", tmp_path / "r.json")
    assert (checked.code, checked.broken, checked.errors.strip()) == (0, {}, "")
    report = load(tmp_path / "r.json")
    assert report["reading"] == {
        "loader": "create_loader",
        "is_batched": True,
        "preprocess": "TrainPreprocess(size=16, hflip=0)",
        "is_own": True,
        "reason": None,
    }
    assert checked.promises["pixels are Pillow's"] == (True, "18 of 18 examples equal")
    path.write_text(path.read_text().replace("hflip = 0", "also = ['nowhere']"))
    checked = checker.check("--config", path, "--epochs", "1")
    assert (checked.code, len(checked.errors.strip().splitlines())) == (2, 1)
    assert "'nowhere'" in checked.errors


@pytest.mark.parametrize("line", ["--plain-loader", "--single-examples", "--plain-loader --single-examples"])
def test_a_plain_loader_and_single_examples_are_proved_by_the_same_promises(
    checker: Checker, tmp_path: Path, line: str
) -> None:
    path = tmp_path / "r.json"
    checked = checker.check_line(f"{line} --workers 0 --split train[:100] --batch-size 8 --json {path}")
    assert (checked.code, checked.broken, len(checked.promises)) == (0, {}, 11), checked.errors
    is_plain, is_single = "plain" in line, "single" in line
    reading = load(path)["reading"]
    assert (reading["loader"], reading["is_batched"]) == ("DataLoader" if is_plain else "create_loader", not is_single)
    assert (reading["reason"], reading["preprocess"] is None) == (
        ("they were asked for", True) if is_single else (None, False)
    )
    assert ("Stages of " in checked.output) is not is_plain
    assert checked.promises["pixels are Pillow's"][1] == "16 of 16 examples equal"


def test_the_way_to_more_shards_of_an_embedded_dataset_is_a_flag(checker: Checker) -> None:
    checked = checker.check_line("--workers 0 --replicas 2 --epochs 1 --read-mode examples")
    advice = " ".join(checked.advice)
    assert "train lies in 1 shard, fewer than the 2 pipelines (2 ranks x 1 worker)" in advice
    assert "Prepared anew with --shards 8" in advice


def test_the_order_of_what_is_shown(first_check: Checked) -> None:
    starts = ["╭─ digits:1.0.0 ", "Training: ", "Ledger: ", "╭─ Promises ", "╭─ Labels ", "Read by ", "Throughput: "]
    starts += ["Images: ", "Memory ", "Stages of 45 batches ", "╭─ Advice ", "All 11 promises kept."]
    lines = first_check.output.splitlines()
    found = [number for start in starts for number, line in enumerate(lines) if line.startswith(start)]
    assert found == sorted(found)
    assert len(found) == len(starts)


# Made-up content.


def test_a_fake_is_checked_from_nothing(fake: FakeCheck) -> None:
    checked = fake.checked
    assert checked.code == 0, (checked.code, checked.errors)
    assert (checked.broken, len(checked.promises)) == ({}, 11)
    assert "│ content    made up: its form is the dataset's, its images and labels mean nothing" in checked.output
    assert "train: 60 examples in 4 shards" in checked.output
    assert str(fake.root) in checked.output
    figures = {"batches": "3 on each of 3", "valid": 60, "padded": 12, "missing": 0, "twice": 0, "unknown": 0}
    assert checked.ledger == [row(epoch=epoch, **figures) for epoch in range(2)]
    assert len(checked.labels) == 10
    assert sum(checked.labels.values()) == 60
    assert "Images: all 32x32 (" in checked.output
    assert f"Contact sheet: {fake.images}" in checked.output.splitlines()
    assert no_control_characters(checked.output)
    assert len(list(fake.root.glob("cifar10/3.*/cifar10-train.tfrecord-*-of-00004"))) == 4
    with Image.open(fake.images) as sheet:
        assert sheet.format == "PNG"
        assert len(sheet.getcolors(2**20) or ()) > 1000  # Pictures, not paper.


def test_a_fake_is_built_once_and_shows_what_it_is_without_the_flag(checker: Checker, fake: FakeCheck) -> None:
    again = checker.check_line(f"--name cifar10 --fake 60 --shards 4 {ONE_EVALUATION}")
    assert (again.code, again.errors.strip(), again.broken) == (0, "", {})
    plain = checker.check_line(f"--name cifar10 --root {fake.root} {ONE_EVALUATION}")
    assert (plain.code, plain.errors.strip(), plain.broken) == (0, "", {})
    assert "made up" in plain.output
    assert "made up" not in checker.check_line(ONE_EVALUATION).output


@pytest.mark.parametrize("num_bytes", [0, 20], ids=["on a boundary", "inside a record"])
def test_a_cut_shard_of_a_fake_is_named(checker: Checker, fake: FakeCheck, tmp_path: Path, num_bytes: int) -> None:
    shutil.copytree(fake.root, tmp_path / "root")
    shard = sorted((tmp_path / "root").glob("cifar10/*/cifar10-train*"))[2]
    cut(shard, 7, num_bytes)
    reads = ["--name", "cifar10", "--root", tmp_path / "root", "--workers", "0"]
    for line in ([], ["--eval"], ["--replicas", "3", "--eval"], ["--read-mode", "files"], ["--fake", "60"]):
        checked = checker.check(*reads, *line, *(["--shards", "4"] if "--fake" in line else []))
        reason = "inside record 7" if num_bytes else "holds 7 of 15 examples"
        assert_names_the_damage(checked, shard, reason)


def test_an_output_that_cannot_be_written_is_said_before_anything_is_built(checker: Checker, machine: Machine) -> None:
    for output in ("--json /nowhere/x.json", "--html /nowhere/x.html", "--images /nowhere/x.png"):
        checked = checker.check_line(f"--name cifar10 --fake 61 --workers 0 {output}")
        assert (checked.code, checked.output) == (2, "")
        assert list((machine.home / "cache").rglob("*61x*")) == []


# A config file.


def test_a_config_file_is_checked_and_flags_beat_it(checker: Checker, digits: Path, tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text("name = 'digits'\nsplit = 'test'\nbatch_size = 50\nimage_key = 'image'\n[loader]\nnum_workers = 0")
    alone = checker.check("--config", path)
    assert (alone.code, alone.broken, alone.errors.strip()) == (0, {}, "")
    assert alone.plan == [row(rank=0, worker="-", batches=8, examples=360, fill=0)]
    beaten = checker.check("--config", path, "--split", "test[:100]", "--batch-size", "7", "--epochs", "1")
    assert beaten.plan == [row(rank=0, worker="-", batches=15, examples=100, fill=0)]
    assert len(beaten.ledger) == 1


def test_a_recipe_without_batch_size_is_read_as_it_is_planned(checker: Checker, digits: Path, tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text("name = 'digits'\nsplit = 'test[:20]'")
    checked = checker.check("--config", path, "--workers", "0")
    assert (checked.code, checked.broken, checked.errors.strip()) == (0, {}, "")
    assert checked.plan == [row(rank=0, worker="-", batches=20, examples=20, fill=0)]
    with_workers = checker.check("--config", path, "--workers", "2")
    assert with_workers.code == 2
    assert "Evaluation with 2 workers needs batch_size" in with_workers.errors


@pytest.mark.parametrize("remainder", ["drop", pytest.param("wrap", marks=slow)])
def test_evaluation_over_a_training_config_reads_every_example_once(
    checker: Checker, digits: Path, tmp_path: Path, remainder: str
) -> None:
    path = tmp_path / "train.toml"
    path.write_text(
        f"name = 'digits'\nsplit = 'train'\nis_training = true\nbatch_size = 100\nrepeats = 2\n"
        f"remainder = '{remainder}'\nshuffle = true\n[read]\nmode = 'files'\n[loader]\nnum_workers = 0"
    )
    training = checker.check("--config", path, "--epochs", "1")
    assert (training.code, training.broken) == (0, {}), training.errors
    evaluation = checker.check("--config", path, "--eval", "--epochs", "1")
    assert (evaluation.code, evaluation.broken, evaluation.errors.strip()) == (0, {}, "")
    assert "Evaluation: " in evaluation.output
    figures = row(epoch=0, batches=15, valid=1437, padded=0, missing=0, twice=0, unknown=0)
    assert evaluation.ledger == [figures]


RECIPES = sorted((ROOT / "configs").glob("*.toml"))


@pytest.mark.parametrize(
    "path",
    [  # TFDS builds the episodes, for many seconds.
        pytest.param(path, marks=slow if path.stem.startswith("episodes") else (), id=path.stem) for path in RECIPES
    ],
)
def test_the_recipes_that_come_with_the_project_can_be_read(checker: Checker, path: Path) -> None:
    assert len(RECIPES) >= 6
    checked = checker.check("--config", path, "--workers", "0", "--epochs", "1")
    if path.stem.startswith(("digits", "episodes")):  # Embedded.
        assert (checked.code, checked.broken) == (0, {}), checked.errors
    else:  # Not prepared: the message names both ways on.
        assert (checked.code, checked.output) == (2, "")
        assert "tfds build" in checked.errors
        assert "--fake 1000" in checked.errors


# Terminals.


def test_a_bar_shows_the_progress_on_a_terminal_and_goes_away(checker: Checker, digits: Path) -> None:
    line = ["--workers", "0", "--eval", "--epochs", "2", "--batch-size", "1", "--split", "test[:100]"]
    shown = checker.check_planted("none", line, is_terminal=True)
    assert shown.code == 0
    assert "rank 0" in shown.errors
    assert "examples/s" in shown.errors
    assert re.search(r"\d+/200", shown.errors)
    assert shown.errors.count("\x1b[?25l") == shown.errors.count("\x1b[?25h")  # The cursor came back.
    assert "\x1b[2K" in shown.errors  # The bar was wiped away.
    assert "rank 0" not in shown.output.partition("Labels")[2].partition("Throughput")[0]
    assert checker.check(*line).errors.strip() == ""


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_what_the_output_cannot_show_does_not_end_the_check(checker: Checker, own_digits: Path, encoding: str) -> None:
    """A log file on Windows, or a terminal of old: names and bars may look poor, but they are there."""
    (own_digits / "label.labels.txt").write_text("\n".join(["猫", "ñ", *"23456789"]) + "\n", encoding="utf-8")
    checked = checker.check_planted("none", ["--root", own_digits, *ONE_EVALUATION.split()], encoding=encoding)
    assert checked.code == 0, str(checked.code)[-300:]
    assert "All 7 promises kept." in checked.output


def test_in_a_narrow_terminal_every_table_is_whole(checker: Checker, fake: FakeCheck) -> None:
    line = ["--name", "cifar10", "--root", fake.root, "--workers", "0", "--replicas", "3", "--eval", "--epochs", "1"]
    checked = checker.check_planted("none", line, width=50)
    assert (checked.code, checked.errors.strip()) == (0, "")
    assert "…" not in checked.output
    everything = re.sub(r"[│\s]", "", checked.output)
    assert str(fake.root) in everything
    assert "batch_size20wouldmakeit0." in everything
    assert max(map(len, checked.panel("Labels"))) <= 50


def digits_ids(split: str, *records: int) -> list[str]:
    return [f"digits-{split}.tfrecord-00000-of-00001__{record}" for record in records]


def test_planted_faults_break_their_promises(checker: Checker, broken: Reported) -> None:
    evaluation = ONE_EVALUATION.split()
    two_ranks = [*evaluation, "--replicas", "2"]
    none = checker.check(*two_ranks)
    duplicate = checker.check_planted("duplicate", evaluation)
    loss = checker.check_planted("loss", evaluation)
    replacement = broken.checked
    unknown = checker.check_planted("unknown id", evaluation)
    swapped = checker.check_planted("swapped ranks", two_ranks)
    same = checker.check_planted("same epoch", ["--workers", "0", "--read-mode", "examples"])
    padding = checker.check_planted("valid padding", two_ranks)
    plain = [*evaluation, "--plain-loader", "--single-examples"]
    threes = checker.check_planted("another batch_size", plain)
    dropped = checker.check_planted("drop_last", plain)
    assert (none.code, none.broken) == (0, {})
    for checked in (duplicate, loss, replacement, unknown, swapped, same, padding, threes, dropped):
        assert checked.code == 1, checked.errors
        assert f"{len(checked.broken)} of {len(checked.promises)} promises broken." in checked.output
    (first,) = digits_ids("test", 0)
    (second,) = digits_ids("test", 1)
    assert duplicate.ledger == [row(epoch=0, batches=12, valid=361, padded=0, missing=0, twice=1, unknown=0)]
    assert f"1 twice (allowed 0); twice: {first}" in duplicate.detail("exactly once")
    assert loss.ledger == [row(epoch=0, batches=12, valid=359, padded=0, missing=1, twice=0, unknown=0)]
    assert f"missing: {first}" in loss.detail("exactly once")
    assert replacement.ledger == [row(epoch=0, batches=12, valid=360, padded=0, missing=1, twice=1, unknown=0)]
    assert f"missing: {second}; twice: {first}" in replacement.detail("exactly once")
    assert unknown.ledger[0]["unknown"] == "1"
    assert "[bold]no-such-shard__0" in unknown.detail("ids")
    assert "rank 0, epoch 0: " in swapped.detail("own share")
    assert "rank 1, epoch 0: " in swapped.detail("own share")
    # The wrapped few differ from epoch to epoch, so the share tells, too.
    assert list(same.broken) == ["every rank reads its own share", "another order in every epoch"]
    assert padding.ledger == [
        row(epoch=0, batches="6 on each of 2", valid=384, padded=0, missing=0, twice=24, unknown=0)
    ]
    assert padding.detail("padding") == "epoch 0: 0 padded"
    assert threes.detail("batch full").startswith("rank 0: its loader's batch_size is 3, the parser's 32, rank 0, ")
    assert "batch 0: 3 examples" in threes.detail("batch full")
    assert "its loader drops a short last batch (drop_last), and the parser plans one" in dropped.detail("equal")
    assert dropped.ledger == [row(epoch=0, batches=11, valid=352, padded=0, missing=8, twice=0, unknown=0)]


@slow
@pytest.mark.parametrize(
    ("fault", "promise", "reason"),
    [
        pytest.param(name, promise, reason, id=name, marks=marks)
        for name, promise, reason, marks in (
            ("duplicate", "exactly once", "1 twice (allowed 0); twice: photos-train.tfrecord-", campaign),
            ("loss", "exactly once", "1 missing (allowed 0), 0 twice (allowed 0); missing: photos-train.", campaign),
            (
                "replacement",
                "exactly once",
                "1 missing (allowed 0), 1 twice (allowed 0); missing: photos-train.",
                campaign,
            ),
            ("swapped ranks", "own share", "rank 1, epoch 0: ", ()),
        )
    ],
)
def test_faults_planted_into_real_workers_break_their_promises(
    machine: Machine, photos: Path, fault: str, promise: str, reason: str
) -> None:
    arguments = ["--name", "photos", "--root", photos, "--batch-size", "5", "--eval", "--epochs", "1"]
    arguments += ["--read-mode", "examples"]
    with machine.start(PLANTED_CHECK) as process:  # Of its own: its workers are forked before it loads tensorflow.
        checked = Checker(process).check_planted(fault, [*arguments, "--replicas", "2"])
        process.communicate()
    assert checked.code == 1, checked.errors
    assert reason in checked.detail(promise)


def test_a_worker_that_is_killed_is_one_message_and_a_report(machine: Machine, digits: Path, tmp_path: Path) -> None:
    """In a process without tensorflow: its workers are forked before it loads that."""
    arguments = ["--json", tmp_path / "report.json"]
    with forked_checker(machine, torch_zygote()) as its_checker:
        checked = its_checker.check_planted("killed worker", arguments)
    assert checked.code == 1, checked.code
    assert re.match(r"BROKEN: Worker \d \(pid \d+\) was killed by SIGKILL \(out of memory\?\) while it", checked.errors)
    assert len(checked.errors.strip().splitlines()) == 1
    assert json.loads((tmp_path / "report.json").read_text())["error"]["type"] == "WorkerError"


def test_a_reason_is_printed_whole_in_a_narrow_terminal(checker: Checker, digits: Path) -> None:
    checked = checker.check_planted("replacement", ONE_EVALUATION.split(), width=60)
    assert checked.code == 1
    assert "…" not in checked.output
    everything = re.sub(r"[│\s]", "", checked.output)
    assert str(digits) in everything


# Damage.


def flip(shard: Path) -> None:
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)


DAMAGES = {
    "cut on a record boundary": (lambda shard: cut(shard, 300), "holds 300 of 360 examples"),
    "cut inside a record": (lambda shard: cut(shard, 300, 20), "inside record 300"),
    "cut to nothing": (lambda shard: cut(shard, 0), "holds 0 of 360 examples"),
    "missing": (Path.unlink, "missing"),
    "flipped byte": (flip, "checksum"),
    "a folder": (lambda shard: (shard.unlink(), shard.mkdir()), "is a directory, not a regular file"),
}


@pytest.mark.parametrize("mode", ["--eval", "--read-mode examples", "--read-mode files"])
def test_a_damaged_shard_is_named(checker: Checker, digits: Path, tmp_path: Path, mode: str) -> None:
    for name, (damage, reason) in DAMAGES.items():
        directory = Path(shutil.copytree(digits, tmp_path / name / "digits" / "1.0.0"))
        (shard,) = directory.glob("digits-test*")
        damage(shard)
        checked = checker.check("--root", tmp_path / name, "--split", "test", "--workers", "0", *mode.split())
        assert_names_the_damage(checked, shard, reason)


IN_A_WORKER = ("cut inside a record", "missing")


@slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in IN_A_WORKER else campaign) for name in DAMAGES]
)
def test_a_shard_that_a_worker_finds_damaged_is_named(machine: Machine, own_digits: Path, name: str) -> None:
    damage, reason = DAMAGES[name]
    (shard,) = own_digits.glob("digits-test*")
    damage(shard)
    checked = machine.check("--root", own_digits.parents[1], "--eval", "--workers", "2")
    assert_names_the_damage(checked, shard, reason)


def assert_names_the_damage(checked: Checked, shard: Path, reason: str) -> None:
    assert checked.code == 1, checked.errors
    message = checked.errors.strip()
    assert message.startswith("BROKEN: ")
    assert len(message.splitlines()) == 1
    assert str(shard) in message
    assert reason in message


def test_damaged_metadata_are_one_message(checker: Checker, digits: Path, tmp_path: Path) -> None:
    failures = []
    for file in ("dataset_info.json", "features.json"):
        for name, content in {"empty": "", "bad": "{bad", "list": "[]", "missing": None}.items():
            root = tmp_path / f"{file} is {name}"
            directory = Path(shutil.copytree(digits, root / "digits" / "1.0.0"))
            (directory / file).unlink() if content is None else (directory / file).write_text(content)
            checked = checker.check("--root", root, "--workers", "0")
            is_one_message = len(checked.errors.strip().splitlines()) == 1 and str(root) in checked.errors
            if checked.code not in (1, 2) or not is_one_message:
                failures.append((root.name, str(checked.code)[-200:], checked.errors[-200:]))
    assert failures == []


# Wrong usage.

TYPOS = {
    "--name digit": "digits",
    "--name nothing_like_it": "'nothing_like_it'",
    "--name digits:9.9.9": "'digits:9.9.9'",
    "--name mnist": "tfds build mnist",
    "--name [bold]x": "'[bold]x'",
    "--name x:smile:": "'x:smile:'",
    "--name /": "'/'",
    "--name=": "''",
    "--root /nowhere": "The root /nowhere of dataset 'digits' does not exist",
    "--root /dev/null": "The root /dev/null of dataset 'digits' does not exist",
    "--split trian": "Did you mean 'train'?",
    "--split train[:0]": "no examples",
    "--split train[5000:]": "train (1437 examples)",
    "--split train[": "'train['",
    "--split train+": "'train+'",
    "--split=": "''",
    "--batch-size 0": "batch_size=0",
    "--workers -1": "--workers -1: must be at least 0",
    "--torchrun 2 --replicas 3": "--torchrun 2 and --replicas 3 contradict each other",
    "--fake 5": "'digits' is embedded, with real content. Drop --fake.",
    "--fake 5 --name cifar11": "cifar10",
    "--fake 5 --name cifar10 --shards 6": "num_shards=6 is more than num_examples=5",
    "--shards 1438": "num_shards=1438 is more than num_examples=1437",
    "--shards 3 --name mnist": "--shards is for datasets that are built here",
    "--name cifar10": "python -m tfds_torch.check --name cifar10 --fake 1000",
    "--name cifar10:3.0.2": "tfds build cifar10:3.0.2",
    "--config nowhere.toml": "The config 'nowhere.toml': it does not exist",
    "--config ../x.toml": "leads out of its folder by '..'",
    "--json /nowhere/x.json": "--json '/nowhere/x.json' cannot be written: No such file or directory",
    "--json /dev/null": "--json '/dev/null' names something else than a file",
    "--images x.jpg": "end its name with .png",
    "--json x.png --images x.png": "name the same file x.png",
    "--read-mode sideways": "auto, index, files, examples",
    "--read-mode file": "Did you mean 'files'?",
    "--read-mode files": "1 non-empty file",
    "--read-mode files --eval": "evaluation takes 'index', 'examples' or 'auto'",
}
MISUSE = {
    "--batch-size many": "invalid int value: 'many'",
    "--workers 2.5": "invalid int value: '2.5'",
    "--fake many": "invalid int value: 'many'",
    "--nam cifar10": "unrecognized arguments: --nam cifar10",
    "photos": "unrecognized arguments: photos",
}


@pytest.mark.parametrize("line", [*TYPOS, *MISUSE])
def test_a_typo_is_one_message_and_exit_code_2(checker: Checker, line: str) -> None:
    checked = checker.check(*line.split(" "))
    assert (checked.code, checked.output) == (2, "")
    assert (TYPOS | MISUSE)[line] in checked.errors
    if line in TYPOS:
        assert checked.errors.startswith("error: ")
        assert len(checked.errors.strip().splitlines()) == 1


def test_help_names_every_argument(checker: Checker) -> None:
    checked = checker.check("--help")
    assert checked.code == 0
    names = "name root split config fake shards batch-size workers replicas torchrun eval read-mode epochs "
    names += "json html images plain-loader single-examples"
    for name in names.split():
        assert f"--{name} " in checked.output


# Odd datasets.


def test_markup_in_names_is_printed_as_it_is(checker: Checker, own_digits: Path, tmp_path: Path) -> None:
    names = ["[bold]zero", "[/]", "[/red]one", ":smile:", "[link=x]y[/link]", "\\", "back\\", "[[", "\x1b[31mred", "9"]
    (own_digits / "label.labels.txt").write_text("\n".join(names) + "\n")
    root = tmp_path / "[blue]:smile:"
    shutil.move(own_digits.parents[0], root / "digits")
    arguments = ["--root", root, *ONE_EVALUATION.split()]
    good = checker.check(*arguments, "--json", tmp_path / "r.json")
    bad = checker.check(*arguments, "--split", "[red]:smile:")
    assert good.code == 0, good.errors
    assert ", ".join(names[:8]) in good.output
    assert list(good.labels) == [*names[:8], r"\x1b[31mred", "9"]
    report = load(tmp_path / "r.json")
    assert report["dataset"]["class_names"] == [count["name"] for count in report["labels"]] == names
    assert [count["num_examples"] for count in report["labels"]] == list(good.labels.values())
    assert str(root) in good.output
    assert no_control_characters(good.output)
    assert bad.code == 2
    assert "'[red]:smile:'" in bad.errors


ODD = (
    "--split train+train --eval",
    "--split test[:0] --eval",
    "--split test[:1] --eval --replicas 3",
    "--split test[:3] --batch-size 2 --replicas 2 --epochs 4",
    "--split test[:10] --batch-size 64 --epochs 1",
)
MORE_ODD = (
    "--split train[:50%]+train[25%:] --eval",
    "--split train+test --eval",
    "--split all --eval",
    "--split test[:1] --epochs 3",
    "--split test[:2] --batch-size 1 --epochs 4",
    "--split test[-5:] --batch-size 1 --epochs 1",
    "--split test[:100] --batch-size 1 --epochs 1",
)


@pytest.mark.parametrize("line", [*ODD, *(pytest.param(line, marks=slow) for line in MORE_ODD)])
def test_an_odd_split_keeps_every_promise_and_has_a_page(checker: Checker, tmp_path: Path, line: str) -> None:
    checked = checker.check("--workers", "0", *line.split(" "), "--html", tmp_path / "r.html")
    assert (checked.code, checked.broken, checked.errors.strip()) == (0, {}, "")
    assert "kept" in load_page(tmp_path / "r.html").texts["verdict"]


# Interruptions.


@pytest.mark.parametrize("flag", [[], ["--torchrun", "2"]])
def test_a_check_that_torchrun_started_is_one_message_and_exit_code_2(checker: Checker, flag: list[str]) -> None:
    checked = checker.check_planted("under torchrun", flag)
    assert (checked.code, checked.output) == (2, "")
    assert checked.errors.startswith("error: The environment sets RANK=0 and WORLD_SIZE=2, as under torchrun")
    assert checked.errors.count("\n") == 1


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


def test_ctrl_c_among_batches_ends_everything_and_what_was_known_is_in_the_report(
    machine: Machine, digits: Path, tmp_path: Path
) -> None:
    """Thirty batches of twelve an epoch: two epochs are whole."""
    path = tmp_path / "r.json"
    process = machine.start(PLANTED_CHECK, "--interrupt", "--eval", "--epochs", "100", "--json", path)
    errors = assert_interrupted(process, [])
    assert errors == "Interrupted. 30 of 1,200 batches had come, 2 whole epochs; no promise broken until then.\n"
    report = load(path)
    assert (report["exit_code"], report["is_interrupted"], report["error"]) == (130, True, None)
    assert (report["num_batches_read"], [epoch["epoch"] for epoch in report["epochs"]]) == (30, [0, 1])
    assert all(epoch["num_valid"] == 360 and epoch["num_missing"] == 0 for epoch in report["epochs"])
    assert {promise["name"] for promise in report["promises"]} >= {"every example exactly once", "every batch full"}
    assert all(promise["kept"] for promise in report["promises"])
    assert sum(count["num_examples"] for count in report["labels"]) == 360


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
    assert load(path)["exit_code"] == 0


# What the command was asked to do, with real workers.


DONE_WHEN = {
    "cifar10": "--name cifar10 --fake 5000 --replicas 3 --workers 2 --eval",
    "mnist": "--name mnist --fake 5000 --replicas 3 --workers 2 --eval --read-mode examples",
    "imagenet2012": "--name imagenet2012 --fake 200",
}


@slow
@pytest.mark.parametrize(
    "name", ["imagenet2012", *(pytest.param(name, marks=campaign) for name in ("cifar10", "mnist"))]
)
def test_made_up_content_is_checked_and_a_cut_of_it_is_found(machine: Machine, tmp_path: Path, name: str) -> None:
    own = Machine(tmp_path)
    (tmp_path / "data").mkdir()
    path = tmp_path / "r.json"
    line = [*DONE_WHEN[name].split(), "--json", path]
    checked = own.check(*line)
    assert (checked.code, checked.broken) == (0, {}), checked.errors
    assert checked.errors.count("\n") == 1
    assert checked.errors.startswith(f"tfds_torch: building the demo dataset '{name}' (fake)")
    assert len(checked.promises) == (8 if "examples" in line else 11)
    report = load(path)
    assert (report["exit_code"], report["dataset"]["is_fake"]) == (0, True)
    for epoch in report["epochs"]:
        assert epoch["num_unknown"] == 0
        if "--eval" in line:
            figures = (epoch["num_valid"], epoch["num_missing"], epoch["num_twice"], epoch["num_padded"])
            assert figures == (5000, 0, 0, -5000 % 96)
    num_labelled = sum(count["num_examples"] for count in report["labels"])
    assert num_labelled == report["dataset"]["num_examples"] - report["epochs"][0]["num_missing"]
    assert all(len(rank["processes"]) >= 3 for rank in report["throughput"])
    num_records = report["dataset"]["num_examples"] // 8
    shard = sorted(Path(report["dataset"]["data_dir"]).glob(f"{name}-train*"))[5]
    whole = shard.read_bytes()
    for num_bytes, reason in ((0, f"holds {num_records - 3} of {num_records} examples"), (20, "inside record")):
        shard.write_bytes(whole)
        cut(shard, num_records - 3, num_bytes)
        damaged = own.check(*line)
        assert_names_the_damage(damaged, shard, reason)
        report = load(path)
        assert report["exit_code"] == 1
        assert shard.name in report["error"]["message"]


@slow
def test_a_worker_finds_the_cut_of_a_fake(machine: Machine, fake: FakeCheck, tmp_path: Path) -> None:
    """Without --fake nothing is looked at before it is read."""
    shutil.copytree(fake.root, tmp_path / "root")
    shard = sorted((tmp_path / "root").glob("cifar10/*/cifar10-train*"))[3]
    cut(shard, 9, 30)
    line = ["--name", "cifar10", "--root", tmp_path / "root", "--replicas", "3", "--workers", "2", "--eval"]
    assert_names_the_damage(machine.check(*line), shard, "inside record 9")


@slow
def test_the_contact_sheet_of_a_fake_names_its_classes(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = f"--name imagenet2012 --fake 12 --eval --workers 0 --epochs 1 --root {tmp_path / 'root'}"
    checked = machine.check(*line.split(), "--images", tmp_path / "sheet.png")
    assert (checked.code, checked.broken) == (0, {}), checked.errors
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.format == "PNG"
    written: list[str] = []
    draw = ImageDraw.ImageDraw.text

    def text(self: ImageDraw.ImageDraw, position: Any, text: str, *args: Any, **kwargs: Any) -> None:
        written.append(text)
        draw(self, position, text, *args, **kwargs)

    monkeypatch.setattr(ImageDraw.ImageDraw, "text", text)
    parser = ParserTfds(tmp_path / "root", "imagenet2012")
    save_contact_sheet(parser, tmp_path / "again.png", "title")
    assert (tmp_path / "again.png").stat().st_size > 20_000
    title, *captions = written
    assert (title, len(captions)) == ("title", 12)
    assert parser.class_names
    assert set(captions) <= set(parser.class_names)
    assert captions == [name for name in captions if re.fullmatch(r"n\d{8}", name)]


@slow
def test_what_cannot_be_faked_is_named(machine: Machine) -> None:
    checked = machine.check("--name", UNFAKEABLE, "--fake", "4")
    assert (checked.code, checked.output) == (2, "")
    *_, message = checked.errors.splitlines()
    assert message.startswith("error: ")
    assert f"'{UNFAKEABLE}'" in message
    assert "choose another dataset" in message


@slow
def test_the_shards_of_an_embedded_dataset_can_be_chosen(machine: Machine) -> None:
    checked = machine.check("--shards", "8", "--workers", "2", "--epochs", "1", "--read-mode", "examples")
    assert (checked.code, checked.broken) == (0, {}), checked.errors
    assert "1,437 examples in 8 shards" in checked.output
    assert not any("lies in" in sentence for sentence in checked.advice)


@slow
def test_advice_for_an_embedded_dataset_can_be_followed(machine: Machine) -> None:
    """The test split of the digits lies in one shard, whatever --shards says."""
    checked = machine.check("--shards", "8", "--workers", "2", "--eval", "--epochs", "1", "--read-mode", "examples")
    assert checked.code == 0, checked.errors
    assert not any("--shards 8" in sentence for sentence in checked.advice), checked.advice


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
    report = load(tmp_path / "r.json")
    assert (report["exit_code"], report["dataset"], report["promises"]) == (130, None, [])
