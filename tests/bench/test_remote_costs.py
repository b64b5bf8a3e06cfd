"""The suite `remote`: what the bucket holds, what is counted, and that the suite is measured for real."""

import json
import os
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench.made_up import SUITE_OF, epoch
from bench.watching import WATCHDOG_S

from benchmarks import bucket, remote_costs, remote_runs, remote_transfer
from benchmarks.competitor_process import CompetitorProcess
from benchmarks.environments import Environment, environment_of, this_environment
from benchmarks.file_server import Limits, Served
from benchmarks.peers import bare_obstore, remote_ours, remote_streams, stream_writers
from benchmarks.remote_runs import Epoch, Readers, disk_bytes, fetcher_usages, is_data, run_epochs, serve, stream_format
from benchmarks.remote_transfer import lost_or_twice
from benchmarks.served_folder import Ledger, ServedFolder
from benchmarks.tables import Table
from benchmarks.targets import judge
from benchmarks.task import STREAMS, Peer, Run, Settings, Task
from tfds_torch import ParserTfds
from tfds_torch.errors import ConfigError, WorkerError
from tfds_torch.runtime.process_tree import process_tree

FIELDS: dict[str, Any] = dict.fromkeys(
    ("num_examples", "megabytes", "connection_mb", "link_mb", "batch_size", "num_workers"), 1
)
RANK = """
import time
from benchmarks.bucket import RemoteWork
from benchmarks.peers.remote_ours import meet
from pathlib import Path

class Rank:
    def __init__(self, task):
        self.work = RemoteWork(**task.remote)
        if self.work.rank == 0:
            (Path(task.data_dir) / "held").write_bytes(bytes(300_000))
        meet(Path(self.work.meeting_dir), self.work.rank, self.work.num_ranks)

    def __call__(self, epoch):
        time.sleep(0.5)
        yield [b"an image"] * 2

    def report(self):
        rank = self.work.rank
        return {"began_at": 10.0 + rank, "ended_at": 12.0 + rank, "numbers": [[rank, 5 - rank]]}

def load(task):
    return Rank(task)
"""


def version_of(photos: Path) -> Path:
    return photos / "photos" / "1.0.0"


# The bucket


@pytest.mark.parametrize("num_copies", [1, 3])
def test_a_dataset_of_several_copies_is_one_that_is_as_many_times_as_large(
    num_copies: int, photos: Path, tmp_path: Path
) -> None:
    size = bucket.link_dataset(version_of(photos), tmp_path / "photos" / "1.0.0", num_copies)
    shards = sorted((tmp_path / "photos" / "1.0.0").glob("*.tfrecord-*"))
    assert [shard.name.rpartition("-")[2] for shard in shards] == [f"{2 * num_copies:05d}"] * 2 * num_copies
    assert sum(shard.stat().st_size for shard in shards) == size
    parser, source = ParserTfds(tmp_path, "photos"), ParserTfds(photos, "photos")
    assert parser.num_examples == 64 * num_copies
    assert [parser[number].label for number in (0, 63, 64 * num_copies - 1)] == [
        source[number].label for number in (0, 63, 63)
    ]


