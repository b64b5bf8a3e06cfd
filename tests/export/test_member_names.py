"""Names of members: keys of any bytes, and names that a tar file has no room for, which are told beforehand."""

import io
import os
import tarfile
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

import numpy as np
import pytest

from export.made_sources import Numbered
from tfds_torch.errors import ConfigError
from tfds_torch.export.exporting import export_dataset
from tfds_torch.parsers.parser_beton import ParserBeton
from tfds_torch.parsers.parser_web_dataset import ParserWebDataset
from tfds_torch.storage.beton.fields import BetonInt
from tfds_torch.storage.beton.writer import BetonWriter


def write_tar(path: Path, keys: list[bytes]) -> ParserWebDataset:
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        for key in keys:
            member = tarfile.TarInfo(os.fsdecode(key) + ".cls")
            member.size = 1
            tar.addfile(member, io.BytesIO(b"7"))
    return ParserWebDataset(str(path))


def keys_of(folder: Path) -> list[str]:
    (path,) = folder.glob("*.tar")
    with tarfile.open(path) as tar:
        return [name.partition(".")[0] for name in tar.getnames()]


def test_a_key_that_is_not_utf_8_comes_back_from_its_escapes(tmp_path: Path) -> None:
    keys = [b"caf\xe9", b"caf\xc3\xa9", b"a/\xff\xfe", b"100%"]
    source = write_tar(tmp_path / "a.tar", keys)
    export_dataset(source, tmp_path / "out", format="webdataset", key="id", num_workers=1)
    assert keys_of(tmp_path / "out")[:2] == ["caf%E9", "caf%C3%A9"]
    assert list(map(unquote_to_bytes, keys_of(tmp_path / "out"))) == keys


@pytest.mark.parametrize(("kind", "extension"), [("array", "npy"), ("text", "txt"), ("mixed", "json")])
def test_a_field_name_that_no_tar_has_room_for_is_refused_beforehand(tmp_path: Path, kind: str, extension: str) -> None:
    value = {"array": np.zeros(2), "text": "a", "mixed": [1]}[kind]
    longest = 100 - len("000000000.") - len(f".{extension}")
    samples: Any = [{"x" * longest: value, "label": 3}]
    report = export_dataset(samples, tmp_path / "out", format="webdataset", num_workers=1)
    assert report.num_samples == 1
    samples = [{"x" * (longest + 1): value, "label": 3}]
    with pytest.raises(ConfigError, match=r"(?s)Nothing was written: .*leaves 90 after the key '000000000'.*'x+': its"):
        export_dataset(samples, tmp_path / "new", format="webdataset", num_workers=1)
    assert not (tmp_path / "new").exists()
    names = {"x" * (longest + 1): "short"}
    assert export_dataset(samples, tmp_path / "new", format="webdataset", names=names, num_workers=1).num_shards == 1


def test_keys_that_no_tar_has_room_for_are_refused_beforehand(tmp_path: Path) -> None:
    source = write_tar(tmp_path / "a.tar", [b"a", b"\xff" * 32, b"b" * 30])
    export_dataset(source, tmp_path / "out", format="webdataset", key="id", num_workers=1)
    source = write_tar(tmp_path / "b.tar", [b"a", b"\xff" * 33, b"b" * 30])
    with pytest.raises(ConfigError, match=r"Nothing was written: .*leaves 0 after the key '(%FF){33}'"):
        export_dataset(source, tmp_path / "new", format="webdataset", key="id", num_workers=1)
    assert not (tmp_path / "new").exists()


def test_ids_of_samples_that_have_none_are_refused_beforehand(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"samples of Numbered have no id\. Use key='number'"):
        export_dataset(Numbered(), tmp_path / "out", format="webdataset", key="id", num_workers=1)
    assert os.listdir(tmp_path) == []


def test_an_id_that_two_samples_of_a_shard_have_is_refused(tmp_path: Path) -> None:
    with BetonWriter(tmp_path / "a.beton", {"label": BetonInt()}, num_samples=4) as writer:
        for number, sample_id in enumerate("xyzz"):
            writer.add((number,), id=sample_id)
    source = ParserBeton(tmp_path / "a.beton")
    with pytest.raises(ConfigError, match=r"another sample has the same id\. Use key='number'"):
        export_dataset(source, tmp_path / "out", format="webdataset", key="id", num_shards=1, num_workers=1)
    assert not list((tmp_path / "out").glob("*.tar"))
    export_dataset(source, tmp_path / "apart", format="webdataset", key="id", max_count=3, num_workers=1)
    tars = ParserWebDataset(str(tmp_path / "apart" / "a_beton-all-{000000..000001}.tar"), {"label": "cls"})
    assert [tars[number].label for number in range(len(tars))] == [0, 1, 2, 3]
