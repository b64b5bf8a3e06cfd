"""Shards that are replaced by others of the same size are noticed, or their server is refused when they are opened."""

import os
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parsers.tar_samples import sample_of
from servers.faulty_server import Fault, FaultyFolder
from storage.beton.made_files import write_images
from storage.made_shards import write_array_record
from storage.webdataset.made_tars import write_samples
from tfds_fixtures import change_format, record_offsets

from tfds_torch.engines.options import ReadOptions
from tfds_torch.errors import ConfigError
from tfds_torch.parsers.beton import ParserBeton
from tfds_torch.parsers.parser import DatasetParser
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.parsers.webdataset import ParserWebDataset
from tfds_torch.remote.__main__ import run
from tfds_torch.storage.remote.options import RemoteOptions
from tfds_torch.storage.tfrecord.framing import read_records

Serve = Callable[[Path | str], str]
READING: dict[str, Any] = {"batch_size": 4, "read": ReadOptions(block_records=4, shuffle_buffer=8)}
REFUSED = r"sends neither an ETag nor a Last-Modified.*remote=RemoteOptions\(trust_size=True\)\."
OF_TARS = range(12)


def open_tfds(url: str, **options: Any) -> DatasetParser:
    return ParserTfds(url, "numbered:1.0.0", **READING, **options)


def open_tars(url: str, **options: Any) -> DatasetParser:
    return ParserWebDataset(f"{url}/a-0.tar", **READING, **options)


def open_beton(url: str, **options: Any) -> DatasetParser:
    return ParserBeton(f"{url}/a.beton", **READING, **options)


def labels(parser: DatasetParser) -> list[int]:
    return [label for batch in parser.batches(fields=("label",)) for label in np.asarray(batch.label).tolist()]


@pytest.fixture
def make(tmp_path: Path, numbered_root: str) -> Callable[[str], Path]:
    """`make(kind)`: returns a folder with a dataset of a format."""

    def make(kind: str) -> Path:
        folder = tmp_path / "files"
        if kind in ("tfrecord", "array_record"):
            shutil.copytree(numbered_root, folder)
        else:
            folder.mkdir()
        if kind == "array_record":
            for path in folder.rglob("*.tfrecord-*"):
                write_array_record(Path(str(path).replace("tfrecord", kind)), list(read_records(path)))
                path.unlink()
            for info in folder.rglob("dataset_info.json"):
                change_format(info.parent, "array_record")
        if kind == "tar":
            write_samples(folder / "a-0.tar", map(sample_of, OF_TARS))
        if kind == "beton":
            write_images(folder / "a.beton", 12)
        return folder

    return make


OPEN = {"tfrecord": open_tfds, "array_record": open_tfds, "tar": open_tars, "beton": open_beton}


@pytest.mark.parametrize("kind", OPEN)
def test_a_server_without_versions_is_refused_at_opening_also_where_all_is_cached(
    serve: Serve, make: Callable[[str], Path], faulty_server: FaultyFolder, own_cache: Path, kind: str
) -> None:
    url = serve(make(kind))
    faulty_server.fault("*", Fault(unversioned=True))
    with pytest.raises(ConfigError, match=REFUSED):
        OPEN[kind](url)
    trusting = OPEN[kind](url, remote=RemoteOptions(trust_size=True))
    expected = labels(trusting)
    assert len(expected) >= 12
    with pytest.raises(ConfigError, match=REFUSED):
        OPEN[kind](url)
    again = OPEN[kind](url, remote=RemoteOptions(trust_size=True))
    assert labels(again) == expected


@pytest.mark.parametrize("kind", ["tfrecord", "array_record"])
def test_metadata_without_versions_beside_shards_that_have_them_are_read(
    serve: Serve, make: Callable[[str], Path], faulty_server: FaultyFolder, kind: str
) -> None:
    """As where a web server writes JSON anew for each answer."""
    url = serve(make(kind))
    faulty_server.fault("*.json", Fault(unversioned=True))
    parser = open_tfds(url)
    assert labels(parser) == list(range(41))
    faulty_server.heal()
    faulty_server.fault(f"*.{kind}-*", Fault(unversioned=True))
    with pytest.raises(ConfigError, match=REFUSED):  # When a shard is first looked at.
        labels(open_tfds(url))


def reverse_records(path: Path) -> None:
    ends = [*record_offsets(path), path.stat().st_size]
    content = path.read_bytes()
    records = [content[start:stop] for start, stop in pairwise(ends)]
    path.write_bytes(b"".join(reversed(records)))


@pytest.mark.parametrize("etag", ['"kept"', 'W/"kept"'])
@pytest.mark.parametrize("kind", ["tfrecord", "tar"])
def test_a_shard_that_is_replaced_under_its_etag_is_read_anew(
    serve: Serve, make: Callable[[str], Path], faulty_server: FaultyFolder, kind: str, etag: str
) -> None:
    """As tornado serves it: the new shard has the size and the ETag of the old one, and another time."""
    url = serve(make(kind))
    faulty_server.fault("*", Fault(etag=etag))
    expected = labels(OPEN[kind](url))
    (path,) = faulty_server.folder.rglob("a-0.tar" if kind == "tar" else "*train.tfrecord-00003-of-00009")
    status = path.stat()
    if kind == "tar":
        write_samples(path, map(sample_of, reversed(OF_TARS)))
        new = expected[::-1]
    else:
        reverse_records(path)
        new = [*expected[:7], *expected[7:12][::-1], *expected[12:]]
    assert path.stat().st_size == status.st_size
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 2 * 10**9))
    assert labels(OPEN[kind](url)) == new != expected


def test_the_command_has_the_flag_that_its_error_asks_for(
    serve: Serve, make: Callable[[str], Path], faulty_server: FaultyFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"{serve(make('tfrecord'))}/numbered/1.0.0"
    faulty_server.fault("*", Fault(unversioned=True))
    assert run(["index", url]) == 2
    assert "RemoteOptions(trust_size=True)" in capsys.readouterr().err
    assert run(["index", url, "--trust-size"]) == 0
    assert "Indexed 8 shards of numbered:1.0.0: 41 examples." in capsys.readouterr().out
