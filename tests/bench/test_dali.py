"""DALI's index files: what its own script tfrecord2idx writes."""

from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.index_costs import write_shards
from benchmarks.peers.dali import write_index
from tfds_torch.storage.tfrecord.framing import scan_offsets


def test_an_index_has_offset_and_size_of_every_record(tmp_path: Path) -> None:
    (made,) = write_shards(tmp_path / "made", 50, range(1, 200), 1)
    write_index(Path(made.path), tmp_path / "index")
    lines = [tuple(map(int, line.split())) for line in (tmp_path / "index").read_text().splitlines()]
    offsets = scan_offsets(made.path).tolist()
    assert lines == [(start, stop - start) for start, stop in pairwise(offsets)]
    assert len(lines) == 50


def test_a_shard_without_records_has_an_empty_index(tmp_path: Path) -> None:
    (tmp_path / "shard").write_bytes(b"")
    write_index(tmp_path / "shard", tmp_path / "index")
    assert (tmp_path / "index").read_text() == ""


@pytest.mark.parametrize("num_missing", [1, 150, 199])
def test_a_shard_that_was_cut_is_an_error(num_missing: int, tmp_path: Path) -> None:
    (made,) = write_shards(tmp_path / "made", 2, range(184, 185), 1)  # 200 bytes with the framing.
    with open(made.path, "r+b") as file:
        file.truncate(400 - num_missing)
    with pytest.raises(ValueError, match=f"ends within its record 1, at byte {400 - num_missing}$"):
        write_index(Path(made.path), tmp_path / "index")
