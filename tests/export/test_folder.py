"""The folder of an export: a stateful model of it, parts, and the workers of any Executor."""

import os
import pickle
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from export import made_sources as made
from export.exports import FORMATS, contents, export, run_script
from export.made_sources import Numbered
from tfds_torch.errors import ConfigError, ExportError
from tfds_torch.export import folder as shard_folder
from tfds_torch.export import jobs
from tfds_torch.export.command import main
from tfds_torch.export.folder import ShardFolder, verify_shards
from tfds_torch.export.plan import Part
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.storage.remote.options import RemoteOptions
from tfds_torch.storage.remote.store import ObjectStore

NUM_SHARDS = 40


@pytest.mark.parametrize("num_examples", [6, pytest.param(40, marks=pytest.mark.slow)])
def test_whatever_happens_to_a_folder_no_shard_is_broken_and_the_end_is_the_same(
    run_python: Callable[..., Any], exported_root: Path, tmp_path: Path, num_examples: int
) -> None:
    happened = run_script(run_python, "folder_model.py", exported_root, tmp_path, num_examples)
    kinds = {"whole", "part", "two at once", "twice", "kill", "full", "damage", "foreign"}
    assert sum(happened.values()) > 3 * num_examples
    assert num_examples < 40 or {kind for kind in happened if happened[kind]} == kinds


# Parts


