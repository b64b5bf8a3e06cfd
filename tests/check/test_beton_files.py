"""`.beton` files under `python -m tfds_torch.check`, and the plain reader that they are held against."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from storage.beton.made_files import write_images, write_samples

from tfds_torch.check import beton_reader, command
from tfds_torch.errors import ShardError
from tfds_torch.storage.beton.fields import BetonFloat, BetonInt, BetonJson
from tfds_torch.storage.beton.image_field import BetonImage
from tfds_torch.storage.beton.source import BetonSource
from tfds_torch.storage.beton.writer import BetonWriter
from tfds_torch.storage.stored_pixels import StoredPixels

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
    assert "kept  the index is the file's" in printed
    assert "All 10 promises kept." in printed
    assert "class 9" in printed


def test_pixels_of_another_sample_break_a_promise(
    images: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = BetonSource.read
    monkeypatch.setattr(BetonSource, "read", lambda self, index, fields: read(self, index[::-1], fields))
    assert check(images, "--plain-loader") == 1
    assert "broken  the index is the file's" in capsys.readouterr().out.replace("BROKEN", "broken")


def test_a_file_without_images_is_checked_but_for_its_index(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with BetonWriter(tmp_path / "numbers.beton", {"label": BetonInt()}, 12) as writer:
        for number in range(12):
            writer.add((number % 3,))
    assert check(tmp_path / "numbers.beton") == 0
    assert "Not judged: the index is the file's: the file has no image" in capsys.readouterr().out


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


FIELDS: dict[str, Any] = {
    "text": BetonJson(),
    "score": BetonFloat(),
    "picture": BetonImage("smart", smart_threshold=200),
}


@pytest.mark.parametrize(
    "names", [("picture",), ("text", "picture"), ("score", "picture"), ("text", "score", "picture")]
)
def test_the_plain_reader_finds_images_behind_any_fields(tmp_path: Path, names: tuple[str, ...]) -> None:
    path = tmp_path / "some.beton"
    pixels = [np.full((4 + 3 * number, 5, 3), number, np.uint8) for number in range(6)]  # The larger ones are JPEG.
    with BetonWriter(path, {name: FIELDS[name] for name in names}, len(pixels)) as writer:
        for number, image in enumerate(pixels):
            sample = {"text": ["x"] * number, "score": number / 2, "picture": image}
            writer.add({name: sample[name] for name in names})
    stored = BetonSource(path).read(np.array([5, 0, 3]), ["picture"])["picture"]
    theirs = beton_reader.read_images(path, "picture", [5, 0, 3])
    sizes = [Image.open(io.BytesIO(one.image or b"")).size for one in theirs]
    assert sizes == [(5, 19), (5, 4), (5, 13)]
    assert not isinstance(stored, StoredPixels)
    digests = [beton_reader.digest(one if isinstance(one, bytes) else one.tobytes()) for one in stored]
    assert [one.digest for one in theirs] == digests
    assert {isinstance(one, bytes) for one in stored} == {True, False}


def test_the_plain_reader_says_what_it_cannot_read(tmp_path: Path) -> None:
    path = tmp_path / "some.beton"
    write_samples(path)
    with pytest.raises(ShardError, match="cannot be read by the table of its format: KeyError\\('label'\\)"):
        beton_reader.read_images(path, "label", [0])
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ShardError, match="by the table of its format"):
        beton_reader.read_images(path, "image", [0])
