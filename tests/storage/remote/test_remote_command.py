"""`python -m tfds_torch.remote list` and `clear`."""

import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tfds_torch.remote.command import run
from tfds_torch.storage.remote.files import RemoteFiles
from tfds_torch.storage.remote.store import ObjectStore

MakeStore = Callable[..., ObjectStore]
CONTENT = random.Random(0).randbytes(3 << 20)


@pytest.fixture
def cache(server, make_store: MakeStore) -> Path:
    store = make_store()
    for name in ("a/one", "a/two", "b/three"):
        url = server.put(name, CONTENT)
        RemoteFiles(store, [url], [store.look([url])[0].stamp]).read(0, 0, 10)
        while store.stats()["blocks_cached"] < len(list(Path(store.cache).glob("objects/*"))):
            pass
    (Path(store.cache) / "notes.txt").write_text("mine")
    return Path(store.cache)


def test_list_shows_what_is_cached(cache: Path, server, capsys) -> None:
    assert run(["list", "--cache-dir", str(cache)]) == 0
    shown = capsys.readouterr().out
    assert f"Objects cached in {cache}:" in shown
    for name in ("a/one", "a/two", "b/three"):
        assert f"{server.root}/{name}" in shown
    assert "3 objects, 9.4 MB." in shown


def test_list_prints_json_of_a_part(cache: Path, server, capsys) -> None:
    assert run(["list", f"{server.root}/a", "--cache-dir", str(cache), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["url"] for one in found["objects"]] == [f"{server.root}/a/one", f"{server.root}/a/two"]
    assert [one["num_blocks"] for one in found["objects"]] == [1, 1]


def test_clear_removes_blocks_and_nothing_else(cache: Path, server, capsys) -> None:
    assert run(["clear", f"{server.root}/a/one", "--cache-dir", str(cache)]) == 0
    assert "Removed 1 object from" in capsys.readouterr().out
    assert run(["clear", "--cache-dir", str(cache)]) == 0
    assert "Removed 2 objects from" in capsys.readouterr().out
    assert run(["clear", "--cache-dir", str(cache)]) == 0
    assert "There was nothing to remove" in capsys.readouterr().out
    assert run(["list", "--cache-dir", str(cache)]) == 0
    assert f"Nothing is cached in {cache}." in capsys.readouterr().out
    assert (cache / "notes.txt").read_text() == "mine"


def test_who_reads_goes_on_after_clear(server, make_store: MakeStore, capsys) -> None:
    url = server.put("shard", CONTENT)
    store = make_store()
    files = RemoteFiles(store, [url], [store.look([url])[0].stamp])
    assert files.read(0, 0, len(CONTENT)) == CONTENT
    assert run(["clear", "--cache-dir", store.cache]) == 0
    assert files.read(0, 0, len(CONTENT)) == CONTENT


def test_wrong_usage_is_exit_code_2(tmp_path: Path, capsys) -> None:
    assert run(["list", "--cache-dir", str(tmp_path / "none")]) == 2
    assert f"error: There is no folder {tmp_path / 'none'}." in capsys.readouterr().err
    assert run(["list", "ftp://host/a"]) == 2
    assert "'ftp://host/a' is not the URL of an object: the schemes are s3://" in capsys.readouterr().err
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    assert run(["clear", "--cache-dir", str(tmp_path / "open")]) == 2
    assert "is left alone: others can write to it" in capsys.readouterr().err
    assert run(["remove"]) == 2
    assert run(["list", "--cache", "x"]) == 2


def test_the_command_loads_neither_torch_nor_tensorflow(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir(mode=0o700)
    program = (
        "import sys; from tfds_torch.remote.command import run; "
        f"code = run(['list', '--cache-dir', {str(tmp_path / 'cache')!r}]); "
        "print(code, [name for name in ('torch', 'tensorflow', 'obstore') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout.splitlines()[-1] == "0 []"