def test_files_are_copied_where_there_are_no_links(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("other disk")

    monkeypatch.setattr(os, "link", refuse)
    bucket.link_files(version_of(photos), tmp_path / "copy")
    names = sorted(path.name for path in version_of(photos).iterdir())
    assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == names
    assert (tmp_path / "copy" / names[-1]).read_bytes() == (version_of(photos) / names[-1]).read_bytes()


def test_what_is_served_is_the_dataset_at_its_url(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_runs.machine, "cache_dir", lambda: tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "index.json").write_text("{}")
    with serve(photos, 64, Limits(link_bytes_per_s=5e9), 2, {"mds": tmp_path / "other"}) as served:
        assert served.num_examples == 128
        assert served.link_bytes_per_s == 5e9
        assert served.data_dir == f"{served.server.url}/bench/tfds"
        assert served.server.ask("GET", "/bench/tfds/photos/1.0.0/dataset_info.json")["name"] == "photos"
        assert served.server.ask("GET", "/bench/mds/index.json") == {}
        assert served.new_folder("cache") != served.new_folder("cache")
        kept = served.workplace
    assert not kept.exists()


# What is counted


def ledger(**sizes: int) -> Ledger:
    return Ledger(1.0, [Served(0.0, "GET", path, None, None, 0, 200, size) for path, size in sizes.items()])


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("photos-train.tfrecord-00000-of-00008", True),
        ("shard.00000.mds", True),
        ("chunk-0-0.bin", True),
        ("photos-train-00000-of-00008.tar", True),
        ("dataset_info.json", False),
        ("photos-train.tfrecord-00000-of-00008.index", False),
        ("index.json", False),
    ],
)
def test_bytes_of_examples_are_told_from_those_of_metadata(name: str, counts: bool) -> None:
    assert is_data(f"/bench/tfds/{name}") == counts
    found = Epoch([epoch()], ledger(**{f"/bench/a.folder/{name}": 7, "/bench/features.json": 3}))
    assert (found.data_bytes, found.data_requests) == ((7, 1) if counts else (0, 0))
    assert found.ledger.num_bytes == 10


def of_ranks(*numbers: list[list[int]], began: float = 1.0, ended: float = 3.0) -> Epoch:
    reports = [
        {"began_at": began + rank, "ended_at": ended + 2 * rank, "numbers": own} for rank, own in enumerate(numbers)
    ]
    return Epoch([replace(epoch(num_examples=3), report=report) for report in reports], ledger())


def test_an_epoch_of_ranks_lasts_from_the_first_beginning_to_the_last_end() -> None:
    assert of_ranks([[1]], [[2]], [[3]]).whole_s == 6.0
    assert of_ranks([[1]]).num_examples == 3
    assert Epoch([epoch(2.5)], ledger()).whole_s == 2.5


def test_global_batches_are_those_of_all_ranks() -> None:
    found = of_ranks([[7, 1], [0]], [[2, 4], [9]])
    assert found.global_batches() == [[1, 2, 4, 7], [0, 9]]
    with pytest.raises(ValueError, match="shorter"):
        of_ranks([[1], [2]], [[3]]).global_batches()


@pytest.mark.parametrize(
    ("numbers", "num_wrong"),
    [([[0, 1], [2, 3]], 0), ([[0, 1], [2]], 1), ([[0, 1], [2, 2]], 2), ([[0, 1, 2, 3], [3]], 1), ([], 4)],
)
def test_examples_that_are_lost_or_come_twice_are_counted(numbers: list[list[int]], num_wrong: int) -> None:
    assert lost_or_twice(of_ranks(numbers), 4) == num_wrong


def test_what_a_folder_takes_is_that_of_its_disk_not_of_its_holes(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "full").write_bytes(os.urandom(1 << 20))
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(1 << 24)
    os.sync()
    assert 1 << 20 <= disk_bytes(tmp_path) < 3 << 19


