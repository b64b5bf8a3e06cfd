"""Files that FFCV 1.0.2 itself wrote, read field by field."""

import io
import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from storage.beton.made_files import unpack
from storage.beton.plain_reader import read_plainly

from tfds_torch.errors import CorruptRecordError
from tfds_torch.storage.beton.source import BetonSource
from tfds_torch.storage.beton.verify import verify

NUM_SAMPLES = 12
EVERY = np.arange(NUM_SAMPLES)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack("regenerated_ffcv_1.0.2.beton.gz", tmp_path_factory.mktemp("ffcv"))


@pytest.fixture(scope="module")
def photograph() -> Any:
    return np.asarray(Image.open(io.BytesIO((files("tfds_torch.demo") / "data/china.jpg").read_bytes())))


def test_every_field_of_a_file_of_ffcv_reads_right(path: Path, photograph: Any) -> None:
    source = BetonSource(path)
    source.check()
    assert list(source.specs) == ["raw", "jpg", "int", "float", "bytes", "json", "nd", "tensor"]
    columns = source.read(EVERY, list(source.specs))
    assert columns["int"].tolist() == [7 * n - 3 for n in range(NUM_SAMPLES)]
    assert columns["float"].tolist() == [n / 8 - 0.5 for n in range(NUM_SAMPLES)]
    assert columns["bytes"] == [f"bytes {n}".encode() * (n + 1) for n in range(NUM_SAMPLES)]
    assert list(map(json.loads, columns["json"])) == [{"i": n, "name": f"ex {n} é"} for n in range(NUM_SAMPLES)]
    assert (columns["nd"].dtype, columns["nd"].shape) == (np.float32, (NUM_SAMPLES, 2, 3))
    assert (columns["nd"] == np.arange(6).reshape(2, 3) * EVERY[:, None, None]).all()
    assert (columns["tensor"].dtype, columns["tensor"].tolist()) == (np.int16, [[n] * 3 for n in range(NUM_SAMPLES)])
    for n in range(NUM_SAMPLES):
        height, width = 20 + 3 * n, 31 + 2 * n
        assert (columns["raw"][n] == photograph[5 * n : 5 * n + height, 7 * n : 7 * n + width]).all()
        decoded = np.asarray(Image.open(io.BytesIO(columns["jpg"][n]))).astype(int)
        assert np.abs(decoded - photograph[100:148, n : n + 64]).mean() < 6


def test_it_is_what_the_plain_reader_reads(path: Path) -> None:
    _, samples = read_plainly(path.read_bytes())
    columns = BetonSource(path).read(EVERY[::-1], ["raw", "jpg", "bytes", "nd"])
    for n, sample in enumerate(reversed(samples)):
        assert columns["raw"][n].tobytes() == sample["raw"][3]
        assert columns["jpg"][n] == sample["jpg"][3]
        assert columns["bytes"][n] == sample["bytes"]
        assert (columns["nd"][n] == sample["nd"]).all()


def test_its_ids_are_the_file_and_a_number(path: Path) -> None:
    source = BetonSource(path)
    assert list(source.ids(np.array([0, 11]))) == [
        "regenerated_ffcv_1.0.2.beton__0",
        "regenerated_ffcv_1.0.2.beton__11",
    ]
    assert source.find("regenerated_ffcv_1.0.2.beton__11") == 11


def test_verify_says_that_payloads_have_no_checksums(path: Path) -> None:
    report = verify(path)
    assert (report.num_samples, report.num_pages, report.num_jpeg) == (NUM_SAMPLES, 0, NUM_SAMPLES)
    assert "have no checksums" in report.unchecked[0]


def test_a_file_that_ffcv_did_not_finish_is_refused(tmp_path: Path) -> None:
    path = unpack("golden_ffcv_1.0.2.beton.gz", tmp_path)
    with pytest.raises(CorruptRecordError, match="names no allocation table: its writer did not finish"):
        BetonSource(path)
