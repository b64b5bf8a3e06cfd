"""`.beton` files under `python -m tfds_torch.check`."""

from pathlib import Path

import pytest
from storage.beton.made_files import write_images

from tfds_torch.check import command
from tfds_torch.storage.beton.fields import BetonInt
from tfds_torch.storage.beton.source import BetonSource
from tfds_torch.storage.beton.writer import BetonWriter

ONE_PASS = ["--workers", "0", "--eval", "--epochs", "1", "--batch-size", "4"]


def check(path: Path, *flags: str) -> int:
    return command.main(["--name", str(path), *ONE_PASS, *flags])


@pytest.fixture
def images(tmp_path: Path) -> Path:
    write_images(tmp_path / "images.beton", 40, class_names={"label": [f"class {number}" for number in range(10)]})
    return tmp_path / "images.beton"


def test_a_file_is_checked(images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(images) == 0
    printed = capsys.readouterr().out
    assert "the head of images.beton promises 40 examples per pass" in printed
    assert "kept  pixels are Pillow's" in printed
    assert "All 9 promises kept." in printed
    assert "class 9" in printed


def test_pixels_of_another_sample_break_a_promise(
    images: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = BetonSource.read
    monkeypatch.setattr(BetonSource, "read", lambda self, index, fields: read(self, index[::-1], fields))
    assert check(images, "--plain-loader") == 1
    assert "broken  pixels are Pillow's" in capsys.readouterr().out.replace("BROKEN", "broken")


def test_a_file_without_images_is_checked_but_for_its_index(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with BetonWriter(tmp_path / "numbers.beton", {"label": BetonInt()}, 12) as writer:
        for number in range(12):
            writer.add((number % 3,))
    assert check(tmp_path / "numbers.beton") == 0
    assert "Not judged: pixels are Pillow's: the dataset has no image" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--root", "somewhere"], "Drop --root"),
        (["--fake", "3"], "Drop --fake"),
        (["--shards", "3"], "Drop --shards"),
        (["--split", "train"], "Drop --split"),
        (["--read-mode", "files"], "only read by index"),
        (["--name", "imagse.beton"], "Did you mean 'images.beton'"),
    ],
)
def test_what_a_file_cannot_do_is_wrong_usage(
    images: Path, capsys: pytest.CaptureFixture[str], flags: list[str], said: str
) -> None:
    if flags[0] == "--name":
        flags = ["--name", str(images.with_name(flags[1]))]
    assert check(images, *flags) == 2
    assert said in capsys.readouterr().err.replace("\n", " ")
