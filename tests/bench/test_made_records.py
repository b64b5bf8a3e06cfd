"""Made-up shards are real ones."""

from pathlib import Path

from benchmarks.made_records import write_shards
from tfds_torch.storage.tfrecord.framing import read_records


def test_shards_hold_what_the_runs_promise_with_right_checksums(tmp_path: Path) -> None:
    runs = write_shards(tmp_path / "made", 3000, range(64, 201), 7)
    assert len({run.path for run in runs}) == 7
    assert [run.first_index for run in runs] == [sum(run.take for run in runs[:number]) for number in range(7)]
    assert sum(run.take for run in runs) == 3000
    lengths = []
    for run in runs:
        records = list(read_records(run.path))
        assert len(records) == run.take == run.num_in_shard
        lengths += map(len, records)
    assert (min(lengths), max(lengths)) == (64, 200)
    assert len(set(lengths)) == 137  # All of them.


def test_records_may_be_larger_than_the_bytes_that_are_drawn_for_small_ones(tmp_path: Path) -> None:
    (run,) = write_shards(tmp_path, 3, range(2_000_000, 2_000_001), 1)
    assert [len(record) for record in read_records(run.path)] == [2_000_000] * 3