def test_a_fetcher_is_found_by_its_command() -> None:
    assert fetcher_usages(process_tree(os.getpid())[:1]) == []
    command = [sys.executable, "-c", "print(flush=True); input()  # tfds_torch.storage.remote.fetcher"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # Its command is known by then.
        ((memory, cpu_s),) = fetcher_usages(process_tree(process.pid))
        process.communicate(b"\n")
    assert memory > 1 << 20
    assert cpu_s >= 0
    assert fetcher_usages(process_tree(process.pid)) == []


def test_the_long_epoch_is_as_long_as_local_files_take_to_decode() -> None:
    def pixels(*speeds: float) -> Table:
        return remote_costs.PIXELS.fill({"local": {"warm_per_s": list(speeds)}}, **FIELDS)

    assert remote_costs.long_copies(pixels(800.0, 900.0, 1000.0), 4096) == 15  # 66 s of 900 examples.
    assert remote_costs.long_copies(pixels(1.0), 4096) == 1
    assert remote_costs.long_copies(pixels(), 4096) == 1


# Processes that read together


@pytest.fixture
def planted(tmp_path: Path) -> Environment:
    folder = tmp_path / "planted"
    folder.mkdir()
    (folder / "planted_rank.py").write_text(RANK)
    here = this_environment()
    return Environment(here.executable, [str(folder), *here.path])


def rank_tasks(tmp_path: Path, num_ranks: int) -> list[Task]:
    for name in ("meeting", "cache"):
        (tmp_path / name).mkdir()
    remote = {"num_ranks": num_ranks, "meeting_dir": str(tmp_path / "meeting")}
    task = Task(str(tmp_path / "cache"), None, 4, 2, 0, image_shape=None)
    return [replace(task, remote={**remote, "rank": rank}) for rank in range(num_ranks)]


def test_ranks_begin_together_and_report(tmp_path: Path, planted: Environment) -> None:
    with ServedFolder(tmp_path) as server:
        peer, tasks = Peer("planted", "planted", "planted_rank:load"), rank_tasks(tmp_path, 3)
        readers = Readers(peer, tasks, WATCHDOG_S, server, planted, watched=tmp_path / "cache")
        cold, warm = run_epochs(readers, 2)
    assert cold.whole_s == warm.whole_s == 4.0
    assert cold.global_batches() == [[0, 1, 2, 3, 4, 5]]
    assert 300_000 <= warm.most_cached < 400_000
    assert warm.num_examples == 6
    assert (cold.ledger.requests, cold.fetchers) == ([], [])


def test_one_that_fails_ends_the_others(tmp_path: Path, planted: Environment) -> None:
    tasks = rank_tasks(tmp_path, 2)
    tasks[1] = replace(tasks[1], remote={"unknown": 1})
    with ServedFolder(tmp_path) as server:
        readers = Readers(Peer("planted", "planted", "planted_rank:load"), tasks, WATCHDOG_S, server, planted)
        with pytest.raises(WorkerError, match="unknown"):
            run_epochs(readers, 1)


def test_processes_are_those_that_live(tmp_path: Path, planted: Environment) -> None:
    (task,) = rank_tasks(tmp_path, 1)
    process = CompetitorProcess(Peer("planted", "planted", "planted_rank:load"), task, WATCHDOG_S, planted)
    assert process.processes() == []
    try:
        looks: list[int] = []
        figures = process.run_epoch(lambda: looks.append(len(process.processes())))
        assert figures.report["numbers"] == [[0, 5]]
        assert "report" not in figures.as_dict()
        assert looks[-1] == len(process.processes()) == 1
    finally:
        process.end()
    assert process.processes() == []


# The competitors and their formats


@pytest.mark.parametrize("module", [remote_ours, remote_streams, bare_obstore, stream_writers])
def test_every_competitor_says_how_it_is_configured(module: Any) -> None:
    assert "Configured" in module.__doc__
    for peer in (*remote_costs._COMPETITORS, remote_transfer._OBSTORE_PEER):
        name, _, function = peer.loader.partition(":")
        if name == module.__name__:
            assert callable(getattr(module, function))


@pytest.fixture(scope="module")
def tars(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("formats") / "tar"
    folder.mkdir()
    (folder / "source.json").write_text("{}")
    for shard in range(2):
        with tarfile.open(folder / f"{shard}.tar", "w") as tar:
            for number in range(3):
                for name, content in ((f"{number}.jpg", bytes([shard, number])), (f"{number}.cls", b"%d" % number)):
                    path = folder.parent / name
                    path.write_bytes(content)
                    tar.add(path, name)
    return folder


def test_writers_get_the_encoded_images_as_they_are(tars: Path) -> None:
    found = list(stream_writers.read_examples(str(tars / "1.tar")))
    assert found == [{"image": bytes([1, number]), "label": number} for number in range(3)]


def write_as(script: str, folder: Path) -> Environment:
    """An environment whose interpreter runs a script in the place of the writers."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return Environment(str(path), [])


def test_a_format_is_written_once_for_the_same_photographs(tars: Path, tmp_path: Path) -> None:
    environment = write_as(f'echo "$3 $4" >> {tmp_path}/calls; echo made > "$5/index.json"', tmp_path)
    target = stream_format("mds", tars, environment)
    assert (target / "index.json").read_text() == "made\n"
    assert stream_format("mds", tars, environment) == target
    (tars / "source.json").write_text("{ }")
    os.utime(tars / "source.json", (1, 1))
    again = stream_format("mds", tars, environment)
    assert again != target
    assert not target.exists()
    assert (tmp_path / "calls").read_text() == f"mds {tars}\n" * 2


@pytest.mark.parametrize("script", ["echo 'ImportError: it is gone' >&2; exit 1", "echo 'it is gone' >&2"])
def test_a_writer_that_fails_is_an_error_and_leaves_nothing(script: str, tars: Path, tmp_path: Path) -> None:
    before = sorted(tars.parent.iterdir())
    with pytest.raises(WorkerError, match=r"^litdata could not be written: .*it is gone$"):
        stream_format("litdata", tars, write_as(script, tmp_path))
    assert [path for path in sorted(tars.parent.iterdir()) if path not in before and "lock" not in path.name] == []


# The whole suite

NOT_THERE = ("streaming", "litdata", "webdataset", "webdataset_cached")


def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_costs, "BYTES_COPIES", 2)
    monkeypatch.setattr(remote_costs, "LONG_S", 0.2)
    monkeypatch.setattr(remote_costs, "MACHINES_COPIES", 2)
    monkeypatch.setattr(remote_transfer, "SMALL_WINDOW", 16)


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_the_suite_is_measured_for_real(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(peer: Peer, baseline: str) -> Environment:
        if peer.environment == STREAMS:
            raise ConfigError("nothing is installed in a test")
        return environment_of(peer, baseline)

    small(monkeypatch)
    monkeypatch.setattr(remote_costs, "environment_of", refuse)
    run = Run((), Settings(64, 16, 2, 1, 200), photos, lambda text: None)
    tables: dict[str, Table] = {table.name: table for table in SUITE_OF["remote"].measure(run)}
    assert list(tables) == ["pixels", "first", "bytes", "small_cache", "machines", "long"]
    missing = {row.name: row.missing for table in tables.values() for row in table.rows if row.missing is not None}
    # Two windows and what is in flight are more than a quarter of so few photographs.
    assert "max_bytes" in missing.pop("quarter", "max_bytes")
    assert missing == dict.fromkeys(NOT_THERE, "nothing is installed in a test")
    found = {verdict.name: verdict for verdict in judge(SUITE_OF["remote"].targets, list(tables.values()))}
    for name in ("examples lost or twice", "requests for data in the next epoch"):
        assert found[name].kept, found[name]
    unjudged = [one for one in found.values() if one.found.startswith("cannot be judged")]
    assert {one.found.split(": ")[1] for one in unjudged} <= {f"{name} is missing" for name in (*NOT_THERE, "quarter")}
    assert tables["machines"].spread("4", "equal").median == 1


@pytest.mark.campaign
@pytest.mark.timeout(1800)
def test_competitors_read_all_photographs_from_the_server(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)
    run = Run((), Settings(64, 16, 2, 1, 200), photos, lambda text: None)
    environments, others, missing = remote_costs.prepare(run)
    if missing:
        assert set(missing.values()) == {next(iter(missing.values()))}
        assert "could not be installed" in next(iter(missing.values()))
        return
    assert json.loads((others["mds"] / "index.json").read_text())["shards"][0]["samples"] == 64
    with serve(photos, 64, Limits(), others=others) as served:
        table = remote_costs.measure_pixels(run, served, environments, missing)
    assert table.reasons() == []
    for row in table.rows:
        counts = table.spread(row.name, "num_examples")
        assert (counts.least, counts.greatest) == (64, 64), row.name
