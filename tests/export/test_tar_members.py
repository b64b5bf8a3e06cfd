"""Members of tar files: what has no place in one is refused before anything is written."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tfds_torch.errors import ConfigError
from tfds_torch.export.exporting import export_dataset
from tfds_torch.export.tar_members import Member
from tfds_torch.parsers.parser_web_dataset import ParserWebDataset


@pytest.mark.parametrize(
    ("sample", "names"),
    [
        ({"A": np.zeros(2), "a": np.ones(2)}, {}),
        ({"A": np.zeros(2), "b": np.ones(2)}, {"b": "a"}),
        ({"A": "x", "b": "y"}, {"b": "A"}),
    ],
)
def test_fields_that_readers_cannot_tell_apart_are_refused(
    tmp_path: Path, sample: dict[str, Any], names: dict[str, str]
) -> None:
    with pytest.raises(ConfigError, match=r"another field has the name '[aA]\.(npy|txt)' already"):
        export_dataset([sample] * 3, tmp_path / "out", format="webdataset", names=names, num_workers=1)
    assert not (tmp_path / "out").exists()


def test_a_tiff_which_no_reader_decodes_comes_back_as_bytes_and_is_not_taken_for_an_image(tmp_path: Path) -> None:
    file = io.BytesIO()
    Image.new("RGB", (3, 2)).save(file, "TIFF")
    samples = [{"scan": file.getvalue(), "label": 1}]
    report = export_dataset(samples, tmp_path / "out", format="webdataset", num_workers=1)
    assert report.fields == {"label": "cls", "scan": "scan.bin"}
    (url,) = map(str, (tmp_path / "out").glob("*.tar"))
    parser = ParserWebDataset(url, fields={"scan": "scan.bin", "label": "cls"})
    (example,) = parser.encoded_examples(np.array([0]), ["scan"])
    assert example.features["scan"] == file.getvalue()
    with pytest.raises(ConfigError, match=r"Field 'image': .* is not the beginning of a JPEG, PNG, GIF, BMP or WebP"):
        Member("image", "", "image").encode({"image": file.getvalue()})
