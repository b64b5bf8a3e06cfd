"""`python -m tfds_torch.check --name image_folder --root DIR`."""

from pathlib import Path

import pytest
from image_folder_fixtures import LABELS, NUM_TEST, NUM_TRAIN, write_image_folder

from check.machine import Checked, Checker, Machine, row


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared: copy before changing anything."""
    return write_image_folder(tmp_path_factory.mktemp("folder") / "root")


LINE = ("--name", "image_folder", "--split", "train+test", "--batch-size", "8")


def test_every_promise_is_judged(checker: Checker, folder: Path) -> None:
    assert_kept(checker.check(*LINE, "--root", folder, "--workers", "0"))


def test_a_folder_without_splits_is_checked(checker: Checker, folder: Path) -> None:
    line = ("--name", "image_folder", "--batch-size", "8", "--root", folder / "train", "--workers", "0")
    checked = checker.check(*line, "--epochs", "1")
    assert (checked.code, checked.broken) == (0, {}), checked.errors


@pytest.mark.slow
def test_every_promise_is_judged_with_real_workers(machine: Machine, folder: Path) -> None:
    assert_kept(machine.check(*LINE, "--root", folder, "--workers", "2"))


def assert_kept(checked: Checked) -> None:
    assert checked.code == 0, checked.errors
    assert checked.broken == {}
    assert len(checked.promises) == 10
    assert "Not judged: the index is TFDS's own reader: an image folder has no records, and so" in checked.output
    assert f"Ledger: the image folder promises {NUM_TRAIN + NUM_TEST} examples per pass" in checked.output
    assert checked.ledger == [
        row(epoch=epoch, batches=9, valid=72, padded=0, missing=0, twice=0, unknown=0) for epoch in (0, 1)
    ]
    assert checked.labels.keys() == set(LABELS)


def test_the_card_counts_files_and_no_shards(checker: Checker, folder: Path) -> None:
    line = f"--name image_folder --root {folder} --eval --replicas 3 --workers 0 --batch-size 4 --epochs 1"
    checked = checker.check_line(line)
    assert checked.code == 0, checked.errors
    assert f"test: {NUM_TEST} examples in {NUM_TEST} files" in checked.output
    assert "shard" not in checked.output
    assert checked.ledger[0]["padded"] == "10"
    assert checked.broken == {}


def test_a_damaged_image_is_broken_by_name(checker: Checker, tmp_path: Path) -> None:
    root = write_image_folder(tmp_path / "root")
    image = next((root / "test" / "circle").glob("*.png"))
    image.write_bytes(b"")
    checked = checker.check_line(f"--name image_folder --root {root} --eval --workers 0")
    assert checked.code == 1
    assert f"{image} of image_folder:1.0.0 is empty" in checked.errors.replace("\n", " ")


def test_what_is_no_image_folder_is_wrong_usage(checker: Checker, folder: Path) -> None:
    checked = checker.check_line(f"--name image_folder --root {folder / 'notes'}")
    assert checked.code == 2
    assert "is not an image folder: no image lies two folders below it." in checked.errors
    checked = checker.check_line("--name image_folder")
    assert checked.code == 2
    assert "image_folder needs root" in checked.errors
