"""WebDataset's shards, made and read by the real webdataset."""

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from export.made_sources import image_of
from tfds_torch.errors import ConfigError, ExportError
from tfds_torch.export.api import export_dataset
from tfds_torch.export.web_dataset_shards import WebDatasetShards
from tfds_torch.parsers.beton import ParserBeton
from tfds_torch.storage.beton.source import BetonSource

COUNTS = (5, 0, 1, 8)
TOTAL = sum(COUNTS)


def jpeg_of(number: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image_of(number)).save(file, "JPEG")
    return file.getvalue()


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    import webdataset

    folder = tmp_path_factory.mktemp("shards")
    paths, number = [], 0
    for shard, count in enumerate(COUNTS):
        paths.append(str(folder / f"train-{shard}.tar"))
        with webdataset.TarWriter(paths[-1]) as writer:
            for _ in range(count):
                writer.write({"__key__": f"sample{number:03}", "jpg": jpeg_of(number), "cls": number % 4})
                number += 1
    return paths


@pytest.mark.parametrize("num_workers", [1, 3])
def test_samples_as_they_are_stored_keep_their_bytes_and_keys(
    shards: list[str], tmp_path: Path, num_workers: int
) -> None:
    source = WebDatasetShards(shards)
    fields = {"cls": "bytes"}
    report = export_dataset(source, tmp_path / "a.beton", format="beton", fields=fields, num_workers=num_workers)
    assert (report.num_samples, report.num_reencoded, len(source)) == (TOTAL, 0, TOTAL)
    columns = BetonSource(tmp_path / "a.beton").read(np.arange(TOTAL), ["jpg", "cls"])
    assert columns["jpg"] == [jpeg_of(number) for number in range(TOTAL)]
    assert list(columns["cls"]) == [b"%d" % (number % 4) for number in range(TOTAL)]
    parser = ParserBeton(tmp_path / "a.beton", image_key="jpg", target_key=None)
    assert list(parser.ids(np.arange(TOTAL))) == [f"sample{number:03}" for number in range(TOTAL)]


def test_a_pipeline_makes_tuples_and_braces_are_expanded(shards: list[str], tmp_path: Path) -> None:
    url = f"{os.path.dirname(shards[0])}/train-{{0..3}}.tar"
    source = WebDatasetShards(url, lambda shard: shard.decode("rgb8").to_tuple("jpg", "cls"))
    assert source.urls == shards
    report = export_dataset(source, tmp_path / "a.beton", format="beton", shuffle_seed=3)
    assert list(report.fields) == ["image", "label"]
    parser = ParserBeton(tmp_path / "a.beton")
    labels = [one.label for one in parser.examples_by_index(range(TOTAL))]
    assert sorted(labels) == sorted(number % 4 for number in range(TOTAL))
    assert sorted(parser.ids(np.arange(TOTAL)))[:2] == ["train-0.tar__0", "train-0.tar__1"]


def test_a_shard_is_the_unit_of_work(shards: list[str], tmp_path: Path) -> None:
    report = export_dataset(WebDatasetShards(shards), tmp_path / "a.beton", format="beton", num_workers=9)
    assert report.num_workers == len(shards)


def test_a_shard_that_is_missing_or_cut_is_named(shards: list[str], tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"WebDatasetShards, shard /nowhere/a\.tar: FileNotFoundError"):
        export_dataset(WebDatasetShards([*shards, "/nowhere/a.tar"]), tmp_path / "a.beton", format="beton")
    cut = tmp_path / "cut.tar"
    cut.write_bytes(Path(shards[0]).read_bytes()[:900])
    with pytest.raises(ExportError, match=r"shard .*cut\.tar: "):
        export_dataset(WebDatasetShards([cut]), tmp_path / "a.beton", format="beton")
    assert os.listdir(tmp_path) == ["cut.tar"]


class Changing:
    """A pipeline that makes other samples the second time, after it was counted."""

    def __init__(self, folder: Path, counts: tuple[int, int]) -> None:
        self.folder, self.counts = folder, counts

    def __call__(self, shard: Any) -> Iterator[tuple[int]]:
        seen = self.folder / "seen"
        count = self.counts[seen.exists()]
        for number in range(count):
            yield (number,)
        seen.touch()


@pytest.mark.parametrize(
    ("counts", "message"),
    [((3, 4), "has more than the 3 samples counted"), ((3, 2), "has 2 samples, and 3 were counted")],
)
def test_a_pipeline_that_changes_its_mind_is_an_error(
    shards: list[str], tmp_path: Path, counts: tuple[int, int], message: str
) -> None:
    source = WebDatasetShards(shards[:1], Changing(tmp_path, counts))
    with pytest.raises(ExportError, match=message):
        export_dataset(source, tmp_path / "a.beton", format="beton", names=("n",))
    assert os.listdir(tmp_path) == ["seen"]


def test_arguments_that_cannot_work_are_refused(shards: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="urls is empty"):
        WebDatasetShards([])
    with pytest.raises(ConfigError, match=r"train-0\.tar is named twice"):
        WebDatasetShards([shards[0], shards[0]])
    with pytest.raises(ConfigError, match="pipeline=3 must be a function"):
        WebDatasetShards(shards, 3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="how many samples there are is known once"):
        len(WebDatasetShards(shards))
    monkeypatch.setitem(__import__("sys").modules, "webdataset", None)
    with pytest.raises(ConfigError, match=r"pip install 'tfds-torch\[webdataset\]'"):
        WebDatasetShards(shards)
