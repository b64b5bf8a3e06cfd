"""`python -m tfds_torch.export --name PATH`: a `.beton` file and tars are exported from by their paths."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest

from tfds_torch.export import command
from tfds_torch.export.api import export_dataset
from tfds_torch.parsers.beton import ParserBeton
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.parsers.webdataset import ParserWebDataset

TARS = "tars/photos-train-{000000..000003}.tar"


@pytest.fixture(scope="module")
def exports(exported_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `a.beton` and `TARS`, which hold `photos`."""
    folder, photos = tmp_path_factory.mktemp("exports"), ParserTfds(exported_root, "photos")
    export_dataset(photos, folder / "a.beton", format="beton", num_workers=1)
    export_dataset(photos, folder / "tars", format="webdataset", num_shards=4, key="id", num_workers=1)
    return folder


@pytest.fixture
def run(
    exports: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """`run("--name", "a.beton", ...)`: exit code and standard error, in a copy of `exports`."""
    shutil.copytree(exports, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str]:
        code = command.main([*arguments, "--workers", "2"])
        return code, capsys.readouterr().err

    return run


@pytest.mark.parametrize("source", ["a.beton", TARS])
@pytest.mark.parametrize("file_format", ["beton", "webdataset"])
def test_images_labels_and_ids_are_the_same_in_the_other_format(
    run: Callable[..., Any], exported_root: Path, source: str, file_format: str
) -> None:
    options = ["--format", "webdataset", "--key", "id", "--shards", "3"] if file_format != "beton" else []
    code, errors = run("--name", source, "--format", "beton", *options, "--verify", "out")
    assert (code, errors != "") == (0, source == TARS)
    assert not errors or errors.startswith("note: not exported are the members .file_name.txt: only image, label are.")
    there: Any = ParserBeton("out") if file_format == "beton" else ParserWebDataset(sorted(Path("out").glob("*.tar")))
    numbers, photos = np.arange(37), ParserTfds(exported_root, "photos")
    assert there.num_examples == 37
    for one, was in zip(*(each.dataset.encoded_examples(numbers, []) for each in (there, photos)), strict=True):
        assert (one.image, one.label) == (was.image, was.label)
    # Each tar's key is an id made safe, that of a tar included.
    assert [unquote(unquote(name)) for name in there.ids(numbers)] == list(photos.ids(numbers))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (f"--name {'x' * 300}.beton out", "x.beton' cannot be looked at: File name too long"),
        ("--name a.beton --split train out", "--split train: 'a.beton' names a .beton file, which is one split"),
        (f"--name {TARS} --fake 3 out", "names WebDataset's tars, which is one split, written before. Drop --fake"),
        ("--name b.beton out", "There is no file 'b.beton'. Did you mean 'a.beton'?"),
        ("--name tars/*.tar out", "Stars are not expanded: write train-{000..099}.tar"),
        ("--name a.beton gs://bucket/out", "gs://bucket/out is on another machine"),
        ("--name a.beton --format webdataset gs://bucket/out", "gs://bucket/out is on another machine"),
        ("--name a.beton --format webdataset b.tar", "b.tar is the name of a file, and webdataset is a folder of"),
        ("--name tars/photos-train-000004.tar out", "Did you mean 'photos-train-00000"),
        ("--name a.beton --format tfrecord out", "has no records to be copied"),
        ("--name a.beton --overwrite a.beton", "a.beton is the source of this export"),
        (f"--name {TARS} --format webdataset tars", "tars is the source of this export"),
    ],
)
def test_what_cannot_be_exported_is_code_two_and_changes_nothing(
    run: Callable[..., Any], arguments: str, message: str
) -> None:
    before = sorted(os.listdir())
    code, errors = run("--format", "beton", *arguments.split())
    assert (code, sorted(os.listdir())) == (2, before)
    assert message in errors