@pytest.mark.parametrize("file_format", FORMATS)
def test_parts_in_any_order_write_what_one_export_writes(
    exported_root: Path, tmp_path: Path, file_format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    options = ["--name", "photos", "--root", str(exported_root), "--format", file_format, "--shards", "10", "--verify"]
    told = []
    for part in ("3/4", "1/4", "4/4", "1/4", "2/4"):
        assert main([*options, "--part", part, "--workers", "2", str(out)]) == 0, capsys.readouterr().err
        told.append(capsys.readouterr().out.splitlines())
    assert told[0][0].startswith(f"{out}, part 3/4: ")
    assert ", 2 shards, " in told[0][0]
    assert "  8 shards of other parts are still to be written" in told[0]
    assert "  3 shards were complete already, and as before" in told[3]
    assert "  all parts are complete" in told[4]
    assert all("Verified: everything is as it was written." in lines for lines in told)
    export(ParserTfds(exported_root, "photos"), tmp_path / "whole", format=file_format, num_shards=10)
    assert contents(out) == contents(tmp_path / "whole")


def test_a_part_of_another_plan_or_number_is_refused_and_a_whole_export_writes_what_is_left(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert export(Numbered(), out, part=(2, 3)).num_missing == 3
    before = contents(out)
    refused: list[tuple[dict[str, Any], str]] = [
        ({"part": (1, 3), "num_shards": 4}, r"which stays: num_shards is 4, not 5"),
        ({"part": (1, 3), "shuffle_seed": 1}, r"which stays: shuffle_seed is 1, not null"),
        ({"part": (1, 2)}, r"is being written in 3 parts, and this is part 1/2: give parts of 3, or leave part"),
    ]
    for options, message in refused:
        with pytest.raises(ConfigError, match=message):
            export(Numbered(), out, **options)
        assert contents(out) == before
    with pytest.raises(ExportError, match="the export is not complete"):
        verify_shards(out)
    verify_shards(out, part="2/3")
    os.truncate(out / "Numbered-all-000001.tar", 99)
    with pytest.raises(ExportError, match="1 of 2 shards are damaged or missing"):
        verify_shards(out, part="2/3")
    assert export(Numbered(), out).num_kept == 1
    export(Numbered(), tmp_path / "whole")
    assert contents(out) == contents(tmp_path / "whole")


def test_a_part_keeps_out_itself_and_whole_exports_and_no_other_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_folder, "_WAIT_S", 0.1)
    out = tmp_path / "out"
    with ShardFolder(out, "all", Part(1, 2)).locked():
        with pytest.raises(ExportError, match=rf"Part 1/2 of {out} is being written by another process: let it end"):
            export(Numbered(), out, part="1/2")
        with pytest.raises(ExportError, match="Another export writes to"):
            export(Numbered(), out)
        assert export(Numbered(), out, part="2/2").num_missing == 3
    with ShardFolder(out, "all").locked(), pytest.raises(ExportError, match="Another export writes to"):
        export(Numbered(), out, part="1/2")
    assert export(Numbered(), out, part="1/2").num_missing == 0


def test_parts_are_every_nth_shard() -> None:
    shards = [number for part in range(1, 5) for number in Part.of_argument(f"{part}/4").shards(10)]
    assert shards == [0, 4, 8, 1, 5, 9, 2, 6, 3, 7]
    assert Part.of_argument((3, 16)) == Part.of_argument("3/16") == (3, 16)


# Any Executor


@pytest.fixture(params=["threads", "processes"])
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    kinds: dict[str, Callable[[], Executor]] = {
        "threads": lambda: ThreadPoolExecutor(3),
        "processes": lambda: ProcessPoolExecutor(2, mp_context=get_context("forkserver")),
    }
    with kinds[request.param]() as made_executor:
        yield made_executor


def test_any_executor_writes_the_bytes_of_local_workers_and_no_complete_shard_again(
    executor: Executor, exported_root: Path, tmp_path: Path
) -> None:
    parser = ParserTfds(exported_root, "photos")
    for file_format in FORMATS:
        options: dict[str, Any] = {"format": file_format, "num_shards": 5, "shuffle_seed": 3}
        seen: list[tuple[int, int]] = []
        out, local = tmp_path / file_format, tmp_path / f"local_{file_format}"
        report = export(parser, out, executor=executor, progress=lambda *now, seen=seen: seen.append(now), **options)
        export(parser, local, num_workers=2, **options)
        assert contents(out) == contents(local)
        assert (report.num_workers, report.num_shards, report.num_kept) == (0, 5, 0)
        assert seen == sorted(set(seen))
        assert seen[-1] == (37, 37)
        shard = sorted(out.glob("photos-*"))[2]
        os.truncate(shard, 99)
        assert export(parser, out, executor=executor, **options).num_kept == 4
        assert contents(out) == contents(local)


def test_a_task_that_fails_is_an_error_that_names_shard_and_sample_and_the_same_command_goes_on(
    executor: Executor, tmp_path: Path
) -> None:
    message = (
        rf"The export to {tmp_path}/out failed\. Numbered-all-000002\.tar: Numbered, dataset\[17\]: KeyError: 'the "
        rf"lost key'\. The shards that are comp.*\n\nRaised in a worker \(pid \d+ on {socket.gethostname()}\)"
    )
    with pytest.raises(ExportError, match=message):
        export(Numbered(at=17, act=made.fail), tmp_path / "out", executor=executor)
    executor.shutdown()  # Attempts that were under way.
    assert {path.suffix for path in (tmp_path / "out").iterdir()} <= {".tar", ".json", ".log"}
    there = {path: path.stat().st_ino for path in (tmp_path / "out").glob("*.tar")}
    export(Numbered(), tmp_path / "out")
    assert there.items() <= {path: path.stat().st_ino for path in (tmp_path / "out").glob("*.tar")}.items()
    export(Numbered(), tmp_path / "local")
    assert contents(tmp_path / "out") == contents(tmp_path / "local")


class Waiting(Executor):
    """An Executor that begins nothing."""

    def __init__(self) -> None:
        self.futures: list[Future[Any]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        self.futures.append(Future())
        if len(self.futures) == 3:
            signal.raise_signal(signal.SIGINT)
        return self.futures[-1]


def test_ctrl_c_cancels_what_has_not_begun_and_leaves_no_job(tmp_path: Path) -> None:
    executor = Waiting()
    with pytest.raises(KeyboardInterrupt):
        export(Numbered(), tmp_path / "out", executor=executor)
    assert [future.cancelled() for future in executor.futures[:2]] == [True, True]
    assert os.listdir(tmp_path / "out") == ["export-all.json"]


class Bomb:
    """Does harm where it is loaded."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("harm",)


def test_a_worker_loads_no_job_but_its_own_once_and_only_while_the_export_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    loads: list[bytes] = []
    monkeypatch.setattr(jobs.pickle, "loads", lambda content: loads.append(content) or pickle._loads(content))
    job = jobs.Job(_number, jobs.ExampleNames("digits", "Try again.", str))
    with jobs.job_file(str(tmp_path / ".export-all"), job) as reference:
        for number in range(3):
            assert jobs.do_task(*reference, number) == number
        assert len(loads) == 1
        with pytest.raises(ExportError, match=r"has tfds_torch .*, and this export is of tfds_torch 9 on Python 2"):
            jobs.do_task(reference.key, reference.path, "tfds_torch 9 on Python 2.7", 0)
        assert reference.path is not None
        Path(reference.path).write_bytes(pickle.dumps(Bomb()))
        with pytest.raises(ExportError, match="is not what this export wrote there, and is not loaded on"):
            jobs.do_task("0" * 32, reference.path, reference.versions, 0)
    with pytest.raises(ExportError, match=r"cannot be read on .* \(No such file or directory\): mount the folder"):
        jobs.do_task(*reference, 0)
    assert os.listdir(tmp_path) == []


def _number(task: int, metrics: Any) -> int:
    return task


def test_what_cannot_be_sent_is_refused_before_anything_is_written(
    exported_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ThreadPoolExecutor(1) as executor:
        source = Numbered(at=1, act=threading.Lock().release)
        with pytest.raises(ConfigError, match=r"cannot be sent to the executor's workers \(TypeError: cannot pickle"):
            export(source, tmp_path / "out", executor=executor)
        assert not list((tmp_path / "out").glob("*.tar"))
        parser = ParserTfds(exported_root, "photos")
        for url, said in [
            ("s3://bucket/a", r"every worker: AWS_ACCESS_KEY_ID, AWS_REGION\."),
            ("az://bucket/a", "AZURE_STORAGE_ACCESS_KEY_ID"),
            ("https://host/a", "Copy the files to a file system that is mounted there"),
        ]:
            store = ObjectStore(RemoteOptions(storage_options={"region": "here", "access_key_id": "secret"}))
            monkeypatch.setattr(type(parser.source), "networks", (store,))
            monkeypatch.setattr("tfds_torch.export.samples.ParserSamples.paths", (url,))
            with pytest.raises(ConfigError, match=r"with explicit storage_options \(access_key_id, region\)") as caught:
                export(parser, tmp_path / "far", executor=executor)
            assert caught.match(said)
            assert "secret'" not in str(caught.value)
    assert not (tmp_path / "far").exists()


@pytest.mark.slow
def test_a_dask_cluster_that_loses_workers_writes_the_bytes_of_a_local_export(tmp_path: Path) -> None:
    from distributed import Client, LocalCluster  # Of requirements/slow.txt.

    source, out, local = made.Slow(NUM_SHARDS * 5), tmp_path / "out", tmp_path / "local"
    killed: list[int] = []

    def kill_one(done: int, total: int) -> None:
        if len(killed) < 3 and done > total * (len(killed) + 1) // 5:
            pids = [worker.process.pid for worker in cluster.workers.values() if worker.process is not None]
            os.kill(pids[len(killed) % 2], signal.SIGKILL)
            killed.append(done)

    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs="CRITICAL"
        ) as cluster,
        Client(cluster) as client,
    ):
        report = export(source, out, num_shards=NUM_SHARDS, executor=client.get_executor(), progress=kill_one)
    assert len(killed) == 3
    assert (report.num_shards, report.num_workers) == (NUM_SHARDS, 0)
    export(source, local, num_shards=NUM_SHARDS, num_workers=2)
    assert contents(out) == contents(local)
