"""What is measured of tar files: writers in turn, memory, and the index, at a small size."""

import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import export_costs
from benchmarks.peers import ours, writers
from benchmarks.task import Run, Settings, Task
from tfds_torch.errors import ConfigError


def small_run(data_dir: Path, num_repeats: int = 1) -> Run:
    return Run((), Settings(64, 8, 0, num_repeats, timeout_s=60), data_dir, lambda text: None)


@pytest.fixture(scope="module")
def tars(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "tars"
    writers.export(str(photos), str(folder), 1, 2)
    return folder


def members(folder: Path) -> list[tuple[str, bytes]]:
    found = []
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as tar:
            found += [(one.name, tar.extractfile(one).read()) for one in tar]
    return found


def test_shard_writer_is_fed_with_the_very_bytes_that_we_wrote(tars: Path, tmp_path: Path) -> None:
    took_s, _ = writers.write_with_webdataset(str(tars), str(tmp_path / "theirs"))
    assert took_s > 0
    assert sorted(members(tmp_path / "theirs")) == sorted(members(tars))
    assert len(list((tmp_path / "theirs").glob("*.tar"))) == len(list(tars.glob("*.tar"))) == 2


@pytest.mark.parametrize("is_synced", [False, True])
def test_cp_copies_every_shard(is_synced: bool, photos: Path, tmp_path: Path) -> None:
    writers.copy(str(photos), str(tmp_path / "copy"), is_synced)
    files = writers.tfrecord_files(photos)
    assert files
    assert {path.name: path.read_bytes() for path in (tmp_path / "copy").iterdir()} == {
        path.name: path.read_bytes() for path in files
    }


def test_writers_take_turns_the_first_does_not_count_and_nothing_stays(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def call(write: Callable[..., object], *arguments: object) -> tuple[float, float]:
        calls.append(write.__name__)
        assert not (tmp_path / "written").exists()
        (tmp_path / "written").mkdir()
        if write is writers.write_with_webdataset:
            raise ConfigError("No module named 'webdataset'")
        return (100.0 if len(calls) <= 5 else 2.0 if write is writers.export else 1.0), 0.5

    monkeypatch.setattr(export_costs.subprocess_call, "call", call)
    table = export_costs.measure_tars(export_costs.TARS["on_disk"], small_run(photos), tmp_path, tmp_path)
    assert calls[:5] == ["export", "export", "copy", "copy", "write_with_webdataset"]
    assert calls[5:9] == ["export", "export", "copy", "copy"]
    assert calls.count("write_with_webdataset") == 1
    by_cp = table.spread("cp", "ours_by_it")
    assert by_cp is not None
    assert (by_cp.least, by_cp.greatest) == (0.5, 0.5)
    assert table.reasons() == ["WebDataset's ShardWriter is missing: No module named 'webdataset'"]
    assert list(tmp_path.iterdir()) == []


def test_our_loader_reads_every_photograph_of_the_tars_once(tars: Path) -> None:
    task = Task("", str(tars), 64, 16, 0, image_shape=(3, 32, 32))
    batches = list(ours.load_tars(task)(0))
    assert [tuple(batch.shape) for batch in batches] == [(16, 3, 32, 32)] * 4


def test_a_made_up_tar_has_all_members_for_both_readers(tmp_path: Path) -> None:
    path = tmp_path / "made.tar"
    export_costs.write_empty(path, 20, 700)
    with tarfile.open(path) as tar:
        found = [(one.name, one.size) for one in tar]
    assert found == [
        (f"{number:09d}.{name}", size) for number in range(20) for name, size in (("jpg", 700), ("cls", 1))
    ]
    assert export_costs.visit_members(str(path)) > 0


@pytest.mark.slow
def test_memory_of_an_export_and_the_index_are_measured(photos: Path, tmp_path: Path) -> None:
    memory = export_costs.measure_memory(small_run(photos), tmp_path)
    assert [row.title for row in memory.rows] == ["160", "640"]
    indexing = export_costs.measure_indexing(small_run(photos), tmp_path)
    assert [row.name for row in indexing.rows] == ["ours_small", "tarfile_small", "ours_large", "tarfile_large"]
    for row in indexing.rows:
        spread = indexing.spread(row.name, "index_s")
        assert spread is not None
        assert spread.least > 0
