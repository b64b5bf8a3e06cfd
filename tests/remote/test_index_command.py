"""`python -m tfds_torch.remote index` writes the indices of shards beside them, and readers use them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parsers.tar_samples import sample_of
from servers.faulty_server import FaultyFolder
from servers.s3_server import S3Server
from storage.webdataset.made_tars import write_samples

from tfds_torch.engines.options import ReadOptions
from tfds_torch.parsers.parser import DatasetParser
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.parsers.webdataset import ParserWebDataset
from tfds_torch.remote.__main__ import run
from tfds_torch.storage.remote.options import RemoteOptions

Serve = Callable[[Path | str], str]
BLOCKS = ReadOptions(block_records=2, shuffle_buffer=2)


def labels(parser: DatasetParser) -> list[int]:
    return [label for batch in parser.batches(fields=("label",)) for label in np.asarray(batch.label).tolist()]


def fetched(parser: DatasetParser) -> int:
    return int(parser.source.files.store.stats()["bytes_fetched"])


def forget(own_cache: Path) -> None:
    """Removes what this machine knows."""
    shutil.rmtree(own_cache)


def index(url: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert run(["index", url, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_bucket_keeps_its_indices(
    s3_server: S3Server, numbered_root: str, own_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = s3_server.fill(Path(numbered_root) / "numbered", "indexed", "numbered")
    found = index(f"{url}/1.0.0", capsys)
    assert (found["num_shards"], found["num_examples"], found["refusal"]) == (8, 41, None)
    assert found["num_bytes"] > 8 * 41
    forget(own_cache)
    parser = ParserTfds(None, f"{url}/1.0.0", batch_size=1, read=BLOCKS)
    assert parser[20].label == 20
    assert fetched(parser) < 3000, "a record was fetched with its block, and no shard"
    assert labels(parser) == list(range(41))


def test_readers_use_what_lies_beside_and_ignore_what_is_wrong(
    serve: Serve, faulty_server: FaultyFolder, numbered_root: str, own_cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = serve(numbered_root)
    parser = ParserTfds(url, "numbered:1.0.0", batch_size=8, read=BLOCKS)
    assert labels(parser) == list(range(41))
    found: Any = parser.source._opened().index
    (folder,) = faulty_server.folder.rglob("numbered/1.0.0")
    (folder / ".tfds_torch").mkdir()
    for file, shard in enumerate(found.files):
        (folder / ".tfds_torch" / f"{Path(shard).name}.index").write_bytes(found.to_bytes(file))
    whole = fetched(parser)
    for damage in (None, "cut", "of another shard"):
        name = f"{Path(found.files[7]).name}.index"
        beside = folder / ".tfds_torch" / name
        if damage == "cut":
            beside.write_bytes(beside.read_bytes()[:-9])
        if damage == "of another shard":
            shutil.copy(folder / ".tfds_torch" / f"{Path(found.files[6]).name}.index", beside)
        remote = RemoteOptions(cache_dir=own_cache / str(damage))
        shutil.rmtree(own_cache / "tfds_torch" / "record_index")
        caplog.clear()
        again = ParserTfds(url, "numbered:1.0.0", batch_size=8, read=BLOCKS, remote=remote)
        assert again[40].label == 40
        assert ("is not used" in caplog.text) == (damage is not None)
        assert (fetched(again) < whole / 10) == (damage is None)


def test_a_web_server_takes_none_and_this_machine_keeps_them(
    serve: Serve, numbered_root: str, own_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = serve(numbered_root)
    found = index(f"{url}/numbered/1.0.0", capsys)
    assert "a web server takes no files" in found["refusal"]
    assert len(list(Path(found["folder"]).glob("*.index"))) == 8
    assert run(["index", f"{url}/numbered/1.0.0"]) == 0
    assert "Indexed 8 shards of numbered:1.0.0: 41 examples. Their indices are kept in" in capsys.readouterr().out


def test_tars_keep_their_indices(
    s3_server: S3Server, tmp_path: Path, own_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tars").mkdir()
    for tar in range(2):
        write_samples(tmp_path / "tars" / f"a-{tar}.tar", map(sample_of, range(tar * 10, tar * 10 + 10)))
    url = f"{s3_server.fill(tmp_path / 'tars', 'tars')}/a-{{0..1}}.tar"
    found = index(url, capsys)
    assert (found["num_shards"], found["num_examples"], found["refusal"]) == (2, 20, None)
    forget(own_cache)
    parser = ParserWebDataset(url, batch_size=4, read=BLOCKS)
    assert fetched(parser) == 0
    near = ParserWebDataset(str(tmp_path / "tars" / "a-{0..1}.tar"), batch_size=4)
    assert parser.fingerprint == near.fingerprint
    assert labels(parser) == labels(near)


@pytest.mark.parametrize(
    ("url", "code", "said"),
    [
        ("/data/tfds", 2, "is not the URL of an object"),
        ("s3://bucket/a.beton", 2, "needs no index"),
        ("{url}/numbered/9.9.9", 1, "There is no dataset at"),
    ],
)
def test_what_has_no_index_is_said(
    serve: Serve, numbered_root: str, capsys: pytest.CaptureFixture[str], url: str, code: int, said: str
) -> None:
    assert run(["index", url.format(url=serve(numbered_root))]) == code
    assert said in " ".join(capsys.readouterr().err.split())


def test_wrong_usage_is_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["remove"], ["index"], ["index", "s3://bucket/a", "--cache", "x"]):
        assert run(words) == 2
        assert "usage: python -m tfds_torch.remote" in capsys.readouterr().err
