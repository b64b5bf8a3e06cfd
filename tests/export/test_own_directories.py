"""What is exported is never written to: not a dataset's own directory, and not a file that is read."""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.exports import contents
from tfds_torch.errors import ConfigError
from tfds_torch.export.api import FORMATS, export_dataset
from tfds_torch.parsers.beton import ParserBeton
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.parsers.webdataset import ParserWebDataset


def export(source: Any, out: Path, file_format: str) -> Any:
    return export_dataset(source, out, format=file_format, overwrite=file_format == "beton", num_workers=1)


@pytest.fixture
def dataset(exported_root: Path, tmp_path: Path) -> Path:
    """The version directory of a dataset."""
    return Path(shutil.copytree(exported_root / "photos", tmp_path / "root" / "photos")) / "1.0.0"


@pytest.fixture
def images(exported_root: Path, tmp_path: Path) -> Path:
    """The root of an image folder."""
    root, parser = tmp_path / "images", ParserTfds(exported_root, "photos")
    for number, example in enumerate(parser.dataset.encoded_examples(np.arange(4), ["image"])):
        path = root / "train" / f"class{number % 2}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(example.image))
    return root


def places_in(directory: Path, file_format: str, tmp_path: Path) -> Iterator[Path]:
    """Yields paths that lead into a directory."""
    (tmp_path / "link").symlink_to(directory)
    for folder in (directory, tmp_path / "link"):
        if file_format != "beton":
            yield folder
            yield folder / "new" / "newer"
        yield from sorted(path for path in folder.iterdir() if path.is_file())[:3]
        yield folder / "new"
    yield directory / ".." / directory.name / "new"


@pytest.mark.parametrize("file_format", FORMATS)
def test_nothing_in_the_directory_of_a_dataset_is_written_to(dataset: Path, tmp_path: Path, file_format: str) -> None:
    parser, before = ParserTfds(dataset.parent.parent, "photos"), contents(dataset)
    for out in places_in(dataset, file_format, tmp_path):
        message = (
            rf"^{re.escape(str(out))} is in .*/photos/1\.0\.0, the directory of photos:1\.0\.0, which is the source of"
        )
        with pytest.raises(ConfigError, match=message):
            export(parser, out, file_format)
    assert contents(dataset) == before
    assert sorted(os.listdir(dataset.parent)) == ["1.0.0"]
    export(parser, dataset.parent / "2.0.0", file_format)


@pytest.mark.parametrize("file_format", ["beton", "webdataset"])
def test_nothing_in_the_root_of_an_image_folder_is_written_to(images: Path, tmp_path: Path, file_format: str) -> None:
    parser, before = ParserTfds(images, "image_folder"), contents(images)
    for folder in (images, images / "train", images / "train" / "class0"):
        for out in ([] if file_format == "beton" else [folder], [folder / "new"]):
            for place in out:
                with pytest.raises(ConfigError, match=r"is in .*/images, the directory of image_folder:1\.0\.0"):
                    export(parser, place, file_format)
    assert contents(images) == before


def test_tars_are_not_written_over_by_their_export_and_neither_are_others_beside_them(
    dataset: Path, tmp_path: Path
) -> None:
    tars = tmp_path / "tars"
    export_dataset(ParserTfds(dataset.parent.parent, "photos"), tars, format="webdataset", num_shards=3, num_workers=1)
    before = contents(tars)
    first, second, _ = sorted(tars.glob("*.tar"))
    (tmp_path / "link.tar").symlink_to(second)
    parser = ParserWebDataset(str(first))
    with pytest.raises(ConfigError, match="is the source of this export: choose another path"):
        export(parser, first, "beton")
    for other in (second, tmp_path / "link.tar"):
        with pytest.raises(ConfigError, match=r"\.tar is a tar beside those of .*, which is exported: choose another"):
            export(parser, other, "beton")
    with pytest.raises(ConfigError, match="is the source of this export: choose another folder"):
        export(parser, tars, "webdataset")
    assert contents(tars) == before
    export(parser, tars / "a.beton", "beton")
    export(parser, tars / "a.beton", "beton")
    with pytest.raises(ConfigError, match=r"a\.beton is the source of this export"):
        export(ParserBeton(tars / "a.beton"), tars / "a.beton", "beton")
