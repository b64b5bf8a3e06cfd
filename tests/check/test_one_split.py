"""`.beton` files and WebDataset's tars, which are one split each, under `python -m tfds_torch.check`."""

import json
from pathlib import Path
from typing import Any

import pytest
from encoded_images import photograph, save
from storage.beton.made_files import write_images
from storage.webdataset.made_tars import write_samples, write_tar

from tfds_torch.check import command
from tfds_torch.check.opening import open_parser
from tfds_torch.parsers.recipes import Config
from tfds_torch.parsers.webdataset import ParserWebDataset
from tfds_torch.storage.beton.fields import BetonInt
from tfds_torch.storage.beton.source import BetonSource
from tfds_torch.storage.beton.writer import BetonWriter
from tfds_torch.storage.webdataset.source import WebDatasetSource

ONE_PASS = ["--workers", "0", "--eval", "--epochs", "1", "--batch-size", "4"]


def check(name: object, *flags: str) -> int:
    return command.main(["--name", str(name), *ONE_PASS, *flags])


@pytest.fixture
def urls(tmp_path: Path) -> str:
    for tar in range(2):
        samples = [
            {"__key__": f"{n:03d}", "jpg": save(photograph((40, 30 + n)), "JPEG"), "cls": b"%d" % (n % 3)}
            for n in range(9 * tar, 9 * tar + 9)
        ]
        write_samples(tmp_path / f"a-{tar}.tar", samples)
    return str(tmp_path / "a-{0..1}.tar")


@pytest.fixture
def beton(tmp_path: Path) -> str:
    write_images(tmp_path / "images.beton", 40, class_names={"label": [f"class {number}" for number in range(10)]})
    return str(tmp_path / "images.beton")


@pytest.fixture(params=["beton", "urls"])
def named(request: pytest.FixtureRequest) -> str:
    """A `.beton` file, or tars."""
    name: str = request.getfixturevalue(request.param)
    return name


def test_every_promise_is_judged_but_the_index_by_tfds(named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(named) == 0
    printed = " ".join(capsys.readouterr().out.split())
    is_beton = named.endswith(".beton")
    source = "the head of images.beton promises 40" if is_beton else "the index of the tars promises 18"
    assert f"{source} examples per pass" in printed
    assert "kept pixels are Pillow's" in printed
    assert "All 9 promises kept." in printed
    what = ".beton files" if is_beton else "these tars"
    assert f"Not judged: the index is TFDS's own reader: TFDS does not read {what}" in printed
    assert ("class 9" in printed) is is_beton


def test_a_file_without_images_is_checked_but_for_its_pixels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with BetonWriter(tmp_path / "numbers.beton", {"label": BetonInt()}, 12) as writer:
        for number in range(12):
            writer.add((number % 3,))
    assert check(tmp_path / "numbers.beton") == 0
    assert "Not judged: pixels are Pillow's: the dataset has no image" in capsys.readouterr().out


def test_files_of_tar_tools_are_reported_and_break_no_promise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["README", ".DS_Store", *(f"a/{kind}{n}.{name}" for n in range(5) for kind in ("", "._")
             for name in ("png", "cls"))]  # fmt: skip
    content = {"png": save(photograph(), "PNG"), "cls": b"1"}
    path = write_tar(tmp_path / "a.tar", [(name, content.get(name.rpartition(".")[2], b"junk")) for name in names])
    report = tmp_path / "report.json"
    assert check(path, "--json", str(report)) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "12 files of no sample, such as tar tools leave them" in printed
    assert "All 9 promises kept." in printed
    assert json.loads(report.read_text())["dataset"]["num_skipped_files"] == 12


def test_pixels_of_another_sample_break_a_promise(
    named: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source: Any = BetonSource if named.endswith(".beton") else WebDatasetSource
    read = source.read
    monkeypatch.setattr(source, "read", lambda self, index, fields: read(self, index[::-1], fields))
    assert check(named, "--plain-loader") == 1
    assert "BROKEN pixels are Pillow's" in " ".join(capsys.readouterr().out.split())


def test_other_extensions_are_named_by_a_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [(f"{n}.{name}", save(photograph(), "PNG") if name == "x.png" else b"%d" % n)
             for n in range(5) for name in ("x.png", "kind.cls")]  # fmt: skip
    path = write_tar(tmp_path / "a.tar", files)
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(f'name = "{path}"\nimage_key = "x.png"\ntarget_key = "kind.cls"\n')
    assert command.main(["--config", str(recipe), *ONE_PASS]) == 0
    assert "All 9 promises kept." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--root", "somewhere"], "Drop --root"),
        (["--fake", "3"], "Drop --fake"),
        (["--shards", "3"], "Drop --shards"),
        (["--split", "train"], "Drop --split"),
        (["--read-mode", "files"], "only read by index"),
    ],
)
def test_flags_of_a_tfds_dataset_are_wrong_usage(
    named: str, capsys: pytest.CaptureFixture[str], flags: list[str], said: str
) -> None:
    assert check(named, *flags) == 2
    assert said in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("imagse.beton", "Did you mean 'images.beton'"),
        ("a-00.tar", "Did you mean 'a-0.tar'"),
        ("a-{0..2}.tar", "a-2.tar'. Did you mean"),
        ("a-{0..1.tar", "a brace is not closed"),
        ("a-{0...1}.tar", "{0...1} is not a range: write {0..1}."),
        ("a-*.tar", "Stars are not expanded"),
        ("{a-0.tar,a-9.tar}", "a-9.tar'. Did you mean"),
        ("B.TAR", "B.TAR'."),
        ("B.tar.GZ", "B.tar.GZ'."),
        ("hf://bucket/a.tar", "is neither a file of this machine nor a URL"),
    ],
)
@pytest.mark.usefixtures("urls", "beton")
def test_a_path_that_names_nothing_is_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, said: str
) -> None:
    assert check(name if "://" in name else tmp_path / name) == 2
    assert said in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("name", ["{a-0.tar,a-1.tar}", "{a-0.tar,B.TAR}", "B.TAR"])
def test_tars_are_known_by_their_ending_whatever_its_case_and_its_braces(name: str, urls: str) -> None:
    folder = Path(urls).parent
    if "B.TAR" in name:
        (folder / "a-1.tar").rename(folder / "B.TAR")
    parser = open_parser(Config(name=f"{folder}/{name}"))
    assert isinstance(parser, ParserWebDataset)
    assert parser.num_examples == (9 if name == "B.TAR" else 18)


def test_several_sets_of_tars_are_one_name(urls: str) -> None:
    folder = Path(urls).parent
    parser = open_parser(Config(name=f"{folder}/a-{{1..1}}.tar::{folder}/a-0.tar"))
    assert isinstance(parser, ParserWebDataset)
    assert [Path(path).name for path in parser.paths] == ["a-1.tar", "a-0.tar"]


def test_a_damaged_tar_is_a_broken_promise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_tar(tmp_path / "a.tar", [("1.jpg", b"x" * 2000)])
    path.write_bytes(path.read_bytes()[:1800])
    assert check(path) == 1
    assert "inside b'1.jpg'" in " ".join("".join(capsys.readouterr()).split())
