"""Windows of robots' episodes by URL: the index of their steps lies beside the shards."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parsers.robot_episodes import LENGTHS, Robots
from servers.faulty_server import FaultyFolder
from servers.s3_server import S3Server

from tfds_torch.engines.options import ReadOptions
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.plan.windows import Windows
from tfds_torch.remote.__main__ import run

Serve = Callable[[Path | str], str]
ASKED = {"bridge_like": "action", "droid_like": "action_dict/joint_velocity", "libero_like": "observation/state"}


def index(url: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert run(["index", url, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def open_windows(root: Path | str, name: str) -> ParserTfds:
    windows = Windows(offsets={ASKED[name]: range(3)})
    return ParserTfds(root, f"{name}:1.0.0", windows=windows, batch_size=4, read=ReadOptions(block_records=1))


def read_all(parser: ParserTfds, name: str) -> list[Any]:
    batches = parser.batches(fields=(ASKED[name], "id"))
    return [[np.asarray(batch.features[ASKED[name]]).tolist(), list(batch.id)] for batch in batches]


def fetched(parser: ParserTfds) -> int:
    return int(parser.source.files.store.stats()["bytes_fetched"])


@pytest.mark.parametrize("name", LENGTHS)
def test_a_bucket_keeps_the_index_of_steps(
    s3_server: S3Server, robots: Robots, own_cache: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    root = s3_server.fill(robots.root / name, f"robots-{name.replace('_', '-')}", name).removesuffix(f"/{name}")
    found = index(f"{root}/{name}/1.0.0", capsys)
    assert (found["num_examples"], found["refusal"], found["sequences"]) == (len(LENGTHS[name]), None, ["steps"])
    shutil.rmtree(own_cache)  # What this machine knows.
    far, near = open_windows(root, name), open_windows(robots.root, name)
    assert len(far.source) == sum(LENGTHS[name])
    size = sum(path.stat().st_size for path in (robots.root / name / "1.0.0").glob("*-of-*"))
    assert fetched(far) == 0, "steps are counted without the shards"
    assert far[0].id == near[0].id
    assert 0 < fetched(far) < size
    assert far.fingerprint == near.fingerprint
    assert read_all(far, name) == read_all(near, name)
    assert fetched(far) <= size


def test_a_web_server_takes_none_and_this_machine_keeps_it(
    serve: Serve, faulty_server: FaultyFolder, robots: Robots, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"{serve(robots.root / 'bridge_like')}"
    found = index(f"{url}/1.0.0", capsys)
    assert "a web server takes no files" in found["refusal"]
    before = faulty_server.ledger().bytes_by_path
    assert run(["index", f"{url}/1.0.0"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "4 examples, and the steps of steps. Their indices are kept in" in said
    far = open_windows(url.rpartition("/")[0], "bridge_like")
    assert len(far.source) == sum(LENGTHS["bridge_like"])
    after = faulty_server.ledger().bytes_by_path
    assert {path: size for path, size in after.items() if "-of-" in path and ".index" not in path} == {
        path: size for path, size in before.items() if "-of-" in path and ".index" not in path
    }


@pytest.mark.parametrize("damage", ["cut", "of another shard"])
def test_an_index_that_cannot_be_used_is_ignored_with_a_warning(
    s3_server: S3Server,
    robots: Robots,
    tmp_path: Path,
    own_cache: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    damage: str,
) -> None:
    name, bucket = "libero_like", damage.replace(" ", "-")
    root = s3_server.fill(robots.root / name, bucket, name).removesuffix(f"/{name}")
    index(f"{root}/{name}/1.0.0", capsys)
    store, folder = s3_server.store(bucket), f"{name}/1.0.0/.tfds_torch"
    shards = [path.name for path in sorted((robots.root / name / "1.0.0").glob("*-of-*"))]
    content = bytes(store.get(f"{folder}/{shards[0]}.of-steps.index").bytes())
    if damage == "cut":
        store.put(f"{folder}/{shards[0]}.of-steps.index", content[:-9])
    else:
        store.put(f"{folder}/{shards[1]}.of-steps.index", content)
    shutil.rmtree(own_cache)
    far = open_windows(root, name)
    assert read_all(far, name) == read_all(open_windows(robots.root, name), name)
    assert "is not used" in caplog.text
